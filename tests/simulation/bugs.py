"""Bugs that are known to happen to systems of this kind, each planted by swapping one piece for a faulty one.

Production code has no switches for them: a bug replaces a function, a method or a store for as long as it is planted.
Source: reliability.md sections 0, 2 and 7, bar B4.
"""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pyarrow as pa

from persist.client.shard.read import listen
from persist.client.shard.write import append as appending
from persist.core.frontier import MINIMUM
from persist.core.ids import SessionId
from persist.core.shard import commands as c
from persist.core.shard import diff, ranges, retention
from persist.core.shard.state import LeasedReader, State
from persist.core.shard.transitions import apply as transitions
from persist.core.shard.transitions.dispatch import transition
from persist.core.shard.transitions.upkeep import check_alive
from persist.errors import LocationError, PersistError
from persist.machine import applier, intake
from persist.machine import local_shards as shards
from persist.machine.compaction import compactor
from persist.machine.garbage import collector
from persist.machine.garbage import inventory as survey
from persist.machine.parts import merging, reading
from persist.machine.shards import SnapshotPlan
from persist.testing.simulation import stores as simulated_stores
from persist.testing.simulation.memory import swapped
from persist.testing.world import cluster as stage

Plant = Callable[[], contextlib.AbstractContextManager[None]]

BUGS: dict[str, Plant] = {}
SOONEST = {
    "output_deleted_when_a_merge_gets_no_answer": 15,
    "step_applied_by_places": 54,
    "sweep_by_age_only": 4,
    "listen_keeps_the_progress_of_empty_batches": 1,
    "truncated_batch_not_filtered": 3,
    "reading_without_the_parts_of_a_second_run": 4,
}
"""Worlds that showed a bug when it was planted: asked first, which only saves time."""
MISFITS = (TypeError, AttributeError, NameError)
"""What a bug ends with that fits no longer into what it is planted in: all breaks, and nothing was noticed."""


@contextlib.contextmanager
def transition_of(command: type, faulty: Callable[..., Any]) -> Iterator[None]:
    """Within this context, a command does something else."""
    right = transition.registry[command]
    transition.register(command, faulty)
    try:
        yield
    finally:
        transition.register(command, right)


def bug(plant: Plant) -> Plant:
    BUGS[plant.__name__] = plant
    return plant


# ---- doubt -------------------------------------------------------------------------------------------------------


@bug
def output_deleted_when_a_merge_gets_no_answer() -> Any:
    right = compactor.Compactor.offer

    async def discard(self: Any, claim: Any, output: Any) -> None:
        kept = {part.key for batch in claim.batches for part in batch.parts}
        for part in output.parts:
            if part.key is not None and part.key not in kept:
                with contextlib.suppress(PersistError):
                    await self._place.blob.delete(part.key, timeout=5)

    async def offer(self: Any, shard: Any, owner: Any, claim: Any, output: Any) -> bool:
        try:
            applied = await right(self, shard, owner, claim, output)
        except PersistError:
            await discard(self, claim, output)
            raise
        if not applied:
            await discard(self, claim, output)
        return applied

    return swapped(compactor.Compactor, offer=offer)


@bug
def blind_retry_with_a_new_number() -> Any:
    right = stage.SimulatedShards.apply

    async def apply(self: Any, shard: Any, command: Any, *, timeout: float) -> Any:
        if isinstance(command, c.CompareAndAppend) and command.call is not None:
            session = SessionId.of(self._world.rolls.randbytes(16))
            command = dataclasses.replace(command, call=dataclasses.replace(command.call, session=session), token=None)
        return await right(self, shard, command, timeout=timeout)

    return swapped(stage.SimulatedShards, apply=apply)


@bug
def parts_deleted_when_an_append_gets_no_answer() -> Any:
    right: Any = appending.Appender.commit

    async def commit(self: Any, append: Any, *more: Any) -> Any:
        try:
            return await right(self, append, *more)
        except LocationError:
            await append.discard()
            raise

    return swapped(appending.Appender, commit=commit)


@bug
def stale_cache_trusted_for_a_mismatch() -> Any:
    right = applier.Applier._commit

    async def commit(self: Any, commands: Any, deadline: Any) -> Any:
        if self._version is not None:
            folded = self._fold(self._newest().state, commands)
            if folded.successor is None:
                return folded.outcomes
        return await right(self, commands, deadline)

    return swapped(applier.Applier, _commit=commit)


@bug
def numbers_ignored() -> Any:
    return swapped(transitions, _known_outcome=lambda command, state: None)


