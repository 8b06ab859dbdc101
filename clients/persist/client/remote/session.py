"""The client's end of a Session: calls of many tasks on one stream, gathered into frames.

Whatever goes wrong with the stream, every call on it ends at once: those that were sent as Indeterminate, those that
were not as Determinate. A call never waits beyond its own timeout. Source: performance.md A3; shard.proto, Session.
"""

import asyncio
import copy
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from persist.errors import Determinate, LocationError, PersistError
from persist.retry.methods import NO_ANSWER, repeat_of, unanswered
from persist.retry.tasks import Tasks, forsake
from persist.runtime import Runtime
from persist.typed import AnyMessage
from persist.wire.rpc import Method, call_of, outcome_in, session_request

FRAME_CALLS_MAX: Final = 256
FRAME_BYTES_MAX: Final = 1 << 20
AGE_SECONDS_MAX: Final = 240.0
"""Servers end connections after five minutes; a fresh stream is taken before that."""
IDLE_SECONDS_MAX: Final = 30.0
"""A stream with nothing to say for so long is ended: sooner than servers do, who would be in doubt."""


END_SECONDS: Final = 5.0
"""How long a replaced stream may take to end by itself."""


class SessionUnsupported(Exception):
    """The server has no sessions, and this call was not sent: use unary calls."""


class _Call:
    """A call without an answer."""

    __slots__ = ("answer", "frame_bytes", "message", "rpc", "sent", "timer")

    def __init__(self, rpc: str, message: AnyMessage, frame_bytes: int, answer: "asyncio.Future[Any]") -> None:
        self.rpc = rpc
        self.message = message
        self.frame_bytes = frame_bytes
        self.answer = answer
        self.sent = False
        self.timer: asyncio.TimerHandle | None = None


