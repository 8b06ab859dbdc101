"""Listen: the changes of a shard as they happen, from an ``as_of`` on, without gap or repeat.

Source: persist-semantics.md section 2.6; reliability.md I6; performance.md A6.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import pyarrow as pa

from persist.client.shard.handles import Stays
from persist.client.shard.location import Location
from persist.client.shard.read.lease import Lease, Pin
from persist.client.shard.read.snapshot import Snapshot
from persist.core.frontier import TIME_MAX, Antichain
from persist.core.shard.batch import HollowBatch
from persist.errors import Determinate, LocationError, NotReadable, UsageError
from persist.machine.parts.fetch import WHOLE_BYTES_MAX
from persist.machine.parts.reading import changes_of
from persist.machine.parts.stream import rows
from persist.machine.shards import ShardInfo, ShardMoved
from persist.retry.attempts import Attempts
from persist.retry.deadline import LAST_ATTEMPT_SECONDS, Backoff, Deadline
from persist.retry.tasks import Tasks

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

log = logging.getLogger("persist.client.listen")
"""Interruptions, at INFO: a listen goes on by itself, but an operator wants to know why nothing comes."""

WATCH_SECONDS = 300.0
"""How long one watch lasts at most before it is asked for anew."""
LOOKS_PER_TIMEOUT = 2
"""Watches per ``settings.timeout_ms``. Each begins with a look at the store, as silence proves nothing."""
READ_AHEAD = 16
"""Small batches fetched at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """Some updates: rows key…, val…, ts, diff. Complete only when a Progress has passed their times."""

    table: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Every update at a time before ``upper`` has been given out. ``[]``: no more will ever come."""

    upper: Antichain


Event = Updates | Progress


class Listen(Stays):
    """An async iterator of Updates and Progress. Ends when the shard is closed, when idle too long, or by ``aclose``.

    A step that was interrupted (cancelled, timed out) or that failed is no end: the next one goes on where it was,
    without loss or repeat, and what it needs is kept until the listen is closed or dropped. Iterating raises
    LeaseExpired, CorruptData, LocationError, and UsageError when it or its client was closed, its reader expired, or
    another task waits for it. Cost: one watch stream, asked for anew twice in ``settings.timeout_ms``; a GET per part
    that is not inline; one RPC before it ends as idle. Holds one batch of rows and up to 32 MiB fetched ahead.
    """

    def __init__(
        self,
        location: Location,
        lease: Lease,
        pin: Pin,
        *,
        as_of: int,
        idle: float | None,
        downgrade: bool,
        snapshot: Snapshot | None,
        owner: object,
    ) -> None:
        self._owner = owner  # dropping the handle expires its lease
        self._location = location
        self._lease = lease
        self._pin = pin
        self._as_of = as_of
        self._idle = idle
        self._downgrade = downgrade
        self._snapshot = snapshot
        self._frontier = Antichain.of(as_of)
        self._given_upper: Antichain | None = None
        self._began = False
        self._closed = False
        self._ended = False
        """The step that is waited for was cancelled since this was closed."""
        self._waiter: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._left = asyncio.Event()
        self._change: ShardMoved | None = None
        """The change that is being returned."""
        self._is_outdated = False
        """What was pushed before is to be asked for anew: the caller paused where nothing is held for it."""
        self._given = 0
        """Rows returned so far of the snapshot, or of the batch at the frontier."""
        self._events: AsyncGenerator[Event, None] | None = None
        location.listens.add(self)

    @property
    def frontier(self) -> Antichain:
        """How far the listen has come: the upper of the last Progress given out."""
        return self._frontier

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        task = asyncio.current_task()
        while self._waiter is not None and self._waiter.cancelling() > self._cancelling:
            # The task that was interrupted a moment ago is still cleaning up.
            await self._left.wait()
        if self._waiter is not None:
            raise UsageError("a task waits for this listen already", hint="one at a time; or listen once for each")
        self._waiter = task
        # SUBTLE: a task may have been cancelled before and have gone on; that is no cancellation of this step.
        self._cancelling = 0 if task is None else task.cancelling()
        self._ended = False
        self._left.clear()
        try:
            return await self._step()
        except StopAsyncIteration:
            # An end that a caller made must not look like that of the shard, or of time.
            self._check_not_closed()
            raise
        except asyncio.CancelledError:
            # SUBTLE: a task that closed it meanwhile cancelled this once; any other cancellation is the task's own.
            if self._ended and task is not None and task.uncancel() <= self._cancelling:
                self._check_not_closed()
            raise
        finally:
            self._waiter = None
            self._left.set()

    async def aclose(self) -> None:
        """End the listen and release what it holds. Closing again does nothing. Raises nothing.

        A task that waits for it at this moment gets UsageError: it is closed.
        """
        self._closed = True
        waiter = self._waiter
        if waiter is not None and waiter is not asyncio.current_task():
            # Once, however many close it: the step takes one cancellation back.
            if not self._ended:
                self._ended = True
                waiter.cancel()
            await self._left.wait()
        if self._events is not None:
            await self._events.aclose()
        self._snapshot = None
        self._pin.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Listen of {self._lease.shard} frontier={self._frontier}{' closed' if self._closed else ''}>"

    def _check_not_closed(self) -> None:
        self._location.check_open()
        if self._closed:
            raise UsageError(
                "the listen is closed",
                hint="listen again, as of the time before its frontier",
                frontier=self._frontier,
            ) from None

    async def _step(self) -> Event:
        """The next event, from where the last one stopped, even if it was interrupted."""
        if self._events is None:
            self._check_not_closed()
            self._events = self._run()
        try:
            return await self._events.__anext__()
        except StopAsyncIteration:
            raise
        except BaseException:
            # SUBTLE: a generator that was left by an error has ended, and would say so ever after.
            self._events = None
            raise

    async def _run(self) -> AsyncGenerator[Event, None]:
        self._lease.check()
        if self._snapshot is not None:
            async with aclosing(self._contents(self._snapshot)) as events:
                async for event in events:
                    yield event
        if self._change is not None:
            async with aclosing(self._deliver(self._change)) as events:
                async for event in events:
                    yield event
        self._is_outdated = True
        while self._is_outdated:
            self._is_outdated = False
            async with aclosing(self._changes()) as changes:
                async for change in changes:
                    # The parts must be held before this reader releases older versions.
                    self._lease.check_history(change.info)
                    self._pin.move(change.info.seqno)
                    self._lease.saw(change.info.seqno, busy=bool(change.batches))
                    async with aclosing(self._deliver(change)) as events:
                        async for event in events:
                            yield event
                    if self._is_outdated:
                        break
        self._pin.release()

    async def _contents(self, snapshot: Snapshot) -> AsyncGenerator[Event, None]:
        """The snapshot's rows as updates at ``as_of``, and that they are complete."""
        fields = snapshot.schema.updates
        async with aclosing(snapshot.to_batches()) as batches, aclosing(self._rest(batches)) as rest:
            async for batch in rest:
                times = pa.repeat(pa.scalar(self._as_of, pa.uint64()), batch.num_rows)
                columns = [times if field.name == "ts" else batch.column(field.name) for field in fields]
                yield Updates(table=pa.Table.from_arrays(columns, schema=fields))
        self._snapshot, self._given = None, 0
        self._given_upper = _after(self._as_of)
        # The snapshot has a hold of its own.
        del snapshot
        self._pin.rest()
        yield Progress(upper=self._given_upper)
        self._lease.woken(self._pin)

    async def _rest(self, found: AsyncIterator[Rows]) -> AsyncGenerator[Rows, None]:
        """The rows not returned before an interruption. The same read gives the same rows in the same order."""
        skip = self._given
        async for piece in found:
            rest = piece.slice(skip) if skip else piece
            skip -= piece.num_rows - rest.num_rows
            if rest.num_rows:
                self._given += rest.num_rows
                yield rest

    async def _deliver(self, change: ShardMoved) -> AsyncGenerator[Event, None]:
        self._change = change
        fresh = [batch for batch in change.batches if self._frontier.less_than(batch.desc.upper)]
        async with aclosing(self._read_ahead(fresh, change.info)) as found:
            async for batch, tables in found:
                await self._check(batch, change.info.since)
                async with aclosing(tables), aclosing(self._rest(tables)) as rest:
                    async for table in rest:
                        yield Updates(table=table)
                previous, self._frontier = self._frontier, self._frontier.join(batch.desc.upper)
                self._began, self._given = True, 0
                if self._given_upper is None or self._given_upper.less_than(self._frontier):
                    self._given_upper = self._frontier
                    if batch is fresh[-1]:
                        # All that was seen is returned. A caller may pause here for long: nothing is held for it.
                        self._pin.rest()
                    yield Progress(upper=self._frontier)
                    self._is_outdated = self._lease.woken(self._pin)
                if self._downgrade:
                    # One frontier back: a resumed reader must still distinguish the last frontier from earlier times.
                    self._lease.follow(previous)
        self._change = None

    async def _read_ahead(
        self, batches: Sequence[HollowBatch], info: ShardInfo
    ) -> AsyncGenerator[tuple[HollowBatch, AsyncGenerator[pa.Table, None]], None]:
        """Each batch and its updates; small ones in Blob are fetched while earlier ones are given out."""
        tasks, started = Tasks(), deque[asyncio.Task[list[pa.Table]] | None]()
        ahead = iter(batches)
        try:
            for batch in batches:
                for later in itertools.islice(ahead, READ_AHEAD - len(started)):
                    small = 0 < later.encoded_bytes - later.inline_bytes <= WHOLE_BYTES_MAX
                    work = tasks.start(_all(self._tables(later, info))) if small else None
                    started.append(work)
                task = started.popleft()
                yield batch, _given(task) if task is not None else self._tables(batch, info)
        finally:
            await tasks.close()

    async def _tables(self, batch: HollowBatch, info: ShardInfo) -> AsyncGenerator[pa.Table, None]:
        begin = self._frontier.join(batch.desc.lower).time
        if begin is None or not batch.rows or self._as_of == TIME_MAX:
            return
        reading = changes_of([batch], info, self._location.settings, max(self._as_of + 1, begin), None)
        async with aclosing(rows(self._location, reading, None, verify=self._lease.verify)) as found:
            async for piece in found:
                yield pa.Table.from_batches([piece])

    async def _check(self, batch: HollowBatch, since: Antichain) -> None:
        """Refuse a batch in which times at the frontier are already blurred: this reader's hold did not protect it."""
        blurred = batch.desc.since
        if not (blurred.less_than(self._frontier) if self._began else blurred.less_equal(self._frontier)):
            await self._lease.verify()
            raise NotReadable(
                "the changes at the listen's frontier were compacted away",
                hint="downgrade the since of a reader only up to what its listens have returned",
                frontier=self._frontier,
                since=since,
            )

    async def _changes(self) -> AsyncGenerator[ShardMoved, None]:
        """Changes from the frontier on, by push; by fetch while the push is broken. Raises LocationError at last.

        SUBTLE: a push that says nothing may come from a server that is frozen, or whose store does not answer. Each
        watch begins with an answer, so asking anew shows which; and before silence counts as no news, the store is
        asked.
        """
        location, shard = self._location, self._lease.shard
        patience, quiet = _Patience(location), _Quiet(location, self._idle)
        longest = min(WATCH_SECONDS, location.settings.timeout_ms / 1000 / LOOKS_PER_TIMEOUT)
        while not self._frontier.is_empty:
            self._lease.check()
            patience.ask()
            try:
                if quiet.over:
                    change = await self._news(patience)
                    if change is None:
                        break
                    patience.refill()
                    yield change
                    quiet.restart()
                    continue
                answered = False
                stream = location.shards.watch(shard, self._frontier, timeout=quiet.remaining(longest))
                async with aclosing(_closable(stream)) as pushed:
                    while (change := await self._lease.unless_lost(anext(pushed, None))) is not None:
                        answered = True
                        patience.refill()
                        yield change
                        if change.batches:
                            quiet.restart()
                        self._lease.check()
                if not answered and not quiet.over:
                    raise Determinate("the location does not answer", hint="go on iterating to wait for it again")
            except LocationError as error:
                await patience.use(error)
                fetched = await self._fetched(self._frontier)
                if fetched is not None:
                    patience.back()
                if fetched is not None and fetched.batches:
                    yield fetched
                    quiet.restart()
        # Ending says that there was no news; a reader that lost its hold cannot know.
        self._lease.check()

    async def _news(self, patience: "_Patience") -> ShardMoved | None:
        """What the store has beyond the frontier now; None when it answers: nothing. Raises LocationError."""
        location, shard, asked = self._location, self._lease.shard, self._frontier
        info = await self._lease.unless_lost(
            location.shards.open(shard, create=False, timeout=patience.remaining()), patience.remaining
        )
        self._lease.check_history(info)
        if info.upper.less_equal(asked):
            return None
        return await self._lease.unless_lost(
            location.shards.fetch(shard, asked, timeout=patience.remaining()), patience.remaining
        )

    async def _fetched(self, asked: Antichain) -> ShardMoved | None:
        seconds = self._location.settings.poll_first_ms / 1000
        try:
            return await self._location.shards.fetch(self._lease.shard, asked, timeout=seconds)
        except LocationError:
            return None


