"""Whether a server still answers: asked in the background while calls or streams are open there.

A frozen server, or one whose host is gone, breaks nothing: its connections stay open and say nothing, and a stream that
waits for news cannot distinguish a frozen server from an idle one. So the health service is asked beside them, and when
that does not answer either, whatever is open there is broken off at once: what was sent and may change something is
Indeterminate, the rest Determinate, and its caller repeats it elsewhere.
Source: reliability.md section 5; grpc.health.v1.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
import grpc.aio

from persist.retry.tasks import Tasks
from persist.runtime import Runtime
from persist.typed import AnyMessage

EVERY_SECONDS: Final = 0.5
"""Between two signs of life, where calls are open."""
SILENCE_SECONDS: Final = 1.4
"""A server that does not answer within this time is left. With ``EVERY_SECONDS``: within two seconds."""
LATE_SECONDS: Final = 0.25
"""A server that takes longer than this to say that it is well is not the first one to be asked."""
LAG_SECONDS: Final = 0.25
"""A question this much too late shows that this process stood still, not the server."""
AGAIN_SECONDS: Final = 0.5
"""It is asked again then, and has to answer at once. Three times in a row is no coincidence."""

_CHECK: Final = "/grpc.health.v1.Health/Check"
_SERVING: Final = b"\x08\x01"
_UNANSWERED: Final = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class OpenCall:
    """A call or stream that is open at a server. ``broken``: it was broken off because the server was silent."""

    def __init__(self, break_off: Callable[[], AnyMessage]) -> None:
        self._break_off = break_off
        self.broken = False
        task = asyncio.current_task()
        # SUBTLE: a task may have been cancelled before and have gone on.
        self._cancelling = 0 if task is None else task.cancelling()

    def end(self) -> None:
        """Break it off."""
        self.broken = True
        self._break_off()

    def left(self) -> bool:
        """Whether a cancellation in the current task comes from ``end``, and not from its own caller."""
        task = asyncio.current_task()
        return self.broken and (task is None or task.cancelling() <= self._cancelling)


class Pulse:
    """The signs of life of one server.

    ``watched``: whether silence ends what is open there; for servers in whose place another can be asked.
    """

    def __init__(
        self, channel: grpc.aio.Channel, *, runtime: Runtime, watched: bool, on_silence: Callable[[], None]
    ) -> None:
        self._check: Any = channel.unary_unary(_CHECK)
        self._runtime = runtime
        self._watched = watched
        self._on_silence = on_silence
        self._open: dict[OpenCall, None] = {}
        self._last_sign = runtime.monotonic()
        self._waiting: asyncio.TimerHandle | None = None
        self._watching = False
        self._unanswered: float | None = None
        """When the open question was asked, in monotonic seconds."""
        self._tasks = Tasks()

    @property
    def late(self) -> bool:
        """Whether it was asked a moment ago, or longer, and has not answered since."""
        return self._unanswered is not None and self._runtime.monotonic() - self._unanswered > LATE_SECONDS

    def sign_of_life(self) -> None:
        """Note a sign of life."""
        self._last_sign = self._runtime.monotonic()
        self._unanswered = None

    @contextlib.contextmanager
    def open(self, break_off: Callable[[], AnyMessage]) -> Iterator[OpenCall]:
        """A block in which a call is open. ``break_off`` ends the call; it may be called once, from the loop."""
        one = OpenCall(break_off)
        if not self._watched:
            yield one
            return
        self._open[one] = None
        if self._waiting is None and not self._watching:
            self._waiting = asyncio.get_running_loop().call_later(EVERY_SECONDS, self._begin)
        try:
            yield one
        finally:
            self._open.pop(one, None)

    async def lives(self) -> bool:
        """Whether the server answers now, and takes calls."""
        return await self._ask() == _SERVING

    async def close(self) -> None:
        """Stop asking, and release the channel."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._watched = False
        await self._tasks.close()
        # SUBTLE: gRPC ends its threads with its last channel. A cycle would keep this one until a garbage collection,
        # and a fork before that would find them running.
        self._check = None
        self._on_silence = _nothing

    def _begin(self) -> None:
        self._waiting = None
        if self._open:
            self._watching = True
            self._tasks.spawn(self._watch(), "watching the health of servers")

    async def _watch(self) -> None:
        try:
            # One that was asked and said nothing is asked on, or it would never be found to be well.
            while self._open or self._unanswered is not None:
                quiet = self._runtime.monotonic() - self._last_sign
                if quiet < EVERY_SECONDS:
                    await self._runtime.sleep(EVERY_SECONDS - quiet)
                elif await self._is_silent():
                    self._lose()
        finally:
            self._watching = False

    async def _is_silent(self) -> bool:
        """Whether the server said nothing while it was asked. That it refuses connections breaks its calls anyway."""
        for seconds in (SILENCE_SECONDS, AGAIN_SECONDS, AGAIN_SECONDS):
            began = self._runtime.monotonic()
            answer = await self._ask(seconds)
            took = self._runtime.monotonic() - began
            if answer is not None or self._last_sign > began:
                return False
            if took < seconds - LAG_SECONDS:
                # Refused: connections that are open may still be served to their end.
                self._leave()
                await self._runtime.sleep(EVERY_SECONDS)
                return False
            if took <= seconds + LAG_SECONDS:
                break
        return True

    def _leave(self) -> None:
        # From now on the calls that left it ask whether it is well again.
        self._unanswered = None
        self._on_silence()

    def _lose(self) -> None:
        self._leave()
        for one in tuple(self._open):
            self._open.pop(one, None)
            one.end()

    async def _ask(self, seconds: float = SILENCE_SECONDS) -> bytes | None:
        """What the health service says; None: nothing. A server without one answers, too."""
        if self._unanswered is None:
            self._unanswered = self._runtime.monotonic()
        try:
            answer: bytes = await self._check(b"", timeout=seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() in _UNANSWERED:
                return None
            answer = _SERVING
        self.sign_of_life()
        return answer


def _nothing() -> None:
    pass
