"""What every environment begins with, and gets when a newer release opens it: applied again, it changes nothing.

Database ``persist`` with schema ``public``; the schemas of the system, in no database, and what is in them; the role
``persist``, who may do everything; the cluster ``default``. Source: collections: who leads.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

from persist.core.catalog import objects as o
from persist.core.catalog.ddl.described import DATABASE as DATABASE_NAME
from persist.core.catalog.ddl.described import ROLE as ROLE_NAME
from persist.core.catalog.ddl.described import SCHEMA as SCHEMA_NAME
from persist.core.catalog.ddl.described import SUPERUSER
from persist.core.catalog.ddl.privileges import BITS
from persist.core.catalog.ddl.resolve import SYSTEM_SCHEMAS
from persist.core.catalog.ddl.system_tables import SYSTEM_COLLECTIONS, SystemCollection
from persist.core.catalog.kinds import CLUSTER, DATABASE, ITEM, ROLE, SCHEMA, SYSTEM_OBJECT_FINGERPRINT
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import PUBLIC, Acl, Id, ItemDetails, ObjectType, RoleAttributes, Space

CLUSTER_NAME: Final = "default"
_USED: Final = (Acl(PUBLIC, SUPERUSER, BITS["U"]),)
_READ: Final = (Acl(PUBLIC, SUPERUSER, BITS["r"]),)
_DATABASE: Final = Id(Space.USER, 1)
_PUBLIC_SCHEMA: Final = Id(Space.USER, 3)
_CLUSTER: Final = Id(Space.USER, 1)
"""Numbers below the first of their allocators: they were never given."""


def bootstrap(tx: CatalogTransaction) -> None:
    """Put what is missing into a transaction; nothing, where nothing is. What has one of the names stays as it is.

    The database and its schema are of the beginning only: users may drop them, and no id comes a second time.
    Raises OutOfSync.
    """
    if tx.get(ROLE, o.RoleKey(SUPERUSER)) is None:
        _role(tx)
        _schema(tx, _PUBLIC_SCHEMA, _database(tx), SCHEMA_NAME)
    if tx.find(CLUSTER, (CLUSTER_NAME,)) is None:
        key = o.ClusterKey(_CLUSTER)
        if tx.get(CLUSTER, key) is not None:
            key = o.ClusterKey(Id(Space.USER, tx.allocate("user_compute")[0]))
        tx.set(CLUSTER, key, o.Cluster(CLUSTER_NAME, SUPERUSER, _USED))
    schemas = {name: _schema(tx, Id(Space.SYSTEM, number), None, name) for number, name in enumerate(SYSTEM_SCHEMAS, 1)}
    changed = [each for each in SYSTEM_COLLECTIONS if _stored(tx, each) != fingerprint(each)]
    if changed:
        free = _free_ids(tx)
        for each in changed:
            _collection(tx, each, schemas[each.schema_name], free)


def fingerprint(collection: SystemCollection) -> str:
    """What distinguishes one definition of a system collection from another."""
    return hashlib.sha256(collection.schema.to_bytes()).hexdigest()[:32]


def _role(tx: CatalogTransaction) -> None:
    # A role of users may have the name: it is not this one, which is known by its id.
    name = ROLE_NAME if tx.find(ROLE, (ROLE_NAME,)) is None else f"persist_{ROLE_NAME}"
    (oid,) = tx.allocate_oids()
    tx.set(ROLE, o.RoleKey(SUPERUSER), o.Role(name, RoleAttributes(superuser=True, login=True), oid=oid))


def _database(tx: CatalogTransaction) -> Id:
    found = tx.find(DATABASE, (DATABASE_NAME,))
    if found is not None:
        return found.id
    key = o.DatabaseKey(_DATABASE)
    if tx.get(DATABASE, key) is not None:
        key = o.DatabaseKey(Id(Space.USER, tx.allocate("database")[0]))
    (oid,) = tx.allocate_oids()
    tx.set(DATABASE, key, o.Database(DATABASE_NAME, SUPERUSER, _USED, oid))
    return key.id


def _schema(tx: CatalogTransaction, id: Id, database: Id | None, name: str) -> Id:
    found = tx.find(SCHEMA, (database, name))
    if found is not None:
        return found.id
    key = o.SchemaKey(id)
    if tx.get(SCHEMA, key) is not None:
        key = o.SchemaKey(Id(id.space, tx.allocate("schema")[0]))
    (oid,) = tx.allocate_oids()
    tx.set(SCHEMA, key, o.CatalogSchema(database, name, SUPERUSER, _USED, oid))
    return key.id


def _key(collection: SystemCollection) -> o.SystemObjectFingerprintKey:
    return o.SystemObjectFingerprintKey(collection.schema_name, ObjectType.TABLE, collection.name)


def _stored(tx: CatalogTransaction, collection: SystemCollection) -> str | None:
    found = tx.get(SYSTEM_OBJECT_FINGERPRINT, _key(collection))
    return None if found is None else found.fingerprint


def _free_ids(tx: CatalogTransaction) -> Iterator[Id]:
    # Not from the allocator of the system, which only the catalog itself may use while it opens.
    taken = {key.id.number for key in tx.objects(ITEM) if key.id.space is Space.SYSTEM}
    number = max(taken, default=0)
    while True:
        number += 1
        yield Id(Space.SYSTEM, number)


def _collection(tx: CatalogTransaction, collection: SystemCollection, schema_id: Id, free: Iterator[Id]) -> None:
    known = tx.get(SYSTEM_OBJECT_FINGERPRINT, _key(collection))
    before = None if known is None else tx.get(ITEM, o.ItemKey(known.item_id))
    id = next(free) if known is None else known.item_id
    item = o.Item(
        schema_id,
        collection.name,
        ObjectType.TABLE,
        "",
        SUPERUSER,
        _READ,
        tx.allocate_oids()[0] if before is None else before.oid,
        global_id=id,
        details=ItemDetails(timeline="M", schema=collection.schema.to_bytes()),
    )
    tx.set(ITEM, o.ItemKey(id), item)
    tx.set(SYSTEM_OBJECT_FINGERPRINT, _key(collection), o.SystemObjectFingerprint(id, id, fingerprint(collection)))
