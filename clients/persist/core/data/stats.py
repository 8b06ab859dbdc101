"""Bounds: of keys, truncated outwards, and of columns, within a budget of bytes.

A bound is never narrower than the truth, so a reader may skip what lies outside. Parquet's own statistics are not used:
they ignore NaN, show -0.0 and vanish for long strings. Source: kernel.md section 7.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowColumn
from persist.core.data.encoding import encode_key
from persist.core.data.schema import DIFF, Schema
from persist.core.data.types import T, is_nested
from persist.core.shard.batch import DIFF_STATS, ZERO_DIFF, ColumnStats

FENCE_BYTES: Final = 24
"""Bytes kept of the first key of a block."""

BOUND_BYTES: Final = 64
"""Bytes kept of a part's key bounds."""

VALUE_BYTES: Final = 32
"""Bytes kept of a column's bounds."""

STATS_BYTES: Final = 1024
"""Bytes all statistics of a part may take."""


def truncate_down(key: bytes, size: int) -> bytes:
    """At most ``size`` bytes, not above the key."""
    return key[:size]


def truncate_up(key: bytes, size: int) -> bytes | None:
    """About ``size`` bytes, not below the key nor below any key that starts like it; None when there are none."""
    if len(key) <= size:
        return key
    kept = key[:size].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


class StatsBuilder:
    """Gathers statistics of the flat columns of a part, and of its diffs where all are above 0, table by table."""

    def __init__(self, schema: Schema) -> None:
        self._columns = {field.name: _Column() for field in [*schema.key, *schema.val] if not is_nested(field.type)}
        lone = schema.key.field(0) if len(schema.key) == 1 else None
        self._lone_key = None if lone is None or T.is_floating(lone.type) else lone.name
        self._diffs = _Column()

    def add(self, table: pa.Table, edges: tuple[bytes, bytes] | None = None) -> None:
        """Count these rows in. ``edges``: canonical bytes of the first and last key, where the rows are sorted."""
        for name, column in self._columns.items():
            column.add(table.column(name), edges if name == self._lone_key else None)
        self._diffs.add(table.column(DIFF.name))

    def finish(self, budget: int = STATS_BYTES) -> tuple[ColumnStats, ...]:
        """Statistics in the order of columns, diffs last; over the budget the widest columns are left out first."""
        stats = [column.finish(name) for name, column in self._columns.items()]
        diffs = self._diffs.finish(DIFF_STATS)
        last = (diffs,) if (diffs.lower or b"") > ZERO_DIFF else ()
        size = sum(map(_size, (*stats, *last)))
        for widest in sorted(stats, key=_size, reverse=True):
            if size <= budget:
                break
            stats.remove(widest)
            size -= _size(widest)
        return (*stats, *last)


class _Column:
    def __init__(self) -> None:
        self._nulls = 0
        self._has_nan = False
        self._lower: bytes | None = None
        self._upper: bytes | None = None

    def add(self, values: ArrowColumn, edges: tuple[bytes, bytes] | None = None) -> None:
        """``edges``: the canonical bytes of the extremes, if there are no nulls."""
        nulls = values.null_count
        self._nulls += nulls
        if T.is_floating(values.type):
            nan = pc.is_nan(values)
            if bool(pc.any(nan).as_py()):
                self._has_nan = True
                values = values.filter(pc.invert(nan))
        if len(values) == values.null_count:
            return
        lower, upper = _extremes(values) if edges is None or nulls else edges
        self._lower = lower if self._lower is None else min(lower, self._lower)
        self._upper = upper if self._upper is None else max(upper, self._upper)

    def finish(self, name: str) -> ColumnStats:
        lower = None if self._lower is None else truncate_down(self._lower, VALUE_BYTES)
        upper = None if self._upper is None else truncate_up(self._upper, VALUE_BYTES)
        return ColumnStats(name=name, null_count=self._nulls, has_nan=self._has_nan, lower=lower, upper=upper)


def _extremes(values: ArrowColumn) -> tuple[bytes, bytes]:
    given = values.type
    if T.is_string(given) or T.is_binary(given):
        # A value that stands alone is its marker and its bytes.
        ends = pc.min_max(values)
        lower, upper = (b"\2" + ends[name].as_buffer().to_pybytes() for name in ("min", "max"))
        return lower, upper
    # Arrow finds no extremes of durations.
    comparable = values.cast(pa.int64()) if T.is_duration(given) else values
    found = pc.min_max(comparable)
    # Through arrays, not Python values: those cannot hold nanoseconds.
    pair = pa.concat_arrays([pa.repeat(found["min"], 1), pa.repeat(found["max"], 1)])
    lower, upper = encode_key([pair]).to_pylist()
    return lower, upper  # type: ignore[return-value]  # narrower than Arrow is


def _size(stats: ColumnStats) -> int:
    return 8 + len(stats.name.encode()) + len(stats.lower or b"") + len(stats.upper or b"")
