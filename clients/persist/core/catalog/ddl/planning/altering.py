"""ALTER of names, owners, policies; GRANT and REVOKE; COMMENT ON.

Source: design document 5, holds are renamed in a transaction; collections: names.
"""

from dataclasses import replace
from typing import Any, TypeAlias

from persist.core.catalog import objects as o
from persist.core.catalog.ddl import privileges as p
from persist.core.catalog.ddl.dependencies import refusal
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.ddl.planning.context import COLLECTIONS, RELATIONS, Planning
from persist.core.catalog.ddl.resolve import check_new_name, databases, near, unknown
from persist.core.catalog.ddl.statements import CommentOn, Grant, QualifiedName, Rename, SetOwner, SetRetain
from persist.core.catalog.errors import UnknownObject
from persist.core.catalog.kinds import (
    CLUSTER,
    COMMENT,
    DATABASE,
    ITEM,
    ROLE,
    SCHEMA,
    SYSTEM_PRIVILEGE,
    AnyKind,
)
from persist.core.catalog.values import (
    PUBLIC,
    Acl,
    AuditAlteredV1,
    AuditEventType,
    AuditNamedV1,
    AuditRenamedV1,
    Id,
    ObjectType,
    RoleRef,
)
from persist.errors import InvalidArgument
from persist.typed import AnyKey, AnyValue

QUERIED = frozenset({ObjectType.VIEW, ObjectType.MATERIALIZED_VIEW, ObjectType.CURSOR})
"""What keeps the names of what it reads in its query."""
TEXT_MAX = 65_536
"""Characters of a comment."""

Target: TypeAlias = tuple[AnyKind, Any, Any, str]
"""Something with an owner: its kind, its key, its row, and its name in full."""


def rename(it: Planning, statement: Rename) -> Executed:
    """ALTER kind name RENAME TO to, or SWAP WITH to."""
    tag = f"ALTER {statement.kind.words.upper()}"
    if statement.kind in (ObjectType.DATABASE, ObjectType.SCHEMA, ObjectType.ROLE):
        return _rename_place(it, tag, statement)
    try:
        found = it.owned(statement.name, statement.kind)
    except UnknownObject:
        if not statement.if_exists:
            raise
        return Executed(tag, None, str(statement.name), f"{statement.name} does not exist, skipping")
    schema = it.view.item(found.id).schema_id
    it.may_create_in(schema)
    to = QualifiedName(check_new_name(statement.to), found.name.schema, found.name.database)
    pairs = [(found, to)]
    if statement.swap:
        pairs.append((it.owned(to, statement.kind), found.name))
    elif to != found.name:
        it.check_free(schema, to)
    for each, _ in pairs:
        _check_unquoted(it, each)
    if found.kind is ObjectType.HOLD:
        it.view.holds({}).rename({str(each.name): str(new) for each, new in pairs})
    renamed = [(o.ItemKey(each.id), replace(it.view.item(each.id), name=new.item)) for each, new in pairs]
    it.put_all(ITEM, renamed)
    for each, new in pairs:
        it.counted(each.kind, each.id)
        it.audit(AuditEventType.ALTER, each.kind, AuditRenamedV1(str(each.id), str(each.name), str(new)))
    return Executed(tag, found.id, str(to))


def _check_unquoted(it: Planning, each: Described) -> None:
    """Raises DependentObjects when queries have the name in their text: they would come to read something else."""
    quoting = [id for id in it.view.dependants(each.id) if it.view.item(id).item_type in QUERIED]
    it.tx.depend_on([ITEM])
    if quoting:
        error = refusal(it.view, str(each.name), quoting)
        error.hint = "queries name it: drop them first, and create them again afterwards"
        raise error


def _rename_place(it: Planning, tag: str, statement: Rename) -> Executed:
    if statement.swap:
        raise InvalidArgument("only items swap their names", hint="rename one after the other")
    kind, key, row, full = _target(it, statement.kind, statement.name)
    _check_owned(it, statement.kind, row, full, key)
    new = check_new_name(statement.to)
    it.tx.depend_on([ITEM, SCHEMA])
    schemas = (
        [key.id]
        if kind is SCHEMA
        else [id for id, of in it.view.schemas.items() if kind is DATABASE and of.database_id == key.id]
    )
    for id in (id for schema in schemas for id in it.view.in_schema(schema)):
        _check_unquoted(it, it.view.get(id))
    it.put(kind, key, replace(row, name=new))
    it.counted(statement.kind, key.id)
    full_new = _target_name(it, kind, key)
    it.audit(AuditEventType.ALTER, statement.kind, AuditRenamedV1(str(key.id), full, full_new))
    return Executed(tag, None, full_new)


