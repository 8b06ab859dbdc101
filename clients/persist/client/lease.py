"""A reader's lease: kept alive in the background, and what it holds back from garbage collection.

Every heartbeat is a downgrade to the since already held, so it also moves the reader's seqno hold up to the oldest
parts it still fetches. Source: persist-semantics.md section 2.6 (seqno leases, heartbeats); reliability.md I10.
"""

import asyncio
import contextlib
import weakref
from collections import Counter

from persist.client.location import Location
from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, ShardId
from persist.core.shard.commands import DowngradeSince, ExpireReader, SinceDowngraded
from persist.errors import LeaseExpired, LocationError, PersistError, UsageError

FOLLOW_SECONDS = 1.0


class Pin:
    """Keeps the parts named by one seqno from being deleted while they are read, until ``release`` or dropped."""

    def __init__(self, lease: "Lease", seqno: int) -> None:
        self._lease = lease
        self._seqno = [seqno]
        lease.hold(seqno)
        self._release = weakref.finalize(self, lease.release, self._seqno)
        self._release.atexit = False

    def move(self, seqno: int) -> None:
        """Hold this newer seqno instead."""
        if seqno > self._seqno[0]:
            self._lease.hold(seqno)
            self._lease.release([self._seqno[0]])
            self._seqno[0] = seqno

    def release(self) -> None:
        """Let go. Doing so again does nothing."""
        self._release()


class Lease:
    """One registered reader, as long as it lives. Expired means for ever."""

    def __init__(
        self, location: Location, *, shard: ShardId, reader_id: ReaderId, lease_ms: int, since: Antichain, seqno: int
    ) -> None:
        self.shard = shard
        self.reader_id = reader_id
        self.since = since
        self._location = location
        self._lease_ms = lease_ms
        self._seqno = seqno
        self._held: Counter[int] = Counter()
        self._failure: PersistError | None = None
        self._wanted = since
        self._told_at = location.runtime.monotonic()
        self._loop = asyncio.get_running_loop()
        self._beating: asyncio.Task[None] | None = location.tasks.start(self._beat())

    @property
    def alive(self) -> bool:
        """Not known to be gone."""
        return self._failure is None

    def check(self) -> None:
        """Raises LeaseExpired once the lease is known to be gone, UsageError after ``expire``."""
        self._location.check_open()
        if self._failure is not None:
            raise type(self._failure)(self._failure.message, hint=self._failure.hint, **self._failure.details)

    def pin(self) -> Pin:
        """Hold what this reader holds now, until the pin is moved or released."""
        return Pin(self, self._seqno)

    def hold(self, seqno: int) -> None:
        """Count one more user of a seqno."""
        self._held[seqno] += 1

    def release(self, seqno: list[int]) -> None:
        """Count one less. Safe from any thread: finalizers call it."""
        self._held.subtract(seqno)

    async def downgrade(self, since: Antichain, *, timeout: float | None = None) -> Antichain:
        """Give up reading below ``since`` and extend the lease. One RPC. Raises LeaseExpired, LocationError."""
        self.check()
        outstanding = min((seqno for seqno, users in list(self._held.items()) if users > 0), default=None)
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
        self.since = self.since.join(answer.since)
        self._told_at = self._location.runtime.monotonic()
        if outstanding is not None:
            self._seqno = max(self._seqno, outstanding)
        self._held = Counter({seqno: users for seqno, users in self._held.items() if users > 0})
        return self.since

    async def follow(self, since: Antichain) -> None:
        """Downgrade to ``since`` now and then: at once when the last RPC was a second ago, else with a later one."""
        self._wanted = self._wanted.join(since)
        if self._location.runtime.monotonic() - self._told_at >= FOLLOW_SECONDS:
            await self.downgrade(self._wanted)

    async def verify(self) -> None:
        """Return when the lease is alive for certain. Raises LeaseExpired, LocationError."""
        await self.downgrade(self.since)

    async def expire(self, *, timeout: float | None = None) -> None:
        """Let go of everything. One RPC, and none when it is gone already."""
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
        """The owner is gone without ``expire``: expire in the background if the loop still runs. From any thread."""
        if self._failure is None and not self._location.closing:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the lease runs out by itself
                self._loop.call_soon_threadsafe(self._abandon)

    def _abandon(self) -> None:
        if self._failure is None and not self._location.closing:
            self._location.tasks.start(self.expire())

    async def _beat(self) -> None:
        runtime = self._location.runtime
        while self._failure is None:
            await runtime.sleep(self._lease_ms / 4000)
            with contextlib.suppress(LocationError):
                await self.downgrade(self.since.join(self._wanted), timeout=max(self._lease_ms / 4000, 1.0))

    def _fail(self, failure: PersistError) -> None:
        self._failure = failure
        if self._beating is not None and self._beating is not asyncio.current_task():
            self._beating.cancel()
        self._beating = None