@bug
@contextlib.contextmanager
def forgotten_sessions_go_unnoticed() -> Iterator[None]:
    """Sessions are soon forgotten, and one that was is taken for a new one."""
    right = applier.Applier._context
    short = swapped(
        applier.Applier,
        _context=lambda self: dataclasses.replace(right(self), forget_every=1, sessions_max=1, tokens_max=1),
    )
    known = transitions._known_outcome

    def sure(command: Any, state: State) -> Any:
        call = command.call and dataclasses.replace(command.call, known_seqno=2**63)
        return known(dataclasses.replace(command, call=call, known_seqno=2**63), state)

    with short, swapped(transitions, _known_outcome=sure):
        yield


# ---- stores ------------------------------------------------------------------------------------------------------


@bug
def compare_and_set_says_yes_on_mismatch() -> Any:
    right = simulated_stores.SimulatedConsensus.compare_and_set

    async def compare_and_set(
        self: Any, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        await right(self, key, expected, data, after=after, timeout=timeout)
        return True

    return swapped(simulated_stores.SimulatedConsensus, compare_and_set=compare_and_set)


@bug
def scan_skips_an_entry() -> Any:
    right = simulated_stores.SimulatedConsensus.scan

    async def scan(self: Any, key: str, from_seqno: int, limit: int, *, timeout: float) -> Any:
        entries = await right(self, key, from_seqno, limit, timeout=timeout)
        return entries[:1] + entries[2:] if len(entries) > 3 else entries

    return swapped(simulated_stores.SimulatedConsensus, scan=scan)


# ---- compaction --------------------------------------------------------------------------------------------------


@bug
def compaction_beyond_since() -> Any:
    right = reading.compaction_of

    def compaction_of(batches: Any, schemas: Any, settings: Any, since: int) -> Any:
        return right(batches, schemas, settings, since + 5)

    return swapped(compactor, compaction_of=compaction_of)


@bug
def merge_applied_by_bounds() -> Any:
    right = transition.registry[c.ApplyMerge]

    def apply(command: c.ApplyMerge, state: State, context: Any) -> Any:
        after, outcome = right(command, state, context)
        if not isinstance(outcome, c.MergeRefused):
            return after, outcome
        check_alive(state, command.owner)
        desc = command.output.desc
        for each in state.trace.spine:
            for at, first in enumerate(each.batches):
                for end in range(at + 1, len(each.batches) + 1):
                    last = each.batches[end - 1]
                    if (first.desc.lower, last.desc.upper) == (desc.lower, desc.upper):
                        from persist.core.shard.compaction import merged

                        trace = merged(state.trace, each, at, end - at, command.output)
                        return state.evolved(trace=trace), c.MergeApplied()
        return after, outcome

    async def written(self: Any, merge: c.ApplyMerge, deadline: Any) -> bool:
        return True

    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        # A late merge whose parts were collected would be noticed by that alone.
        with transition_of(c.ApplyMerge, apply), swapped(intake.Intake, _is_written=written):
            yield

    return planted()


@bug
def step_applied_by_places() -> Any:
    """What lies there now may be what was merged since."""
    right = ranges

    def stands(batch: Any, step: Any) -> bool:
        places = [(each.run, each.at + each.count) for each in step.pieces]
        return all(run < len(batch.runs) and end <= len(batch.runs[run].parts) for run, end in places)

    async def written(self: Any, merge: c.ApplyMerge, deadline: Any) -> bool:
        return True

    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        # Other checks at the door, each of which would notice most of it.
        open_door = swapped(right, stands=stands, misfit=lambda *what: None, unlike=lambda *what: None)
        with open_door, swapped(intake.Intake, _is_written=written):
            yield

    return planted()


@bug
def rest_of_a_cut_part_lost() -> Any:
    """And the door does not add up."""

    async def rest(self: Any, *what: Any) -> tuple[()]:
        return ()

    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        with swapped(compactor.Compactor, _rest=rest), swapped(ranges, unlike=lambda *what: None):
            yield

    return planted()


@bug
def rest_of_a_cut_part_lost_and_the_door_adds_up() -> Any:
    async def rest(self: Any, *what: Any) -> tuple[()]:
        return ()

    return swapped(compactor.Compactor, _rest=rest)


@bug
def parts_of_a_changed_run_lost_when_a_diff_is_applied() -> Any:
    right = diff._batch_changed

    def changed(batches: Any, change: Any) -> Any:
        runs = [dataclasses.replace(each, come=each.come[:1]) for each in change.runs]
        return right(batches, dataclasses.replace(change, runs=tuple(runs)))

    return swapped(diff, _batch_changed=changed)


@bug
def zero_sums_dropped_across_times() -> Any:
    right = reading.Reading.batches

    def batches(self: Any, *arguments: Any) -> Iterator[pa.RecordBatch]:
        found = list(right(self, *arguments))
        if not self.times or self.since == 0 or not found:
            yield from found
            return
        table = pa.Table.from_batches(found)
        sums: dict[Any, int] = {}
        rows = list(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))
        for row, change in zip(rows, table["diff"].to_pylist(), strict=True):
            sums[row] = sums.get(row, 0) + (change or 0)
        yield from table.filter(pa.array([sums[row] != 0 for row in rows])).to_batches()

    return swapped(reading.Reading, batches=batches)


