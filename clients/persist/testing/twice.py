"""A gRPC proxy that delivers every request twice, as a balancer that retries too eagerly would.

Each call goes to one server, and again, a little later, to one that is drawn; the caller gets the answer of one of the
two. Frames of a session are doubled, too: their answers come from the first.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from persist.retry.tasks import Tasks, forsake
from persist.typed import Record

LATER_SECONDS = 0.05


def _raw(data: bytes) -> bytes:
    return data


class TwiceProxy:
    """Listens on a free port of 127.0.0.1. ``endpoints``: where calls go. An async context manager.

    ``sessions`` False: sessions are UNIMPLEMENTED, so that clients make unary calls.
    """

    def __init__(self, endpoints: Sequence[str], *, seed: int = 0, sessions: bool = True) -> None:
        self._endpoints = endpoints
        self._random = random.Random(seed)
        self._sessions = sessions
        self._tasks = Tasks()
        self._channels: list[grpc.aio.Channel] = []
        self._server: Any = None
        self.endpoint = ""
        self.delivered: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        self._channels = [grpc.aio.insecure_channel(endpoint) for endpoint in self._endpoints]
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((_Handlers(self._handler),))
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(0)
        await self._tasks.close()
        for channel in self._channels:
            await channel.close()

    def _handler(self, method: str) -> Any:
        name = method.rpartition("/")[2]
        if name == "Session":
            if not self._sessions:
                return None
            return grpc.stream_stream_rpc_method_handler(self._session(method), _raw, _raw)
        if name in {"Snapshot", "Fetch", "Watch", "Inspect", "ListShards", "WatchWork"}:
            return grpc.unary_stream_rpc_method_handler(self._stream(method), _raw, _raw)
        return grpc.unary_unary_rpc_method_handler(self._unary(method, name), _raw, _raw)

    def _unary(self, method: str, name: str) -> Callable[..., Any]:
        async def handle(request: bytes, context: Any) -> bytes:
            one, other = self._pair()
            late = self._random.random() * LATER_SECONDS
            heard_late = self._random.random() < 0.5
            # SUBTLE: now. What came with a call is freed with it, and the later of the two may outlive it.
            given = {"timeout": context.time_remaining(), "metadata": context.invocation_metadata()}
            calls = [
                self._tasks.start(self._sent(one, method, name, request, given, 0.0)),
                self._tasks.start(self._sent(other, method, name, request, given, late)),
            ]
            forsake(*calls)
            try:
                answer: bytes = await asyncio.shield(calls[heard_late])
            except grpc.aio.AioRpcError as error:
                context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
                await context.abort(error.code(), error.details() or "")
                raise AssertionError("abort raises") from None
            return answer

        return handle

    async def _sent(
        self, channel: grpc.aio.Channel, method: str, name: str, request: bytes, given: Record, late: float
    ) -> bytes:
        await asyncio.sleep(late)
        self.delivered[name] += 1
        answer: bytes = await channel.unary_unary(method, _raw, _raw)(request, **given)
        return answer

    def _stream(self, method: str) -> Callable[..., Any]:
        async def handle(request: bytes, context: Any) -> AsyncIterator[bytes]:
            call = self._pair()[0].unary_stream(method, _raw, _raw)(
                request, timeout=context.time_remaining(), metadata=context.invocation_metadata()
            )
            async for message in call:
                yield message

        return handle

    def _session(self, method: str) -> Callable[..., Any]:
        async def handle(frames: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            one, other = (channel.stream_stream(method, _raw, _raw)() for channel in self._pair())

            async def forward() -> None:
                async for frame in frames:
                    self.delivered["Session"] += 2
                    await other.write(frame)
                    await asyncio.sleep(self._random.random() * LATER_SECONDS / 10)
                    await one.write(frame)

            sending = [self._tasks.start(forward()), self._tasks.start(_drained(other))]
            forsake(*sending)
            try:
                async for answer in one:
                    yield answer
            finally:
                for task in sending:
                    task.cancel()
                other.cancel()

        return handle

    def _pair(self) -> tuple[grpc.aio.Channel, grpc.aio.Channel]:
        return self._random.choice(self._channels), self._random.choice(self._channels)


async def _drained(call: Any) -> None:
    async for _ in call:
        pass


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, handler: Callable[[str], Any]) -> None:
        self._handler = handler

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method, whatever it is."""
        return self._handler(handler_call_details.method)
