"""What is in a catalog as entries of Describe: fields with names, ids and columns instead of encoded objects.

Each kind has keys that rise, so that a page begins after the last key of the one before: what is there all the while
is returned once, whatever comes and goes. Source: protos/persist/v1/catalog_ddl.proto.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from persist.core.catalog import objects as o
from persist.core.catalog.ddl.privileges import BITS, role_name
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.kinds import COMMENT, CURSOR, HOLD, ITEM, SYSTEM_PRIVILEGE
from persist.core.catalog.values import (
    Acl,
    AuditAlteredV1,
    AuditRenamedV1,
    Id,
    ObjectType,
    RoleRef,
)
from persist.core.time.hold import OnLag
from persist.errors import InvalidArgument
from persist.v1 import catalog_ddl_pb2 as pb
from persist.wire.catalog.ddl import name_message, retain_message, type_message
from persist.wire.catalog.ddl_columns import schema_message

PAGE: Final = 100
PAGE_MAX: Final = 1_000
PAGE_BYTES: Final = 1 << 20
"""Of the entries of a page; a single one may exceed it."""
TOKEN_MAX: Final = 1_000
SYSTEM_ID: Final = "system"
"""The object of privileges on the environment."""

Make: TypeAlias = Callable[[], pb.CatalogEntry]
Listed: TypeAlias = Mapping[str, Make]
"""Entries by key, each made when it is returned."""


class WantedItems(NamedTuple):
    """Of which items: the one with this id, those of these types; None, none: all."""

    id: Id | None = None
    types: frozenset[ObjectType] = frozenset()


def page(listed: Listed, token: str, size: int) -> tuple[list[pb.CatalogEntry], str]:
    """The entries after a token, and the token of the next page; empty when there is none. Raises InvalidArgument."""
    if size > PAGE_MAX or len(token) > TOKEN_MAX:
        raise InvalidArgument("no such page", hint=f"at most {PAGE_MAX} entries, and the token of the page before")
    keys = sorted(listed)
    begin = bisect_right(keys, token) if token else 0
    entries, taken, bytes_ = list[pb.CatalogEntry](), begin, 0
    for key in keys[begin : begin + (size or PAGE)]:
        entry = listed[key]()
        bytes_ += entry.ByteSize()
        if entries and bytes_ > PAGE_BYTES:
            break
        entries.append(entry)
        taken += 1
    return entries, keys[taken - 1] if entries and taken < len(keys) else ""


def listed(view: CatalogView, kind: int, wanted: WantedItems) -> Listed:
    """The entries of a kind that a view shows. Raises InvalidArgument: there is no such kind, or it is not shown."""
    match kind:
        case pb.CATALOG_ENTRY_KIND_DATABASE:
            return {_key(id): partial(_database, view, id) for id in view.databases}
        case pb.CATALOG_ENTRY_KIND_SCHEMA:
            return {_key(id): partial(_schema, view, id) for id in view.schemas}
        case pb.CATALOG_ENTRY_KIND_ITEM:
            return {_key(id): partial(_item, view, id) for id in _items(view, wanted)}
        case pb.CATALOG_ENTRY_KIND_HOLD:
            held = [key.item_id for key in view.objects(HOLD) if wanted.id in (None, key.item_id)]
            return {_key(id): partial(_hold, view, id) for id in held}
        case pb.CATALOG_ENTRY_KIND_ROLE:
            return {_key(role): partial(_role, view, role) for role in view.roles}
        case pb.CATALOG_ENTRY_KIND_PRIVILEGE:
            return dict(_privileges(view))
        case pb.CATALOG_ENTRY_KIND_VARIABLE:
            return {name: partial(_variable, name, value) for name, value in view.variables.items()}
        case pb.CATALOG_ENTRY_KIND_COMMENT:
            return dict(_comments(view))
    raise InvalidArgument("no such kind of entries", hint="see CatalogEntryKind", kind=kind)


def audit_listed(events: Iterable[o.AuditLogKey]) -> Listed:
    """Audit events by their ids."""
    return {f"{event.id:020}": partial(_audit, event) for event in events}


def _key(id: Id | RoleRef) -> str:
    return f"{id.space.value} {id.number:020}"


def _items(view: CatalogView, wanted: WantedItems) -> Iterator[Id]:
    for key, item in view.objects(ITEM).items():
        if wanted.id in (None, key.id) and (not wanted.types or item.item_type in wanted.types):
            yield key.id


def _database(view: CatalogView, id: Id) -> pb.CatalogEntry:
    database = view.databases[id]
    owner = role_name(view, database.owner)
    return pb.CatalogEntry(database=pb.DatabaseEntry(id=str(id), name=database.name, owner=owner))


def _schema(view: CatalogView, id: Id) -> pb.CatalogEntry:
    schema = view.schemas[id]
    of = None if schema.database_id is None else view.databases.get(schema.database_id)
    return pb.CatalogEntry(
        schema=pb.CatalogSchemaEntry(
            id=str(id),
            name=schema.name,
            database="" if of is None else of.name,
            owner=role_name(view, schema.owner),
        )
    )


def _variable(name: str, value: str) -> pb.CatalogEntry:
    return pb.CatalogEntry(variable=pb.VariableEntry(name=name, value=value))


def _item(view: CatalogView, id: Id) -> pb.CatalogEntry:
    item = view.get(id)
    return pb.CatalogEntry(
        item=pb.ItemEntry(
            id=str(item.id),
            type=type_message(item.kind),
            name=name_message(item.name),
            owner=role_name(view, item.owner),
            schema=None if item.schema is None else schema_message(item.schema),
            timeline="" if item.timeline is None else str(item.timeline),
            fed_by="" if item.fed_by is None else str(item.fed_by),
            depends_on=map(str, item.depends_on),
            data="" if item.data is None else str(item.data),
            remap="" if item.remap is None else str(item.remap),
            retain=None if item.retain is None else retain_message(item.retain),
            mode=item.mode,
            multiset=item.multiset,
            query=item.query,
            options=[pb.StatementOption(name=name, value=value) for name, value in item.options],
            sql=item.sql,
        )
    )


def _hold(view: CatalogView, id: Id) -> pb.CatalogEntry:
    row = view.objects(HOLD)[o.HoldKey(id)]
    cursor = view.objects(CURSOR).get(o.CursorKey(id))
    named = o.ItemKey(id) in view.objects(ITEM)
    return pb.CatalogEntry(
        hold=pb.HoldEntry(
            id=str(id),
            name=name_message(view.name_of(id)) if named else None,
            at=row.at,
            max_lag=row.max_lag,
            objects=map(str, row.objects),
            timeline=row.timeline,
            error_on_lag=row.on_lag is OnLag.ERROR,
            auto_advanced_count=row.auto_advanced_count,
            overdue_since=row.overdue_since_ms,
            acknowledged=None if cursor is None else cursor.acknowledged,
        )
    )


def _role(view: CatalogView, role: RoleRef) -> pb.CatalogEntry:
    known = view.roles[role]
    return pb.CatalogEntry(
        role=pb.RoleEntry(id=str(role), name=known.name, superuser=known.attributes.superuser is True)
    )


def _privileges(view: CatalogView) -> Iterator[tuple[str, Make]]:
    for id, database in view.databases.items():
        yield from _granted(view, ObjectType.DATABASE, id, database.acls)
    for id, schema in view.schemas.items():
        yield from _granted(view, ObjectType.SCHEMA, id, schema.acls)
    for id, cluster in view.clusters.items():
        yield from _granted(view, ObjectType.CLUSTER, id, cluster.acls)
    for key, item in view.objects(ITEM).items():
        yield from _granted(view, item.item_type, key.id, item.acls)
    system = [Acl(key.grantee, key.grantor, of.mode_bits) for key, of in view.objects(SYSTEM_PRIVILEGE).items()]
    yield from _granted(view, ObjectType.SYSTEM, None, system)


def _granted(view: CatalogView, kind: ObjectType, id: Id | None, acls: Iterable[Acl]) -> Iterator[tuple[str, Make]]:
    for acl in acls:
        where = SYSTEM_ID if id is None else _key(id)
        key = f"{kind.value} {where} {_key(acl.grantee)} {_key(acl.grantor)}"
        yield key, partial(_privilege, view, kind, id, acl)


def _privilege(view: CatalogView, kind: ObjectType, id: Id | None, acl: Acl) -> pb.CatalogEntry:
    return pb.CatalogEntry(
        privilege=pb.PrivilegeEntry(
            type=type_message(kind),
            object=SYSTEM_ID if id is None else str(id),
            grantee=role_name(view, acl.grantee),
            grantor=role_name(view, acl.grantor),
            privileges="".join(letter for letter, bit in BITS.items() if acl.mode_bits & bit),
        )
    )


def _comments(view: CatalogView) -> Iterator[tuple[str, Make]]:
    for key, comment in view.objects(COMMENT).items():
        text = f"{key.object_type.value} {_key(key.id)} {key.column or 0:010}"
        yield text, partial(_comment, key, comment)


def _comment(key: o.CommentKey, comment: o.Comment) -> pb.CatalogEntry:
    entry = pb.CommentEntry(
        type=type_message(key.object_type), object=str(key.id), column=key.column, text=comment.text
    )
    return pb.CatalogEntry(comment=entry)


def _audit(event: o.AuditLogKey) -> pb.CatalogEntry:
    details = event.details
    entry = pb.AuditEventEntry(
        id=event.id,
        event=event.event_type.value,
        type=type_message(event.object_type),
        role=event.user or "",
        at_ms=event.occurred_at_ms,
        object=details.id,
    )
    if isinstance(details, AuditRenamedV1):
        entry.name, entry.property, entry.before, entry.after = (
            details.new_name,
            "name",
            details.old_name,
            details.new_name,
        )
    elif isinstance(details, AuditAlteredV1):
        entry.name, entry.property = details.name, details.property
        if details.before is not None:
            entry.before = details.before
        if details.after is not None:
            entry.after = details.after
    else:
        entry.name = details.name
    return pb.CatalogEntry(audit_event=entry)
