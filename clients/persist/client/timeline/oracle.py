"""Oracle: the write times and the read time of one timeline, for any number of processes.

Nothing is remembered but what the two shards hold: processes may die, restart and overlap at will.
Source: catalog-semantics.md section 5.3; design 004; docs/adr/0008-oracle-in-two-registers.md.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from persist.client.shard.handles import Stays
from persist.client.timeline.call_batcher import CallBatcher
from persist.client.timeline.register import Register, seconds
from persist.client.timeline.steady_clock import SteadyClock
from persist.core.frontier import TIME_MAX, check_time
from persist.core.ids import ShardId
from persist.core.time.clock import AHEAD_MS_MAX, check_clock
from persist.core.time.timeline import Timeline, observed, oracle_shards
from persist.errors import Determinate, Indeterminate, InvalidArgument, InvalidBounds, Overloaded, PersistError
from persist.retry.deadline import Deadline

if TYPE_CHECKING:
    from persist.client.shard.client import ShardClient

BEHIND_MS_MAX: Final = 1_000
"""A clock that is further behind the times given out is worth a warning."""
WARN_SECONDS: Final = 60.0
PACE_SECONDS: Final = 0.001
"""Between times given out on a timeline that is far ahead of the clock: the clock catches up with them."""

_log = logging.getLogger(__name__)


class Times(Protocol):
    """What an oracle asks: the two registers in this process, or a TimestampOracle server. One call is one round."""

    @property
    def known(self) -> int:
        """Every later write time is at least this. No RPC."""
        ...

    @property
    def over(self) -> bool:
        """The location was restored: open them anew. No RPC."""
        ...

    @property
    def follows_clock(self) -> bool:
        """Whether the clock that counts is the caller's. If not, ``take`` needs neither bound."""
        ...

    async def take(self, count: int, not_before: int, not_after: int | None, deadline: Deadline) -> Sequence[int]:
        """Rising write times, one at least and at most ``count``. Beyond ``not_after`` there is no more than one."""
        ...

    async def written(self, deadline: Deadline) -> int:
        """The greatest time given out or being applied."""
        ...

    async def applied(self, deadline: Deadline) -> int:
        """The greatest time applied."""
        ...

    async def apply(self, ts: int, deadline: Deadline) -> None:
        """Make read times at least, and write times greater than, ``ts``."""
        ...


@dataclass(frozen=True, slots=True)
class _Later:
    """These times do not fit now, and do after so long."""

    retry_after_ms: int


_Given: TypeAlias = Sequence[int] | _Later


class Registers:
    """The times of a timeline as its two shards hold them."""

    follows_clock = True

    def __init__(self, write: Register, read: Register) -> None:
        """The first time that was not given out or applied, and the first that was not applied."""
        self._write = write
        self._read = read

    @classmethod
    async def open(cls, client: "ShardClient", timeline: Timeline, deadline: Deadline) -> "Registers":
        """Two RPCs, four for a new timeline."""
        shards = oracle_shards(timeline)
        write, read = await asyncio.gather(
            *(Register.open(client, shard, timeout=seconds(deadline)) for shard in shards)
        )
        return cls(write, read)

    @property
    def known(self) -> int:
        return self._write.known

    @property
    def over(self) -> bool:
        return self._write.over or self._read.over

    async def take(self, count: int, not_before: int, not_after: int | None, deadline: Deadline) -> Sequence[int]:
        return await self._write.take(count, not_before, deadline, not_after=not_after)

    async def written(self, deadline: Deadline) -> int:
        return await self._write.read(deadline) - 1

    async def applied(self, deadline: Deadline) -> int:
        return await self._read.read(deadline) - 1

    async def apply(self, ts: int, deadline: Deadline) -> None:
        if self._read.known > ts:
            # SUBTLE: it was applied. That it still is, only the shard knows: a restore takes back what came after it.
            await self._read.read(deadline)
            return
        # SUBTLE: in this order. Once a caller reads ts, no write time may be ts or less.
        await self._write.raise_to(ts + 1, deadline)
        await self._read.raise_to(ts + 1, deadline)


