"""A session that ends with UNIMPLEMENTED: the server has none, or a proxy says so once the server did what was sent."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from client.support import SCHEMA, memory_place, server_of, table

from persist import Appended, ShardId, aio
from persist.errors import Determinate, Indeterminate
from persist.testing.twice import TwiceProxy, _raw
from persist.wire.rpc_errors import DETAILS_KEY, status_of


class NotFoundProxy(TwiceProxy):
    """Once ``armed`` it ends sessions as a 404 does, after a frame was answered, and refuses all other calls."""

    armed = False
    refusing = True

    def _session(self, method: str) -> Callable[..., Any]:
        async def handle(frames: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            one: Any = self._channels[0].stream_stream(method, _raw, _raw)()
            try:
                async for frame in frames:
                    await one.write(frame)
                    answer = await one.read()
                    if self.armed:
                        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Received http2 header with status: 404")
                    yield answer
            finally:
                one.cancel()

        return handle

    def _unary(self, method: str, name: str) -> Callable[..., Any]:
        async def handle(request: bytes, context: Any) -> bytes:
            if self.armed and self.refusing:
                status = status_of(Determinate("the store is away"))
                context.set_trailing_metadata(((DETAILS_KEY, status.details),))
                await context.abort(grpc.StatusCode.UNAVAILABLE, status.message)
            given = {"timeout": context.time_remaining(), "metadata": context.invocation_metadata()}
            answer: bytes = await self._channels[0].unary_unary(method, _raw, _raw)(request, **given)
            return answer

        return handle


@pytest.mark.parametrize("answered", [False, True], ids=["fresh session", "answered session"])
async def test_call_that_was_sent_is_in_doubt_when_its_session_is_not_found(answered: bool):
    async with (
        server_of(memory_place()) as endpoint,
        NotFoundProxy([endpoint]) as proxy,
        await aio.connect(proxy.endpoint) as client,
    ):
        shard = ShardId.new()
        writer = await client.open_writer(shard, schema=SCHEMA)
        if answered:
            await writer.compare_and_append([], 0, 10)
        else:
            # Registering the schema used the session; the next call begins another one.
            [peer] = client.location.shards._endpoints._connections  # type: ignore[attr-defined]
            sessions = peer._sessions
            sessions._ending, sessions._open = [*sessions._open.values()], {}
        proxy.armed = True
        lower = 10 if answered else 0
        with pytest.raises(Indeterminate) as told:
            await writer.compare_and_append(table([(1, "a", lower, 1)]), lower, 20, timeout=2)
        assert told.value.details["call"]
        proxy.refusing = False
        async with asyncio.timeout(60):
            while True:
                try:
                    [resolved] = await writer.resolve()
                    break
                except Indeterminate:
                    continue
        assert resolved.appended is not None
        assert resolved.appended.upper.elements == (20,)


async def test_server_without_sessions_is_asked_by_unary_calls():
    async with (
        server_of(memory_place()) as endpoint,
        TwiceProxy([endpoint, endpoint], sessions=False) as proxy,
        await aio.connect(proxy.endpoint) as client,
    ):
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        assert isinstance(await writer.compare_and_append(table([(1, "a", 0, 1)]), 0, 10), Appended)
        assert proxy.delivered["CompareAndAppend"] >= 1
