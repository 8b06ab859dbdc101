"""Consolidation of one bounded piece: equal (key, val, ts) become one row with the sum of their diffs; zeros vanish.

Source: kernel.md sections 2 and 7; design 001, Consolidation.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from persist.arrow import Numbers, array_of
from persist.core.data.encoding import I64, U64, Bools, one_chunk
from persist.core.data.gather import gather
from persist.core.data.order import Permutation, order_in_groups, settle, sort_rows, tied
from persist.core.data.schema import DIFF, TS, Schema
from persist.errors import InvalidArgument

SORT_ROWS = 1 << 20
"""Rows sorted at once."""

SORT_BYTES = 256 << 20
"""Arrow bytes sorted at once: far below what 32-bit string offsets can hold."""

_FEW: Final = 256
"""Up to this many rows a kernel takes longer to call than to do its work."""


def consolidate_piece(
    table: pa.Table, schema: Schema, since: int, runs: I64 | None = None, keys: pa.LargeBinaryArray | None = None
) -> pa.Table:
    """The piece sorted by (key, val, ts) with times advanced to ``since``, one row per distinct (key, val, ts).

    ``runs``: rows where a new sorted run starts; other descents raise CorruptData. ``keys``: canonical bytes of the
    key columns, where they are at hand. Raises InvalidArgument when a sum of diffs leaves i64.
    """
    if not len(table):
        return table.select(schema.updates.names)
    ts, diff = table.column(TS.name).to_numpy(), table.column(DIFF.name).to_numpy()
    advanced = advance(ts, since)
    perm, tie = _ordered(table, schema, advanced, runs, keys)
    if tie.any():
        rows, sums = _sum_ties(perm, tie, diff)
    elif perm is not None and advanced is ts and len(ts) <= _FEW and diff.all() and _has_schema(table, schema):
        # Nothing but the order changes: for few rows one call costs less than a call per column.
        return table.take(array_of(perm))
    else:
        rows, sums = _drop_zeros(perm, diff)
    names = schema.updates.names[:-2]
    if rows is None:
        taken = [one_chunk(table.column(name)) for name in names]
    else:
        # One column at a time: a copy as one chunk does not outlive its turn.
        taken = [gather(one_chunk(table.column(name)), rows) for name in names]
        advanced = advanced[rows]
    arrays = [*taken, pa.array(advanced, TS.type), pa.array(sums, DIFF.type)]
    return pa.Table.from_arrays(arrays, schema=schema.updates)


def sort_piece(table: pa.Table, schema: Schema, runs: I64) -> pa.Table:
    """The piece sorted by (key, val, ts), every row of it kept. ``runs``: as consolidate_piece takes them."""
    perm, _ = _ordered(table, schema, table.column(TS.name).to_numpy(), runs, None)
    if perm is None:
        return table
    columns = [gather(one_chunk(table.column(name)), perm) for name in schema.updates.names]
    return pa.Table.from_arrays(columns, schema=schema.updates)


def _ordered(
    table: pa.Table, schema: Schema, ts: U64, runs: I64 | None, keys: pa.LargeBinaryArray | None
) -> tuple[Permutation, Bools]:
    """The order by (key, val, ts), and which rows are equal in all three to the one before them."""
    perm, tie = sort_rows([table.column(name) for name in schema.key.names], runs, keys)
    if not tie.any():
        return perm, tie
    if len(schema.val):
        perm, tie = settle(perm, tie, [table.column(name) for name in schema.val.names])
    return _order_times(perm, tie, ts)


def _has_schema(table: pa.Table, schema: Schema) -> bool:
    return bool(table.schema.equals(schema.updates, check_metadata=True))


def advance(ts: U64, since: int) -> U64:
    """Times below ``since`` become ``since``; the very same array when none are."""
    if not since or not len(ts) or int(ts.min()) >= since:
        return ts
    # SUBTLE: with a Python int numpy might compute in float64 and lose the low bits of large times.
    return np.maximum(ts, np.uint64(since))


def checked_sum(diffs: I64) -> int:
    """The sum of diffs. Raises InvalidArgument when it leaves i64."""
    if not len(diffs):
        return 0
    largest = max(int(diffs.max()), -int(diffs.min()))
    total = int(diffs.sum()) if largest * len(diffs) < 1 << 63 else sum(diffs.tolist())
    if not -(1 << 63) <= total < 1 << 63:
        raise _overflow()
    return total


def _order_times(perm: Permutation, tie: Bools, ts: U64) -> tuple[Permutation, Bools]:
    positions = tied(tie)
    if not len(positions):
        return perm, tie
    rows = positions if perm is None else perm[positions]
    times = ts[rows]
    same = tie[positions]
    if bool((same[1:] & (times[1:] < times[:-1])).any()):
        order = order_in_groups(np.cumsum(~same), times)
        times = times[order]
        perm = np.arange(len(tie)) if perm is None else perm
        perm[positions] = rows[order]
    same[1:] &= times[1:] == times[:-1]
    tie = tie.copy()
    tie[positions] = same
    return perm, tie


def _sum_ties(perm: Permutation, tie: Bools, diff: I64) -> tuple[Permutation, I64]:
    if not tie.any():
        return _drop_zeros(perm, diff)
    starts = np.flatnonzero(~tie)
    sums = _sums(diff if perm is None else diff[perm], starts)
    keep = sums != 0
    firsts = starts[keep]
    return firsts if perm is None else perm[firsts], sums[keep]


def _sums(diff: I64, starts: I64) -> I64:
    largest = max(int(diff.max()), -int(diff.min()))
    sums: I64 = np.add.reduceat(diff, starts)
    group_max = int(np.diff(starts, append=len(diff)).max())
    if largest * group_max >= 1 << 63:
        # int64 would wrap around silently: sum as Python integers, only for such enormous diffs.
        exact: Numbers = np.add.reduceat(diff.astype(object), starts)
        if any(not -(1 << 63) <= total < 1 << 63 for total in exact):
            raise _overflow()
    return sums


def _drop_zeros(perm: Permutation, diff: I64) -> tuple[Permutation, I64]:
    sums = diff if perm is None else diff[perm]
    keep = sums != 0
    if bool(keep.all()):
        return perm, sums
    return np.flatnonzero(keep) if perm is None else perm[keep], sums[keep]


def _overflow() -> InvalidArgument:
    return InvalidArgument("a sum of diffs leaves 64 bits", hint="diffs are i64; write smaller ones")
