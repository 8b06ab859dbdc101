"""The server's end of a Session: frames of calls in, frames of answers out, in the order they become ready.

One task reads, the handler writes. Answers that become ready while a frame is being written leave together in the
next. Source: protos/persist/v1/shard.proto, Session; performance.md A3.
"""

import asyncio
import functools
from collections import deque
from typing import Any, Final, NamedTuple

from persist.errors import InvalidArgument, MissingDeadline, PersistError
from persist.runtime import Runtime
from persist.v1 import shard_pb2 as pb
from persist.wire.rpc import Method, answer_of, failure_of, request_in
from persist_host import Frames, Strangers, Telemetry
from persist_host.calls import Context
from persist_host.guard.interceptor import SHARD_HEADER
from persist_shard.lanes import Lanes
from persist_shard.understood import understood

OPEN_CALLS_MAX: Final = 4096
"""Calls of one session without an answer on the wire; beyond it the server stops reading."""
FRAME_ANSWERS_MAX: Final = 16
FRAME_BYTES_MAX: Final = 1 << 20
"""A frame of answers is sent once it is this large: those to compactions name thousands of parts."""
CALLS_AT_ONCE: Final = 32
"""Calls of one frame that begin before others have their turn."""
_METHOD: Final = "Session"


class _Answer(NamedTuple):
    """The answer of a call. Its message is made only when it is written, to save memory."""

    id: int
    method: Method | None
    outcome: Any
    memory: int

    def message(self, strangers: Strangers) -> pb.SessionAnswer:
        if isinstance(self.outcome, PersistError):
            return failure_of(self.id, strangers.shown(self.outcome, _METHOD))
        assert self.method is not None
        return answer_of(self.id, self.method, self.outcome)


class ServerSession:
    """One stream. ``run`` returns when the client has no more to say, or said nothing for long, and every call is
    answered."""

    def __init__(
        self,
        lanes: Lanes,
        frames: Frames,
        context: Context,
        *,
        shard: str | None,
        idle_seconds: float,
        runtime: Runtime,
        telemetry: Telemetry,
        strangers: Strangers,
    ) -> None:
        """``shard``: the only one this stream may name, if it was routed by one."""
        self._lanes = lanes
        self._runtime = runtime
        self._telemetry = telemetry
        self._strangers = strangers
        self._frames = frames
        self._context = context
        self._shard = shard
        self._idle_seconds = idle_seconds
        self._active_at = runtime.monotonic()
        self._ready: deque[_Answer] = deque()
        self._open: set[asyncio.Future[Any]] = set()
        self._unwritten = 0
        self._memory = 0
        self._stirred = asyncio.Event()
        self._room = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._between_frames = False
        self._draining = False

    async def run(self) -> None:
        """Serve the stream to its end. Raises what broke it."""
        self._reader = asyncio.ensure_future(self._read())
        self._reader.add_done_callback(lambda _: self._stirred.set())
        self._look()
        try:
            while self._ready or self._open or not self._reader.done():
                if not self._ready:
                    self._stirred.clear()
                    await self._stirred.wait()
                    continue
                await self._write()
            if not self._reader.cancelled():
                self._reader.result()
        finally:
            self._timer.cancel()
            self._reader.cancel()
            # What broke the stream knows this frame: with the reader left here they would hold each other.
            self._reader = None
            for call in tuple(self._open):
                # The client is gone: what has not reached the machine yet need not.
                call.cancel()
            self._frames.leave(self._memory)

    def drain(self) -> None:
        """Read no more, answer what was read, end the stream."""
        self._draining = True
        if self._reader is not None and self._between_frames:
            self._reader.cancel()

    def _look(self) -> None:
        """End an idle stream, now or when it may have become idle."""
        quiet = self._runtime.monotonic() - self._active_at
        if quiet >= self._idle_seconds and not self._unwritten:
            self.drain()
        # At least a while: a stream whose calls take long is looked at again, and again.
        left = max(self._idle_seconds - quiet, self._idle_seconds / 4)
        self._timer = asyncio.get_running_loop().call_later(left, self._look)

    async def _read(self) -> None:
        while not self._draining:
            self._between_frames = True
            try:
                frame, memory, refused = await anext(self._frames)
            except StopAsyncIteration:
                return
            finally:
                self._between_frames = False
            self._active_at = self._runtime.monotonic()
            self._memory += memory
            self._telemetry.count("persist_session_calls_total", by=len(frame.calls))
            if refused is not None:
                self._unwritten += 1
                self._answered(_Answer(refused[0], None, refused[1], 0))
            await self._begin_all(frame, memory)
            # The next one may be long in coming, and nothing counts this one any more.
            del frame

    async def _begin_all(self, frame: pb.SessionRequest, memory: int) -> None:
        share = memory // max(1, len(frame.calls))
        self._leave(memory - share * len(frame.calls))
        for number, call in enumerate(frame.calls, start=1):
            while self._unwritten >= OPEN_CALLS_MAX:
                self._room.clear()
                await self._room.wait()
            await self._begin(call, share)
            if number % CALLS_AT_ONCE == 0:
                await self._runtime.sleep(0)

    async def _begin(self, call: pb.SessionCall, memory: int) -> None:
        self._unwritten += 1
        try:
            method, request = request_in(call)
            if call.timeout_ms == 0:
                raise MissingDeadline("the call has no timeout_ms", hint="set one: every call must end")
            if self._shard is not None and request.shard_id != self._shard:
                raise InvalidArgument(f"metadata {SHARD_HEADER} and shard_id differ", hint="one session, one route")
            shard, command = await understood(request, self._runtime)
            answer = self._lanes.submit(shard, command, timeout=call.timeout_ms / 1000, weight=call.ByteSize())
        except PersistError as error:
            self._answered(_Answer(call.id, None, error, memory))
            return
        self._open.add(answer)
        answer.add_done_callback(functools.partial(self._end, call.id, method, memory))

    def _end(self, id_: int, method: Method, memory: int, answer: asyncio.Future[object]) -> None:
        self._open.discard(answer)
        if answer.cancelled():
            return
        error = answer.exception()
        if error is None:
            self._answered(_Answer(id_, method, answer.result(), memory))
        elif isinstance(error, PersistError):
            self._answered(_Answer(id_, method, error, memory))
        else:
            raise error  # lanes set PersistError only; a bug belongs in the loop's exception handler

    def _answered(self, answer: _Answer) -> None:
        self._ready.append(answer)
        self._stirred.set()

    async def _write(self) -> None:
        """Send what is ready, bounded in answers and bytes."""
        answers: list[pb.SessionAnswer] = []
        memory = size = 0
        while self._ready and len(answers) < FRAME_ANSWERS_MAX and size < FRAME_BYTES_MAX:
            ready = self._ready.popleft()
            answers.append(ready.message(self._strangers))
            memory += ready.memory
            size += answers[-1].ByteSize()
        await self._context.write(pb.SessionResponse(answers=answers))
        self._active_at = self._runtime.monotonic()
        self._unwritten -= len(answers)
        self._leave(memory)
        self._room.set()

    def _leave(self, memory: int) -> None:
        self._memory -= memory
        self._frames.leave(memory)