class Oracle(Stays):
    """The times of one timeline. Safe for many tasks; calls made at the same time share one commit or one read.

    A write time is greater than every one given out, and every time read or applied, before it was asked for. A read
    time is at least every time whose ``apply_write`` had returned, and less than every write time asked for later.
    This holds among all processes, whatever their clocks say and whichever die. ``timeout`` is in seconds, None means
    ``settings.timeout_ms``. Every call may raise LocationError, ShardClosed (the timeline's shards were closed),
    LeaseExpired (the location was restored from a backup, which takes back the times after it: open the oracle again).
    """

    timeline: Timeline
    """What its times mean."""

    def __init__(
        self,
        client: "ShardClient",
        timeline: Timeline,
        times: Times,
        *,
        reference: Callable[[], int] | None = None,
    ) -> None:
        location = client.location
        self.timeline = timeline
        self._client = client
        self._times = times
        self._reference = reference
        self._clock = SteadyClock(location.runtime)
        self._monotonic = location.runtime.monotonic
        self._sleep = location.runtime.sleep
        self._warned: float | None = None
        self._writes = CallBatcher[int, _Given](location, self._take, late=Indeterminate)
        self._applies = CallBatcher[int, None](location, self._apply, late=Indeterminate)
        self._reads = CallBatcher[None, int](location, self._ask, late=Determinate)
        self._peeks = CallBatcher[None, int](location, self._peek, late=Determinate)

    @property
    def over(self) -> bool:
        """The location was restored: every call is refused, and another oracle has to be opened. No RPC."""
        return self._times.over

    @classmethod
    async def open(
        cls,
        client: "ShardClient",
        timeline: Timeline,
        times: Times | None = None,
        *,
        initially: int = 0,
        reference: Callable[[], int] | None = None,
        timeout: float | None = None,
    ) -> "Oracle":
        """The oracle of a timeline, made if missing, after ``initially`` was applied. Two RPCs, six for a new one.

        ``times``: what to ask, by default the timeline's shards. Raises ClockAhead, InvalidBounds, LocationError.
        """
        deadline = client.location.attempts.deadline(timeout)
        times = times or await Registers.open(client, timeline, deadline)
        oracle = cls(client, timeline, times, reference=reference)
        # Time 0 is never a write time, so that there is a read time from the beginning.
        await oracle.check_ahead(_applicable(initially), timeout=seconds(deadline))
        await oracle._times.apply(initially, deadline)
        return oracle

    async def write_ts(self, *, timeout: float | None = None) -> int:
        """A time that no other caller is given, and not before the clock's on a timeline that has one.

        One RPC, shared. Raises ClockAhead (this clock is too far ahead of the reference), InvalidBounds (the end of
        time). After Indeterminate a time may be lost, which does no harm. A timeline that is more than 10 s ahead of
        the clock gives its times one by one, at most one in a millisecond, until the clock has caught up.
        """
        return (await self._some(1, self._client.location.attempts.deadline(timeout)))[0]

    async def write_times(self, count: int, *, timeout: float | None = None) -> list[int]:
        """``count`` different write times, rising, however many for the price of one. Raises as ``write_ts``, and:

        InvalidArgument (no count, or more than 10,000 on a timeline with a clock), Overloaded (several times, of which
        the last would be more than 10 s ahead of the clock; ``details['retry_after_ms']`` says when it is not).
        """
        given: object = count
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise InvalidArgument("at least one time is asked for", hint="count from 1", got=repr(count)[:80])
        if self.timeline.has_clock and count > AHEAD_MS_MAX:
            raise InvalidArgument("a clock has a time in each ms only", hint=f"count to {AHEAD_MS_MAX}", got=count)
        deadline = self._client.location.attempts.deadline(timeout)
        times: list[int] = []
        while len(times) < count:
            times += await self._some(count - len(times), deadline)
        return times

    async def peek_write_ts(self, *, timeout: float | None = None) -> int:
        """A time that no later write time reaches down to: the greatest given out or being applied.

        One RPC, shared. Raises LocationError.
        """
        return await self._peeks.call(None, timeout)

    async def read_ts(self, *, timeout: float | None = None) -> int:
        """The greatest time applied: all applied writes are at or before it.

        One RPC, shared, never cached. Raises LocationError.
        """
        return await self._reads.call(None, timeout)

    async def apply_write(self, ts: int, *, timeout: float | None = None) -> None:
        """From now on read times are at least ``ts``, and write times greater: what was written at ``ts`` is durable.

        One RPC, shared, when this process was given ``ts`` or one later; else two. Repeating it is safe. Raises
        ClockAhead (a time that was never given out and lies too far ahead of this clock), InvalidBounds.
        """
        deadline = self._client.location.attempts.deadline(timeout)
        await self.check_ahead(_applicable(ts), timeout=seconds(deadline))
        await self._applies.call(ts, seconds(deadline))

    async def observe(self, shards: Iterable[ShardId | str], *, timeout: float | None = None) -> int | None:
        """Apply the greatest time that is complete in all these shards, and that time: for timelines without a clock.

        None, and nothing applied, when no shard has a complete time or all are closed. One RPC for each shard, and
        those of ``apply_write``. Raises ShardNotFound.
        """
        deadline = self._client.location.attempts.deadline(timeout)
        asked = (self._client.recent_upper(shard, timeout=seconds(deadline)) for shard in shards)
        ts = observed(await asyncio.gather(*asked))
        if ts is not None:
            await self.apply_write(ts, timeout=seconds(deadline))
        return ts

    def __repr__(self) -> str:
        return f"<Oracle of {self.timeline}>"

    async def _some(self, count: int, deadline: Deadline) -> Sequence[int]:
        """One time at least and at most ``count``, rising. Raises Overloaded."""
        given = await self._writes.call(count, seconds(deadline))
        if isinstance(given, _Later):
            raise Overloaded(
                "these times would be too far ahead of the clock",
                hint="ask for fewer, or later",
                count=count,
                ahead_ms_max=AHEAD_MS_MAX,
                retry_after_ms=given.retry_after_ms,
            )
        return given

    async def _take(self, calls: Sequence[int], deadline: Deadline) -> Sequence[_Given]:
        now, not_after = (self._clock.now_ms() if self.timeline.has_clock else 0), None
        if self._reference is not None and self.timeline.has_clock and now >= self._times.known:
            check_clock(now, self._reference())
        counts: list[int | _Later] = list(calls)
        if self.timeline.has_clock and self._times.follows_clock:
            not_after, first = now + AHEAD_MS_MAX, max(now, self._times.known)
            counts = _fitting(calls, first, not_after)
            if first > not_after:
                await self._sleep(PACE_SECONDS)
        wanted = sum(count for count in counts if isinstance(count, int))
        times: Sequence[int] = await self._times.take(wanted, now, not_after, deadline) if wanted else ()
        if self.timeline.has_clock and times:
            self._warn(times[0] - now)
        return _shared(times, counts)

    async def _apply(self, calls: Sequence[int], deadline: Deadline) -> Sequence[None]:
        await self._times.apply(max(calls), deadline)
        return [None] * len(calls)

    async def check_ahead(self, ts: int, *, timeout: float | None = None) -> None:
        """Raises ClockAhead for a time that ``apply_write`` would refuse. Usually without any RPC.

        By itself, so that a call with a wrong time fails none of those it would have shared a round with.
        """
        now = self._clock.now_ms()
        suspicious = self.timeline.has_clock and max(now + AHEAD_MS_MAX, self._times.known) < ts
        if suspicious and await self.peek_write_ts(timeout=timeout) < ts:
            check_clock(ts, now)

    async def _ask(self, calls: Sequence[None], deadline: Deadline) -> Sequence[int]:
        return [await self._times.applied(deadline)] * len(calls)

    async def _peek(self, calls: Sequence[None], deadline: Deadline) -> Sequence[int]:
        return [await self._times.written(deadline)] * len(calls)

    def _warn(self, behind_ms: int) -> None:
        now = self._monotonic()
        if behind_ms > BEHIND_MS_MAX and (self._warned is None or now - self._warned > WARN_SECONDS):
            self._warned = now
            _log.warning("the clock of this machine is %d ms behind timeline %s", behind_ms, self.timeline)


