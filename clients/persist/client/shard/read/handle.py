"""ReadHandle: reading a shard under a lease.

Source: design 001, ReadHandle; persist-semantics.md section 2.6; reliability.md I5, I6, I10.
"""

import contextlib
import weakref
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Self

from persist.client.shard.handles import Stays
from persist.client.shard.location import Location
from persist.client.shard.read.lease import Lease, Pin
from persist.client.shard.read.listen import Listen
from persist.client.shard.read.snapshot import Diffs, Snapshot
from persist.client.shard.times import FrontierLike, TimeLike, frontier_of, since_of, time_of
from persist.core.data.schema import Schema
from persist.core.frontier import TIME_MAX, Antichain
from persist.core.ids import ReaderId, ShardId
from persist.core.shard.closed import not_readable
from persist.errors import InvalidBounds, LocationError, NotReadable, NotYetAvailable
from persist.machine.parts.reading import changes_of, snapshot_of
from persist.machine.shards import NotYet, ShardInfo, ShardMoved, SnapshotPlan
from persist.retry.deadline import Deadline

LAST_SECONDS = 0.02
"""With less time than this left after "not yet", asking again could only fail."""
RECENT_SECONDS = 1.0
""""Not yet" with less time than this left is the outcome, if no answer comes after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSummary:
    """One batch of a shard: where it ends and how much it holds."""

    upper: Antichain
    rows: int
    encoded_bytes: int
    parts: int


class ReadHandle(Stays):
    """Reads one shard, holding its since under a lease that is renewed in the background.

    Drop it, or call ``expire``, to release it. When the process dies the lease runs out by itself. A lost lease shows
    as LeaseExpired on the next call: open another reader. ``timeout`` is in seconds, None means
    ``settings.timeout_ms``.
    """

    schema: Schema
    """The schema this handle was opened with."""

    def __init__(self, location: Location, lease: Lease, *, schema: Schema, upper: Antichain) -> None:
        self.schema = schema
        self._location = location
        self._lease = lease
        self._upper = upper
        self.complete: Callable[[float | None], Awaitable[object]] | None = None
        """What sees that the shard has all that was acknowledged, and goes before a read of the latest: a table's rows
        are in a log first. Given a timeout."""
        self._unreadable = not_readable(lease.shard, upper=upper) if lease.since.is_empty else None
        """Set when the shard was already closed for reading at the open."""
        self._abandon = weakref.finalize(self, lease.abandon)
        self._abandon.atexit = False

    @property
    def shard(self) -> ShardId:
        """The shard."""
        return self._lease.shard

    @property
    def reader_id(self) -> ReaderId:
        """The lease's name."""
        return self._lease.reader_id

    @property
    def incarnation(self) -> int:
        """The history of its location that this reads. A restore begins another one, of which it returns nothing."""
        return self._lease.incarnation

    @property
    def since(self) -> Antichain:
        """The smallest time this handle may read at; ``[]``: none. No RPC."""
        return self._lease.since

    @property
    def upper(self) -> Antichain:
        """The newest upper returned to this handle; the shard may be further. No RPC."""
        return self._upper

    async def downgrade_since(self, since: FrontierLike, *, timeout: float | None = None) -> Antichain:
        """Give up reading below ``since``, and the since that now holds; also a heartbeat. ``[]`` gives up reading.

        ``since``: a number or a date; ``-2h`` is refused, as nothing that is given up comes back. A lower or equal
        since changes nothing. One RPC. Raises InvalidArgument, LeaseExpired, LocationError.
        """
        return await self._lease.downgrade(since_of(since), timeout=timeout)

    async def heartbeat(self, *, timeout: float | None = None) -> None:
        """Extend the lease; returning means that it is alive. One RPC. Raises LeaseExpired, LocationError."""
        await self._lease.downgrade(self._lease.since, timeout=timeout)

    async def pin(self, *, timeout: float | None = None) -> Pin:
        """Keep the parts of every read planned from now on, by any reader of the shard, until the pin is dropped.

        For as long as this reader lives. Also a heartbeat. One RPC. Raises LeaseExpired, LocationError.
        """
        await self._lease.downgrade(self._lease.since, timeout=timeout)
        return self._lease.pin()

    async def expire(self, *, timeout: float | None = None) -> None:
        """Release everything this reader holds. One RPC. Expiring again does nothing.

        Raises LocationError: the lease runs out by itself.
        """
        self._abandon.detach()
        await self._lease.expire(timeout=timeout)

    async def snapshot(self, as_of: TimeLike | None = None, *, timeout: float | None = None) -> Snapshot:
        """The contents at ``as_of``: the same for every reader, for ever. Waits while ``as_of`` is not complete.

        Times are numbers, or what ``time_of`` understands: ``"2026-11-22T06:00"``, ``"-5m"``, a datetime.

        None: at the latest complete time, of a table that was opened by name with all rows that were acknowledged; of a
        closed shard at the end of time. One RPC, for None two, of a table in a log seven (longer waits: one per 30 s);
        nothing is read yet. Raises NotReadable below since (details name it) and, for None, where
        nothing was appended; ExportStalled as soon as it is clear that ``as_of`` does not come by itself;
        NotYetAvailable when the timeout passes first; LeaseExpired, LocationError.
        """
        if as_of is None:
            self._lease.check()
            self._check_given_up()
            if self.complete is not None:
                await self.complete(timeout)
            as_of = await self._latest(timeout)
        else:
            as_of = self._time(as_of)
        frontier = Antichain.of(as_of)
        self._check_readable(frontier)
        pin = self._lease.pin()
        plan = await self._plan(frontier, pin, timeout)
        pin.move(plan.info.seqno)
        self._upper = plan.info.upper
        reading = snapshot_of(plan.batches, plan.info, self._location.settings, as_of)
        return Snapshot(self._location, self._lease, pin, reading, as_of=as_of, upper=plan.info.upper, owner=self)

    async def so_far(self, as_of: int, *, timeout: float | None = None) -> Snapshot:
        """The contents at a time that the shard need not have come to, as far as there are any.

        For callers who know that nothing more comes at or before it. Two RPCs. Raises as ``snapshot``, but for waiting.
        """
        self._check_readable(Antichain.of(as_of))
        pin = self._lease.pin()
        change = await self._fetch_now(Antichain.of(0), self._location.attempts.deadline(timeout))
        pin.move(change.info.seqno)
        self._upper = change.info.upper
        reading = snapshot_of(change.batches, change.info, self._location.settings, as_of)
        return Snapshot(self._location, self._lease, pin, reading, as_of=as_of, upper=change.info.upper, owner=self)

    async def listen(self, as_of: TimeLike, *, timeout: float | None = None, downgrade: bool = False) -> Listen:
        """Every update at a time after ``as_of``, as Updates and Progress, as they commit. ``as_of`` may lie ahead.

        ``timeout``: end after this many seconds without news; None: never. ``downgrade``: move this handle's since
        along, one frontier behind the last Progress (about once a second). Raises NotReadable below since, and while
        iterating LeaseExpired, CorruptData, LocationError (after ``settings.timeout_ms`` without any answer).
        """
        return self._listen(self._time(as_of), self._lease.pin(), timeout, downgrade, None)

    async def subscribe(self, as_of: TimeLike, *, timeout: float | None = None, downgrade: bool = False) -> Listen:
        """The snapshot at ``as_of`` as Updates at that time, Progress, then what ``listen`` gives.

        ``timeout`` is also how long to wait for ``as_of`` to be complete. Raises as ``snapshot`` and ``listen``.
        """
        time = self._time(as_of)
        snapshot = await self.snapshot(time, timeout=timeout)
        return self._listen(time, self._lease.pin(), timeout, downgrade, snapshot)

    async def diffs(self, lower: FrontierLike, upper: FrontierLike, *, timeout: float | None = None) -> Diffs:
        """Every update at a time in ``[lower, upper)``, at its own time. Waits until the shard's upper is ``upper``.

        Times as ``snapshot`` takes them. Two RPCs, and two per wait.
        Raises NotReadable unless since lies before ``lower`` (or both are 0),
        InvalidBounds, ExportStalled, NotYetAvailable, LeaseExpired, LocationError.
        """
        now = self._location.runtime.now_ms()
        begin, end = frontier_of(lower, now), frontier_of(upper, now)
        if not begin.less_equal(end):
            raise InvalidBounds("upper lies below lower", hint="times only move forward", lower=begin, upper=end)
        self._lease.check()
        self._check_given_up()
        self._check_exact(begin, self.since)
        pin = self._lease.pin()
        deadline = self._location.attempts.deadline(timeout)
        change = await self._changes_until(begin, end, timeout)
        pin.move(change.info.seqno)
        self._lease.saw(change.info.seqno, busy=True)
        self._upper = change.info.upper
        if not _is_exact(begin, change.info.since):
            # Since went on without this reader: most likely because its lease ran out.
            await self._lease.verify(deadline.remaining())
        self._check_exact(begin, change.info.since)
        batches = [batch for batch in change.batches if batch.desc.lower.less_than(end)]
        times = (TIME_MAX if begin.time is None else begin.time, end.time)
        reading = changes_of(batches if begin != end else [], change.info, self._location.settings, *times)
        return Diffs(self._location, self._lease, pin, reading, lower=begin, upper=end, owner=self)

    async def changes_since(self, lower: FrontierLike, *, timeout: float | None = None) -> tuple[BatchSummary, ...]:
        """The batches beyond ``lower``, oldest first: where a change feed may be cut, and how many updates lie between.

        Does not wait; may be empty. Two RPCs. Raises LeaseExpired, LocationError.
        """
        self._lease.check()
        change = await self._fetch_now(
            frontier_of(lower, self._location.runtime.now_ms()), self._location.attempts.deadline(timeout)
        )
        self._upper = change.info.upper
        return tuple(
            BatchSummary(
                upper=batch.desc.upper, rows=batch.rows, encoded_bytes=batch.encoded_bytes, parts=len(batch.parts)
            )
            for batch in change.batches
        )

    def __repr__(self) -> str:
        return f"<ReadHandle of {self.shard} since={self.since} upper={self.upper}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.expire()

    def _time(self, given: TimeLike) -> int:
        return time_of(given, self._location.runtime.now_ms())

    def _listen(self, as_of: int, pin: Pin, idle: float | None, downgrade: bool, snapshot: Snapshot | None) -> Listen:
        self._check_readable(Antichain.of(as_of))
        if idle is not None:
            self._location.attempts.deadline(idle)
        return Listen(
            self._location,
            self._lease,
            pin,
            as_of=as_of,
            idle=idle,
            downgrade=downgrade,
            snapshot=snapshot,
            owner=self,
        )

    async def _latest(self, timeout: float | None) -> int:
        """The latest complete time."""
        deadline = self._location.attempts.deadline(timeout)
        info = await self._info(deadline)
        if info.upper.time == 0:
            hint = "append something first, or name an as_of and wait for it"
            raise NotReadable("nothing is complete yet", hint=hint, upper=info.upper)
        return TIME_MAX if info.upper.time is None else info.upper.time - 1

    async def _plan(self, as_of: Antichain, pin: Pin, timeout: float | None) -> SnapshotPlan:
        location = self._location
        wait = _Wait(as_of, location.attempts.deadline(timeout))
        while True:
            self._lease.check()
            with wait.asking():
                answer = await self._lease.unless_lost(
                    location.stalls.unless_stalled(
                        {self.shard: _last(as_of)},
                        location.attempts.repeat(
                            wait.deadline,
                            lambda seconds: location.shards.snapshot(
                                self.shard, as_of, reader_id=self.reader_id, timeout=seconds
                            ),
                            limit_ms=location.settings.timeout_ms,
                        ),
                    ),
                    wait.deadline.remaining,
                )
            self._lease.check_history(answer.info)
            if isinstance(answer, SnapshotPlan):
                self._lease.saw(answer.info.seqno, busy=True)
                return answer
            assert isinstance(answer, NotYet)
            # Nothing is planned yet, so nothing older is needed.
            self._lease.saw(answer.info.seqno)
            pin.move(answer.info.seqno)
            self._upper = answer.info.upper
            wait.not_beyond(answer.info.upper)

    async def _changes_until(self, lower: Antichain, upper: Antichain, timeout: float | None) -> ShardMoved:
        """The changes beyond ``lower``, once the shard's upper is at least ``upper``."""
        wait = _Wait(upper, self._location.attempts.deadline(timeout))
        change = await self._fetch_now(lower, wait.deadline)
        while not upper.less_equal(change.info.upper):
            self._lease.check()
            wait.not_beyond(change.info.upper)
            # The last incomplete time: passing it is what is waited for. For [] that is whatever comes next.
            last = change.info.upper if upper.time is None else Antichain.of(upper.time - 1)
            fetching = self._fetch(last.join(change.info.upper), wait.deadline)
            with wait.asking():
                change = await self._location.stalls.unless_stalled({self.shard: _last(last)}, fetching)
            if upper.less_equal(change.info.upper):
                change = await self._fetch_now(lower, wait.deadline)
        return change

    async def _fetch_now(self, frontier: Antichain, deadline: Deadline) -> ShardMoved:
        """What lies beyond ``frontier`` at present."""
        info = await self._info(deadline)
        if info.upper.less_equal(frontier):
            return ShardMoved(info=info, batches=())
        return await self._fetch(frontier, deadline)

    async def _fetch(self, frontier: Antichain, deadline: Deadline) -> ShardMoved:
        location = self._location
        change = await self._lease.unless_lost(
            location.attempts.repeat(
                deadline, lambda seconds: location.shards.fetch(self.shard, frontier, timeout=seconds)
            ),
            deadline.remaining,
        )
        self._lease.check_history(change.info)
        return change

    async def _info(self, deadline: Deadline) -> ShardInfo:
        location = self._location
        info = await location.attempts.repeat(
            deadline, lambda seconds: location.shards.open(self.shard, create=False, timeout=seconds)
        )
        self._lease.saw(self._lease.check_history(info).seqno)
        return info

    def _check_readable(self, as_of: Antichain) -> None:
        self._lease.check()
        self._check_given_up()
        if not self.since.less_equal(as_of):
            hint = f"read at as_of >= {self.since.time}"
            raise NotReadable("as_of lies below this handle's since", hint=hint, as_of=as_of, since=self.since)

    def _check_given_up(self) -> None:
        if not self.since.is_empty:
            return
        if self._unreadable is None:
            raise NotReadable(
                "this handle gave up reading", hint="open another reader", shard=self.shard, since=self.since
            )
        known = self._unreadable
        raise NotReadable(known.message, hint=known.hint, **known.details)

    def _check_exact(self, lower: Antichain, since: Antichain) -> None:
        if not _is_exact(lower, since):
            raise NotReadable(
                "changes at and after lower can no longer be distinguished from those before",
                hint="start at a time beyond since" if not since.is_empty else "the shard is closed for reading",
                lower=lower,
                since=since,
            )


