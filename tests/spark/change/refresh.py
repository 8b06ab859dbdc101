"""Orders and line items as TPC-H has them, small: their first population, and the pairs of refresh functions.

RF1 adds new orders with their lines, RF2 takes away as many old ones. Source: TPC-H, sections 2.5 to 2.7 and 4.2.
"""

from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa

_EPOCH = date(1992, 1, 1).toordinal() - date(1970, 1, 1).toordinal()
_MONEY = pa.decimal128(15, 2)


@dataclass(frozen=True, kw_only=True)
class Orders:
    """Orders and their lines."""

    orders: pa.Table
    lines: pa.Table


def key_of(number: int, refresh: int) -> int:
    """The key of an order: of 32 keys 8 are populated, and the next ones are those of the refresh functions."""
    return number // 8 * 32 + number % 8 + 8 * refresh


def made(first: int, count: int, *, refresh: int, seed: int) -> Orders:
    """``count`` orders with 1 to 7 lines each. ``refresh``: 0 for the population, else whose new orders they are."""
    random = np.random.default_rng([seed, refresh])
    keys = np.array([key_of(number, refresh) for number in range(first, first + count)], dtype=np.int64)
    days = random.integers(0, 2400, count)
    orders = pa.table(
        {
            "o_orderkey": keys,
            "o_custkey": random.integers(1, 1500, count),
            "o_orderstatus": random.choice(["F", "O", "P"], count),
            "o_totalprice": _money(random.integers(100_00, 500_000_00, count)),
            "o_orderdate": _days(days),
            "o_clerk": [f"Clerk#{clerk:09}" for clerk in random.integers(0, 1000, count)],
        }
    )
    often = random.integers(1, 8, count)
    total = int(often.sum())
    comments = [None if each == 0 else f"carefully {each}" for each in random.integers(0, 50, total)]
    lines = pa.table(
        {
            "l_orderkey": np.repeat(keys, often),
            "l_linenumber": pa.array(np.concatenate([np.arange(1, each + 1) for each in often]), pa.int32()),
            "l_partkey": random.integers(1, 2000, total),
            "l_quantity": _money(random.integers(1, 51, total) * 100),
            "l_extendedprice": _money(random.integers(900_00, 100_000_00, total)),
            "l_shipdate": _days(np.repeat(days, often) + random.integers(1, 122, total)),
            "l_returnflag": random.choice(["R", "A", "N"], total),
            "l_comment": pa.array(comments, pa.string()),
        }
    )
    return Orders(orders=orders, lines=lines)


def _money(cents: np.ndarray) -> pa.Array:
    return pa.array([int(each) for each in cents], pa.decimal128(15, 0)).cast(pa.decimal128(17, 2)).cast(_MONEY)


def _days(days: np.ndarray) -> pa.Array:
    return pa.array((days + _EPOCH).astype(np.int32), pa.int32()).cast(pa.date32())