@bug
def truncated_batch_not_filtered() -> Any:
    right = reading._reading

    def whole(batches: Any, *arguments: Any, **more: Any) -> Any:
        return right([dataclasses.replace(batch, truncated=False) for batch in batches], *arguments, **more)

    return swapped(reading, _reading=whole)


# ---- garbage -----------------------------------------------------------------------------------------------------


@bug
def garbage_deleted_beyond_the_boundary() -> Any:
    right = collector.Collector._garbage

    async def garbage(self: Any, state: State, boundary: int, deadline: Any) -> Any:
        return await right(self, state, state.seqno, deadline)

    return swapped(collector.Collector, _garbage=garbage)


@bug
def held_seqno_forgotten() -> Any:
    return swapped(State, seqno_since=property(lambda state: state.seqno))


@bug
def garbage_up_to_the_requested_rollup() -> Any:
    def boundary(state: State, *, versions_max: int) -> int | None:
        return max(state.rollups) if len(state.rollups) > 1 else None

    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        with swapped(collector, gc_boundary=boundary), swapped(retention, gc_boundary=boundary):
            yield

    return planted()


@bug
def rollups_removed_first() -> Any:
    async def collect(self: Any, deadline: Any) -> Any:
        state = await self._applier.refresh(deadline)
        boundary = retention.gc_boundary(state, versions_max=self._settings.gc_versions_max)
        if boundary is None:
            return collector.Collected()
        [outcome] = await self._applier.commit([c.RemoveRollups(below=boundary)], deadline)
        await self._delete([rollup.key for rollup in outcome.rollups], deadline)
        await self._delete(await self._garbage(state, boundary, deadline), deadline)
        await self._truncate(state.shard, boundary, deadline)
        return collector.Collected()

    return swapped(collector.Collector, collect=collect)


@bug
def sweep_by_age_only() -> Any:
    def part(self: Any, writer_id: Any, fence_ms: int) -> Any:
        if writer_id.born_ms is not None and writer_id.born_ms < fence_ms:
            return survey.BlobVerdict.LEAKED, "it is old"
        return survey.BlobVerdict.UNLINKED, "it is young"

    return swapped(survey.LiveKeys, _part=part)


# ---- reading -----------------------------------------------------------------------------------------------------


@bug
def upper_taken_for_lower_when_batches_are_chosen() -> Any:
    right = shards.LocalShards.snapshot

    async def snapshot(self: Any, shard: Any, as_of: Any, **how: Any) -> Any:
        plan = await right(self, shard, as_of, **how)
        if not isinstance(plan, SnapshotPlan):
            return plan
        return dataclasses.replace(plan, batches=tuple(b for b in plan.batches if b.desc.upper.less_equal(as_of)))

    return swapped(shards.LocalShards, snapshot=snapshot)


@bug
def listen_keeps_the_progress_of_empty_batches() -> Any:
    right = listen.Listen._deliver

    async def deliver(self: Any, change: Any) -> AsyncIterator[Any]:
        full = dataclasses.replace(change, batches=tuple(batch for batch in change.batches if batch.rows))
        async for event in right(self, full):
            yield event

    return swapped(listen.Listen, _deliver=deliver)


@bug
def hold_of_readers_ignored_in_since() -> Any:
    def with_since(state: State) -> State:
        met = MINIMUM
        for reader in state.leased_readers.values():
            met = met.join(reader.since)
        if not state.since.less_than(met):
            return state
        return state.evolved(trace=dataclasses.replace(state.trace, since=met))

    return swapped(transitions, _with_since=with_since)


@bug
def expired_reader_revived() -> Any:
    def leased(state: State, reader_id: str) -> LeasedReader:
        known = state.leased_readers.get(reader_id)
        return known or LeasedReader(since=MINIMUM, seqno=0, heartbeat_ms=0, lease_ms=4_000)

    return swapped(transitions, _leased=leased)


# ---- state -------------------------------------------------------------------------------------------------------


@bug
def splice_dropped_when_a_diff_is_applied() -> Any:
    right = diff._spliced

    def spliced(batches: Any, splices: Any) -> Any:
        return right(batches, tuple(splice for splice in splices if not splice.gone))

    return swapped(diff, _spliced=spliced)


@bug
def reading_without_the_parts_of_a_second_run() -> Any:
    right = merging.Merging.run

    async def run(self: Any, what: Any) -> Any:
        if len(what.runs) > 5:
            what = dataclasses.replace(what, runs=what.runs[:5])
        return await right(self, what)

    return swapped(merging.Merging, run=run)