def _is_exact(lower: Antichain, since: Antichain) -> bool:
    """Updates at and after ``lower`` can still be distinguished from those before."""
    return since.less_than(lower) or since == lower == Antichain.of(0)


def _last(time: Antichain) -> int:
    """The last time that is waited for."""
    return TIME_MAX if time.time is None else time.time


class _Wait:
    """A read that waits for a frontier: the last answer is its outcome, when no other answer comes in time."""

    def __init__(self, wanted: Antichain, deadline: Deadline) -> None:
        self.deadline = deadline
        self._wanted = wanted
        self._last_upper: Antichain | None = None
        self._left = 0.0

    def not_beyond(self, upper: Antichain) -> None:
        """Note that the shard is not beyond ``upper``. Raises NotYetAvailable when asking again could only fail."""
        self._last_upper, self._left = upper, self.deadline.remaining()
        if self._left < LAST_SECONDS:
            raise self._not_yet(upper)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """A block that asks. Raises NotYetAvailable when that fails so soon after an answer that there was no time."""
        try:
            yield
        except LocationError as error:
            if self._last_upper is None or self._left > RECENT_SECONDS:
                raise
            raise self._not_yet(self._last_upper) from error

    def _not_yet(self, upper: Antichain) -> NotYetAvailable:
        return NotYetAvailable(
            "as_of was not complete in time",
            hint="wait longer, or read at a time below upper",
            as_of=self._wanted,
            upper=upper,
        )
