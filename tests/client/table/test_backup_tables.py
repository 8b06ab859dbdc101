"""Backups of tables: the log and the tables of a backup fit together, whatever was copied and forgotten meanwhile."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from client.support import SCHEMA, SMALL, Place, client_of, file_place, rows_of

from persist import Determinate, aio
from persist.client.backup_order import BackupOrder
from persist.machine.backup.copying import Store
from persist.machine.backup.create import BackupCreator, Created, Order
from persist.machine.backup.restore import Restorer
from persist.runtime import system
from persist.storage.open import open_blob, open_consensus

Happens = Callable[[str], Awaitable[None]]


class Interrupting:
    """A Blob that lets something happen after a state was put into it."""

    def __init__(self, blob: Any, happens: Happens) -> None:
        self._blob = blob
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blob, name)

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        await self._blob.set(key, value, timeout=timeout)
        if "/rollup/" in key:
            await self._happens(key.partition("/")[0])


def store(uri: str, happens: Happens | None = None) -> Store:
    blob: Any = open_blob(uri, settings=SMALL, runtime=system())
    return Store(blob if happens is None else Interrupting(blob, happens), settings=SMALL, runtime=system())


async def back_up(client: aio.Client, path: Path, happens: Happens, order: Order | None = None) -> Created:
    shards: Any = client.location.shards
    to = store(f"file:{path}", happens)
    return await BackupCreator(shards, shards._versions, to, order=order or BackupOrder(client)).create()


async def restored(path: Path, created: Created, place: Place) -> None:
    consensus = open_consensus(place.consensus, settings=SMALL, runtime=system())
    await Restorer(store(f"file:{path}"), created.manifest, store(place.blob), consensus).restore()
    await consensus.close()


async def found(table: aio.Table) -> list[tuple[Any, ...]]:
    return rows_of(await (await table.snapshot()).to_arrow())


def row(key: int) -> dict[str, Any]:
    return {"id": key, "name": f"n{key}"}


async def test_rows_that_leave_the_log_amid_a_backup_are_in_it(tmp_path: Path) -> None:
    here, there = file_place(tmp_path / "here"), file_place(tmp_path / "there")
    async with client_of(here) as client:
        one = await client.table("one", schema=SCHEMA, mode="wal")
        two = await client.table("two", schema=SCHEMA, mode="wal")
        log = await client.transaction_log()
        for key in range(3):
            await one.insert([row(key)])
            await two.insert([row(key)])
        times = 0

        async def tidy(shard: str) -> None:
            """Once the first table's state is read, everything is copied to it, and the log forgets it."""
            nonlocal times
            if shard == one.shard and times < 2:
                times += 1
                await one.insert([row(100 + times)])
                await two.insert([row(100 + times)])
                await log.settle()

        created = await back_up(client, tmp_path / "backup", tidy)
        assert times == 2
        expected = await found(one)
        assert expected == await found(two)
    await restored(tmp_path / "backup", created, there)
    async with client_of(there) as client:
        log = await client.transaction_log()
        # The worst that can come first: whatever is only in the log, and not in its table, would go now.
        await log.settle()
        one, two = await client.table("one", mode="wal"), await client.table("two", mode="wal")
        assert await found(one) == await found(two) == expected
        await one.insert([row(7)])
        await two.insert([row(7)])
        await log.settle()
        assert await found(one) == await found(two) == sorted([*expected, (7, "n7", 1)])


async def test_log_that_always_forgets_amid_a_backup_fails_it(tmp_path: Path) -> None:
    async with client_of(file_place(tmp_path / "here")) as client:
        one = await client.table("one", schema=SCHEMA, mode="wal")
        log = await client.transaction_log()

        async def tidy(shard: str) -> None:
            if shard == one.shard:
                await one.insert([row(0)])
                await log.settle()

        with pytest.raises(Determinate, match="left their transaction log"):
            await back_up(client, tmp_path / "backup", tidy)