async def acknowledge(oracle: Oracle, ts: int, deadline: Deadline) -> None:
    """Apply the time of a write that has happened. Raises Indeterminate, whatever keeps it from being applied."""
    try:
        await oracle.apply_write(ts, timeout=seconds(deadline))
    except PersistError as error:
        # SUBTLE: whatever the error says of itself, the write that it reports has happened.
        message = f"written, but perhaps not read yet: {error.message}"
        raise Indeterminate(message, hint="repeat resolve()", **{**error.details, "ts": ts}) from error


def _fitting(calls: Sequence[int], first: int, not_after: int) -> list[int | _Later]:
    """The counts; _Later for those beyond ``not_after``, never for a single time: or a slow clock could never write."""
    counts: list[int | _Later] = []
    for count in calls:
        excess = first + count - 1 - not_after
        if count > 1 and excess > 0:
            counts.append(_Later(excess))
        else:
            counts.append(count)
            first += count
    return counts


def _shared(times: Sequence[int], counts: Sequence[int | _Later]) -> list[_Given]:
    """What each call gets, in order, until there is nothing left: the others stay for the next round."""
    answers: list[_Given] = []
    given = 0
    for count in counts:
        if isinstance(count, _Later):
            answers.append(count)
        elif given < len(times):
            answers.append(times[given : given + count])
            given += count
        else:
            break
    return answers


def _applicable(ts: int) -> int:
    if check_time(ts) >= TIME_MAX - 1:
        raise InvalidBounds("no time is left on this timeline", hint="the last two times cannot be applied", ts=ts)
    return ts
