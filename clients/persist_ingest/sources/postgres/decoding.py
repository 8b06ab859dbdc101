"""From framed messages to events: changes and truncations of exports, under the schemas they are read with.

Source: sources.md sections 1 (semantics seen) and 2.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist import Schema, UsageError
from persist.arrow import ArrowArray, ArrowField, Numbers, py_buffer
from persist_ingest.sources.port import (
    BadRows,
    Changes,
    Event,
    Keyed,
    SchemaGrew,
    SourceFailure,
    TableAltered,
    Truncated,
)
from persist_ingest.sources.postgres import values
from persist_ingest.sources.postgres.catalog import FULL
from persist_ingest.sources.postgres.column_types import ColumnType, is_same
from persist_ingest.sources.postgres.definition import PublishedTable
from persist_ingest.sources.postgres.form import LEFT_OUT, TableForm
from persist_ingest.sources.postgres.framing import Framed
from persist_ingest.sources.postgres.pgoutput import (
    DELETE,
    INSERT,
    RELATION,
    TRUNCATE,
    UPDATE,
    Chunk,
    Field,
    KeyedRows,
    MessageRows,
    NoOldRow,
    RelationColumn,
    RelationMessage,
    parse_relation,
    parse_truncate,
    read_keyed,
    read_rows,
)
from persist_ingest.sources.tables.definition import ANOTHER_KEY
from persist_ingest.sources.tables.gathering import Bools, Ints
from persist_ingest.sources.tables.naming import free_name

_XIDS_NEAR: Final = 1 << 30
"""How many transactions a look's oldest one is behind its newest, at most."""
_NEW_SOURCE: Final = "snapshot this table again (persist source resnapshot)"


class UpstreamCatalog(Protocol):
    """What neither messages nor definitions say."""

    def column_type(self, oid: int, mod: int) -> ColumnType | None:
        """What a type becomes, which never changes; None when there is no such type any more."""
        ...


@dataclass(frozen=True, slots=True)
class TableExport:
    """A table and the schema it is read with."""

    table: PublishedTable
    schema: Schema

    @property
    def fields(self) -> pa.Schema:
        """Key, then val."""
        return pa.schema([*self.schema.key, *self.schema.val])


@dataclass(frozen=True, slots=True)
class _Bound:
    """How rows of a relation become rows of an export: for each field the column's index (None: nulls) and type.

    ``keys``: the indexes of the columns of its key.
    """

    export: TableExport
    fields: pa.Schema
    columns: int
    plan: tuple[tuple[int | None, ColumnType | None], ...]
    labels: tuple["_Labels | None", ...]
    keys: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Labels:
    """What an enum's values are called now, and which transaction each was called so by.

    SUBTLE: decoded values are called what they were called when they were written. A label that was written and then
    renamed is none of these, or has been since.
    """

    texts: ArrowArray
    since: Ints
    near: int

    @staticmethod
    def of(form: TableForm | None, name: str) -> "_Labels | None":
        labels = [each.labels for each in form.attributes if each.name == name and each.sent] if form else []
        if form is None or not labels or not labels[0]:
            return None
        near = form.horizon + _XIDS_NEAR
        since = wide(np.array([int(version) for _, _, version in labels[0]], np.int64), near)
        return _Labels(pa.array([text for _, text, _ in labels[0]], pa.string()), since, near)

    def holds(self, array: ArrowArray, xids: Ints) -> bool:
        """All of these values, written by these transactions, still are called so."""
        places = pc.index_in(array, value_set=self.texts)
        if places.null_count > array.null_count:
            return False
        valid = np.asarray(array.is_valid())
        since = self.since[np.asarray(places.fill_null(0))]
        return not bool((since > wide(xids, self.near))[valid].any())


def wide(xids: Ints, near: int) -> Ints:
    """Numbers of transactions, which come round every 2^32, as the last ones that they can be before ``near``."""
    found: Ints = near - (near - xids) % (1 << 32)
    return found


