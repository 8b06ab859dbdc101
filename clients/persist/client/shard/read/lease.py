"""A reader's lease: kept alive in the background, and what it holds back from garbage collection.

Every heartbeat is a downgrade to the since already held, so it also moves the reader's seqno hold up to the oldest
parts it still fetches. A reader that follows a busy shard moves its hold as often as the shard writes rollups, or
garbage would wait for it; one that lies idle looks now and then how far the shard has gone. Source:
persist-semantics.md section 2.6 (seqno leases, heartbeats); reliability.md I10.
"""

import asyncio
import contextlib
import copy
import weakref
from collections.abc import Awaitable, Callable
from typing import TypeVar

from persist.client.shard.location import Location
from persist.client.shard.read.holds import SeqnoHolds
from persist.client.shard.same_history import same_history
from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, ShardId
from persist.core.shard.commands import DowngradeSince, ExpireReader, SinceDowngraded
from persist.errors import LeaseExpired, NotReadable, PersistError, UsageError
from persist.machine.shards import ShardInfo
from persist.retry.attempts import certain
from persist.retry.tasks import failed

T = TypeVar("T")

FOLLOW_SECONDS = 1.0
BEATS_PER_LEASE = 4
_REST = 4
"""After a downgrade that was no heartbeat, pause for this many times as long as it took, to keep the load low."""
_AGAIN_SECONDS_MAX = 1.0
LOOK_SECONDS = 10.0
"""An idle reader looks this often at where the shard is, and more and more seldom while that stays near."""
LOOK_SECONDS_MAX = 60.0
_IDLE_STEPS = 32
"""So many times as far as one that follows may an idle reader stay behind: what it commits is garbage for others."""


class Pin:
    """Keeps the parts named by one seqno from being deleted while they are read, until ``release`` or dropped."""

    def __init__(self, holds: SeqnoHolds, seqno: int) -> None:
        self._holds = holds
        self._hold = holds.take(seqno)
        self._release = weakref.finalize(self, holds.let_go, self._hold)
        self._release.atexit = False

    @property
    def seqno(self) -> int:
        """The state whose parts, and those of all newer ones, are kept."""
        return self._hold.seqno

    def move(self, seqno: int) -> None:
        """Hold this newer seqno instead. On the event loop."""
        self._holds.move(self._hold, seqno)

    def rest(self) -> None:
        """Hold nothing until ``wake``. On the event loop."""
        self._holds.rest(self._hold)

    def wake(self, seqno: int) -> None:
        """Hold this seqno after a rest; nothing if it does not rest. On the event loop."""
        self._holds.wake(self._hold, seqno)

    def release(self) -> None:
        """Release it. Doing so again does nothing. Safe from any thread."""
        self._release()


