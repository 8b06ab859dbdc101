"""Carrying out one compaction after the other for a job, and counting what becomes of them.

Source: design 001, PersistCompaction.
"""

import asyncio
import math

from persist.core.frontier import Antichain, Description
from persist.errors import LeaseExpired
from persist.machine.compactor import Compacted, Compactor, Progress
from persist.machine.parts.place import Place
from persist.machine.port import Shards
from persist_compaction.job import Job
from persist_host import Telemetry


class Carrier:
    """Does what jobs ask for, over a Compactor. ``place`` and ``shards`` are the location's."""

    def __init__(self, shards: Shards, place: Place, *, telemetry: Telemetry) -> None:
        self._shards = shards
        self._place = place
        self._compactor = Compactor(shards, place)
        self._telemetry = telemetry

    async def fulfil(self, job: Job) -> None:
        """Compact until nothing is left of what was there at first. Raises ShardNotFound and what ``once`` does."""
        attempts = self._place.attempts
        info = await attempts.repeat(
            attempts.deadline(None), lambda seconds: self._shards.open(job.shard, create=False, timeout=seconds)
        )
        done: list[Description] = []
        while (result := await self.once(job)) is not None:
            job.came_to(result)
            # A shard that is written to always has more to merge into one run: what came later is left to later.
            if job.whole and _told(info.upper, result.desc, done):
                return
            done.append(result.desc)

    async def once(self, job: Job) -> Compacted | None:
        """One compaction; None when there is none to do.

        Raises LeaseExpired (the claim was taken over), UsageError, CorruptData, LocationError; its claim is released.
        """
        clock, telemetry = self._place.runtime.monotonic, self._telemetry
        began = math.inf

        def report(progress: Progress) -> None:
            nonlocal began
            if job.underway is None:
                began = clock()
                telemetry.count("persist_compactions_started_total")
            job.report(progress)

        job.begin()
        ended = "failed"
        try:
            result = await self._compactor.compact(
                job.shard, self._compactor.new_owner(), whole=job.whole, report=report
            )
            ended = "finished" if result is None or result.applied else "lost"
        except LeaseExpired:
            ended = "lost"
            raise
        except asyncio.CancelledError:
            ended = "cancelled"
            raise
        finally:
            if began < math.inf:
                telemetry.count(f"persist_compactions_{ended}_total")
                telemetry.count("persist_compaction_seconds_total", by=clock() - began)
        if result is not None:
            telemetry.count("persist_compaction_rows_total", by=result.rows_before)
            telemetry.count("persist_compaction_bytes_total", by=result.bytes_before)
        return result

    async def close(self) -> None:
        """Stop what runs beside compactions."""
        await self._compactor.close()


def _told(upper: Antichain, desc: Description, done: list[Description]) -> bool:
    """Whether everything before ``upper`` is merged, or what was just merged of it had been merged already."""
    target = min(_time(desc.upper), _time(upper))
    whole = _time(desc.lower) == 0 and target == _time(upper)
    return whole or any(
        _time(each.lower) <= _time(desc.lower) and target <= min(_time(each.upper), _time(upper)) for each in done
    )


def _time(frontier: Antichain) -> float:
    return math.inf if frontier.time is None else frontier.time
