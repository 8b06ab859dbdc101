"""Ticks of those who read what only a leader brings forward, where none lives for as long as a tick.

A leader moves the read time of clocks once a second, and views and indexes follow. Processes that each end before they
come to that leave both where they are, however often they read: so who reads sees that a process leads, and where that
is itself, ticks first.
Source: collections: the controller (ticker, views); catalog-semantics.md section 5.3.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import Final

from persist.client.collections.views.times import next_refresh
from persist.client.shard.location import Location
from persist.client.timeline.oracle import Oracle
from persist.client.timeline.register import seconds
from persist.core.catalog.ddl.statements import Refresh
from persist.core.time.errors import ClockAhead
from persist.errors import StoreReadOnly
from persist.retry.deadline import Backoff, Deadline

ATTENDED_SECONDS: Final = 1.0
"""Between two looks whether a process leads, of who waits for what it does."""
TICK_MS: Final = 1_000
"""Between two ticks of a leader. What is refreshed at least as often is waited for by who begins to lead."""
LATE_MS: Final = 2_500
"""A read time that is further behind the clock may be one that nothing moves."""
PATIENCE_SECONDS: Final = 3.0
"""How long the next tick of another process is waited for, once it is late."""


class Attended(Enum):
    """Where the process that leads an environment is: here, also before this was asked; at another one; or at none that
    can be seen from here. Where none has to lead, HERE is who brings views forward itself: see ``views.bringing``."""

    HERE = "here"
    BEGUN = "here since this was asked"
    ELSEWHERE = "elsewhere"
    NOWHERE = "nowhere"
    SILENT = "at another one, or at none: that cannot be seen from here"
    ENDED = "at none any more: who led ended in order"


async def nowhere() -> Attended:
    """Nothing leads here, or has to."""
    return Attended.NOWHERE


class Ticks:
    """Of one client. ``attend`` sees that a process leads, where one may; it raises nothing."""

    def __init__(
        self,
        location: Location,
        attend: Callable[[], Awaitable[Attended]],
        unattended: Callable[[], Awaitable[Attended]] = nowhere,
    ) -> None:
        """``unattended`` is called once who leads, if any does, was waited for in vain: HERE if this one ticks then."""
        self._location = location
        self._attend = attend
        self._unattended = unattended
        self._ahead = 0
        """By how much this clock is ahead of that of a leader elsewhere, as far as that is more than a tick."""
        self._stood: int | None = None
        """Where the read time stood when a leader elsewhere was last waited for in vain."""

    async def brought(
        self,
        oracle: Oracle,
        read_ts: int,
        refreshes: Iterable[Refresh],
        bound: Callable[[], Awaitable[int | None]],
        deadline: Deadline,
    ) -> int:
        """The read time once what is refreshed at these times can be as new as a leader that lives keeps it.

        Who begins to lead here waits for the next of them that is less than a tick away, so that all that was written
        before shows: nothing has refreshed it meanwhile. ``bound``: at most this, if this process ticks. The same where
        none may lead, or who leads does not tick: what is complete stays readable. Where another process leads, its
        clock is what counts; of one that is late waits at most ``PATIENCE_SECONDS``. Raises LocationError.
        """
        before, location = read_ts, self._location
        patience = Deadline(location.runtime, min(PATIENCE_SECONDS, deadline.remaining()))
        backoff = Backoff(location.runtime, location.settings, patience)
        while True:
            where = await self._attend()
            if where is Attended.SILENT and self._stood == before:
                where = await self._unattended()
            if where in (Attended.BEGUN, Attended.HERE):
                if where is Attended.HERE and self._lag(read_ts) <= TICK_MS:
                    return read_ts
                wanted = shown_from(refreshes, read_ts) if where is Attended.BEGUN else 0
                return await self._tick(oracle, read_ts, wanted, await bound(), deadline)
            if where is Attended.NOWHERE or not self._is_late(read_ts) or self._stood == before:
                return read_ts
            if not await backoff.pause():
                self._stood = before
                if where is Attended.SILENT and deadline.remaining() > 0:
                    continue
                return read_ts
            read_ts = await oracle.read_ts(timeout=seconds(deadline))
            if read_ts > before:
                # Its ticks come: whatever is missing now is between the two clocks.
                self._ahead = max(0, self._lag(read_ts))
                return read_ts

    def _lag(self, read_ts: int) -> int:
        return self._location.runtime.now_ms() - read_ts

    def _is_late(self, read_ts: int) -> bool:
        self._ahead = max(0, min(self._ahead, self._lag(read_ts)))
        return self._lag(read_ts) - self._ahead > LATE_MS

    async def _tick(self, oracle: Oracle, read_ts: int, wanted: int, bound: int | None, deadline: Deadline) -> int:
        """SUBTLE: by a time that is given out, as a ticker's: so a clock that is out of bounds moves nothing."""
        if bound is not None and bound <= read_ts:
            return read_ts
        early = wanted - self._location.runtime.now_ms()
        if 0 < early <= TICK_MS and (bound is None or wanted <= bound) and early / 1000 < deadline.remaining():
            await self._location.runtime.sleep(early / 1000)
        with contextlib.suppress(StoreReadOnly, ClockAhead):
            given = await oracle.write_ts(timeout=seconds(deadline))
            time = given if bound is None else min(given, bound)
            await oracle.apply_write(time, timeout=seconds(deadline))
            return max(time, read_ts)
        return read_ts


def shown_from(refreshes: Iterable[Refresh], time: int) -> int:
    """The least time from which on all that was written up to ``time`` shows in what is refreshed each tick or more
    often; 0 where nothing is."""
    often = (each for each in refreshes if each.every is not None and each.every <= TICK_MS)
    return max((next_refresh(each, time) for each in often), default=0)
