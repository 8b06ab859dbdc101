"""TimestampMinters in this event loop and as processes, and sources for them."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc.aio
from client.support import SMALL, Place
from services.process import ServeProcess, serve_process

from persist.client.binding.port import RemapSource
from persist.client.remote.minter import RemoteMinter
from persist.core.binding.binding_log import MintRules
from persist.core.ids import ShardId
from persist.core.source.source_time import Point, SourceKind, SourceTime
from persist.settings import Settings
from persist.v1.minter_pb2_grpc import TimestampMinterStub
from persist_host import Telemetry, start
from persist_minter import ShardAccess, minter_spec

if TYPE_CHECKING:
    from persist.v1.minter_pb2_grpc import TimestampMinterAsyncStub


REMAP = ShardId.of(b"r" * 16)
ENVIRONMENT = {"PERSIST_POLL_FIRST_MS": "5", "PERSIST_POLL_MAX_MS": "50"}
"""Processes over the same SQLite file do not notify each other: a watch there polls."""


def source(incarnation: str = "one", kind: SourceKind = SourceKind.PARTITIONS, **rules: Any) -> RemapSource:
    rules = {"interval_ms": 1, **rules}
    return RemapSource(remap=REMAP, kind=kind, incarnation=incarnation, rules=MintRules(**rules))


def at(partition: int, offsets: Iterable[int]) -> list[SourceTime]:
    return [Point(partition, offset) for offset in offsets]


def options_of(place: Place) -> tuple[str, ...]:
    """The options that name a place's stores."""
    return "--blob", place.blob, "--consensus", place.consensus


@dataclass
class Minting:
    """A TimestampMinter in this loop."""

    endpoint: str
    telemetry: Telemetry
    host: Any


@asynccontextmanager
async def minting(reach: ShardAccess, settings: Settings = SMALL, **options: Any) -> AsyncIterator[Minting]:
    """A server for the length of a block."""
    telemetry = Telemetry(service="test")
    host, address = await start(minter_spec(reach), "127.0.0.1:0", settings, telemetry=telemetry, **options)
    try:
        yield Minting(str(address), telemetry, host)
    finally:
        await host.stop(notice=0, grace=0)


def direct(place: Place) -> ShardAccess:
    return ShardAccess(blob_uri=place.blob, consensus_uri=place.consensus)


@asynccontextmanager
async def minter_processes(place: Place, count: int) -> AsyncIterator[list[ServeProcess]]:
    """Processes of ``persist serve minter`` over the same stores."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(serve_process("minter", *options_of(place), **ENVIRONMENT))
            for _ in range(count)
        ]


@asynccontextmanager
async def remote_minter(*endpoints: str, settings: Settings = SMALL) -> AsyncIterator[RemoteMinter]:
    minter = RemoteMinter(",".join(endpoints), settings=settings)
    try:
        yield minter
    finally:
        await minter.close()


@asynccontextmanager
async def stub_of(endpoint: str) -> AsyncIterator["TimestampMinterAsyncStub"]:
    async with grpc.aio.insecure_channel(endpoint, options=[("grpc.enable_retries", 0)]) as channel:
        yield TimestampMinterStub(channel)
