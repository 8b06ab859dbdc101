"""The server's end of a Session: frames of calls in, frames of answers out, in the order they become ready.

One task reads, the handler writes. Answers that become ready while a frame is being written leave together in the
next. Source: protos/persist/v1/shard.proto, Session; performance.md A3.
"""

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any, Final

from persist.errors import InvalidArgument, MissingDeadline, PersistError
from persist.v1 import shard_pb2 as pb
from persist.wire.rpc import Method, answer_of, command_of, failure_of, request_in
from persist_host import Telemetry
from persist_host.guard import SHARD_HEADER
from persist_shard.lanes import Lanes

OPEN_CALLS_MAX: Final = 4096
"""Calls of one session without an answer on the wire; beyond it the server stops reading."""
FRAME_ANSWERS_MAX: Final = 16


class ServerSession:
    """One stream. ``run`` returns when the client has no more to say and every call is answered."""

    def __init__(
        self,
        lanes: Lanes,
        frames: AsyncIterator[pb.SessionRequest],
        context: Any,
        *,
        shard: str | None,
        telemetry: Telemetry,
    ) -> None:
        """``shard``: the only one this stream may name, if it was routed by one."""
        self._lanes = lanes
        self._telemetry = telemetry
        self._frames = frames
        self._context = context
        self._shard = shard
        self._ready: list[pb.SessionAnswer] = []
        self._open: set[asyncio.Future[Any]] = set()
        self._stirred = asyncio.Event()
        self._room = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve the stream to its end. Raises what broke it."""
        self._reader = asyncio.ensure_future(self._read())
        self._reader.add_done_callback(lambda _: self._stirred.set())
        try:
            while self._ready or self._open or not self._reader.done():
                if not self._ready:
                    self._stirred.clear()
                    await self._stirred.wait()
                    continue
                frame, self._ready = self._ready[:FRAME_ANSWERS_MAX], self._ready[FRAME_ANSWERS_MAX:]
                self._room.set()
                await self._context.write(pb.SessionResponse(answers=frame))
            if not self._reader.cancelled():
                self._reader.result()
        finally:
            self._reader.cancel()
            for call in tuple(self._open):
                # The client is gone: what has not reached the machine yet need not.
                call.cancel()

    def drain(self) -> None:
        """Read no more, answer what was read, end the stream."""
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self) -> None:
        async for frame in self._frames:
            for call in frame.calls:
                self._begin(call)
            self._telemetry.count("persist_session_calls_total", by=len(frame.calls))
            while len(self._open) + len(self._ready) > OPEN_CALLS_MAX:
                self._room.clear()
                await self._room.wait()

    def _begin(self, call: pb.SessionCall) -> None:
        try:
            method, request = request_in(call)
            if call.timeout_ms == 0:
                raise MissingDeadline("the call has no timeout_ms", hint="set one: every call must end")
            if self._shard is not None and request.shard_id != self._shard:
                raise InvalidArgument(f"metadata {SHARD_HEADER} and shard_id differ", hint="one session, one route")
            shard, command = command_of(request)
            answer = self._lanes.submit(shard, command, timeout=call.timeout_ms / 1000, weight=call.ByteSize())
        except PersistError as error:
            self._answered(failure_of(call.id, error))
            return
        self._open.add(answer)
        answer.add_done_callback(functools.partial(self._end, call.id, method))

    def _end(self, id_: int, method: Method, answer: asyncio.Future[Any]) -> None:
        self._open.discard(answer)
        if answer.cancelled():
            return
        error = answer.exception()
        if error is None:
            self._answered(answer_of(id_, method, answer.result()))
        elif isinstance(error, PersistError):
            self._answered(failure_of(id_, error))
        else:
            raise error  # lanes set PersistError only; a bug belongs in the loop's exception handler

    def _answered(self, answer: pb.SessionAnswer) -> None:
        self._ready.append(answer)
        self._stirred.set()
