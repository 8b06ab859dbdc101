"""From framed messages to events: changes and truncations of exports, under the schemas they are read with.

Source: sources.md sections 1 (semantics seen) and 2.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from persist import Schema, UsageError
from pyspark_persist.sources.port import BadRows, Changes, Event, SchemaGrew, SourceFailure, Truncated
from pyspark_persist.sources.postgres import values
from pyspark_persist.sources.postgres.column_types import ColumnType, is_same
from pyspark_persist.sources.postgres.definition import Column, Table
from pyspark_persist.sources.postgres.framing import Framed
from pyspark_persist.sources.postgres.pgoutput import (
    DELETE,
    INSERT,
    RELATION,
    TRUNCATE,
    UPDATE,
    Chunk,
    Field,
    NoOldRow,
    Relation,
    parse_relation,
    parse_truncate,
    read_rows,
)
from pyspark_persist.sources.postgres.values import Bools, Ints

_NEW_SOURCE: Final = "make a new source for this table"


class Catalog(Protocol):
    """What messages do not say of tables, as the database has it now."""

    def column(self, table: int, name: str) -> Column | None:
        """A column of a table; None when there is none (any more)."""
        ...

    def column_type(self, oid: int, mod: int) -> ColumnType | None:
        """What a type becomes; None when it is not supported."""
        ...

    def has_default_of_old_rows(self, table: Table, name: str) -> bool:
        """Rows from before the column have a value in it that was never sent."""
        ...


@dataclass(frozen=True, slots=True)
class Export:
    """A table and the schema it is read with."""

    table: Table
    schema: Schema

    @property
    def fields(self) -> pa.Schema:
        """Key, then val."""
        return pa.schema([*self.schema.key, *self.schema.val])


@dataclass(frozen=True, slots=True)
class _Bound:
    """How rows of a relation become rows of an export: for each field the column's index (None: nulls) and type."""

    export: Export
    fields: pa.Schema
    columns: int
    plan: tuple[tuple[int | None, ColumnType | None], ...]


