"""From groups of the binlog to events: changes and truncations of exports, under the schemas they are read with.

Source: sources.md sections 1 (semantics seen) and 2.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from persist import CorruptData, Schema, UsageError
from persist.arrow import ArrowArray, ArrowField, py_buffer
from persist_ingest.sources.mysql import table_map as of
from persist_ingest.sources.mysql import values
from persist_ingest.sources.mysql.charsets import Charset, Charsets
from persist_ingest.sources.mysql.column_types import DATED, FIXED, ColumnKind, MySqlType, ZeroDates
from persist_ingest.sources.mysql.definition import Table
from persist_ingest.sources.mysql.log import Group, RowEvent, Statement
from persist_ingest.sources.mysql.row_images import ImageRows, read_images
from persist_ingest.sources.mysql.statements import Effect, effects, words
from persist_ingest.sources.mysql.table_map import MapColumn, parse_form
from persist_ingest.sources.port import BadRows, Changes, Event, SchemaGrew, SourceFailure, TableAltered, Truncated
from persist_ingest.sources.tables.naming import free_name

PENDING_BYTES: Final = 16 << 20
_AGAIN: Final = "snapshot this table again (persist source resnapshot)"
_KINDS: Final[Mapping[int, tuple[ColumnKind, int]]] = {
    of.TINY: (ColumnKind.INT, 1),
    of.SHORT: (ColumnKind.INT, 2),
    of.INT24: (ColumnKind.INT, 3),
    of.LONG: (ColumnKind.INT, 4),
    of.LONGLONG: (ColumnKind.INT, 8),
    of.FLOAT: (ColumnKind.FLOAT, 0),
    of.DOUBLE: (ColumnKind.DOUBLE, 0),
    of.YEAR: (ColumnKind.YEAR, 0),
    of.DATE: (ColumnKind.DATE, 0),
    of.NEWDATE: (ColumnKind.DATE, 0),
    of.GEOMETRY: (ColumnKind.BYTES, 0),
}
_TIMED: Final = {of.DATETIME2: ColumnKind.DATETIME, of.TIMESTAMP2: ColumnKind.TIMESTAMP, of.TIME2: ColumnKind.TIME}
_LABELLED: Final = {of.ENUM: ColumnKind.ENUM, of.SET: ColumnKind.SET}


@dataclass(frozen=True, slots=True)
class LoggedExport:
    """A table and the schema it is read with. ``zero``: what becomes of dates that no calendar has."""

    table: Table
    schema: Schema
    zero: ZeroDates = ZeroDates.FAIL

    @property
    def fields(self) -> pa.Schema:
        """Key, then val."""
        return pa.schema([*self.schema.key, *self.schema.val])


@dataclass(frozen=True, slots=True)
class _Read:
    """How a field comes from a column of the log."""

    place: int
    type: MySqlType
    charset: Charset | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """How rows of a form become rows of an export: for each field what it comes from, None: nulls."""

    columns: tuple[MapColumn, ...]
    fields: pa.Schema
    plan: tuple[_Read | None, ...]


@dataclass(slots=True)
class _Pending:
    """Row events of one form that were not read yet. ``ends``: of each, where its group ends."""

    form: bytes = b""
    bodies: list[bytes] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    bytes: int = 0


class GroupDecoder:
    """Knows the tables of one source, and how each is read."""

    def __init__(
        self,
        exports: Sequence[LoggedExport],
        charsets: Charsets,
        prepared: Callable[[bytes], Group | None] = lambda xid: None,
    ) -> None:
        """``prepared``: gives a distributed transaction that was prepared before the first group that comes."""
        self._exports = {(each.table.database, each.table.name): each for each in exports}
        self._charsets = charsets
        self._pending: dict[tuple[str, str], _Pending] = {}
        self._bound: dict[tuple[str, str], tuple[bytes, _Plan]] = {}
        self._earlier = prepared
        self._prepared: dict[bytes, Group | None] = {}

    @property
    def tables(self) -> list[tuple[str, str]]:
        """Whose rows are wanted."""
        return list(self._exports)

    def events(self, group: Group) -> Iterator[Event]:
        """What a group comes to, and others before it; the rest comes with ``finish``.

        Raises TableAltered and other SourceFailures, each of one export; SchemaGrew.
        """
        if group.prepared:
            self._prepared[group.xid] = group
        elif group.xid:
            yield from self._completed(group)
        else:
            self._check(group, group.end)
            for statement in group.statements:
                yield from self._stated(statement, group.end)
            yield from self._counted(group, group.end)

    def _completed(self, group: Group) -> Iterator[Event]:
        """The rows of a distributed transaction, if that is committed now."""
        xid, end = group.xid, group.end
        is_committed = any(words(each.text)[1:2] == ["COMMIT"] for each in group.statements)
        known = [name for name, export in self._exports.items() if end > export.table.since]
        if xid not in self._prepared and is_committed and known:
            self._prepared[xid] = self._earlier(xid)
        prepared = self._prepared.get(xid)
        # That it is prepared no more counts, too: another one may have its name.
        self._prepared[xid] = None
        if prepared is None:
            if is_committed and known:
                raise _altered(
                    "a distributed transaction (XA) was committed whose rows the log has no more",
                    self._exports[min(known)].table,
                    offset=end,
                )
            return
        with closing(prepared.rows):
            if is_committed:
                self._check(prepared, end)
                yield from self._counted(prepared, end)

    def _counted(self, group: Group, end: int) -> Iterator[Event]:
        """The rows of a group, which count at the end of it, or of what committed it."""
        for event in group.rows:
            name = (event.table.database, event.table.table)
            export = self._exports[name]
            if end <= export.table.since:
                continue
            if not event.whole:
                raise _altered(
                    "a change of this table is logged without all columns of its rows",
                    export.table,
                    hint=f"have binlog_row_image=FULL in every session, then {_AGAIN}",
                    offset=end,
                )
            yield from self._append(name, event, end)

    def finish(self) -> Iterator[Event]:
        """What is left."""
        for group in self._prepared.values():
            if group is not None:
                group.rows.close()
        for name in list(self._pending):
            yield from self._flushed(name)

    def _check(self, group: Group, end: int) -> None:
        """Raise where what happened is not what the rows of a group say."""
        for name in sorted(group.rows.tables()) if group.odd else ():
            if end > self._exports[name].table.since:
                raise _altered(group.odd, self._exports[name].table, offset=end)

    def _stated(self, statement: Statement, end: int) -> Iterator[Event]:
        known = {name for name, export in self._exports.items() if end > export.table.since}
        for name, effect in effects(statement.text, statement.database, known).items():
            table = self._exports[name].table
            if effect is Effect.ALTERED:
                raise _altered(
                    "the table was altered, or changed by a statement whose rows are not logged",
                    table,
                    offset=end,
                    statement=statement.text[:200].decode("utf8", "replace"),
                )
            yield from self._flushed(name)
            yield Truncated(export=table.export, offset=end - 1)

    def _append(self, name: tuple[str, str], event: RowEvent, end: int) -> Iterator[Event]:
        pending = self._pending.get(name)
        if pending is not None and (pending.form != event.table.form or pending.bytes >= PENDING_BYTES):
            yield from self._flushed(name)
            pending = None
        if pending is None:
            pending = self._pending[name] = _Pending(form=event.table.form)
        pending.bodies.append(event.body)
        pending.kinds.append(event.kind)
        pending.ends.append(end)
        pending.bytes += len(event.body)

    def _flushed(self, name: tuple[str, str]) -> Iterator[Event]:
        pending = self._pending.pop(name, None)
        if pending is None:
            return
        export = self._exports[name]
        form, bound = self._bound.get(name, (b"", None))
        if bound is None or form != pending.form:
            bound = self._bind(export, _columns(export.table, pending.form))
            self._bound[name] = pending.form, bound
        rows = read_images(bound.columns, pending.bodies, np.array(pending.kinds, np.int64))
        offsets = (np.array(pending.ends, np.uint64) - np.uint64(1))[rows.events]
        span = {"export": export.table.export, "first": int(pending.ends[0]), "last": int(pending.ends[-1])}
        arrays = [_array(rows, bound, number, each, span) for number, each in enumerate(bound.fields)]
        yield Changes(
            export=export.table.export,
            rows=pa.RecordBatch.from_arrays(arrays, schema=bound.fields),
            offsets=plain(offsets, pa.uint64()),
            diffs=plain(rows.diffs, pa.int64()),
        )

    def _bind(self, export: LoggedExport, columns: tuple[MapColumn, ...]) -> _Plan:
        table = export.table
        if not all(column.name for column in columns):
            raise SourceFailure(
                "the binlog does not say what columns are called",
                hint=f"SET GLOBAL binlog_row_metadata = FULL, then {_AGAIN}",
                export=table.export,
            )
        names = {column.name.lower(): column.called for column in table.columns}
        left_out = {each.lower() for each in table.excluded}
        places: dict[str, int] = {}
        for place, column in enumerate(columns):
            called = names.get(column.name.lower(), free_name(column.name))
            if column.name.lower() in left_out:
                continue
            if called in places:
                raise _altered("a column was added that would be called as another one is", table, column=column.name)
            places[called] = place
        declared = {column.called: column.type for column in table.columns}
        plan = []
        for each in export.fields:
            at = places.get(each.name)
            if at is None and each.name in declared:
                raise _altered("a column was dropped or renamed", table, column=each.name)
            plan.append(None if at is None else self._read(export, columns[at], at, declared.get(each.name), each))
        added = [columns[at] for name, at in places.items() if name not in export.fields.names]
        if added:
            raise SchemaGrew(table.export, self._grown(export, added))
        return _Plan(columns, export.fields, tuple(plan))

    def _read(
        self, export: LoggedExport, column: MapColumn, at: int, declared: MySqlType | None, each: ArrowField
    ) -> _Read:
        found = self._type(column, export.zero)
        is_same = declared is None or declared == found or (declared.kind in FIXED and found.kind is ColumnKind.BYTES)
        kind = declared or found
        if not is_same or kind.arrow != each.type:
            raise _altered("a column was altered", export.table, column=column.name)
        try:
            charset = self._charsets.of(column.collation) if kind.kind is ColumnKind.TEXT else None
        except SourceFailure as error:
            details = {**error.details, "export": export.table.export, "column": column.name}
            raise SourceFailure(error.message, hint=error.hint, **details) from None
        return _Read(at, kind, charset)

    def _grown(self, export: LoggedExport, added: Sequence[MapColumn]) -> Schema:
        """The schema with these columns, null in all rows from before: what added them was looked at for that."""
        fields = [
            *export.schema.val,
            *(pa.field(free_name(column.name), self._type(column, export.zero).arrow) for column in added),
        ]
        try:
            return Schema(export.schema.key, pa.schema(fields))
        except UsageError as error:
            details = {**error.details, "export": export.table.export}
            raise SourceFailure(error.message, hint=error.hint, **details) from error

    def _type(self, column: MapColumn, zero: ZeroDates) -> MySqlType:
        """What a column of the log is."""
        if column.type in _KINDS:
            kind, size = _KINDS[column.type]
            return MySqlType(
                kind=kind,
                size=size,
                unsigned=kind is ColumnKind.INT and column.unsigned,
                zero=zero if kind in DATED else ZeroDates.FAIL,
            )
        if column.type in _TIMED:
            kind = _TIMED[column.type]
            return MySqlType(kind=kind, size=column.meta, zero=zero if kind in DATED else ZeroDates.FAIL)
        if column.type == of.NEWDECIMAL:
            return MySqlType(kind=ColumnKind.DECIMAL, size=column.meta, scale=column.second)
        if column.type == of.BIT:
            return MySqlType(kind=ColumnKind.BIT, size=8 * column.second + column.meta)
        if column.type in _LABELLED:
            charset = self._charsets.of(column.collation)
            return MySqlType(kind=_LABELLED[column.type], labels=_decoded(charset, column.labels))
        if column.collation != of.BINARY:
            return MySqlType(kind=ColumnKind.TEXT)
        return MySqlType(kind=ColumnKind.BYTES, size=column.meta if column.type == of.STRING else 0)


def _columns(table: Table, form: bytes) -> tuple[MapColumn, ...]:
    try:
        return parse_form(form)
    except CorruptData as error:
        raise SourceFailure(error.message, hint=error.hint, export=table.export, **error.details) from None


def _decoded(charset: Charset, labels: tuple[bytes, ...]) -> tuple[str, ...]:
    texts = charset.text(pa.array(labels, pa.binary()).view(pa.string())).to_pylist()
    return tuple(str(text) for text in texts)


def _array(rows: ImageRows, bound: _Plan, number: int, each: ArrowField, span: Mapping[str, object]) -> ArrowArray:
    read = bound.plan[number]
    if read is None:
        return pa.nulls(len(rows.diffs), each.type)  # type: ignore[call-overload, no-any-return]  # narrower than Arrow is
    try:
        column = bound.columns[read.place]
        array = values.logged(read.type, column, read.charset, rows.data, rows.fields[read.place])
    except BadRows as error:
        raise BadRows(error.message, hint=error.hint, column=each.name, **{**span, **error.details}) from None
    return check_key(array, each, str(span["export"]))


def check_key(array: ArrowArray, each: ArrowField, export: str) -> ArrowArray:
    """The values of a field. Raises SourceFailure: one of a key is null."""
    if array.null_count and not each.nullable:
        raise SourceFailure(
            "a key column is null",
            hint="with zeroDates=null a date of the key may be: make the source with zeroDates=text",
            export=export,
            column=each.name,
        )
    return array


def plain(numbers: npt.NDArray[np.generic], kind: pa.DataType) -> ArrowArray:
    """Numbers as an array without nulls."""
    return pa.Array.from_buffers(kind, len(numbers), [None, py_buffer(np.ascontiguousarray(numbers))])


def _altered(message: str, table: Table, *, hint: str = _AGAIN, **details: object) -> TableAltered:
    return TableAltered(message, hint=hint, export=table.export, **details)
