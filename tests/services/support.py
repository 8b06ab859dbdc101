"""A PersistShard in the test's event loop, and short ways to say commands."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
import pyarrow as pa
import pytest
from services.shard.memory_shards import MemoryShards

from persist.client.remote.shards import RemoteShards
from persist.core.data.schema import Schema
from persist.core.frontier import CLOSED, Antichain, Description
from persist.core.ids import ReaderId, ShardId, Token, WriterId
from persist.core.shard.batch import HollowBatch, Part, Run
from persist.core.shard.commands import CompareAndAppend, RegisterSchema
from persist.errors import PersistError
from persist.machine.shards import Shards
from persist.retry.attempts import Attempts, RefusedInDoubt
from persist.runtime import system
from persist.settings import Settings
from persist_host import Address, Host, Telemetry
from persist_shard import Lanes, ShardService

WRITER = WriterId.of(b"w" * 16)
READER = ReaderId.of(b"r" * 16)
SCHEMA_ID = 0
ANY_PORT = Address("127.0.0.1", 0)
SLACK_SECONDS = 20.0
"""What a call may take beyond its timeout where others share the machine: what hangs, hangs longer."""
TRANSPORTS = pytest.mark.parametrize("sessions", [True, False], ids=["session", "unary"])


async def timed(awaitable: Awaitable[Any]) -> tuple[Any, float]:
    """The result or error, and how long it took."""
    began = system().monotonic()
    result = (await asyncio.gather(awaitable, return_exceptions=True))[0]
    return result, system().monotonic() - began


def new_shard() -> ShardId:
    return ShardId.of(system().random_bytes(16))


def new_token() -> Token:
    return Token.of(system().random_bytes(16))


async def create(shards: Shards, shard: ShardId) -> None:
    """Initialise a shard with a schema, whose id is the one ``append`` uses."""
    schema = Schema(key={"k": pa.int64()})
    await shards.open(shard, timeout=60)
    registered = await shards.apply(
        shard, RegisterSchema(schema=schema.to_bytes(), codec=schema.codec_name), timeout=60
    )
    assert registered.entry.schema_id == SCHEMA_ID


def inline_part(number: int, size: int = 64) -> Part:
    return Part(
        key=None,
        inline=number.to_bytes(8, "big") * (size // 8),
        encoded_bytes=size,
        decoded_bytes=size,
        rows=1,
        checksum=number,
        key_lower=b"a",
        key_upper=b"z",
        min_ts=number,
        max_ts=number,
        diffs_sum=1,
        schema_id=SCHEMA_ID,
    )


def append(lower: int, upper: int | None, *, token: Token | None = None, size: int = 64) -> CompareAndAppend:
    """An append of one inline part, or of nothing (``size`` 0). ``upper`` None closes the shard."""
    desc = Description(lower=Antichain.of(lower), upper=CLOSED if upper is None else Antichain.of(upper))
    runs = (Run(parts=(inline_part(lower, size),)),) if size else ()
    return CompareAndAppend(writer_id=WRITER, token=token or new_token(), batch=HollowBatch(desc=desc, runs=runs))


class Repeating:
    """Shards as handles ask them: a call is repeated until it is answered or its time is up.

    ``trusting``: refusals are raised, whatever came before, as these shards never forget a token.
    """

    def __init__(self, shards: Any, *, trusting: bool = False) -> None:
        self._shards = shards
        self._trusting = trusting
        self._attempts = Attempts(settings=Settings(), runtime=system())

    def __getattr__(self, name: str) -> Any:
        once = getattr(self._shards, name)
        if name not in ("open", "apply", "snapshot", "fetch", "inspect"):
            return once

        async def repeated(*arguments: Any, timeout: float, **more: Any) -> Any:
            call = functools.partial(once, *arguments, **more)
            try:
                return await self._attempts.repeat(self._attempts.deadline(timeout), lambda left: call(timeout=left))
            except RefusedInDoubt as error:
                if self._trusting and isinstance(error.refusal, PersistError):
                    raise error.refusal from None
                if self._trusting and error.refusal is not None:
                    return error.refusal
                raise

        return repeated

    def __reduce__(self) -> tuple[Any, ...]:
        return Repeating, (self._shards,)


def asking(endpoints: str, *, trusting: bool = False, **options: Any) -> Any:
    """Shards at these endpoints, as handles ask them."""
    return Repeating(RemoteShards(endpoints, **options), trusting=trusting)


@dataclass
class Serving:
    """A running server: where it is, and what is inside."""

    endpoint: str
    host: Host
    lanes: Lanes
    telemetry: Telemetry
    shards: Any
    settings: Settings

    def remote(self, **options: Any) -> Any:
        return asking(self.endpoint, settings=self.settings, **options)

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        async with grpc.aio.insecure_channel(self.endpoint, options=[("grpc.enable_retries", 0)]) as channel:
            yield channel


@asynccontextmanager
async def serving(
    shards: Any = None, *, settings: Settings | None = None, listen: Address = ANY_PORT, **options: Any
) -> AsyncIterator[Serving]:
    """A server for the length of a block."""
    settings = settings or Settings()
    shards = shards if shards is not None else MemoryShards()
    telemetry = Telemetry(service="test")
    service = ShardService(shards, settings=settings, runtime=system(), telemetry=telemetry)
    host = Host((service,), settings=settings, runtime=system(), telemetry=telemetry, **options)
    address = await host.start(listen)
    try:
        yield Serving(str(address), host, service.lanes, telemetry, shards, settings)
    finally:
        await host.stop(notice=0, grace=0)
