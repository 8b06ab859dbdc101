"""Carrying out one compaction after the other for a job, and counting what becomes of them.

Source: design 001, PersistCompaction.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from persist.core.frontier import Antichain, Description
from persist.errors import LeaseExpired
from persist.machine.compaction.compactor import Compacted, CompactionProgress, Compactor, Report, SetAside
from persist.machine.compaction.job import Job
from persist.machine.compaction.owners import Owners
from persist.machine.parts.place import Place
from persist.machine.shards import Shards
from persist.retry.counts import Counts

R = TypeVar("R", bound=Compacted | SetAside)

_Work = Callable[[Report], Awaitable[R | None]]

_log = logging.getLogger("persist.compaction")


class CompactionRunner:
    """Does what jobs ask for, over a Compactor. ``place`` and ``shards`` are the location's. Owns the compactor."""

    def __init__(self, shards: Shards, place: Place, compactor: Compactor, owners: Owners, *, counts: Counts) -> None:
        """``owners``: names for compactions that are due. Requests are carried out under names of their own."""
        self._shards = shards
        self._place = place
        self._compactor = compactor
        self._owners = owners
        self._counts = counts

    async def fulfil(self, job: Job) -> None:
        """Compact until everything that was there at first is merged, as far as it can be.

        What is written meanwhile is left to later. Raises ShardNotFound and what ``turn`` does.
        """
        attempts = self._place.attempts
        info = await attempts.repeat(
            attempts.deadline(None), lambda seconds: self._shards.open(job.shard, create=False, timeout=seconds)
        )
        done: list[Description] = []
        while (result := await self._counted(job, self._requested(job, info.upper))) is not None:
            job.came_to(result)
            if result.steps_left or not result.applied:
                continue
            if job.whole and is_merged(info.upper, result.desc, done):
                return
            done.append(result.desc)

    async def turn(self, job: Job) -> bool:
        """One compaction of what is due at a shard; whether there may be more to do.

        Raises LeaseExpired (the claim was taken over), UsageError, CorruptData, LocationError; its claim is released.
        """
        try:
            result = await self._counted(job, self._due(job))
        except LeaseExpired:
            # Taken over, or the shard refuses names as old as this one: a new one is known from its claim on.
            if not self._owners.renew(job.shard):
                raise
            result = await self._counted(job, self._due(job))
        if isinstance(result, SetAside):
            fields = {"shard": job.shard, "lower": str(result.desc.lower), "upper": str(result.desc.upper)}
            _log.info("a range stays set aside", extra=fields)
            self._owners.renew(job.shard)
        return result is not None

    def _requested(self, job: Job, before: Antichain) -> _Work[Compacted]:
        owner = self._compactor.new_owner()
        return lambda report: self._compactor.compact(job.shard, owner, whole=job.whole, before=before, report=report)

    def _due(self, job: Job) -> _Work[Compacted | SetAside]:
        owner = self._owners.of(job.shard)
        return lambda report: self._compactor.compact_due(job.shard, owner, report=report)

    async def _counted(self, job: Job, work: _Work[R]) -> R | None:
        clock, counts = self._place.runtime.monotonic, self._counts
        began = math.inf

        def report(progress: CompactionProgress) -> None:
            nonlocal began
            if job.underway is None:
                began = clock()
                counts.count("persist_compactions_started_total")
            job.report(progress)

        job.begin()
        ended = "failed"
        try:
            result = await work(report)
            ended = "lost" if isinstance(result, Compacted) and not result.applied else "finished"
        except LeaseExpired:
            ended = "lost"
            raise
        except asyncio.CancelledError:
            ended = "cancelled"
            raise
        finally:
            if began < math.inf:
                counts.count(f"persist_compactions_{ended}_total")
                counts.count("persist_compaction_seconds_total", by=clock() - began)
        if isinstance(result, Compacted):
            counts.count("persist_compaction_rows_total", by=result.rows_before)
            counts.count("persist_compaction_bytes_total", by=result.bytes_before)
        return result

    async def close(self) -> None:
        """Stop background work."""
        await self._compactor.close()


def is_merged(upper: Antichain, desc: Description, done: list[Description]) -> bool:
    """Whether everything before ``upper`` is merged, or what was just merged of it had been merged already.

    Of what begins before ``upper`` nothing is merged twice, unless it is all that is left, and since has moved.
    """
    target = min(_time(desc.upper), _time(upper))
    whole = _time(desc.lower) == 0 and target == _time(upper)
    return whole or any(
        _time(each.lower) <= _time(desc.lower) and target <= min(_time(each.upper), _time(upper)) for each in done
    )


def _time(frontier: Antichain) -> float:
    return math.inf if frontier.time is None else frontier.time
