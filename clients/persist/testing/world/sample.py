"""Rows for simulated worlds: which ones are appended at which time, and how they look when they are read."""

import random
from collections.abc import Sequence

import pyarrow as pa

from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.testing.ledger import Update, Violation, net

SCHEMA = Schema(key={"id": pa.int64()}, val={"name": pa.string()})


def definite(time: int) -> list[Update]:
    """What is in the definite shard at a time: some times nothing, some times a retraction of what was."""
    if time % 3 == 1:
        return []
    rows = [(time % 17, f"d{time}", time, 1), (time % 5, "again", time, 1)]
    if time >= 9 and time % 9 == 0:
        rows.append(((time - 9) % 17, f"d{time - 9}", time, -1))
    return rows


def some_rows(entropy: random.Random, number: int, name: str, lower: int, upper: int, mine: list[int]) -> list[Update]:
    """Fresh rows, and now and then a retraction of one that is in the shard. Half of the time none."""
    if entropy.random() < 0.4:
        return []
    count = entropy.choice([1, 1, 2, 9])
    rows = [(number * 10 + at, name, entropy.randrange(lower, upper), 1) for at in range(count)]
    if mine and entropy.random() < 0.4:
        rows.append((mine.pop(entropy.randrange(len(mine))), name, upper - 1, -1))
    return rows


def table(rows: Sequence[Update]) -> pa.Table:
    """Rows as a writer takes them."""
    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(SCHEMA.updates.types)]
    return pa.Table.from_arrays(columns, schema=SCHEMA.updates)


def rows_of(found: pa.Table) -> list[Update]:
    """Updates as tuples."""
    return list(zip(*(found.column(name).to_pylist() for name in ("id", "name", "ts", "diff")), strict=True))


def contents(found: pa.Table) -> dict[tuple[int, str], int]:
    """Rows of a snapshot; each once."""
    names = ("id", "name", "diff")
    rows = list(zip(*(found.column(name).to_pylist() for name in names), strict=True))
    sums = net(((key, val), diff) for key, val, diff in rows)
    if len(sums) != len(rows):
        raise Violation("I5: a snapshot has a row twice, or one of no diff")
    return sums


def time_of(frontier: Antichain) -> int:
    """The time of a frontier that is not closed."""
    assert frontier.time is not None
    return frontier.time
