"""What users hand to an append, as bounded chunks of Arrow rows.

Taken: a table, a record batch, a record batch reader or anything with an Arrow C stream, an iterable of tables or
batches, an iterable of dicts of columns, an iterable of ``((key, val), time, diff)``, and ``[]``. Source:
architecture.md section 8.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from persist.core.data.schema import DIFF, TS, Schema
from persist.core.data.update import from_rows, laid_out
from persist.core.frontier import Antichain
from persist.errors import InvalidArgument, SchemaMismatch
from persist.typed import AnyValue

UpdatesLike: TypeAlias = Any
"""See the module's text."""

_ROWS_AT_ONCE = 8192
"""Python rows turned into Arrow at once."""

_EXPECTED = (
    "expected an Arrow table, record batch, record batch reader, or an iterable of those, of dicts of columns, or of "
    "((key, val), time, diff)"
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
        """Take a table in; the chunks that became full, as slices. Raises InvalidArgument: its buffers lack bytes."""
        at = 0
        row_bytes = max(1, laid_out(table).nbytes // max(1, table.num_rows))
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


def with_defaults(batch: pa.RecordBatch | pa.Table, ts: int | None = 0) -> pa.Table:
    """The rows at ``ts`` and with a diff of +1 where those columns are missing. ``ts`` None: left as they are."""
    table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
    if ts is not None and TS.name not in table.schema.names:
        table = table.append_column(TS, pa.array(np.full(table.num_rows, ts, np.uint64)))
    if DIFF.name not in table.schema.names:
        table = table.append_column(DIFF, pa.array(np.ones(table.num_rows, np.int64)))
    return table


def within(table: pa.Table, lower: Antichain, upper: Antichain) -> pa.Table:
    """The rows as updates of ``[lower, upper)``: a diff that is missing is +1, a ts the only time there is.

    Raises SchemaMismatch for rows without a ts in an interval of several times.
    """
    if TS.name in table.schema.names:
        return with_defaults(table)
    at, end = lower.time, upper.time
    if table.num_rows and (at is None or end is None or end > at + 1):
        raise SchemaMismatch(
            "rows without a ts, and the interval holds several times",
            hint="add a column ts, append an interval of one time, or use append_at_upper",
            lower=lower,
            upper=upper,
        )
    return with_defaults(table, at or 0)


def is_instant(updates: UpdatesLike) -> bool:
    """Whether pulling from these updates takes no time worth leaving the event loop for."""
    if isinstance(updates, pa.Table | pa.RecordBatch):
        return True
    return isinstance(updates, list | tuple) and len(updates) <= 256


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    for batch in reader:
        yield pa.Table.from_batches([batch])


def _items(items: Iterator[AnyValue], schema: Schema) -> Iterator[pa.Table]:
    first = next(items, None)
    if first is None:
        return
    everything = itertools.chain([first], items)
    if isinstance(first, pa.RecordBatch | pa.Table):
        yield from map(_table, everything)
        return
    if isinstance(first, Mapping):
        given = [field for field in (TS, DIFF) if field.name in first]
        while found := list(itertools.islice(everything, _ROWS_AT_ONCE)):
            yield _of_dicts(found, pa.schema([*schema.key, *schema.val, *given]), {field.name for field in given})
        return
    while rows := list(itertools.islice(everything, _ROWS_AT_ONCE)):
        yield from_rows(rows, schema)


def _of_dicts(rows: Sequence[AnyValue], fields: pa.Schema, needed: set[str]) -> pa.Table:
    known = set(fields.names)
    for row in rows:
        if not isinstance(row, Mapping) or not needed <= set(row) <= known:
            hint = f"of {fields.names}; all of them with {sorted(needed)}" if needed else f"of {fields.names}"
            unknown = sorted(map(str, set(row) - known)) if isinstance(row, Mapping) else []
            more = {"unknown": ", ".join(unknown)[:80]} if unknown else {}
            raise SchemaMismatch("a row is a dict of columns", hint=hint, got=repr(row)[:80], **more)
    try:
        return pa.Table.from_pylist([dict(row) for row in rows], schema=fields)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument("a value does not fit its column", hint=str(error)[:200]) from error


def _table(item: AnyValue) -> pa.Table:
    if isinstance(item, pa.RecordBatch):
        return pa.Table.from_batches([item])
    if isinstance(item, pa.Table):
        return item
    raise InvalidArgument("an iterable of Arrow batches holds something else", hint=_EXPECTED, got=type(item).__name__)