class _Patience:
    """How long a listen retries a failing location: ``settings.timeout_ms`` from its first unanswered question."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._attempts = Attempts(settings=location.settings, runtime=location.runtime)
        self._deadline: Deadline | None = None
        self._backoff: Backoff | None = None
        self._lost = False

    def ask(self) -> None:
        """Begin a question; the time runs from the first unanswered one."""
        if self._deadline is None:
            self._deadline = self._attempts.deadline(None)

    def remaining(self) -> float:
        """Seconds for one question."""
        self.ask()
        assert self._deadline is not None
        return max(self._deadline.remaining(), LAST_ATTEMPT_SECONDS)

    def refill(self) -> None:
        self.back()
        self._deadline = self._backoff = None

    def back(self) -> None:
        """Record that something answers, though perhaps no push does."""
        if self._lost:
            log.info("connected again; going on")
        self._lost = False

    async def use(self, failure: LocationError) -> None:
        self.ask()
        if self._backoff is None:
            assert self._deadline is not None
            self._lost = True
            log.info("lost the connection (%s); connecting again", failure.message)
            self._backoff = Backoff(self._location.runtime, self._location.settings, self._deadline)
        if not await self._backoff.pause():
            raise failure


class _Quiet:
    """The idle time after which a listen ends by itself; None: never."""

    def __init__(self, location: Location, idle: float | None) -> None:
        self._idle = idle
        self._new: Callable[[], Deadline] = lambda: Deadline(location.runtime, idle or 0.0)
        self._deadline = self._new()

    @property
    def over(self) -> bool:
        return self._idle is not None and self._deadline.passed

    def restart(self) -> None:
        self._deadline = self._new()

    def remaining(self, most: float) -> float:
        return most if self._idle is None else min(most, max(self._deadline.remaining(), 0.001))


async def _closable(stream: AsyncIterator[ShardMoved]) -> AsyncGenerator[ShardMoved, None]:
    """Close a stream, if it can be closed, at the end of the block."""
    try:
        async for change in stream:
            yield change
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


async def _all(tables: AsyncIterator[pa.Table]) -> list[pa.Table]:
    return [table async for table in tables]


async def _given(task: "asyncio.Task[list[pa.Table]]") -> AsyncGenerator[pa.Table, None]:
    for table in await task:
        yield table


def _after(time: int) -> Antichain:
    return Antichain() if time == TIME_MAX else Antichain.of(time + 1)