def set_owner(it: Planning, statement: SetOwner) -> Executed:
    """ALTER kind name OWNER TO role: by an owner that is a member of that role, or a superuser."""
    kind, key, row, full = _target(it, statement.kind, statement.name)
    _check_owned(it, statement.kind, row, full, key)
    role = it.view.role(statement.role)
    it.tx.get(ROLE, o.RoleKey(role))
    if not p.is_superuser(it.view, it.role) and role not in p.roles_of(it.view, it.role):
        raise p.missing(it.view, it.role, "membership", ObjectType.ROLE, statement.role, role)
    it.put(kind, key, replace(row, owner=role))
    it.counted(statement.kind, key.id)
    old, new = p.role_name(it.view, row.owner), p.role_name(it.view, role)
    it.altered(statement.kind, key.id, full, "owner", old, new)
    return Executed(f"ALTER {statement.kind.words.upper()}", key.id, full)


def set_retain(it: Planning, statement: SetRetain) -> Executed:
    """ALTER kind name SET (RETAIN HISTORY): of a source it is that of all it feeds, too."""
    found = it.owned(statement.name, statement.kind)
    fed = it.view.collections([found.id]) if found.kind is ObjectType.SOURCE else ()
    if found.kind not in COLLECTIONS and not fed:
        raise InvalidArgument("this has no history", kind=found.kind.words, name=str(found.name))
    for id in dict.fromkeys((found.id, *fed)):
        item = it.view.item(id)
        before, details = item.details.retain, replace(item.details, retain=statement.retain)
        it.put(ITEM, o.ItemKey(id), replace(item, details=details))
        old, new = ("all" if each is None or each.by is None else each.by for each in (before, statement.retain))
        it.altered(item.item_type, id, str(it.view.name_of(id)), "retain history", old, new)
        if item.item_type in COLLECTIONS:
            it.changed[id] = None
    # Of a source it is said of all that it feeds, and of that by itself, too: whichever was last holds.
    for id in dict.fromkeys((found.id, *fed, *([] if found.fed_by is None else [found.fed_by]))):
        it.counted(found.kind, id)
    return Executed(f"ALTER {statement.kind.words.upper()}", found.id, str(found.name))


def grant(it: Planning, statement: Grant) -> Executed:
    """GRANT and REVOKE, by the owner."""
    tag = "REVOKE" if statement.revoke else "GRANT"
    roles = [PUBLIC if name.lower() == "public" else it.view.role(name) for name in statement.roles]
    for role in roles:
        if role != PUBLIC:
            it.tx.get(ROLE, o.RoleKey(role))
    if statement.kind is ObjectType.SYSTEM:
        return _grant_in_system(it, tag, statement, roles)
    kind, key, row, full = _target(it, statement.kind, statement.name)
    _check_owned(it, statement.kind, row, full, key)
    what = row.item_type if kind is ITEM else statement.kind
    mode_bits = p.bits(statement.privileges, what)
    acls: tuple[Acl, ...] = row.acls
    for role in roles:
        acls = p.granted(acls, role, it.role, mode_bits, revoke=statement.revoke)
    it.put(kind, key, replace(row, acls=acls))
    it.counted(statement.kind, key.id)
    event = AuditEventType.REVOKE if statement.revoke else AuditEventType.GRANT
    before, after = p.letters(row.acls), p.letters(acls)
    it.audit(event, what, AuditAlteredV1(str(key.id), full, "privileges", before, after))
    return Executed(tag, key.id if isinstance(key.id, Id) else None, full)