class ClientSession:
    """One stream. When ``over``, make another one."""

    def __init__(
        self,
        open_stream: Callable[[], AnyMessage],
        *,
        endpoint: str,
        runtime: Runtime,
        error_of: Callable[[AnyMessage], PersistError],
        on_frame: Callable[[], None] = lambda: None,
    ) -> None:
        """``open_stream`` starts the rpc; ``error_of`` translates how it broke; ``on_frame`` is called for each one."""
        self._open_stream = open_stream
        self._endpoint = endpoint
        self._runtime = runtime
        self._error_of = error_of
        self._on_frame = on_frame
        self._born = runtime.monotonic()
        self._next_id = 0
        self._calls: dict[int, _Call] = {}
        self._outbox: list[int] = []
        self._stirred = asyncio.Event()
        self._tasks = Tasks()
        self._stream: Any = None
        self._broken: PersistError | None = None
        self._answered = False
        self._idle = False
        self.unsupported = False
        """Whether the server, or a proxy before it, has no sessions."""
        self._tasks.spawn(self._run(), "a session")

    @property
    def over(self) -> bool:
        """No further calls: broken, idle for long, or old enough to be replaced."""
        if self._broken is not None or self._idle:
            return True
        return self._runtime.monotonic() - self._born > AGE_SECONDS_MAX

    @property
    def ended(self) -> bool:
        """Nothing is under way any more."""
        return self._broken is not None

    async def call(self, method: Method, request: AnyMessage, timeout: float) -> AnyMessage:
        """The outcome of a command. Raises what the server says, Determinate, Indeterminate, SessionUnsupported."""
        if self._broken is not None:
            raise self._failure(method.rpc, sent=False)
        self._next_id += 1
        id_ = self._next_id
        message = call_of(id_, max(1, int(timeout * 1000)), method, request)
        loop = asyncio.get_running_loop()
        call = _Call(method.rpc, message, message.ByteSize(), loop.create_future())
        call.timer = loop.call_later(timeout, self._expire, call)
        self._calls[id_] = call
        self._outbox.append(id_)
        self._stirred.set()
        try:
            return outcome_in(await call.answer)
        finally:
            call.timer.cancel()
            self._calls.pop(id_, None)
            if self.over and not self._calls:
                self._stirred.set()

    def leave(self) -> None:
        """Break off: the server does not answer. It is notified, and once awake drops what it has not begun."""
        self._break(Determinate(f"{NO_ANSWER} {self._endpoint}", hint="retry"))
        if self._stream is not None:
            self._stream.cancel()

    async def close(self) -> None:
        """Cancel the stream. Calls without an answer fail."""
        self._break(Determinate("the client was closed"))
        if self._stream is not None:
            self._stream.cancel()
        await self._tasks.close()

    async def _run(self) -> None:
        """Own the stream: write here, read in a task, and end both together."""
        try:
            self._stream = self._open_stream()
            await self._stream.wait_for_connection()
            reader = self._tasks.start(self._read())
            reader.add_done_callback(lambda _: self._stirred.set())
            # Where writing fails first, how reading failed does not matter.
            forsake(reader)
            while not reader.done() and not (self.over and not self._calls):
                if not self._outbox:
                    await self._something_to_do()
                    continue
                frame = self._frame()
                if frame:
                    await self._stream.write(session_request([call.message for call in frame]))
            if reader.done():
                reader.result()
                raise Determinate("the server ended the session", hint="retry")
            await self._stream.done_writing()
            await asyncio.wait({reader}, timeout=END_SECONDS)
            self._break(Determinate("the session was replaced", hint="retry"))
        except grpc.RpcError as error:
            # SUBTLE: a proxy's 404 is UNIMPLEMENTED, too, and may come after the server did what was sent.
            code = getattr(error, "code", lambda: None)()
            self.unsupported = code is grpc.StatusCode.UNIMPLEMENTED and not self._answered
            self._break(self._error_of(error))
        except PersistError as error:
            self._break(error)
        except asyncio.InvalidStateError:
            self._break(Determinate("the session's stream has ended", hint="retry"))
        finally:
            self._break(Determinate("the session ended", hint="retry"))
            if self._stream is not None:
                self._stream.cancel()

    async def _something_to_do(self) -> None:
        self._stirred.clear()
        try:
            async with asyncio.timeout(IDLE_SECONDS_MAX):
                await self._stirred.wait()
        except TimeoutError:
            self._idle = not self._calls

    async def _read(self) -> None:
        # Raises the stream's status when that is an error.
        while (frame := await self._stream.read()) is not grpc.aio.EOF:
            self._answered = True
            self._on_frame()
            for answer in frame.answers:
                call = self._calls.get(answer.id)
                if call is not None and not call.answer.done():
                    call.answer.set_result(answer)

    def _frame(self) -> list[_Call]:
        """The next frame to send, bounded in calls and bytes."""
        frame: list[_Call] = []
        size = 0
        for position, id_ in enumerate(self._outbox):
            call = self._calls.get(id_)
            if call is None or call.answer.done():
                continue
            if frame and (len(frame) == FRAME_CALLS_MAX or size + call.frame_bytes > FRAME_BYTES_MAX):
                del self._outbox[:position]
                return frame
            call.sent = True
            frame.append(call)
            size += call.frame_bytes
        self._outbox.clear()
        return frame

    def _expire(self, call: _Call) -> None:
        if call.answer.done():
            return
        if call.sent:
            error: LocationError = unanswered(repeat_of(call.rpc), f"{NO_ANSWER} {self._endpoint} in time")
        else:
            error = Determinate(f"no connection to {self._endpoint} in time", hint="is the server there?")
        call.answer.set_exception(error)

    def _break(self, cause: PersistError) -> None:
        if self._broken is None:
            self._broken = copy.copy(cause)  # without the frames it came through
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(self._failure(call.rpc, sent=call.sent))
        self._outbox.clear()

    def _failure(self, rpc: str, *, sent: bool) -> Exception:
        cause = self._broken
        assert cause is not None
        if self.unsupported and not sent:
            return SessionUnsupported()
        message = cause.message if cause.message.startswith(NO_ANSWER) else f"the session broke: {cause.message}"
        if sent:
            return unanswered(repeat_of(rpc), message, **cause.details)
        return Determinate(message, hint="retry", **cause.details)
