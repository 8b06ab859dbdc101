"""ALTER TABLE … ADD COLUMN: tables get columns, and what was made of them before goes on with those it was made of.

A view, a cursor or a sink that says ``*``, joins by common names, or names a column without its table would else come
to mean something else. Source: docs/adr/0022-columns-are-added.md.
"""

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from persist.core.catalog import objects as o
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.ddl.planning.context import Planning
from persist.core.catalog.ddl.statements import AddColumns, AddedColumn
from persist.core.catalog.errors import UniquenessViolation, UnknownObject
from persist.core.catalog.kinds import ITEM
from persist.core.catalog.values import Id, KnownColumns, ObjectType
from persist.core.data.codec import ArrowCodec
from persist.core.data.schema import Schema
from persist.errors import InvalidArgument

QUERYING = frozenset({ObjectType.VIEW, ObjectType.MATERIALIZED_VIEW, ObjectType.CURSOR, ObjectType.SINK})
"""What follows the columns of what it reads by a query, and none of its own. An index has a schema."""


def add_columns(it: Planning, statement: AddColumns) -> Executed:
    """ALTER TABLE name ADD COLUMN …, by the owner: behind the columns that there are, null in rows that there are."""
    tag = "ALTER TABLE"
    try:
        table = it.owned(statement.name, ObjectType.TABLE)
    except UnknownObject:
        if not statement.if_exists:
            raise
        return Executed(tag, None, str(statement.name), f"{statement.name} does not exist, skipping")
    if table.kind is not ObjectType.TABLE or table.schema is None:
        raise InvalidArgument(
            "a source says what columns this has",
            hint="add it upstream: what it feeds gets it with the first row that has it",
            name=str(table.name),
            kind=table.kind.words,
        )
    added, there = _wanted(table, table.schema, statement.columns)
    notice = f"column {', '.join(there)} of {table.name} exists, skipping" if there else ""
    if not added:
        return Executed(tag, table.id, str(table.name), notice)
    if not isinstance(table.schema.codec, ArrowCodec):
        raise InvalidArgument(
            "the rows of this table are made by a codec of its own",
            hint="make another table with columns, and copy the rows",
            name=str(table.name),
            codec=table.schema.codec_name,
        )
    _grow(it, table, table.schema, added)
    return Executed(tag, table.id, str(table.name), notice)


def follow_schema(it: Planning, fed: Described, schema: Schema) -> bool:
    """What a source feeds gets the columns that its shard has besides, by ``schema``; whether there are any."""
    if fed.schema is None:
        return False
    known = {*fed.schema.key.names, *fed.schema.val.names}
    added = [field for field in schema.val if field.name not in known]
    if added:
        _grow(it, fed, fed.schema, added)
    return bool(added)


def _grow(it: Planning, table: Described, before: Schema, added: "Iterable[pa.Field[pa.DataType]]") -> None:
    schema = Schema(before.key, pa.schema([*before.val, *added]))
    _keep_known(it, table)
    item = it.view.item(table.id)
    details = replace(item.details, schema=schema.to_bytes())
    it.put(ITEM, o.ItemKey(table.id), replace(item, details=details))
    it.grown[table.id] = None
    names = (*schema.key.names, *schema.val.names)
    it.altered(table.kind, table.id, str(table.name), "columns", ", ".join(table.column_names), ", ".join(names))


def _wanted(
    table: Described, schema: Schema, columns: Iterable[AddedColumn]
) -> tuple[list["pa.Field[pa.DataType]"], list[str]]:
    """The columns that are new, and the names of those that are there and need not be new.

    Raises UniquenessViolation; InvalidArgument, TypeNotSupported (a name or a type that no column may have).
    """
    known = {name.lower(): name for name in (*schema.key.names, *schema.val.names)}
    added, there = [], []
    for each in columns:
        name = known.get(each.name.lower())
        if name is None:
            known[each.name.lower()] = each.name
            added.append(pa.field(each.name, each.type))
        elif each.if_not_exists:
            there.append(name)
        else:
            raise UniquenessViolation(
                "the table has a column of this name",
                hint="names differ by more than case: take another one, or ADD COLUMN IF NOT EXISTS",
                table=str(table.name),
                column=name,
            )
    return added, there


def _keep_known(it: Planning, table: Described) -> None:
    """What reads the table by a query goes on with the columns that it has now, unless it knows fewer already."""
    # Whatever comes to read it meanwhile was made of the columns that there are now, too.
    it.tx.depend_on([ITEM])
    changed, keeping = [], []
    for id in it.view.dependants(table.id):
        item = it.view.item(id)
        if item.item_type in QUERYING and not _knows(item.details.known, table.id):
            known = (*item.details.known, KnownColumns(table.id, table.column_names))
            changed.append((o.ItemKey(id), replace(item, details=replace(item.details, known=known))))
            keeping.append((item.item_type, id))
    it.put_all(ITEM, changed)
    for kind, id in keeping:
        it.altered(kind, id, str(it.view.name_of(id)), f"columns of {table.name}", None, ", ".join(table.column_names))


def _knows(known: Iterable[KnownColumns], id: Id) -> bool:
    return any(each.id == id for each in known)
