"""The places catalogs are kept in, for a suite that holds for all of them.

``log`` runs a test over every RowLog, ``place`` over every catalog. Both are ``async with`` something that gives, each
time it is called, what another process would have. Who adds an implementation adds an entry to LOGS, or to CATALOGS
when it is no log of rows.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from catalog.memory_log import MemoryLog, MemoryRows

from persist import aio
from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.log.shard_log import open_shard_log
from persist.client.catalog.log.stash_log import open_stash_log
from persist.client.catalog.port import OpenableCatalog, RowLog
from persist.client.catalog.remote import RemoteCatalog
from persist.client.catalog.shadow.catalog import ShadowCatalog
from persist.runtime import system
from persist.settings import Settings
from persist_catalog import CatalogDuty, ShardAccess, catalog_spec
from persist_host import start

Logs: TypeAlias = Callable[[], Awaitable[RowLog]]
Catalogs: TypeAlias = Callable[[], Awaitable[OpenableCatalog]]
LogPlace: TypeAlias = AbstractAsyncContextManager[Logs]
Place: TypeAlias = AbstractAsyncContextManager[Catalogs]

ENVIRONMENT = "somewhere"


@asynccontextmanager
async def memory(path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Logs]:
    rows = MemoryRows()

    async def another() -> RowLog:
        return MemoryLog(rows)

    yield another


@asynccontextmanager
async def shards(blob: str, consensus: str) -> AsyncIterator[Logs]:
    async with AsyncExitStack() as stack:

        async def another() -> RowLog:
            client = await stack.enter_async_context(await aio.embedded(blob=blob, consensus=consensus))
            log = await open_shard_log(client, ENVIRONMENT)
            stack.push_async_callback(log.close)
            return log

        yield another


def memory_shard(path: Path, request: pytest.FixtureRequest) -> LogPlace:
    name = system().random_bytes(8).hex()
    return shards(f"mem:{name}", f"mem:{name}")


def file_shard(path: Path, request: pytest.FixtureRequest) -> LogPlace:
    return shards(f"file:{path}/blob", f"sqlite:{path}/consensus.db")


@asynccontextmanager
async def stashes(uri: str) -> AsyncIterator[Logs]:
    async with AsyncExitStack() as stack:

        async def another() -> RowLog:
            log = await open_stash_log(uri, ENVIRONMENT)
            stack.push_async_callback(log.close)
            return log

        yield another


def sqlite_stash(path: Path, request: pytest.FixtureRequest) -> LogPlace:
    return stashes(f"sqlite:{path}/stash.db")


def postgres_stash(path: Path, request: pytest.FixtureRequest) -> LogPlace:
    return stashes(request.getfixturevalue("fresh_postgres_uri")())


LOGS: dict[str, Callable[[Path, pytest.FixtureRequest], LogPlace]] = {
    "memory": memory,
    "shard-mem": memory_shard,
    "shard-file": file_shard,
    "stash-sqlite": sqlite_stash,
    "stash-postgres": postgres_stash,
}


@asynccontextmanager
async def durable(logs: LogPlace) -> AsyncIterator[Catalogs]:
    async with logs as another_log:

        async def another() -> OpenableCatalog:
            return DurableCatalog(await another_log())

        yield another


def over(log: str) -> Callable[[Path, pytest.FixtureRequest], Place]:
    return lambda path, request: durable(LOGS[log](path, request))


@asynccontextmanager
async def grpc(path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Catalogs]:
    stores = f"mem:{system().random_bytes(8).hex()}"
    reach = ShardAccess(blob_uri=stores, consensus_uri=stores)
    # It leads when the first catalog is opened, as others do.
    host, address = await start(catalog_spec(reach, CatalogDuty(environment=ENVIRONMENT)), "127.0.0.1:0", Settings())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(host.stop, notice=0, grace=0)

        async def another() -> OpenableCatalog:
            catalog = RemoteCatalog(str(address), environment=ENVIRONMENT)
            stack.push_async_callback(catalog.close)
            return catalog

        yield another


CATALOGS: dict[str, Callable[[Path, pytest.FixtureRequest], Place]] = {name: over(name) for name in LOGS} | {
    "grpc": grpc
}


@asynccontextmanager
async def shadow(path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Catalogs]:
    async with over("shard-mem")(path, request) as first, over("stash-sqlite")(path, request) as second:

        async def another() -> OpenableCatalog:
            return ShadowCatalog(await first(), await second())

        yield another


CATALOGS["shadow"] = shadow


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> LogPlace:
    return LOGS[request.param](tmp_path, request)


@pytest.fixture(params=CATALOGS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return CATALOGS[request.param](tmp_path, request)
