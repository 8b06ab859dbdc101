"""Which shard is compacted next: a few at a time, requests first, then what is due, in the order in which it was
offered.

A shard that fails is put aside for a while, longer each time, and the others go on. While the stores fail, nothing
that is merely due is begun. A shard takes one turn at a time, so a busy one does not keep the others waiting. The same
in the process that commits and in a service of its own.
Source: architecture.md section 6; style.md rule 27.
"""

import asyncio
import contextlib
import functools
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

from persist.core.ids import ShardId
from persist.errors import Determinate, InvalidArgument, LeaseExpired, LocationError, Overloaded, PersistError
from persist.machine.compaction.job import Job
from persist.machine.compaction.runner import CompactionRunner
from persist.retry.counts import Counts
from persist.retry.tasks import Tasks, kind_of
from persist.runtime import Runtime
from persist.settings import Settings

REQUESTS_WAITING_MAX: Final = 64
"""Requests that wait before the next is refused."""
REQUESTS_REMEMBERED: Final = 1024
"""Named requests that are over and whose results can still be asked for."""
DUE_MAX: Final = 10_000
"""Shards that wait because they seem due. What is offered beyond that is offered again by the next round."""
ASIDE_SECONDS: Final = 1.0
ASIDE_SECONDS_MAX: Final = 600.0
CANCELLED_SECONDS: Final = 60.0
"""After a request is cancelled the same merge must not begin again at once, although it may be due."""
REST_SECONDS: Final = 0.1
REST_SECONDS_MAX: Final = 16.0
DRAIN_SECONDS: Final = 15.0
"""How long cancelled merges may take to delete what they wrote and release their claims."""
SETTLE_SECONDS: Final = 2.0
SETTLE_BYTES_MAX: Final = 16 << 20
"""What a merge may read that is let end when its process does, and for how long."""
_RETRY_MS_MIN: Final = 100
_RETRY_MS_MAX: Final = 60_000

_log = logging.getLogger("persist.compaction")


@dataclass(frozen=True, slots=True)
class _ShardAside:
    """A shard that failed and is left alone for ``seconds``; after another failure for longer."""

    until: float
    seconds: float
    again: asyncio.TimerHandle


