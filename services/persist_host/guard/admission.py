"""How much a server takes on at once: calls, streams of each kind, and the memory of requests and answers.

Whatever is beyond is refused at once, with a delay, before work is done for it. Health and reflection are in none of
these. Source: reliability.md section 5, back-pressure; docs/runbook.md, limits.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from persist.errors import Overloaded
from persist.settings import Settings
from persist_host.guard.scan import beyond_memory
from persist_host.telemetry import Telemetry

K = TypeVar("K", bound=Hashable)

RETRY_MS: Final = 100
FRAME_SECONDS: Final = 10.0
"""How long a frame of a session waits for memory before its stream is ended. Its client sends no more meanwhile."""


SHARE: Final = 4
"""One connection takes no more than one in so many of the streams of a method, and of the memory of answers."""
CALLS_SHARE: Final = 2
SHARE_MIN: Final = 64
"""Calls or streams that one connection may have in any case, where there are so many."""


class ByteBudget:
    """A budget of bytes over all that is being served. ``what``: requests or answers."""

    def __init__(self, limit: int, telemetry: Telemetry, what: str = "requests", gauge: str = "") -> None:
        self._limit = limit
        self._telemetry = telemetry
        self._what = what
        self._gauge = gauge
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._wanted = 0
        self.used = 0

    def take(self, size: int, *, of: int = 0) -> None:
        """Take that much, ``of`` so much altogether. Raises Overloaded (not now), RequestTooLarge (never)."""
        self._check(max(size, of))
        if self.used + size > self._limit:
            raise self.full()
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
            raise self.full()
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._wanted += size
        turn.add_done_callback(lambda _: self._wanted_less(size))
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            # SUBTLE: its turn may have come in the very moment it was called off.
            self.give(size if turn.done() and not turn.cancelled() else 0)
            if isinstance(error, TimeoutError):
                raise self.full() from None
            raise

    def give(self, size: int) -> None:
        """Give back what was taken; calls that wait for it go on."""
        self._add(-size)
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.done():
                if self.used + wanted > self._limit:
                    return
                self._add(wanted)
                turn.set_result(None)
            self._waiting.popleft()

    def _wanted_less(self, size: int) -> None:
        self._wanted -= size

    def _add(self, size: int) -> None:
        self.used += size
        if self._gauge:
            self._telemetry.gauge(self._gauge, (), self.used)

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise beyond_memory(size, self._limit)

    def full(self) -> Overloaded:
        """The error when there is no room now; counted."""
        self._telemetry.count(
            "persist_refused_total", (("limit", "memory" if self._what == "requests" else self._what),)
        )
        return Overloaded(f"{self._what} take all memory they may", hint="slow down", retry_after_ms=RETRY_MS)

    @property
    def idle(self) -> bool:
        """Nothing is taken, and no call waits."""
        return not self.used and not self._waiting


class Answers:
    """The memory of answers on their way, of which no connection takes all."""

    def __init__(self, limit: int, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._all = ByteBudget(limit, telemetry, "answers", "persist_answer_memory_bytes")
        self._share = max(1, limit // SHARE)
        self._shares: dict[str, ByteBudget] = {}
        self._limit = limit
        self._wanted = 0

    def fitting(self, cost: int) -> int:
        """What to take for an answer of that cost: one that is larger than a share leaves alone."""
        return min(cost, self._share)

    async def wait(self, connection: str, cost: int, seconds: float) -> None:
        """Take that much as soon as it is there. Raises Overloaded.

        At once when those who wait would together take more than there is: what waits takes memory, too.
        """
        share = self._shares.get(connection)
        if share is None:
            share = self._shares[connection] = ByteBudget(self._share, self._telemetry, "answers")
        self._wanted += cost
        try:
            if self._wanted > self._limit:
                raise share.full()
            # In this order everywhere: what holds of all holds of its share, so no two wait for each other.
            await share.wait(cost, seconds)
            try:
                await self._all.wait(cost, seconds)
            except BaseException:
                share.give(cost)
                raise
        finally:
            self._wanted -= cost
            self._forget(connection, share)

    def give(self, connection: str, cost: int) -> None:
        """Give back what was taken."""
        share = self._shares[connection]
        self._all.give(cost)
        share.give(cost)
        self._forget(connection, share)

    def _forget(self, connection: str, share: ByteBudget) -> None:
        if share.idle:
            self._shares.pop(connection, None)


class Admission:
    """The limits that all calls to a host's services share."""

    def __init__(self, settings: Settings, telemetry: Telemetry) -> None:
        self._calls_max = settings.calls_max
        self._streams_max = settings.streams_max
        self._telemetry = telemetry
        self._calls = 0
        self._calls_of: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._streams_of: Counter[tuple[str, str]] = Counter()
        self.memory = ByteBudget(settings.request_memory_bytes, telemetry, gauge="persist_request_memory_bytes")
        self.answers = Answers(settings.answer_memory_bytes, telemetry)
        # One large request at a time is looked at: each that is shares the interpreter with the event loop, and with
        # many of them small requests would wait for all.
        self.large = asyncio.Semaphore(1)

    @contextmanager
    def call(self, connection: str) -> Iterator[None]:
        """A block that serves a call which ends by itself. Raises Overloaded."""
        if self._calls >= self._calls_max or self._calls_of[connection] >= _share(self._calls_max, CALLS_SHARE):
            raise self._refusal("calls")
        self._calls += 1
        self._calls_of[connection] += 1
        try:
            yield
        finally:
            self._calls -= 1
            _less(self._calls_of, connection)

    @contextmanager
    def stream(self, method: str, connection: str) -> Iterator[None]:
        """A block that serves a stream, which lasts as long as its caller likes. Raises Overloaded.

        Each method has room of its own: idle sessions do not keep others from watching.
        """
        own = method, connection
        if self._streams[method] >= self._streams_max or self._streams_of[own] >= _share(self._streams_max, SHARE):
            raise self._refusal("streams")
        self._streams[method] += 1
        self._streams_of[own] += 1
        self._gauge_streams(method)
        try:
            yield
        finally:
            self._streams[method] -= 1
            _less(self._streams_of, own)
            self._gauge_streams(method)

    def _gauge_streams(self, method: str) -> None:
        self._telemetry.gauge("persist_streams", (("method", method),), self._streams[method])

    def _refusal(self, limit: str) -> Overloaded:
        self._telemetry.count("persist_refused_total", (("limit", limit),))
        return Overloaded(f"this server serves as many {limit} as it may", hint="ask another", retry_after_ms=RETRY_MS)


def _share(limit: int, of: int) -> int:
    return max(limit // of, min(limit, SHARE_MIN))


def _less(counts: Counter[K], key: K) -> None:
    """Count one less; a count of zero is removed, as connections come and go."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