def _grant_in_system(it: Planning, tag: str, statement: Grant, roles: list[RoleRef]) -> Executed:
    p.check_superuser(it.view, it.role, "the environment")
    mode_bits = p.bits(statement.privileges, ObjectType.SYSTEM)
    event = AuditEventType.REVOKE if statement.revoke else AuditEventType.GRANT
    for role in roles:
        key = o.SystemPrivilegeKey(role, it.role)
        keys = (
            [each for each in it.view.objects(SYSTEM_PRIVILEGE) if each.grantee == role] if statement.revoke else [key]
        )
        for each in keys:
            before = it.tx.get(SYSTEM_PRIVILEGE, each)
            have = 0 if before is None else before.mode_bits
            after = have & ~mode_bits if statement.revoke else have | mode_bits
            it.put(SYSTEM_PRIVILEGE, each, o.SystemPrivilege(after) if after else None)
        it.audit(event, ObjectType.SYSTEM, AuditNamedV1(str(role), statement.privileges))
    it.counted(ObjectType.SYSTEM, "")
    return Executed(tag, None, "the environment")


def comment_on(it: Planning, statement: CommentOn) -> Executed:
    """COMMENT ON an object or a column, by the owner; None takes it away."""
    kind, key, row, full = _target(it, statement.kind, statement.name)
    _check_owned(it, statement.kind, row, full, key)
    what = row.item_type if kind is ITEM else statement.kind
    if statement.text is not None and len(statement.text) > TEXT_MAX:
        raise InvalidArgument(
            "this comment is too long", hint=f"at most {TEXT_MAX} characters", got=len(statement.text)
        )
    column = None if statement.column is None else _column(it, key.id, statement.column, full)
    # Roles and items have ids of one form.
    at = o.CommentKey(what, Id(key.id.space, key.id.number), column)
    it.put(COMMENT, at, None if statement.text is None else o.Comment(statement.text))
    it.counted(statement.kind, key.id)
    named = full if statement.column is None else f"{full}.{statement.column}"
    it.audit(AuditEventType.COMMENT, what, AuditNamedV1(str(key.id), named))
    return Executed("COMMENT", key.id if isinstance(key.id, Id) else None, named)


def _column(it: Planning, id: Id, column: str, full: str) -> int:
    schema = it.view.get(id).schema if o.ItemKey(id) in it.view.objects(ITEM) else None
    names = [] if schema is None else [*schema.key.names, *schema.val.names]
    if column not in names:
        raise unknown("column", f"{full}.{column}", near(column, names))
    return names.index(column) + 1


def _target(it: Planning, kind: ObjectType, name: QualifiedName) -> Target:
    """What a statement means that alters items as well as what these are in. Raises UnknownObject, InvalidArgument."""
    found: Target
    match kind:
        case ObjectType.DATABASE:
            key: Any = o.DatabaseKey(it.view.database(name.item))
            found = (DATABASE, key, it.view.databases[key.id], name.item)
        case ObjectType.SCHEMA:
            database = name.schema or name.database
            key = o.SchemaKey(it.view.schema(name.item, [database] if database else databases(it.session)))
            found = (SCHEMA, key, it.view.schemas[key.id], _target_name(it, SCHEMA, key))
        case ObjectType.ROLE:
            key = o.RoleKey(it.view.role(name.item))
            found = (ROLE, key, it.view.roles[key.id], name.item)
        case ObjectType.CLUSTER:
            by_name = {row.name: id for id, row in it.view.clusters.items()}
            if name.item not in by_name:
                raise unknown("cluster", name.item, near(name.item, by_name))
            key = o.ClusterKey(by_name[name.item])
            found = (CLUSTER, key, it.view.clusters[key.id], name.item)
        case _:
            # PostgreSQL calls all that is read a table here.
            of = it.item(name, None if kind is ObjectType.TABLE else kind)
            if kind is ObjectType.TABLE and of.kind not in RELATIONS:
                raise InvalidArgument("this is no table", hint=f"it is a {of.kind.words}", name=str(of.name))
            key = o.ItemKey(of.id)
            found = (ITEM, key, it.view.item(of.id), str(of.name))
    _: Any = it.tx.get(found[0], found[1])
    return found


def _target_name(it: Planning, kind: AnyKind, key: AnyKey) -> str:
    if kind is not SCHEMA:
        return str(it.view.objects(kind)[key].name)
    row = it.view.schemas[key.id]
    return row.name if row.database_id is None else f"{it.view.databases[row.database_id].name}.{row.name}"


def _check_owned(it: Planning, kind: ObjectType, row: AnyValue, full: str, key: AnyKey) -> None:
    p.check_users(key.id, kind, full)
    if kind is ObjectType.ROLE:
        p.check_superuser(it.view, it.role, full)
    else:
        p.check_owns(it.view, it.role, kind, full, row)
