"""What users hand to an append, as bounded chunks of Arrow rows.

Taken: a table, a record batch, a record batch reader or anything with an Arrow C stream, an iterable of tables or
batches, an iterable of ``((key, val), time, diff)``, and ``[]``. Source: architecture.md section 8.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa

from persist.core.data.schema import Schema
from persist.core.data.update import from_rows
from persist.errors import InvalidArgument

UpdatesLike: TypeAlias = Any
"""See the module's text."""

_ROWS_AT_ONCE = 8192
"""Python rows turned into Arrow at once."""

_EXPECTED = (
    "expected an Arrow table, record batch, record batch reader, or an iterable of those or of ((key, val), time, diff)"
)


def tables(updates: UpdatesLike, schema: Schema) -> Iterator[pa.Table]:
    """The updates as tables of any size, in the order given, not normalised. Raises InvalidArgument, SchemaMismatch.

    Pulls from ``updates`` only as far as it is itself pulled.
    """
    if isinstance(updates, pa.Table):
        yield updates
    elif isinstance(updates, pa.RecordBatch):
        yield pa.Table.from_batches([updates])
    elif isinstance(updates, pa.RecordBatchReader):
        yield from _batches(updates)
    elif hasattr(updates, "__arrow_c_stream__"):
        yield from _batches(pa.RecordBatchReader.from_stream(updates))
    elif isinstance(updates, str | bytes | dict) or not isinstance(updates, Iterable):
        raise InvalidArgument("updates of this type are not understood", hint=_EXPECTED, got=type(updates).__name__)
    else:
        yield from _items(iter(updates), schema)


class Chunker:
    """Re-cuts tables into chunks of at most ``rows_max`` rows and about ``bytes_max`` bytes, without copying rows."""

    def __init__(self, *, rows_max: int, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._held: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0

    @property
    def size(self) -> int:
        """About how many bytes ``rest`` would give."""
        return self._bytes

    def push(self, table: pa.Table) -> Iterator[list[pa.Table]]:
        """Take a table in; the chunks that became full, as slices."""
        at = 0
        row_bytes = max(1, table.nbytes // max(1, table.num_rows))
        while at < table.num_rows:
            room = min(self._rows_max - self._rows, (self._bytes_max - self._bytes) // row_bytes)
            if room <= 0 and self._held:
                yield self.rest()
                continue
            take = min(max(1, room), table.num_rows - at)
            self._held.append(table.slice(at, take))
            at, self._rows, self._bytes = at + take, self._rows + take, self._bytes + take * row_bytes

    def rest(self) -> list[pa.Table]:
        """What no full chunk took; empty when there is nothing."""
        held, self._held, self._rows, self._bytes = self._held, [], 0, 0
        return held


def is_instant(updates: UpdatesLike) -> bool:
    """Whether pulling from these updates takes no time worth leaving the event loop for."""
    if isinstance(updates, pa.Table | pa.RecordBatch):
        return True
    return isinstance(updates, list | tuple) and len(updates) <= 256


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    for batch in reader:
        yield pa.Table.from_batches([batch])


def _items(items: Iterator[Any], schema: Schema) -> Iterator[pa.Table]:
    first = next(items, None)
    if first is None:
        return
    everything = itertools.chain([first], items)
    if isinstance(first, pa.RecordBatch | pa.Table):
        yield from map(_table, everything)
        return
    while rows := list(itertools.islice(everything, _ROWS_AT_ONCE)):
        yield from_rows(rows, schema)


def _table(item: Any) -> pa.Table:
    if isinstance(item, pa.RecordBatch):
        return pa.Table.from_batches([item])
    if isinstance(item, pa.Table):
        return item
    raise InvalidArgument("an iterable of Arrow batches holds something else", hint=_EXPECTED, got=type(item).__name__)
