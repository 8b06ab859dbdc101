"""Catalogs of a few objects, for tests."""

from collections.abc import Iterable
from typing import Any

from persist.core.catalog.kinds import AnyKind
from persist.core.catalog.objects import CatalogSchema, Cluster, Database, FenceToken, Item
from persist.core.catalog.rows import RowUpdate
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import Id, ObjectType, RoleRef, Space
from persist.wire.catalog.rows import CODEC

OWNER = RoleRef(Space.USER, 1)


def user(number: int) -> Id:
    return Id(Space.USER, number)


def system(number: int) -> Id:
    return Id(Space.SYSTEM, number)


def database(name: str, oid: int = 0) -> Database:
    return Database(name, OWNER, oid=oid)


def schema(name: str, of: Id | None = None) -> CatalogSchema:
    return CatalogSchema(of, name, OWNER)


def cluster(name: str) -> Cluster:
    return Cluster(name, OWNER)


def item(
    name: str, kind: ObjectType = ObjectType.TABLE, *, of: int = 1, oid: int = 0, session: str | None = None
) -> Item:
    return Item(user(of), name, kind, "", OWNER, oid=oid, global_id=user(1), session=session)


def token(generation: int, epoch: int) -> FenceToken:
    return FenceToken(generation, epoch)


def updates(*objects: tuple[AnyKind, Any, Any], ts: int = 0, diff: int = 1) -> list[RowUpdate]:
    return [RowUpdate(CODEC.encode(kind.tag, key, value), ts, diff) for kind, key, value in objects]


def snapshot(*objects: tuple[AnyKind, Any, Any]) -> Snapshot:
    return Snapshot.of(CODEC, updates(*objects))


def commit(transaction: CatalogTransaction, onto: Snapshot, ts: int = 1) -> None:
    onto.apply(CODEC, transaction.batch().rows(CODEC, ts))


def changes(transaction: CatalogTransaction) -> list[tuple[Any, Any, Any]]:
    return [(change.key, change.before, change.after) for change in transaction.batch().changes]


def everything(of: Snapshot, kinds: Iterable[AnyKind]) -> dict[AnyKind, dict[Any, Any]]:
    return {kind: dict(of.objects(kind)) for kind in kinds if not kind.append_only}