class Lease:
    """One registered reader, while it lives. Once expired it stays expired.

    What it asks the shard to hold is always a seqno this process has already seen, never "the newest": an
    attempt may arrive long after a read was planned that needs older parts.
    """

    def __init__(
        self,
        location: Location,
        *,
        shard: ShardId,
        reader_id: ReaderId,
        lease_ms: int,
        since: Antichain,
        seqno: int,
        incarnation: int,
    ) -> None:
        self.shard = shard
        self.reader_id = reader_id
        self.since = since
        self.incarnation = incarnation
        self._location = location
        self._lease_ms = lease_ms
        self._holds = SeqnoHolds()
        self._seen = seqno
        self._asked = seqno
        self._step = max(1, location.settings.rollup_every // 2)
        self._look_at = seqno + self._step
        self._failure: PersistError | None = None
        self._waiting: dict[asyncio.Timeout, None] = {}
        self._wanted = since
        self._downgraded_at = location.runtime.monotonic()
        self._loop = asyncio.get_running_loop()
        self._stirred = asyncio.Event()
        self._beating: asyncio.Task[None] | None = location.tasks.spawn(self._beat(), "keeping a lease alive")

    @property
    def alive(self) -> bool:
        """Not known to be gone."""
        return self._failure is None

    def check(self) -> None:
        """Raises LeaseExpired once the lease is known to be gone, UsageError after ``expire``."""
        self._location.check_open()
        if self._failure is not None:
            raise type(self._failure)(self._failure.message, hint=self._failure.hint, **self._failure.details)

    async def unless_lost(self, waiting: Awaitable[T], remaining: Callable[[], float] | None = None) -> T:
        """What ``waiting`` gives. Raises LeaseExpired as soon as the lease is known to be gone, by a refusal too.

        ``remaining``: seconds that its caller has left, for a look at the lease after a refusal.
        """
        try:
            async with asyncio.timeout(None) as scope:
                self._waiting[scope] = None
                try:
                    return await waiting
                finally:
                    self._waiting.pop(scope, None)
        except TimeoutError:
            self.check()
            raise
        except LeaseExpired as error:
            self._fail(error)
            raise
        except NotReadable:
            # SUBTLE: since went on without this reader, which may be registered again: as its registration came twice.
            await self.verify(None if remaining is None else remaining())
            raise

    def pin(self) -> Pin:
        """Hold what a read planned from now on may name, until the pin is moved or released."""
        return Pin(self._holds, self._seen)

    def woken(self, pin: Pin) -> bool:
        """Have a pin hold again after a rest; whether parts of what was seen before it may be gone."""
        is_gone = self._asked > pin.seqno
        pin.wake(self._seen if is_gone else pin.seqno)
        return is_gone

    def check_history(self, info: ShardInfo) -> ShardInfo:
        """The answer, if it is from the history of this lease. Raises LeaseExpired otherwise, from then on."""
        try:
            return same_history(self.incarnation, info)
        except LeaseExpired as error:
            self._fail(error)
            raise

    def saw(self, seqno: int, *, busy: bool = False) -> None:
        """Record that the shard is at ``seqno`` or beyond; ``busy``: there was something to read, so garbage may be
        waiting.

        SUBTLE: only reads stir the lease. Its downgrades are commits as well, and other readers see them.
        """
        self._seen = max(self._seen, seqno)
        if busy and self._seen >= self._look_at:
            self._look_at = self._seen + self._step
            if self._outstanding() - self._asked >= self._step:
                self._stirred.set()

    async def downgrade(self, since: Antichain, *, timeout: float | None = None) -> Antichain:
        """Give up reading below ``since`` and extend the lease. One RPC. Raises LeaseExpired, LocationError."""
        self.check()
        outstanding = max(self._asked, self._outstanding())
        self._asked = outstanding
        command = DowngradeSince(reader_id=self.reader_id, since=since, outstanding_seqno=outstanding)
        attempts = self._location.attempts
        try:
            answer: SinceDowngraded = await attempts.repeat(
                attempts.deadline(timeout),
                lambda seconds: self._location.shards.apply(self.shard, command, timeout=seconds),
            )
        except LeaseExpired as error:
            self._fail(error)
            raise
        if answer.held_seqno > self._asked:
            # Only its owner moves this hold: it ran out, and the id was registered again since.
            self._fail(_taken_over(self.reader_id))
            self.check()
        self.since = self.since.join(answer.since)
        self._downgraded_at = self._location.runtime.monotonic()
        self.saw(answer.seqno)
        return self.since

    def follow(self, since: Antichain) -> None:
        """Downgrade to ``since`` in the background: now if the last RPC was a second ago, else with a later one."""
        self._wanted = self._wanted.join(since)
        if self._location.runtime.monotonic() - self._downgraded_at >= FOLLOW_SECONDS:
            self._stirred.set()

    async def verify(self, timeout: float | None = None) -> None:
        """Return when the lease is alive for certain. Raises LeaseExpired; Determinate where nothing answers."""
        await certain(self.downgrade(self.since, timeout=timeout))

    async def expire(self, *, timeout: float | None = None) -> None:
        """Release everything. One RPC, and none when it is gone already."""
        if self._failure is not None:
            return
        self._fail(UsageError("the reader was expired by its owner", hint="open a new reader", reader=self.reader_id))
        attempts = self._location.attempts
        await attempts.repeat(
            attempts.deadline(timeout),
            lambda seconds: self._location.shards.apply(
                self.shard, ExpireReader(reader_id=self.reader_id), timeout=seconds
            ),
        )

    def abandon(self) -> None:
        """Expire in the background, if the loop still runs: the owner is gone without ``expire``. From any thread."""
        if self._failure is None and not self._location.closing:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the lease runs out by itself
                self._loop.call_soon_threadsafe(self._abandon)

    def _abandon(self) -> None:
        if self._failure is None and not self._location.closing:
            self._location.tasks.spawn(self._expire_quietly(), "expiring a reader")

    async def _expire_quietly(self) -> None:
        with contextlib.suppress(PersistError):  # the lease runs out by itself
            await self.expire()

    def _outstanding(self) -> int:
        """The oldest seqno that anything read through this lease may still need."""
        return self._holds.oldest(self._seen)

    async def _beat(self) -> None:
        """Renew the lease several times before it runs out, and move what it holds along when stirred."""
        runtime, pause = self._location.runtime, self._lease_ms / 1000 / BEATS_PER_LEASE
        while self._failure is None:
            stirred = await self._stirred_or_behind_within(pause)
            began = runtime.monotonic()
            try:
                await self.downgrade(self.since.join(self._wanted), timeout=max(pause, 1.0))
                if not stirred and self._outstanding() - self._asked >= self._step:
                    # An idle reader sees where the shard is by its heartbeat alone.
                    await self.downgrade(self.since, timeout=max(pause, 1.0))
            except LeaseExpired:
                return
            except Exception as error:
                if not isinstance(error, PersistError):
                    failed("keeping a lease alive", error, shard=self.shard)
                await runtime.sleep(min(pause / BEATS_PER_LEASE, _AGAIN_SECONDS_MAX))
                self._stirred.set()
            else:
                if stirred:
                    await runtime.sleep(min(_REST * (runtime.monotonic() - began), pause))

    async def _stirred_or_behind_within(self, seconds: float) -> bool:
        """Whether there is a reason to move the hold before the next heartbeat, which is due in ``seconds``."""
        runtime, look = self._location.runtime, LOOK_SECONDS
        until = runtime.monotonic() + seconds
        while (left := until - runtime.monotonic()) > look:
            if await self._stirred_within(look) or await self._is_far_behind():
                return True
            look = min(2 * look, LOOK_SECONDS_MAX)
        return await self._stirred_within(max(0.0, left))

    async def _is_far_behind(self) -> bool:
        """A look at the shard, which commits nothing: whether much garbage may wait for this reader, which is idle."""
        with contextlib.suppress(PersistError, TimeoutError):  # the next heartbeat says what is wrong
            self.saw((await self._location.shards.open(self.shard, create=False, timeout=LOOK_SECONDS)).seqno)
        return self._outstanding() - self._asked >= _IDLE_STEPS * self._step

    async def _stirred_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
        except TimeoutError:
            return False
        self._stirred.clear()
        return True

    def _fail(self, failure: PersistError) -> None:
        if self._failure is not None:
            return
        # SUBTLE: a copy, without the frames the error came through. The finalizer of the handle holds this lease, so a
        # handle in one of them would never go, nor what its caller had read.
        self._failure = copy.copy(failure)
        for scope in list(self._waiting):
            scope.reschedule(self._loop.time())
        if self._beating is not None and self._beating is not asyncio.current_task():
            self._beating.cancel()
        self._beating = None


def _taken_over(reader_id: ReaderId) -> LeaseExpired:
    return LeaseExpired(
        "the reader's lease ran out, or another process goes on under its id",
        hint="open a new reader",
        reader=reader_id,
    )
