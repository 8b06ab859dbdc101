"""DROP of whatever kind, with all that depends on it or not at all; shards given back.

Source: design document 5, DROP; collections: who leads.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from persist.core.catalog import objects as o
from persist.core.catalog.ddl import privileges as p
from persist.core.catalog.ddl.dependencies import along, closure, listed, refusal
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.ddl.planning.context import Planning
from persist.core.catalog.ddl.planning.creating import gone_key
from persist.core.catalog.ddl.resolve import databases, unknown
from persist.core.catalog.ddl.statements import Drop, Leave, QualifiedName
from persist.core.catalog.kinds import (
    COMMENT,
    CURSOR,
    DATABASE,
    HOLD,
    ITEM,
    ROLE,
    SCHEMA,
    STORAGE_COLLECTION_METADATA,
    UNFINALIZED_SHARD,
    AnyKind,
)
from persist.core.catalog.values import AuditEventType, AuditNamedV1, Id, ObjectType, RoleRef, Space, Unit
from persist.core.ids import ShardId
from persist.core.time.errors import DependentObjects
from persist.errors import InvalidArgument, UsageError


def drop(it: Planning, statement: Drop) -> Executed:
    """DROP kind names [CASCADE]. What goes along is named in the notice."""
    tag = f"DROP {statement.kind.words.upper()}"
    if statement.kind is ObjectType.ROLE:
        return _drop_roles(it, tag, statement)
    missing: list[str] = []
    roots: dict[Id, None] = {}
    schemas: dict[Id, None] = {}
    chosen: dict[Id, None] = {}
    for name in statement.names:
        try:
            if statement.kind is ObjectType.DATABASE:
                chosen[_database(it, name)] = None
            elif statement.kind is ObjectType.SCHEMA:
                schemas[_schema(it, name)] = None
            else:
                roots[_item(it, name, statement.kind).id] = None
        except UsageError as refused:
            if not statement.if_exists or not isinstance(refused, type(unknown("", ""))):
                raise
            missing.append(str(name))
    # What is made of these meanwhile is not to be left without them.
    it.tx.depend_on([ITEM, SCHEMA, HOLD])
    first = next(iter((*chosen, *schemas, *roots)), None)
    inside = {id: None for id, row in it.view.schemas.items() if row.database_id in chosen}
    held = {id: None for schema in (*schemas, *inside) for id in it.view.in_schema(schema)}
    _check_empty(it, statement, inside if chosen else {}, held)
    label = _label(it, statement, first)
    gone = _with_dependants(it, (*roots, *held), label, cascade=statement.cascade)
    _check_not_ingested(it, gone)
    notice = along([str(it.view.name_of(id)) for id in gone if id not in roots])
    forget_items(it, gone)
    for schema in (*schemas, *inside):
        _forget_schema(it, schema)
    for database in chosen:
        row = it.view.databases[database]
        _forget_comments(it, ObjectType.DATABASE, database)
        it.uncounted(ObjectType.DATABASE, database)
        it.put(DATABASE, o.DatabaseKey(database), None)
        it.audit(AuditEventType.DROP, ObjectType.DATABASE, AuditNamedV1(str(database), row.name))
    notices = [f"{statement.kind.words} {', '.join(missing)} does not exist, skipping"] if missing else []
    return Executed(tag, first, label, "; ".join([*notices, *([notice] if notice else [])]))


def leave(it: Planning, statement: Leave) -> Executed:
    """The item is forgotten, its shard stays and is no item's any more; of a source with all that it feeds.

    What a source feeds is left by itself where the source ends it: as long as it does not, who ingests adopts it again.
    """
    found = it.owned(statement.name, _left_as(it, statement.name))
    it.tx.depend_on([ITEM, HOLD])
    left = closure(it.view, (found.id,), along_only=True) if found.kind is ObjectType.SOURCE else [found.id]
    left = [id for id in left if it.view.get(id).kind is not ObjectType.INDEX]
    gone = _with_dependants(it, (found.id,), str(found.name), cascade=statement.cascade)
    notice = along([str(it.view.name_of(id)) for id in gone if id not in left])
    forget_items(it, gone, left=left)
    return Executed("LEAVE", found.id, str(found.name), notice)


def _left_as(it: Planning, name: QualifiedName) -> ObjectType:
    kind = it.item(name).kind
    return kind if kind in (ObjectType.SOURCE, ObjectType.SUBSOURCE) else ObjectType.TABLE


def _check_not_ingested(it: Planning, gone: Iterable[Id]) -> None:
    """What a pipeline ingests stands upstream, too, and that goes before its shards. Raises InvalidArgument."""
    for id in gone:
        each = it.view.get(id)
        if each.kind is ObjectType.SOURCE and each.remap is not None:
            raise InvalidArgument(
                "a pipeline ingests this source, and what it keeps upstream would stay there",
                hint=f"in a shell: persist source drop {each.name.item} --commit; --cascade takes along what needs it",
                name=str(each.name),
            )


def forget_items(it: Planning, ids: Iterable[Id], *, left: Collection[Id] = ()) -> None:
    """Delete items with all that is kept of them; their shards are to be finalized, but those of ``left``."""
    gone = {id: it.view.get(id) for id in ids}
    for id, each in gone.items():
        if it.view.is_held_by(id):
            it.changed.update(dict.fromkeys(map(Id.parse, it.view.hold(id).objects)))
            it.held.pop(id, None)
        elif each.data is not None:
            it.changed.update(dict.fromkeys(it.view.collections(each.depends_on)))
    it.put_all(HOLD, [(o.HoldKey(id), None) for id in gone if o.HoldKey(id) in it.view.objects(HOLD)])
    it.put_all(CURSOR, [(o.CursorKey(id), None) for id in gone if o.CursorKey(id) in it.view.objects(CURSOR)])
    for id, each in gone.items():
        _forget_comments(it, each.kind, id)
        key = o.StorageCollectionMetadataKey(id)
        if key in it.view.objects(STORAGE_COLLECTION_METADATA):
            it.put(STORAGE_COLLECTION_METADATA, key, None)
        for shard in (each.data, each.remap):
            if shard is not None:
                _forget_shard(it, id, shard, stays=id in left)
        it.uncounted(ObjectType.TABLE, id)
        it.audit(AuditEventType.DROP, each.kind, AuditNamedV1(str(id), str(each.name)))
    it.put_all(ITEM, [(o.ItemKey(id), None) for id in gone])


def _forget_shard(it: Planning, id: Id, shard: ShardId, *, stays: bool) -> None:
    it.keep(gone_key(shard), o.Setting(str(id)))
    if id in it.created:
        # Nothing was made yet.
        del it.created[id]
    elif stays:
        it.left[shard] = None
    else:
        it.put(UNFINALIZED_SHARD, o.UnfinalizedShardKey(str(shard)), Unit())
        it.dropped[shard] = None


def _with_dependants(it: Planning, roots: Iterable[Id], label: str, *, cascade: bool) -> list[Id]:
    """All that goes when these do, each after what depends on it. Raises DependentObjects without ``cascade``."""
    roots = tuple(roots)
    gone = closure(it.view, roots)
    with_them = set(closure(it.view, roots, along_only=True))
    unasked = [id for id in gone if id not in with_them]
    if unasked and not cascade:
        raise refusal(it.view, label, unasked)
    return list(dict.fromkeys((*_holds_gone(it, gone), *gone)))


def _holds_gone(it: Planning, gone: Iterable[Id]) -> list[Id]:
    """The holds that go with these, and those among them: as a whole, whatever else they are on."""
    ids = [id for id in gone if o.ItemKey(id) in it.view.objects(ITEM)]
    named = [id for id in ids if o.HoldKey(id) in it.view.objects(HOLD)]
    # The rule asks who holds what, and for no other object of the catalog.
    before = replace(it.view.holds({}, among=ids, also=named), objects={})
    after = before.drop_objects(map(str, ids), cascade=True)
    for id in named:
        after = after.drop(name) if (name := it.view.hold(id).name) in after.by_name else after
    return [Id.parse(hold.id) for name, hold in before.by_name.items() if name not in after.by_name]


def _item(it: Planning, name: QualifiedName, kind: ObjectType) -> Described:
    found = it.owned(name, kind)
    if found.kind is ObjectType.SUBSOURCE:
        source = found.fed_by
        of = "its source" if source is None else str(it.view.name_of(source))
        raise InvalidArgument("a subsource goes with its source", hint=f"drop {of}", name=str(found.name))
    return found


def _database(it: Planning, name: QualifiedName) -> Id:
    id = it.view.database(name.item)
    it.tx.get(DATABASE, o.DatabaseKey(id))
    p.check_owns(it.view, it.role, ObjectType.DATABASE, name.item, it.view.databases[id])
    return id


def _schema(it: Planning, name: QualifiedName) -> Id:
    database = name.schema or name.database
    id = it.view.schema(name.item, [database] if database else databases(it.session))
    it.tx.get(SCHEMA, o.SchemaKey(id))
    p.check_users(id, ObjectType.SCHEMA, name.item)
    p.check_owns(it.view, it.role, ObjectType.SCHEMA, name.item, it.view.schemas[id])
    return id


def _check_empty(it: Planning, statement: Drop, schemas: Iterable[Id], items: Iterable[Id]) -> None:
    """A database with more than its empty schema ``public``, and a schema with anything, go with CASCADE only."""
    inside = [it.view.schemas[id].name for id in schemas]
    names = [str(it.view.name_of(id)) for id in items] or [each for each in inside if each != "public"]
    if names and not statement.cascade:
        raise DependentObjects(
            f"this {statement.kind.words} is not empty",
            hint="drop what is in it first, or drop it with cascade",
            ids=listed(sorted(names)),
        )


def _label(it: Planning, statement: Drop, first: Id | None) -> str:
    if first is None or statement.kind in (ObjectType.DATABASE, ObjectType.SCHEMA):
        return ", ".join(map(str, statement.names))
    return str(it.view.name_of(first))


def _forget_schema(it: Planning, id: Id) -> None:
    row = it.view.schemas[id]
    database = "" if row.database_id is None else it.view.databases[row.database_id].name + "."
    _forget_comments(it, ObjectType.SCHEMA, id)
    it.uncounted(ObjectType.SCHEMA, id)
    it.put(SCHEMA, o.SchemaKey(id), None)
    it.audit(AuditEventType.DROP, ObjectType.SCHEMA, AuditNamedV1(str(id), database + row.name))


def _forget_comments(it: Planning, kind: ObjectType, id: Id) -> None:
    it.put_all(COMMENT, [(key, None) for key in sorted(it.view.comments(id), key=str) if key.object_type is kind])


def _drop_roles(it: Planning, tag: str, statement: Drop) -> Executed:
    missing = []
    for name in statement.names:
        p.check_superuser(it.view, it.role, name.item)
        try:
            role = it.view.role(name.item)
        except UsageError:
            if not statement.if_exists:
                raise
            missing.append(name.item)
            continue
        if role.space is not Space.USER:
            raise InvalidArgument("the system made this, and it cannot be dropped", kind="role", name=name.item)
        _check_unused(it, role, name.item)
        it.put(ROLE, o.RoleKey(role), None)
        it.uncounted(ObjectType.ROLE, role)
        _forget_comments(it, ObjectType.ROLE, Id(role.space, role.number))
        it.audit(AuditEventType.DROP, ObjectType.ROLE, AuditNamedV1(str(role), name.item))
    notice = f"role {', '.join(missing)} does not exist, skipping" if missing else ""
    return Executed(tag, None, ", ".join(map(str, statement.names)), notice)


def _check_unused(it: Planning, role: RoleRef, name: str) -> None:
    used = []
    kinds: tuple[AnyKind, ...] = (DATABASE, SCHEMA, ITEM)
    it.tx.depend_on(kinds)
    for kind in kinds:
        for row in it.view.objects(kind).values():
            if row.owner == role or any(role in (acl.grantee, acl.grantor) for acl in row.acls):
                used.append(row.name)
    used += [row.name for row in it.view.roles.values() if any(role in (m.role, m.grantor) for m in row.membership)]
    if used:
        raise DependentObjects(
            "this role owns something, or was granted something",
            hint="give that to others first",
            role=name,
            ids=listed(sorted(used)),
        )