class EventDecoder:
    """Events of exports, chunk after chunk. Keeps what relation messages said."""

    def __init__(self, exports: Sequence[TableExport], catalog: UpstreamCatalog) -> None:
        self._catalog = catalog
        self._relations: dict[int, RelationMessage] = {}
        self.look(exports)

    def look(self, exports: Sequence[TableExport]) -> None:
        """What follows is of tables that have these forms now."""
        self._exports = {export.table.oid: export for export in exports}
        self._bound: dict[int, _Bound] = {}

    def events(self, framed: Framed) -> Iterator[Event]:
        """The wanted ones of these messages. Those of an export are in order. Raises SourceFailure, SchemaGrew."""
        chunk = framed.chunk
        changed = (chunk.tags == INSERT) | (chunk.tags == UPDATE) | (chunk.tags == DELETE)
        places = np.flatnonzero(changed & framed.wanted)
        oids = chunk.words(chunk.starts[places] + 1)
        by_oid: Mapping[int, Ints] = {oid: places[oids == oid] for oid in map(int, np.unique(oids))}
        breaks = self._breaks(chunk, framed.wanted)
        for oid in sorted(self._exports.keys() & (by_oid.keys() | breaks.keys())):
            # SUBTLE: others may be behind a table that was read anew, and its own messages from before come with
            # theirs: in forms that it had then, or such as it was stopped for.
            fresh = framed.ends > np.uint64(self._exports[oid].table.through)
            own = by_oid.get(oid, places[:0])
            ends = [(at, to) for at, to in breaks.get(oid, ()) if to is not None or fresh[at]]
            yield from self._of_export(framed, oid, own[fresh[own]], ends)

    def _breaks(self, chunk: Chunk, wanted: Bools) -> dict[int, list[tuple[int, RelationMessage | None]]]:
        """Where an export's rows change their form, or (None) end for good."""
        found: dict[int, list[tuple[int, RelationMessage | None]]] = {}
        for at in np.flatnonzero((chunk.tags == RELATION) | (chunk.tags == TRUNCATE)).tolist():
            if chunk.tags[at] == RELATION:
                relation = parse_relation(chunk.message(at))
                found.setdefault(relation.oid, []).append((at, relation))
            elif wanted[at]:
                for oid in parse_truncate(chunk.message(at)):
                    found.setdefault(oid, []).append((at, None))
        return found

    def _of_export(
        self, framed: Framed, oid: int, places: Ints, breaks: Sequence[tuple[int, RelationMessage | None]]
    ) -> Iterator[Event]:
        begin = 0
        for at, relation in breaks:
            if relation is not None and relation == self._relations.get(oid):
                continue
            end = int(np.searchsorted(places, at))
            if end > begin:
                yield self._changes(framed, oid, places[begin:end])
            begin = end
            if relation is None:
                table = self._exports[oid].table
                yield Truncated(export=table.export, offset=int(framed.ends[at]) - 1, keyed=table.by_key)
            else:
                self._relations[oid] = relation
                self._bound.pop(oid, None)
        if begin < len(places):
            yield self._changes(framed, oid, places[begin:])

    def _changes(self, framed: Framed, oid: int, places: Ints) -> Changes | Keyed:
        bound = self._bound.get(oid)
        if bound is None:
            bound = self._bound[oid] = _bind(self._exports[oid], self._relations.get(oid), self._catalog)
        table = bound.export.table
        try:
            if table.by_key:
                return self._keyed(framed, bound, read_keyed(framed.chunk, places, bound.columns, bound.keys))
            rows = read_rows(framed.chunk, places, bound.columns)
        except NoOldRow as error:
            raise SourceFailure(
                "an update or delete came without its whole old row",
                hint=f"{_identities(table)} before anything else is changed; then {_NEW_SOURCE}",
                export=table.export,
                offset=int(framed.ends[error.at]) - 1,
            ) from None
        if table.partitioned:
            _check_whole(rows, self._relations[oid], table)
        arrays, offsets = _arrays(framed, bound, rows.messages, rows.fields)
        return Changes(
            export=table.export,
            rows=pa.RecordBatch.from_arrays(arrays, schema=bound.fields),
            offsets=offsets,
            diffs=plain(rows.diffs, pa.int64()),
        )

    def _keyed(self, framed: Framed, bound: _Bound, rows: KeyedRows) -> Keyed:
        arrays, offsets = _arrays(framed, bound, rows.messages, rows.fields)
        unchanged = {}
        for field, (at, _) in zip(bound.fields, bound.plan, strict=True):
            same = None if at is None else rows.unchanged[at]
            if same is not None:
                unchanged[field.name] = pa.array(same)
        return Keyed(
            export=bound.export.table.export,
            rows=pa.RecordBatch.from_arrays(arrays, schema=bound.fields),
            offsets=offsets,
            present=pa.array(rows.alive),
            fresh=pa.array(rows.fresh),
            before=plain(rows.before, pa.int64()),
            unchanged=unchanged,
        )


