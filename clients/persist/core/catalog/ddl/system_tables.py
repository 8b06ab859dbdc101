"""System collections: tables that are stored nowhere, whose rows are computed from a view of the catalog.

``mz_catalog.mz_holds`` and ``mz_catalog.mz_hold_objects`` are those of design document 5, ``mz_comments`` stands beside
them; all others are in ``persist_catalog``. Source: design document 5, Monitoring; collections: names, the hold.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa

from persist.core.catalog.ddl.described import Described
from persist.core.catalog.ddl.privileges import letters, may
from persist.core.catalog.ddl.resolve import MZ_CATALOG, PERSIST_CATALOG
from persist.core.catalog.ddl.variables import VARIABLES
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.kinds import COMMENT, HOLD, ITEM, SYSTEM_CONFIGURATION
from persist.core.catalog.lag import HoldStanding, standing_of
from persist.core.catalog.objects import AuditLogKey, CommentKey, HoldKey, ItemKey, SystemConfigurationKey
from persist.core.catalog.values import AuditAlteredV1, AuditRenamedV1, Id, ObjectType, Retain, RoleRef, Space
from persist.core.data.schema import Schema
from persist.core.frontier import CLOSED, MINIMUM, Antichain
from persist.core.time.hold import NamedHold

Row: TypeAlias = tuple[Any, ...]
TEXT: Final = pa.string()
U64: Final = pa.uint64()
FLAG: Final = pa.bool_()


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What the catalog does not know by itself: uppers and sinces of collections, as far as they are known, what holds
    retain, the wall clock, the audit events, and the role that asks: values are for roles that may read them."""

    uppers: Mapping[Id, Antichain] = field(default_factory=dict)
    sinces: Mapping[Id, Antichain] = field(default_factory=dict)
    now_ms: int = 0
    retained_bytes: Mapping[Id, int] = field(default_factory=dict)
    events: Sequence[AuditLogKey] = ()
    role: RoleRef | None = None


NOTHING_LIVE: Final = Live()


@dataclass(frozen=True, slots=True)
class SystemCollection:
    """One of them. ``needs_events``: its rows are made from ``Live.events``."""

    schema_name: str
    name: str
    schema: Schema
    make: Callable[[CatalogView, Live], Iterable[Row]]
    needs_events: bool = False

    def rows(self, view: CatalogView, live: Live = NOTHING_LIVE) -> pa.Table:
        """Its rows now. Columns: those of its schema, without ``ts`` and ``diff``."""
        columns = pa.schema([*self.schema.key, *self.schema.val])
        rows = [dict(zip(columns.names, row, strict=True)) for row in self.make(view, live)]
        return pa.Table.from_pylist(rows, columns)


def _schema(keys: Mapping[str, pa.DataType], vals: Mapping[str, pa.DataType], nulls: str = "") -> Schema:
    may_be_null = set(nulls.split())
    needed = {name: pa.field(name, of, nullable=False) for name, of in keys.items()}
    return Schema(needed, {name: pa.field(name, of, nullable=name in may_be_null) for name, of in vals.items()})


# ---- holds -----------------------------------------------------------------------------------------------------------


def _holds(view: CatalogView) -> list[tuple[Id, NamedHold]]:
    ids = sorted(key.item_id for key in view.objects(HOLD) if ItemKey(key.item_id) in view.objects(ITEM))
    return [(id, view.hold(id)) for id in ids if view.objects(HOLD)[HoldKey(id)].objects]


def _mz_holds(view: CatalogView, _: Live) -> Iterable[Row]:
    return ((str(id), str(view.item(id).schema_id), view.item(id).name, hold.at) for id, hold in _holds(view))


def _mz_hold_objects(view: CatalogView, _: Live) -> Iterable[Row]:
    return ((str(id), on) for id, hold in _holds(view) for on in hold.objects)


def _life_of_holds(view: CatalogView, live: Live) -> Iterable[Row]:
    for id, hold in _holds(view):
        standing = _standing(view, hold, live)
        yield (
            str(id),
            hold.name,
            view.item(id).item_type.value,
            str(hold.timeline),
            hold.at,
            hold.max_lag,
            hold.on_lag.value,
            hold.deadline_ms,
            standing.state.value,
            standing.reason,
            hold.overdue_since_ms,
            hold.last_ack_ms,
            hold.auto_advanced_count,
            hold.last_auto_advance_ms,
            live.retained_bytes.get(id),
        )


def _standing(view: CatalogView, hold: NamedHold, live: Live) -> HoldStanding:
    known = {id: Id.parse(id) for id in hold.objects}
    there = {id for id, each in known.items() if ItemKey(each) in view.objects(ITEM)}
    uppers = {id: live.uppers[each] for id, each in known.items() if each in live.uppers}
    # What is not in the catalog any more is given up whole.
    given = {id: live.sinces.get(each, MINIMUM) if id in there else CLOSED for id, each in known.items()}
    return standing_of(
        hold, uppers, given, live.now_ms, called=lambda id: str(view.name_of(known[id])) if id in there else id
    )


