"""Rows that a shard holds less than no times: something took them back that were never there.

No state is damaged by that, so bytes do not show it; reading the rows does. Nothing is registered for it: what is
collected meanwhile is planned again. Source: catalog-semantics.md section 4; reliability.md I19.
"""

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from persist.core.frontier import TIME_MAX, Antichain
from persist.core.ids import ShardId
from persist.errors import CorruptData, NotReadable
from persist.machine.parts.place import PlaceOf
from persist.machine.parts.reading import snapshot_of
from persist.machine.parts.stream import rows
from persist.machine.shards import SnapshotPlan
from persist.machine.upkeep.fsck import Problem
from persist.machine.upkeep.next_step import NextStep, check
from persist.retry.attempts import Attempts

if TYPE_CHECKING:
    from persist_cli.admin.administration import Machine

OF_SOURCES: Final = "source"
"""The critical reader that every collection of a source has."""
_TRIES: Final = 3


async def negative_rows(machine: "Machine", shard: ShardId, known: Sequence[Problem]) -> list[Problem]:
    """At the last complete time; nothing where there are none, or where what is ``known`` keeps them from being read.

    Of a source's collection it is wrong; elsewhere it may be what its writers mean, and is noted. In bounded memory.
    Raises LocationError.
    """
    found, left = 0, _TRIES if all(each.note for each in known) else 0
    while left:
        left -= 1
        try:
            found, left = await _counted(machine, shard), 0
        except (CorruptData, NotReadable) as error:
            # What compaction replaced since is gone, and so are times that were given up.
            if not left:
                what = f"its rows were not counted: {error}"
                return [Problem(shard=shard, invariant="I24", where=shard, what=what, steps=(check(shard, deep=True),))]
    if not found:
        return []
    state = await machine.shards.inspect(shard, timeout=machine.settings.store_timeout_ms / 1000)
    is_ingested = OF_SOURCES in state["critical_readers"]
    what = f"{found:,} rows are there less than no times: they were taken back without having come"
    step = (
        NextStep(text="snapshot its table again: persist source resnapshot, or create the source again")
        if is_ingested
        else NextStep(text="nothing, if its writers mean it so; else add what is missing")
    )
    return [Problem(shard=shard, invariant="I19", where=shard, what=what, steps=(step,), note=not is_ingested)]


async def _counted(machine: "Machine", shard: ShardId) -> int:
    timeout = machine.settings.store_timeout_ms / 1000
    info = await machine.shards.open(shard, create=False, timeout=timeout)
    if info.upper.time == 0 or info.since.is_empty:
        return 0
    as_of = TIME_MAX if info.upper.time is None else info.upper.time - 1
    plan = await machine.shards.snapshot(shard, Antichain.of(as_of), timeout=timeout)
    if not isinstance(plan, SnapshotPlan):
        return 0
    reading = snapshot_of(plan.batches, plan.info, machine.settings, as_of)
    place = PlaceOf(
        machine.versions.blob,
        machine.settings,
        machine.runtime,
        Attempts(settings=machine.settings, runtime=machine.runtime),
    )
    found = 0
    async with aclosing(rows(place, reading, None)) as batches:
        async for batch in batches:
            diffs = batch.column("diff").to_numpy()
            found += int((diffs < 0).sum())
    return found