class Decoder:
    """Events of exports, chunk after chunk. Keeps what relation messages said."""

    def __init__(self, exports: Sequence[Export], catalog: Catalog) -> None:
        self._exports = {export.table.oid: export for export in exports}
        self._catalog = catalog
        self._relations: dict[int, Relation] = {}
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
            yield from self._of_export(framed, oid, by_oid.get(oid, places[:0]), breaks.get(oid, ()))

    def _breaks(self, chunk: Chunk, wanted: Bools) -> dict[int, list[tuple[int, Relation | None]]]:
        """Where an export's rows change their form, or (None) end for good."""
        found: dict[int, list[tuple[int, Relation | None]]] = {}
        for at in np.flatnonzero((chunk.tags == RELATION) | (chunk.tags == TRUNCATE)).tolist():
            if chunk.tags[at] == RELATION:
                relation = parse_relation(chunk.message(at))
                found.setdefault(relation.oid, []).append((at, relation))
            elif wanted[at]:
                for oid in parse_truncate(chunk.message(at)):
                    found.setdefault(oid, []).append((at, None))
        return found

    def _of_export(
        self, framed: Framed, oid: int, places: Ints, breaks: Sequence[tuple[int, Relation | None]]
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
                yield Truncated(export=self._exports[oid].table.export, offset=int(framed.ends[at]) - 1)
            else:
                self._relations[oid] = relation
                self._bound.pop(oid, None)
        if begin < len(places):
            yield self._changes(framed, oid, places[begin:])

    def _changes(self, framed: Framed, oid: int, places: Ints) -> Changes:
        bound = self._bound.get(oid)
        if bound is None:
            bound = self._bound[oid] = _bind(self._exports[oid], self._relations.get(oid), self._catalog)
        name = bound.export.table.export
        try:
            rows = read_rows(framed.chunk, places, bound.columns)
        except NoOldRow as error:
            raise SourceFailure(
                "an update or delete came without its whole old row",
                hint=f"ALTER TABLE {name} REPLICA IDENTITY FULL before anything else is changed; then {_NEW_SOURCE}",
                export=name,
                offset=int(framed.ends[error.at]) - 1,
            ) from None
        ends = framed.ends[rows.messages] - np.uint64(1)
        arrays = [
            _array(framed.chunk, None if at is None else rows.fields[at], kind, field, (name, ends))
            for field, (at, kind) in zip(bound.fields, bound.plan, strict=True)
        ]
        return Changes(
            export=name,
            rows=pa.RecordBatch.from_arrays(arrays, schema=bound.fields),
            offsets=plain(ends, pa.uint64()),
            diffs=plain(rows.diffs, pa.int64()),
        )


def plain(numbers: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """An array of these numbers; the usual way imports pandas first."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def _array(
    chunk: Chunk,
    where: Field | None,
    kind: ColumnType | None,
    field: pa.Field,
    place: tuple[str, npt.NDArray[np.uint64]],
) -> pa.Array:
    export, offsets = place
    if where is None or kind is None:
        return pa.nulls(len(offsets), field.type)
    span = {"export": export, "column": field.name, "first": int(offsets[0]), "last": int(offsets[-1])}
    try:
        array = values.parse(kind, chunk.data, where.starts, where.lengths, where.valid)
    except BadRows as error:
        raise BadRows(error.message, hint=error.hint, **span, **error.details) from None
    if array.null_count and not field.nullable:
        raise SourceFailure("a key column is null", hint=_NEW_SOURCE, **span)
    return array


def _bind(export: Export, relation: Relation | None, catalog: Catalog) -> _Bound:
    table = export.table
    if relation is None:
        raise SourceFailure("rows came before their relation", hint="is this protocol 1 of pgoutput?", table=table.name)
    places = {attribute.name: at for at, attribute in enumerate(relation.attributes)}
    declared = {column.name: column for column in table.columns}
    fields, plan = export.fields, list[tuple[int | None, ColumnType | None]]()
    for field in fields:
        at = places.get(field.name)
        if at is None:
            _check_absent(table, field.name, declared, catalog)
            plan.append((None, None))
            continue
        attribute = relation.attributes[at]
        now = (attribute.oid, attribute.mod)
        column = declared.get(field.name)
        kind = column.type if column else catalog.column_type(*now)
        same = is_same((column.oid, column.mod), now) if column else True
        if kind is None or kind.arrow != field.type or not same:
            raise SourceFailure(
                "a column was altered", hint=_NEW_SOURCE, export=table.export, column=field.name, declared=field.type
            )
        plan.append((at, kind))
    known = set(fields.names)
    added = [attribute.name for attribute in relation.attributes if attribute.name not in known]
    if added:
        raise SchemaGrew(table.export, _grown(export, relation, added, catalog))
    return _Bound(export, fields, len(relation.attributes), tuple(plan))


def _check_absent(table: Table, name: str, declared: Mapping[str, Column], catalog: Catalog) -> None:
    """A column that was added later may be missing in rows from before; any other was dropped or renamed."""
    if name in declared or catalog.column(table.oid, name) is None:
        raise SourceFailure(
            "a column was dropped or renamed", hint=_NEW_SOURCE, export=table.export, column=name, table=table.name
        )


def _grown(export: Export, relation: Relation, added: Sequence[str], catalog: Catalog) -> Schema:
    table = export.table
    attributes = {attribute.name: attribute for attribute in relation.attributes}
    fields = list(export.schema.val)
    for name in added:
        kind = catalog.column_type(attributes[name].oid, attributes[name].mod)
        column = catalog.column(table.oid, name)
        details = {"export": table.export, "column": name}
        if column is None:
            raise SourceFailure("a column was added and dropped again", hint=_NEW_SOURCE, **details)
        if kind is None:
            raise SourceFailure("a column was added whose type is not supported", hint=_NEW_SOURCE, **details)
        if catalog.has_default_of_old_rows(table, name):
            raise SourceFailure(
                "a column was added with a default, and earlier rows' values were never sent",
                hint=f"{_NEW_SOURCE}; next time add the column without a default and set that afterwards",
                **details,
            )
        fields.append(pa.field(name, kind.arrow))
    try:
        return Schema(export.schema.key, pa.schema(fields))
    except UsageError as error:
        raise SourceFailure(error.message, hint=error.hint, export=table.export, **error.details) from error
