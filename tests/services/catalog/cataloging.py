"""CatalogServices in this event loop and as processes, and catalogs that ask them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc.aio
from client.support import Place
from services.process import ServeProcess, serve_process

from persist.client.catalog.remote import RemoteCatalog
from persist.core.catalog.kinds import SETTING
from persist.core.catalog.objects import Setting, SettingKey
from persist.core.ids import Token
from persist.runtime import system
from persist.settings import Settings
from persist.v1.catalog_pb2_grpc import CatalogServiceStub
from persist_catalog import CatalogDuty, ShardAccess, catalog_spec
from persist_host import Telemetry, start

if TYPE_CHECKING:
    from persist.v1.catalog_pb2_grpc import CatalogServiceAsyncStub


ENVIRONMENT = "default"
QUICK = Settings(poll_first_ms=5, poll_max_ms=50, timeout_ms=10_000)


@dataclass
class Serving:
    """A CatalogService in this loop."""

    endpoint: str
    telemetry: Telemetry
    host: Any


@asynccontextmanager
async def catalog_server(place: Place, settings: Settings = QUICK, **duty: Any) -> AsyncIterator[Serving]:
    """A server for the length of a block."""
    telemetry = Telemetry(service="test")
    host, address = await start(
        catalog_spec(
            ShardAccess(blob_uri=place.blob, consensus_uri=place.consensus),
            CatalogDuty(environment=ENVIRONMENT, **duty),
        ),
        "127.0.0.1:0",
        settings,
        telemetry=telemetry,
    )
    try:
        yield Serving(str(address), telemetry, host)
    finally:
        await host.stop(notice=0, grace=0)


@asynccontextmanager
async def catalog_process(place: Place, *options: str) -> AsyncIterator[ServeProcess]:
    """A process of ``persist serve catalog``."""
    stores = ("--blob", place.blob, "--consensus", place.consensus)
    quick = {"PERSIST_POLL_FIRST_MS": "5", "PERSIST_POLL_MAX_MS": "50"}
    async with serve_process("catalog", *stores, *options, **quick) as process:
        yield process


@asynccontextmanager
async def remote_catalog(*endpoints: str, settings: Settings = QUICK, **options: Any) -> AsyncIterator[RemoteCatalog]:
    catalog = RemoteCatalog(",".join(endpoints), settings=settings, **options)
    try:
        yield catalog
    finally:
        await catalog.close()


@asynccontextmanager
async def stub_of(endpoint: str) -> AsyncIterator["CatalogServiceAsyncStub"]:
    async with grpc.aio.insecure_channel(endpoint, options=[("grpc.enable_retries", 0)]) as channel:
        yield CatalogServiceStub(channel)


def new_token() -> Token:
    return Token.of(system().random_bytes(16))


async def put(catalog: Any, name: str, value: str | None, token: Token | None = None) -> int:
    """Set one setting in a transaction of its own."""
    transaction = catalog.transaction(token=token)
    transaction.set(SETTING, SettingKey(name), None if value is None else Setting(value))
    return await catalog.commit(transaction)


def found(catalog: Any, name: str) -> str | None:
    setting = catalog.get(SETTING, SettingKey(name))
    return None if setting is None else setting.value