def _arrays(
    framed: Framed, bound: _Bound, messages: Ints, fields: Sequence[Field]
) -> tuple[list[ArrowArray], ArrowArray]:
    """The columns of rows, and their offsets. Raises BadRows, SourceFailure, TableAltered."""
    ends = framed.ends[messages] - np.uint64(1)
    table = bound.export.table
    arrays = [
        _array(framed.chunk, None if at is None else fields[at], kind, field, (table.export, ends))
        for field, (at, kind) in zip(bound.fields, bound.plan, strict=True)
    ]
    xids = framed.xids[messages]
    for field, array, labels in zip(bound.fields, arrays, bound.labels, strict=True):
        if labels is not None and not labels.holds(array, xids):
            raise _altered("values of an enum were renamed after they were written", table, field.name)
    return arrays, plain(ends, pa.uint64())


def _check_whole(rows: MessageRows, relation: RelationMessage, table: PublishedTable) -> None:
    """Old rows are whole. SUBTLE: where a partition's replica identity is its key, the rest of them is sent as nulls.

    What says which identity a row has is the partitioned table, which is FULL.
    """
    others = [
        field.valid
        for attribute, field in zip(relation.attributes, rows.fields, strict=True)
        if attribute.name not in table.key
    ]
    if table.key and others and ((rows.diffs < 0) & ~np.logical_or.reduce(others)).any():
        raise SourceFailure(
            "an update or delete in a partition may have come without its whole old row",
            hint=f"{_identities(table)}; then {_NEW_SOURCE}",
            export=table.export,
        )


def _identities(table: PublishedTable) -> str:
    """What gives a table, or its partitions, the replica identity that it needs."""
    if not table.partitioned:
        return f"ALTER TABLE {table.export} REPLICA IDENTITY FULL"
    parts = table.form.parts if table.form is not None else ()
    others = [f"{part.schema}.{part.name}" for part in parts if part.kind == "r" and part.identity != FULL]
    named = "; ".join(f"ALTER TABLE {each} REPLICA IDENTITY FULL" for each in others)
    return named or "set REPLICA IDENTITY FULL on every partition (it is not inherited)"


def plain(numbers: Numbers, kind: pa.DataType) -> ArrowArray:
    """An array of these numbers; the usual way imports pandas first."""
    return pa.Array.from_buffers(kind, len(numbers), [None, py_buffer(np.ascontiguousarray(numbers))])


def _array(
    chunk: Chunk,
    where: Field | None,
    kind: ColumnType | None,
    field: ArrowField,
    place: tuple[str, npt.NDArray[np.uint64]],
) -> ArrowArray:
    export, offsets = place
    if where is None or kind is None:
        return pa.nulls(len(offsets), field.type)  # type: ignore[call-overload, no-any-return]  # narrower than Arrow is
    span = {"export": export, "column": field.name, "first": int(offsets[0]), "last": int(offsets[-1])}
    try:
        array = values.parse(kind, chunk.data, where.starts, where.lengths, where.valid)
    except BadRows as error:
        raise BadRows(error.message, hint=error.hint, **span, **error.details) from None
    if array.null_count and not field.nullable:
        raise SourceFailure("a key column is null", hint=ANOTHER_KEY, **span)
    return array


