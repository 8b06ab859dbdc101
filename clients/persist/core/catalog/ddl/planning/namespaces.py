"""CREATE DATABASE, SCHEMA and ROLE; ALTER SYSTEM SET."""

from persist.core.catalog import objects as o
from persist.core.catalog.ddl import privileges as p
from persist.core.catalog.ddl.described import SUPERUSER
from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.ddl.planning.context import Planning
from persist.core.catalog.ddl.resolve import check_new_name, databases
from persist.core.catalog.ddl.statements import CreateDatabase, CreateRole, CreateSchema, SetSystem
from persist.core.catalog.ddl.variables import check_variable
from persist.core.catalog.errors import UniquenessViolation
from persist.core.catalog.kinds import DATABASE, ROLE, SCHEMA, SYSTEM_CONFIGURATION, AnyKind, Name
from persist.core.catalog.values import (
    PUBLIC,
    Acl,
    AuditEventType,
    AuditNamedV1,
    Id,
    ObjectType,
    RoleAttributes,
    RoleRef,
    Space,
)
from persist.errors import InvalidArgument

EVERYBODY = "public"
"""No role may be called so, in whatever case: it stands for all of them."""


def create_database(it: Planning, statement: CreateDatabase) -> Executed:
    """CREATE DATABASE, with a schema ``public`` in it."""
    tag, name = "CREATE DATABASE", check_new_name(statement.name)
    p.check_may_in_system(it.view, it.role, "C")
    if (found := _exists(it, DATABASE, (name,), ObjectType.DATABASE, name, statement.if_not_exists)) is not None:
        return Executed(tag, found, name, _skipped(ObjectType.DATABASE, name))
    id = Id(Space.USER, it.tx.allocate("database")[0])
    it.put(DATABASE, o.DatabaseKey(id), o.Database(name, it.role, _used_by_all(it), it.tx.allocate_oids()[0]))
    it.audit(AuditEventType.CREATE, ObjectType.DATABASE, AuditNamedV1(str(id), name))
    _make_schema(it, id, "public")
    return Executed(tag, id, name)


def create_schema(it: Planning, statement: CreateSchema) -> Executed:
    """CREATE SCHEMA, in the first database of the session's path unless one is named."""
    tag, name = "CREATE SCHEMA", check_new_name(statement.name)
    database = it.view.database(statement.database or databases(it.session)[0])
    row = it.view.databases[database]
    it.tx.get(DATABASE, o.DatabaseKey(database))
    p.check_may(it.view, it.role, "C", ObjectType.DATABASE, row.name, row)
    full = f"{row.name}.{name}"
    if (found := _exists(it, SCHEMA, (database, name), ObjectType.SCHEMA, full, statement.if_not_exists)) is not None:
        return Executed(tag, found, full, _skipped(ObjectType.SCHEMA, full))
    return Executed(tag, _make_schema(it, database, name), full)


def create_role(it: Planning, statement: CreateRole) -> Executed:
    """CREATE ROLE. Superusers make roles."""
    tag, name = "CREATE ROLE", check_new_name(statement.name)
    if name.lower() == EVERYBODY:
        raise InvalidArgument("this name stands for all roles", hint="take another name", name=name)
    p.check_superuser(it.view, it.role, name)
    if _exists(it, ROLE, (name,), ObjectType.ROLE, name, statement.if_not_exists) is not None:
        return Executed(tag, None, name, _skipped(ObjectType.ROLE, name))
    id = RoleRef(Space.USER, it.tx.allocate("user_role")[0])
    attributes = RoleAttributes(superuser=statement.superuser)
    it.put(ROLE, o.RoleKey(id), o.Role(name, attributes, oid=it.tx.allocate_oids()[0]))
    it.audit(AuditEventType.CREATE, ObjectType.ROLE, AuditNamedV1(str(id), name))
    return Executed(tag, None, name)


def set_system(it: Planning, statement: SetSystem) -> Executed:
    """ALTER SYSTEM SET and RESET."""
    p.check_superuser(it.view, it.role, statement.name)
    check_variable(statement.name, statement.value)
    before = it.view.variables[statement.name]
    value = None if statement.value is None else o.SystemConfiguration(statement.value)
    it.put(SYSTEM_CONFIGURATION, o.SystemConfigurationKey(statement.name), value)
    it.counted(ObjectType.SYSTEM, "")
    after = it.view.variables[statement.name]
    it.altered(ObjectType.SYSTEM, statement.name, statement.name, "value", before, after)
    return Executed("ALTER SYSTEM", None, statement.name)


def _make_schema(it: Planning, database: Id, name: str) -> Id:
    id = Id(Space.USER, it.tx.allocate("schema")[0])
    it.put(
        SCHEMA, o.SchemaKey(id), o.CatalogSchema(database, name, it.role, _used_by_all(it), it.tx.allocate_oids()[0])
    )
    full = f"{it.view.databases[database].name}.{name}"
    it.audit(AuditEventType.CREATE, ObjectType.SCHEMA, AuditNamedV1(str(id), full))
    return id


def _used_by_all(it: Planning) -> tuple[Acl, ...]:
    # Of what persist itself makes every role may see that it is there; others grant it.
    return p.granted((), PUBLIC, it.role, p.BITS["U"], revoke=False) if it.role == SUPERUSER else ()


def _exists(it: Planning, kind: AnyKind, name: Name, what: ObjectType, full: str, if_not_exists: bool) -> Id | None:
    key = it.tx.find(kind, name)
    if key is not None and not if_not_exists:
        raise UniquenessViolation(
            "another object has this name",
            hint="take another name, or drop that one",
            kind=what.words,
            key=key.id,
            name=full,
            clashing_key=key.id,
        )
    return None if key is None else key.id


def _skipped(kind: ObjectType, name: str) -> str:
    return f"{kind.words} {name} exists, skipping"
