"""Catalogs for tests of ``persist catalog``: made in this process, looked at by the command."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unit.core.catalog.samples import OWNER, database, item, schema, user

from persist import aio
from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.log.shard_log import open_shard_log
from persist.client.catalog.port import RowLog
from persist.core.catalog.kinds import AUDIT_LOG, CLUSTER, DATABASE, ITEM, ROLE, SCHEMA, SETTING
from persist.core.catalog.objects import (
    AuditLogKey,
    Cluster,
    ClusterKey,
    DatabaseKey,
    ItemKey,
    Role,
    RoleKey,
    SchemaKey,
    Setting,
    SettingKey,
)
from persist.core.catalog.rows import Row
from persist.core.catalog.values import (
    AuditEventType,
    AuditNamedV1,
    FlatVar,
    ManagedCluster,
    ObjectType,
    RoleVar,
    Unit,
)
from persist.settings import Settings

QUIET = Settings(compaction=False)

OBJECTS: dict[Any, dict[Any, Any]] = {
    DATABASE: {DatabaseKey(user(n)): database(f"d{n}", oid=n) for n in (1, 2, 10)},
    SCHEMA: {SchemaKey(user(1)): schema("public", user(1))},
    ITEM: {ItemKey(user(1)): item("täble \"one\"\n\x1b\x9b\u202e", oid=20_000)},
    ROLE: {RoleKey(OWNER): Role("me", vars=(RoleVar("motto", FlatVar("carpe diem")),))},
    CLUSTER: {ClusterKey(user(1)): Cluster("c", OWNER, config=ManagedCluster("small"))},
    SETTING: {SettingKey("motto"): Setting("carpe")},
    AUDIT_LOG: {
        AuditLogKey(1, AuditEventType.CREATE, ObjectType.DATABASE, "me", 2**60, AuditNamedV1("u1", "d1")): Unit()
    },
}  # fmt: skip
"""What ``fill`` commits: of most kinds an object."""


@dataclass(frozen=True)
class Made:
    """Where a catalog is. ``options`` name it on a command line."""

    directory: Path | None = None
    stash: str | None = None

    @property
    def options(self) -> tuple[str, ...]:
        return ("--stash", self.stash) if self.stash is not None else ("--location", str(self.directory))

    def run(self, work: Callable[[RowLog], Awaitable[Any]], environment: str = "default") -> Any:
        """Work with the log of the catalog."""

        async def main() -> Any:
            if self.stash is not None:
                from persist.client.catalog.log.stash_log import open_stash_log

                return await self._closing(await open_stash_log(self.stash, environment), work)
            assert self.directory is not None
            async with await aio.embedded(self.directory, settings=QUIET) as client:
                return await self._closing(await open_shard_log(client, environment), work)

        return asyncio.run(main())

    async def _closing(self, log: RowLog, work: Callable[[RowLog], Awaitable[Any]]) -> Any:
        try:
            return await work(log)
        finally:
            await log.close()

    def lead(self, generation: int = 1) -> None:
        """Open the catalog for writing."""
        self.run(lambda log: DurableCatalog(log).open(generation))

    def upper(self) -> int:
        """Of its rows."""
        found: int = self.run(lambda log: log.upper())
        return found


async def fill(log: RowLog) -> None:
    """Open the catalog with deploy generation 3, and commit OBJECTS."""
    catalog = await DurableCatalog(log).open(3)
    transaction = catalog.transaction()
    for kind, objects in OBJECTS.items():
        for key, value in objects.items():
            transaction.insert(kind, key, value)
    await catalog.commit(transaction)


def rows(made: Made, rows: Sequence[Row]) -> None:
    """A catalog of just these rows."""

    async def append(log: RowLog) -> None:
        assert await log.append([(row, 1) for row in rows], 0, expected_upper=0) is None

    made.run(append)