class CompactionScheduler:
    """Runs ``settings.compactions_at_once`` jobs at a time and keeps bounded queues of those that wait."""

    def __init__(self, carrier: CompactionRunner, *, settings: Settings, runtime: Runtime, counts: Counts) -> None:
        self._carrier = carrier
        self._runtime = runtime
        self._counts = counts
        self._at_once = max(1, settings.compactions_at_once)
        self._requests: dict[Job, None] = {}
        self._named: dict[str, Job] = {}
        self._remembered: deque[str] = deque()
        self._due: OrderedDict[ShardId, None] = OrderedDict()
        self._running: dict[Job, None] = {}
        self._aside: OrderedDict[ShardId, _ShardAside] = OrderedDict()
        self._rest_seconds = 0.0
        self._rest_until = 0.0
        self._turn_ms = float(_RETRY_MS_MIN)
        self._room = asyncio.Event()
        self._tasks = Tasks()
        self._draining = False

    @property
    def running(self) -> tuple[Job, ...]:
        """Jobs that have their turn, the oldest first."""
        return tuple(self._running)

    @property
    def requests_waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._requests)

    @property
    def shards_waiting(self) -> int:
        """Shards that seem due and wait for their turn."""
        return len(self._due)

    def request(self, shard: ShardId, *, whole: bool, name: str = "") -> Job:
        """Compact this for a caller, soon. The job under way, or over, when one of that name was asked for.

        Raises Overloaded, InvalidArgument (the name is that of another request), Determinate (draining).
        """
        if self._draining:
            raise _leaving()
        known = self._named.get(name)
        if known is not None:
            if (known.shard, known.whole) != (shard, whole):
                raise InvalidArgument("this is the id of another request", hint="choose a fresh one", request_id=name)
            return known
        waiting = self.requests_waiting
        if waiting >= REQUESTS_WAITING_MAX:
            self._counts.count("persist_compaction_overloaded_total")
            retry_after_ms = int(min(max(self._turn_ms, _RETRY_MS_MIN), _RETRY_MS_MAX))
            raise Overloaded("too many requests for compactions wait", hint="ask later", retry_after_ms=retry_after_ms)
        job = Job(shard, runtime=self._runtime, whole=whole, requested=True, name=name, withdraw=self._withdraw)
        if name:
            self._named[name] = job
        self._requests[job] = None
        self._begin()
        if job.task is None:
            job.waits(waiting)
        return job

    def cancel(self, name: str) -> bool:
        """Stop what was requested under this name; whether it had not ended. Returns at once."""
        job = self._named.get(name)
        if job is None or job.over:
            return False
        job.cancel()
        return True

    def offer(self, shard: ShardId) -> None:
        """Note that something may be due at this shard. Returns at once; may be forgotten, so offer it again later.

        One that was put aside is looked at again by itself.
        """
        aside = self._aside.get(shard)
        if self._draining or (aside is not None and aside.until > self._runtime.monotonic()):
            return
        if len(self._due) < DUE_MAX:
            self._due[shard] = None
            self._begin()

    async def room(self) -> None:
        """Return once nothing that is due waits for its turn."""
        while self._due:
            self._room.clear()
            await self._room.wait()

    async def drain(self) -> None:
        """Begin nothing any more and stop what runs: claims are released as far as the stores answer in time."""
        self._draining = True
        self._due.clear()
        for aside in self._aside.values():
            aside.again.cancel()
        waiting, self._requests = self._requests, {}
        for job in waiting:
            job.end(_leaving())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._tasks.close()

    async def settle(self) -> None:
        """Begin nothing any more, and let what runs end if that takes but a moment.

        A process may live no longer than it takes to commit, and so may the next one.
        """
        self._draining = True
        self._due.clear()
        small = {job.task for job in self._running if job.task is not None and _is_small(job)}
        if small:
            await asyncio.wait(small, timeout=SETTLE_SECONDS)

    async def close(self) -> None:
        """Stop, and cancel what ``drain`` left running."""
        await self.drain()
        await self._tasks.close()
        await self._carrier.close()

    def _withdraw(self, job: Job) -> None:
        """Remove a job that was cancelled before its turn."""
        if job in self._requests:
            del self._requests[job]
            job.end(_withdrawn())
            self._remember(job)

    def _begin(self) -> None:
        while len(self._running) < self._at_once and not self._draining:
            job = self._next()
            if job is None:
                return
            self._running[job] = None
            job.task = self._tasks.start(self._run(job))
            job.task.add_done_callback(functools.partial(self._ended, job, self._runtime.monotonic()))

    def _next(self) -> Job | None:
        if self._requests:
            job = next(iter(self._requests))
            del self._requests[job]
            return job
        if self._runtime.monotonic() < self._rest_until:
            return None
        busy = {job.shard for job in self._running if not job.requested}
        shard = next((each for each in self._due if each not in busy), None)
        if shard is None:
            return None
        self._no_longer_due(shard)
        return Job(shard, runtime=self._runtime)

    async def _run(self, job: Job) -> bool:
        """Whether there may be more to do at the shard."""
        if job.requested:
            await self._carrier.fulfil(job)
            return False
        more = await self._carrier.turn(job)
        self._forgive(job.shard)
        self._rest_seconds = 0.0
        return more

    def _ended(self, job: Job, began: float, task: asyncio.Task[bool]) -> None:
        # SUBTLE: not at the end of _run, which never begins when it is cancelled at once.
        del self._running[job]
        self._turn_ms = 0.5 * self._turn_ms + 500.0 * (self._runtime.monotonic() - began)
        if task.cancelled():
            # A caller that is gone gets nothing; one that is still there is being drained, or others stopped the job.
            job.end(_withdrawn() if job.cancelled else _leaving())
            self._put_aside(job.shard, CANCELLED_SECONDS)
        elif (error := task.exception()) is not None:
            self._failed(job, error)
            job.end(error, failed=True)
        else:
            job.end()
            if task.result():
                self.offer(job.shard)
        self._remember(job)
        self._begin()

    def _remember(self, job: Job) -> None:
        """The caller may have been cut off: what the job came to is kept for a while."""
        if job.name:
            self._remembered.append(job.name)
        while len(self._remembered) > REQUESTS_REMEMBERED:
            self._named.pop(self._remembered.popleft(), None)

    def _failed(self, job: Job, error: BaseException) -> None:
        fields = {"shard": job.shard, "kind": kind_of(error), "error": str(error)}
        if isinstance(error, LeaseExpired):
            _log.info("a compaction was lost to another process", extra=fields)
            return
        if not isinstance(error, PersistError):
            _log.error("unexpected failure of a compaction", exc_info=error, extra=fields)
        elif not job.requested:
            _log.warning("a compaction failed", extra=fields)
        if not job.requested:
            self._put_aside(job.shard)
            if isinstance(error, LocationError):
                self._rest()

    def _put_aside(self, shard: ShardId, at_least: float = 0.0) -> None:
        """Leave a shard alone, unless it is requested, for longer each time it fails."""
        before = self._aside.pop(shard, None)
        seconds = ASIDE_SECONDS if before is None else min(2 * before.seconds, ASIDE_SECONDS_MAX)
        if before is not None:
            before.again.cancel()
        rest = max(seconds, at_least)
        # Something is due there as far as is known, and it may not be offered again.
        again = asyncio.get_running_loop().call_later(rest + 0.001, self.offer, shard)
        self._aside[shard] = _ShardAside(self._runtime.monotonic() + rest, seconds, again)
        # The release of its claim may have been a hint.
        self._no_longer_due(shard)
        if len(self._aside) > DUE_MAX:
            self._aside.popitem(last=False)[1].again.cancel()

    def _forgive(self, shard: ShardId) -> None:
        aside = self._aside.pop(shard, None)
        if aside is not None:
            aside.again.cancel()

    def _no_longer_due(self, shard: ShardId) -> None:
        self._due.pop(shard, None)
        if not self._due:
            self._room.set()

    def _rest(self) -> None:
        """For a while begin requests only, and nothing that is due."""
        self._rest_seconds = min(max(REST_SECONDS, 2 * self._rest_seconds), REST_SECONDS_MAX)
        self._rest_until = self._runtime.monotonic() + self._rest_seconds
        asyncio.get_running_loop().call_later(self._rest_seconds + 0.001, self._begin)


def _is_small(job: Job) -> bool:
    return job.underway is None or job.underway.progress.bytes <= SETTLE_BYTES_MAX


def _leaving() -> Determinate:
    return Determinate("the server is draining", hint="ask another one")


def _withdrawn() -> Determinate:
    return Determinate("the request was cancelled", hint="ask again, under another id")
