"""Merging sorted runs into one, consolidated, in bounded memory.

A step takes, from every run, the rows whose keys lie below a cut: the smallest key at which some run may have more rows
than are in memory. Such rows are complete, so they are sorted together and emitted. When one key fills a whole buffer
the cut is made inside the key, by val; when one (key, val) does, its rows are folded into a carry. Rows that only one
run has in a step pass through as they are. Source: kernel.md section 3.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray
from persist.core.data.consolidation import consolidate_piece
from persist.core.data.encoding import edge_keys, encode_key, one_chunk
from persist.core.data.merging.cursors import (
    RUN_BYTES_MAX,
    Key,
    KeyOrder,
    PartSource,
    Piece,
    RunCursor,
    raw_values,
    unsorted,
)
from persist.core.data.merging.heads import Heads
from persist.core.data.order import may_repeat
from persist.core.data.schema import TS, Schema
from persist.core.data.types import T

__all__ = ["LargeKey", "PartSource", "merge"]

STEP_ROWS: Final = 1 << 17
"""Rows of several runs sorted together in one step: what fits the cache."""

STEP_BYTES: Final = 64 << 20
"""Arrow bytes of a step, when rows are wide."""

Take = list[tuple[RunCursor, int]]
"""How many rows to take from which cursors."""


class LargeKey(Exception):
    """Of a key that is summed whole, more rows differ than may be held. All rows of keys below it were given.

    ``key``: its canonical bytes.
    """

    def __init__(self, key: bytes) -> None:
        super().__init__("a key has more rows than may be held")
        self.key = key


def merge(
    runs: Sequence[Sequence[PartSource]],
    schema: Schema,
    *,
    since: int,
    batch_rows: int = 65_536,
    batch_bytes: int = RUN_BYTES_MAX,
    by_val: bool = True,
    key_bytes_max: int | None = None,
) -> Iterator[pa.Table]:
    """Tables whose concatenation is all runs as one, sorted by (key, val, ts), times advanced to ``since``, summed.

    Holds about ``batch_rows`` rows or ``batch_bytes`` per run that is open, and three times that while sorting. A run
    is opened when the merge reaches it. ``by_val`` False: the parts were read without some val columns, so their rows
    are sorted by key alone and not consolidated; then a key's distinct rows must fit in memory, in ``key_bytes_max``.
    Raises CorruptData when a run is found unsorted, InvalidArgument when a sum of diffs leaves i64, LargeKey.
    """
    order = KeyOrder(schema)
    cursors = [RunCursor(parts, order, batch_rows, batch_bytes) for parts in runs]
    return _Merge(cursors, schema, since, by_val, key_bytes_max).tables()


class _Merge:
    def __init__(
        self, cursors: list[RunCursor], schema: Schema, since: int, by_val: bool, key_bytes_max: int | None
    ) -> None:
        self._heads = Heads(cursors)
        self._schema = schema
        self._since = since
        self._by_val = by_val
        self._key_bytes_max = key_bytes_max
        self._carry: Piece | None = None
        self._carry_of: tuple[Key, bytes] | None = None

    def tables(self) -> Iterator[pa.Table]:
        while self._heads.open():
            cut = self._heads.cut()
            live = self._heads.out(cut)
            take = self._complete(live, cut)
            if take:
                yield from self._emit([cursor.take(rows) for cursor, rows in take])
            else:
                assert cut is not None
                yield from self._inside_key([*live, *self._heads.out(cut, through=True)], cut)
        yield from self._emit([])

    def _complete(self, live: list[RunCursor], cut: Key | None) -> Take:
        """Rows below the cut, or below a lower one when that would be more than should be sorted at once."""
        take = [(cursor, cursor.rows if cut is None else cursor.below(cut)) for cursor in live]
        take = [(cursor, rows) for cursor, rows in take if rows]
        if len(take) < 2:
            return take
        rows = sum(count for _, count in take)
        size = sum(cursor.peek(count).nbytes for cursor, count in take)
        excess = max(rows / STEP_ROWS, size / STEP_BYTES)
        if excess <= 1:
            return take
        widest, most = max(take, key=lambda item: item[1])
        lower = widest.key_at(int(most / excess))
        smaller = [(cursor, cursor.below(lower)) for cursor, _ in take]
        return [(cursor, count) for cursor, count in smaller if count] or take

    def _emit(self, pieces: list[Piece]) -> Iterator[pa.Table]:
        """The pieces and the carry as one sorted, consolidated table; each piece is sorted. Nothing when empty."""
        if self._carry is not None:
            pieces = [piece for piece in (self._carry, *pieces) if len(piece.table)]
            self._carry, self._carry_of = None, None
        if not pieces:
            return
        if len(pieces) == 1 and self._is_final(pieces[0].table):
            yield pieces[0].table
            return
        table = self._consolidated(pieces)
        if len(table):
            yield table

    def _consolidated(self, pieces: list[Piece]) -> pa.Table:
        starts = np.cumsum([len(piece.table) for piece in pieces[:-1]], dtype=np.int64)
        table = pa.concat_tables([piece.table for piece in pieces])
        names = self._schema.key.names
        values = raw_values([table.column(name) for name in names])
        if values is not None:
            # The values order rows as their canonical bytes do, which need not be made then.
            table = table.set_column(table.schema.get_field_index(names[0]), table.field(names[0]), values)
            return consolidate_piece(table, self._schema, self._since, starts, values.cast(pa.large_binary()))  # type: ignore[arg-type]  # no nulls here
        keys = [self._keys(piece) for piece in pieces] if any(piece.keys is not None for piece in pieces) else []
        return consolidate_piece(table, self._schema, self._since, starts, pa.concat_arrays(keys) if keys else None)

    def _keys(self, piece: Piece) -> pa.LargeBinaryArray:
        return (
            encode_key([piece.table.column(name) for name in self._schema.key.names])
            if piece.keys is None
            else piece.keys
        )

    def _is_final(self, piece: pa.Table) -> bool:
        """A sorted piece that needs no work: no time to advance, no two rows to sum. Raises CorruptData if unsorted."""
        if not self._by_val or (self._since and pc.min(piece.column(TS.name)).as_py() < self._since):
            return False
        if not _ascends(one_chunk(piece.column(0))):
            raise unsorted()
        # Parts read under rewritten times hold rows that have become equal.
        names = [TS.name, *self._schema.key.names, *self._schema.val.names]
        return not may_repeat([piece.column(name) for name in names])

    def _inside_key(self, live: list[RunCursor], key: Key) -> Iterator[pa.Table]:
        """No row lies below the cut: its key fills a buffer. Take the rows of that key whose val is complete."""
        spans = [(cursor, cursor.through(key)) for cursor in live]
        spans = [(cursor, rows) for cursor, rows in spans if rows]
        if not self._by_val or not len(self._schema.val):
            yield from self._fold((key, b""), [cursor.take(rows) for cursor, rows in spans])
            return
        names = self._schema.val.names
        vals = [encode_key([cursor.peek(rows).column(name) for name in names]) for cursor, rows in spans]
        if any(val[-1].as_py() < val[0].as_py() for val in vals):
            raise unsorted()
        endings = [
            (val[-1].as_py(), rows == cursor.rows and cursor.more and cursor.frontier <= key)
            for (cursor, rows), val in zip(spans, vals, strict=True)
        ]
        cut = min(ending for ending, goes_on in endings if goes_on)
        bound = pa.scalar(cut, pa.large_binary())
        take = [(cursor, _first(pc.less(val, bound))) for (cursor, _), val in zip(spans, vals, strict=True)]
        taken = [cursor.take(rows) for cursor, rows in take if rows]
        if taken:
            yield from self._emit(taken)
            return
        take = [(cursor, _first(pc.less_equal(val, bound))) for (cursor, _), val in zip(spans, vals, strict=True)]
        yield from self._fold((key, cut), [cursor.take(rows) for cursor, rows in take if rows])

    def _fold(self, carry_of: tuple[Key, bytes], pieces: list[Piece]) -> Iterator[pa.Table]:
        """Keep rows of one (key, val), or key, for later: at most one per distinct time."""
        if self._carry_of != carry_of:
            yield from self._emit([])
        held = [] if self._carry is None else [self._carry]
        folded = self._consolidated([*held, *pieces])
        if self._key_bytes_max is not None and folded.nbytes > self._key_bytes_max:
            raise LargeKey(edge_keys([folded.column(name) for name in self._schema.key.names])[0])
        self._carry, self._carry_of = Piece(folded), carry_of


def _first(flags: pa.BooleanArray) -> int:
    """How many rows the flags hold for; they must be the first ones."""
    count = int(pc.sum(flags).as_py() or 0)
    if count and not bool(pc.all(flags[:count]).as_py()):
        raise unsorted()
    return count


def _ascends(column: ArrowArray) -> bool:
    """No row of a key column lies below the row before it, as far as that is cheap to check."""
    if T.is_nested(column.type) or T.is_floating(column.type) or len(column) < 2:
        return True
    nulls = column.null_count
    if nulls and column[:nulls].null_count < nulls:
        return False
    values = column[nulls:]
    return bool(pc.all(pc.less_equal(values[:-1], values[1:])).as_py() is not False)