# ---- items -----------------------------------------------------------------------------------------------------------


def _head(it: Described) -> Row:
    return str(it.id), it.name.database, it.name.schema or "", it.name.item, str(it.owner)


def _retained(retain: Retain | None) -> int | None:
    return None if retain is None else retain.by


def _objects(view: CatalogView, _: Live) -> Iterable[Row]:
    for it in view.items():
        comment = view.objects(COMMENT).get(CommentKey(it.kind, it.id))
        text = None if comment is None else comment.text
        yield (*_head(it), it.kind.value, it.id.space is Space.SYSTEM, letters(it.acls), text)


def _tables(view: CatalogView, _: Live) -> Iterable[Row]:
    for kind in (ObjectType.TABLE, ObjectType.SUBSOURCE):
        for it in view.items(kind):
            source = None if it.fed_by is None else str(it.fed_by)
            timeline = it.timeline or (view.get(it.fed_by).timeline if it.fed_by is not None else None)
            yield (*_head(it), str(timeline), it.mode, it.multiset, it.data, source, _retained(it.retain))


def _sources(view: CatalogView, _: Live) -> Iterable[Row]:
    for it in view.items(ObjectType.SOURCE):
        yield (*_head(it), dict(it.options).get("type", ""), str(it.timeline), it.claims_epoch, it.remap)


def _views(view: CatalogView, _: Live) -> Iterable[Row]:
    return ((*_head(it), it.query) for it in view.items(ObjectType.VIEW))


def _materialized_views(view: CatalogView, live: Live) -> Iterable[Row]:
    for it in view.items(ObjectType.MATERIALIZED_VIEW):
        every = None if it.refresh is None else it.refresh.every
        yield (*_head(it), it.query, every, it.data, _retained(it.retain), *going(view, it, live.role))


def _indexes(view: CatalogView, live: Live) -> Iterable[Row]:
    for it in view.items(ObjectType.INDEX):
        columns = dict(it.options).get("columns", "")
        head = *_head(it), str(it.depends_on[0]), columns, it.data, _retained(it.retain)
        yield (*head, *going(view, it, live.role))


def going(view: CatalogView, it: Described, role: RoleRef | None) -> tuple[str, str, int | None]:
    """Of what is kept up its state, ``ok`` or ``stalled``; why, for a role that may read it, as reasons may name its
    values; and since when, in milliseconds since 1970."""
    stall = view.stalls.get(it.id)
    if stall is None:
        return "ok", "", None
    may_read = role is not None and may(view, role, "r", it)
    return "stalled", stall.reason if may_read else UNTOLD, stall.since_ms


def _columns(view: CatalogView, _: Live) -> Iterable[Row]:
    for it in view.items():
        if it.schema is None:
            continue
        keys = len(it.schema.key)
        for position, column in enumerate([*it.schema.key, *it.schema.val], 1):
            yield str(it.id), position, column.name, str(column.type), column.nullable, position <= keys


def _dependencies(view: CatalogView, _: Live) -> Iterable[Row]:
    for it in view.items():
        on = dict.fromkeys((*it.depends_on, *(() if it.fed_by is None else (it.fed_by,))))
        yield from ((str(it.id), str(each)) for each in on)


def _databases(view: CatalogView, _: Live) -> Iterable[Row]:
    return ((str(id), each.name, str(each.owner), letters(each.acls)) for id, each in view.databases.items())


def _schemas(view: CatalogView, _: Live) -> Iterable[Row]:
    for id, each in view.schemas.items():
        database = None if each.database_id is None else str(each.database_id)
        yield str(id), database, each.name, str(each.owner), letters(each.acls)


def _roles(view: CatalogView, _: Live) -> Iterable[Row]:
    return ((str(id), each.name, bool(each.attributes.superuser)) for id, each in view.roles.items())


def _variables(view: CatalogView, _: Live) -> Iterable[Row]:
    for name, value in view.variables.items():
        is_set = SystemConfigurationKey(name) in view.objects(SYSTEM_CONFIGURATION)
        yield name, value, VARIABLES[name].default, is_set, VARIABLES[name].about


def _events(_: CatalogView, live: Live) -> Iterable[Row]:
    for event in live.events:
        details = event.details
        before = after = None
        match details:
            case AuditRenamedV1():
                name, before, after = details.new_name, details.old_name, details.new_name
            case AuditAlteredV1():
                name, before, after = f"{details.name} {details.property}", details.before, details.after
            case _:
                name = details.name
        event_type, kind = event.event_type.value, event.object_type.value
        yield event.id, event.occurred_at_ms, event.user, event_type, kind, details.id, name, before, after


def _mz_comments(view: CatalogView, _: Live) -> Iterable[Row]:
    for key, comment in sorted(view.objects(COMMENT).items(), key=lambda one: (one[0].id, one[0].column or 0)):
        yield str(key.id), key.object_type.value.replace("_", "-"), key.column, comment.text


