"""The catalog's shard is a shard as any other: Spark reads it, and filters it by kind."""

from typing import Any

import persist
from persist.core.catalog.kinds import AUDIT_LOG, DATABASE, ROLE
from persist.core.catalog.objects import AuditLogKey, Database, DatabaseKey, Role, RoleKey
from persist.core.catalog.rows import Row
from persist.core.catalog.values import AuditEventType, AuditNamedV1, Id, ObjectType, RoleRef, Space, Unit
from persist.core.names import catalog_shard
from persist.wire.catalog.rows import CODEC

ENVIRONMENT = "read-by-spark"
OWNER = RoleRef(Space.USER, 1001)
DATABASES = {DatabaseKey(Id(Space.USER, number)): Database(f"d{number}", OWNER, oid=number) for number in (1002, 1003)}
EVENT = AuditLogKey(1, AuditEventType.CREATE, ObjectType.DATABASE, "someone", 5, AuditNamedV1("u1002", "d1002"))


def test_catalog_shard_read_by_spark_is_what_was_committed_of_each_kind(
    spark: Any, client: persist.Client, location: str
) -> None:
    with client.catalog(ENVIRONMENT) as place:
        catalog = place.open(1)
        there = {kind: catalog.count(kind) for kind in (DATABASE, ROLE)}
        transaction = catalog.transaction()
        transaction.insert(ROLE, RoleKey(OWNER), Role("owner", oid=1001))
        for database in DATABASES.items():
            transaction.insert(DATABASE, *database)
        transaction.insert(AUDIT_LOG, EVENT, Unit())
        catalog.commit(transaction)
        gone = next(iter(DATABASES))
        catalog.set(DATABASE, {gone: None})
    shard = str(catalog_shard(ENVIRONMENT))
    frame = spark.read.format("persist").options(location=location, shard=shard).load()

    assert frame.columns == ["kind", "key", "value"]
    [event] = frame.where("kind = 'audit_log'").collect()
    assert CODEC.decode(Row("audit_log", bytes(event.key), bytes(event.value))) == (EVENT, Unit())
    databases = frame.where("kind = 'database'").collect()
    decoded = dict(CODEC.decode(Row(row.kind, bytes(row.key), bytes(row.value))) for row in databases)
    assert {key: value for key, value in decoded.items() if key in DATABASES} == {
        key: value for key, value in DATABASES.items() if key != gone
    }
    counts = {row.kind: row["count"] for row in frame.groupBy("kind").count().collect()}
    assert counts["database"] == there[DATABASE] + 1
    assert counts["role"] == there[ROLE] + 1