def _bind(export: TableExport, relation: RelationMessage | None, catalog: UpstreamCatalog) -> _Bound:
    table = export.table
    if relation is None:
        raise SourceFailure("rows came before their relation", hint="is this protocol 1 of pgoutput?", table=table.name)
    _check_order(table, relation)
    declared = {column.called: column for column in table.columns}
    names = {column.name: column.called for column in table.columns}
    places: dict[str, int] = {}
    for place, attribute in enumerate(relation.attributes):
        if attribute.name in table.excluded:
            continue
        called = names.get(attribute.name, free_name(attribute.name))
        if called in places:
            raise _altered("a column was added that would be called as another one is", table, attribute.name)
        places[called] = place
    fields, plan = export.fields, list[tuple[int | None, ColumnType | None]]()
    for field in fields:
        at = places.get(field.name)
        if at is None:
            # A column that was added later is missing in rows from before.
            plan.append((None, None))
            continue
        attribute = relation.attributes[at]
        now = (attribute.oid, attribute.mod)
        column = declared.get(field.name)
        kind = column.type if column else _added_type(catalog, *now, table)
        same = is_same((column.oid, column.mod), now) if column else True
        if kind is None or kind.arrow != field.type or not same:
            raise _altered("a column was altered", table, field.name)
        _check_text(kind, table, field.name)
        plan.append((at, kind))
    known = set(fields.names)
    added = [relation.attributes[at] for name, at in places.items() if name not in known]
    if added:
        raise SchemaGrew(table.export, _grown(export, added, catalog))
    columns = {at: attribute.name for at, attribute in enumerate(relation.attributes)}
    labels = tuple(_Labels.of(table.form, columns[at]) if at is not None else None for at, _ in plan)
    keys = frozenset(at for at, attribute in enumerate(relation.attributes) if attribute.name in table.key)
    return _Bound(export, fields, len(relation.attributes), tuple(plan), labels, keys)


def _check_order(table: PublishedTable, relation: RelationMessage) -> None:
    """Rows are named by their columns' places: those it had at the last look, without the last ones before they came.

    SUBTLE: names alone do not show columns that were exchanged, or dropped and added again.
    """
    sent = table.form.sent if table.form is not None else []
    names = [attribute.name for attribute in relation.attributes]
    for at, name in enumerate(names):
        if at >= len(sent) or name != sent[at]:
            raise _altered("a column was added and dropped again, or renamed", table, name)
    missing = {column.name for column in table.columns} - set(names)
    if missing:
        raise _altered("a column was dropped or renamed", table, min(missing))


def _check_text(kind: ColumnType, table: PublishedTable, column: str) -> None:
    if kind.naming:
        raise TableAltered(
            "a column names objects of the database, which reads otherwise when one is renamed",
            hint=LEFT_OUT,
            export=table.export,
            column=column,
        )


def _altered(message: str, table: PublishedTable, column: str) -> TableAltered:
    return TableAltered(message, hint=_NEW_SOURCE, export=table.export, column=column)


def _added_type(catalog: UpstreamCatalog, oid: int, mod: int, table: PublishedTable) -> ColumnType | None:
    """What a column becomes that came after the table was read: none of its key."""
    found = catalog.column_type(oid, mod)
    return None if found is None else found.read_as(table.special)


def _grown(export: TableExport, added: Sequence[RelationColumn], catalog: UpstreamCatalog) -> Schema:
    """The schema with these columns, null in all rows from before: the form they are in was checked for that."""
    table, fields = export.table, list(export.schema.val)
    for attribute in added:
        kind = _added_type(catalog, attribute.oid, attribute.mod, table)
        if kind is None:
            raise _altered("a column was added whose type is gone again", table, attribute.name)
        _check_text(kind, table, attribute.name)
        fields.append(pa.field(free_name(attribute.name), kind.arrow))
    try:
        return Schema(export.schema.key, pa.schema(fields))
    except UsageError as error:
        raise SourceFailure(error.message, hint=error.hint, export=table.export, **error.details) from error
