"""How much a server takes on at once: calls, streams of each kind, and the memory of the requests among them.

Whatever is beyond is refused at once, with a delay, before work is done for it. Health and reflection are in none of
these. Source: reliability.md section 5, back-pressure; docs/runbook.md, limits.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from persist.errors import Overloaded
from persist.settings import Settings
from persist_host.guard.scan import beyond_memory
from persist_host.telemetry import Telemetry

RETRY_MS: Final = 100
FRAME_SECONDS: Final = 10.0
"""How long a frame of a session waits for memory before its stream is ended. Its client sends no more meanwhile."""


class Memory:
    """A budget of bytes over all requests that are being served."""

    def __init__(self, limit: int, telemetry: Telemetry) -> None:
        self._limit = limit
        self._telemetry = telemetry
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._wanted = 0
        self.used = 0

    def take(self, size: int, *, of: int = 0) -> None:
        """Take that much, ``of`` so much altogether. Raises Overloaded (not now), RequestTooLarge (never)."""
        self._check(max(size, of))
        if self.used + size > self._limit:
            raise self._full()
        self._add(size)

    async def wait(self, size: int, seconds: float) -> None:
        """Take that much as soon as it is there, in the order of asking.

        Raises as ``take`` when time is up, and at once when those who wait would together take more than there is.
        """
        self._check(size)
        if not self._waiting and self.used + size <= self._limit:
            self._add(size)
            return
        if self._wanted + size > self._limit:
            raise self._full()
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._wanted += size
        turn.add_done_callback(lambda _: self._heard(size))
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            # SUBTLE: its turn may have come in the very moment it was called off.
            self.give(size if turn.done() and not turn.cancelled() else 0)
            if isinstance(error, TimeoutError):
                raise self._full() from None
            raise

    def give(self, size: int) -> None:
        """Give back what was taken; whoever waits for it goes on."""
        self._add(-size)
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.done():
                if self.used + wanted > self._limit:
                    return
                self._add(wanted)
                turn.set_result(None)
            self._waiting.popleft()

    def _heard(self, size: int) -> None:
        self._wanted -= size

    def _add(self, size: int) -> None:
        self.used += size
        self._telemetry.gauge("persist_request_memory_bytes", (), self.used)

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise beyond_memory(size, self._limit)

    def _full(self) -> Overloaded:
        self._telemetry.count("persist_refused_total", (("limit", "memory"),))
        return Overloaded("requests take all memory they may", hint="slow down", retry_after_ms=RETRY_MS)


class Admission:
    """What all calls to a host's services share."""

    def __init__(self, settings: Settings, telemetry: Telemetry) -> None:
        self._calls_max = settings.calls_max
        self._streams_max = settings.streams_max
        self._telemetry = telemetry
        self._calls = 0
        self._streams: Counter[str] = Counter()
        self.memory = Memory(settings.request_memory_bytes, telemetry)
        # One large request at a time is looked at: each that is shares the interpreter with the event loop, and with
        # many of them whoever asks for little would wait for all.
        self.large = asyncio.Semaphore(1)

    @contextmanager
    def call(self) -> Iterator[None]:
        """A block that serves a call which ends by itself. Raises Overloaded."""
        if self._calls >= self._calls_max:
            raise self._refusal("calls")
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    @contextmanager
    def stream(self, method: str) -> Iterator[None]:
        """A block that serves a stream which lasts as long as its caller likes. Raises Overloaded.

        Each method has room of its own: idle sessions keep nobody from watching.
        """
        if self._streams[method] >= self._streams_max:
            raise self._refusal("streams")
        self._streams[method] += 1
        self._tell(method)
        try:
            yield
        finally:
            self._streams[method] -= 1
            self._tell(method)

    def _tell(self, method: str) -> None:
        self._telemetry.gauge("persist_streams", (("method", method),), self._streams[method])

    def _refusal(self, limit: str) -> Overloaded:
        self._telemetry.count("persist_refused_total", (("limit", limit),))
        return Overloaded(f"this server serves as many {limit} as it may", hint="ask another", retry_after_ms=RETRY_MS)