_ITEM: Final = {"database_name": TEXT, "schema_name": TEXT, "name": TEXT, "owner_id": TEXT}
_ID: Final = {"id": TEXT}
_NULLS: Final = "database_name comment source_id data_shard remap_shard retain every stalled_since_ms"
_GOING: Final[dict[str, pa.DataType]] = {"state": TEXT, "reason": TEXT, "stalled_since_ms": U64}
UNTOLD: Final = "for roles that may read it"
"""For why something is stalled."""


def _of_items(**more: pa.DataType) -> Schema:
    return _schema(_ID, {**_ITEM, **more}, _NULLS)


MZ_HOLDS: Final = SystemCollection(
    MZ_CATALOG, "mz_holds", _schema(_ID, {"schema_id": TEXT, "name": TEXT, "at": U64}), _mz_holds
)
MZ_HOLD_OBJECTS: Final = SystemCollection(
    MZ_CATALOG, "mz_hold_objects", _schema({"hold_id": TEXT, "on_id": TEXT}, {}), _mz_hold_objects
)
MZ_COMMENTS: Final = SystemCollection(
    MZ_CATALOG,
    "mz_comments",
    _schema({"id": TEXT, "object_type": TEXT}, {"object_sub_id": pa.int32(), "comment": TEXT}, "object_sub_id"),
    _mz_comments,
)
"""As Materialize has it: ``object_sub_id`` is the place of a column, from 1; null: the whole is commented on."""
_LIFE: Final = _schema(
    _ID,
    {
        "name": TEXT,
        "kind": TEXT,
        "timeline": TEXT,
        "at": U64,
        "max_lag": U64,
        "on_lag": TEXT,
        "deadline_ms": U64,
        "state": TEXT,
        "reason": TEXT,
        "inactive_since_ms": U64,
        "last_ack_ms": U64,
        "auto_advanced_count": U64,
        "last_auto_advance_ms": U64,
        "retained_bytes": U64,
    },
    "deadline_ms inactive_since_ms last_auto_advance_ms retained_bytes",
)
_AUDIT: Final = _schema(
    {"id": U64},
    {
        "occurred_at_ms": U64,
        "role": TEXT,
        "event_type": TEXT,
        "object_type": TEXT,
        "object_id": TEXT,
        "name": TEXT,
        "before": TEXT,
        "after": TEXT,
    },
    "role before after",
)


def _ours(name: str, schema: Schema, make: Callable[[CatalogView, Live], Iterable[Row]]) -> SystemCollection:
    return SystemCollection(PERSIST_CATALOG, name, schema, make)


SYSTEM_COLLECTIONS: Final[tuple[SystemCollection, ...]] = (
    MZ_HOLDS,
    MZ_HOLD_OBJECTS,
    MZ_COMMENTS,
    _ours("holds", _LIFE, _life_of_holds),
    _ours("objects", _of_items(kind=TEXT, is_system=FLAG, privileges=TEXT, comment=TEXT), _objects),
    _ours(
        "tables",
        _of_items(timeline=TEXT, mode=TEXT, multiset=FLAG, data_shard=TEXT, source_id=TEXT, retain=U64),
        _tables,
    ),
    _ours("sources", _of_items(type=TEXT, timeline=TEXT, claims_epoch=FLAG, remap_shard=TEXT), _sources),
    _ours("views", _of_items(query=TEXT), _views),
    _ours(
        "materialized_views",
        _of_items(query=TEXT, every=U64, data_shard=TEXT, retain=U64, **_GOING),
        _materialized_views,
    ),
    _ours("indexes", _of_items(on_id=TEXT, columns=TEXT, data_shard=TEXT, retain=U64, **_GOING), _indexes),
    _ours(
        "columns",
        _schema({"id": TEXT, "position": U64}, {"name": TEXT, "type": TEXT, "nullable": FLAG, "is_key": FLAG}),
        _columns,
    ),
    _ours("dependencies", _schema({"id": TEXT, "on_id": TEXT}, {}), _dependencies),
    _ours("databases", _schema(_ID, {"name": TEXT, "owner_id": TEXT, "privileges": TEXT}), _databases),
    _ours(
        "schemas",
        _schema(_ID, {"database_id": TEXT, "name": TEXT, "owner_id": TEXT, "privileges": TEXT}, "database_id"),
        _schemas,
    ),
    _ours("roles", _schema(_ID, {"name": TEXT, "is_superuser": FLAG}), _roles),
    _ours(
        "variables",
        _schema({"name": TEXT}, {"value": TEXT, "default": TEXT, "is_set": FLAG, "about": TEXT}),
        _variables,
    ),
    SystemCollection(PERSIST_CATALOG, "audit_events", _AUDIT, _events, needs_events=True),
)
"""All of them."""

BY_NAME: Final[Mapping[tuple[str, str], SystemCollection]] = {
    (each.schema_name, each.name): each for each in SYSTEM_COLLECTIONS
}
"""The same by schema and name."""
