"""LocalShards over memory stores: linearizable commits, cold opens, waiting, watching, and histories that rewind."""

import asyncio
import dataclasses
import itertools
from typing import Any

import pytest
from machine.support import SETTINGS, empty_append, machine, memory_stores, new_shard
from sure import as_a, sure

from persist.core.frontier import Antichain
from persist.core.ids import LOCATION_KEY, ReaderId, ShardId
from persist.core.shard.commands import Appended, RegisterLeasedReader, UpperMismatch
from persist.errors import Determinate, HistoryRewound, InvalidBounds, LeaseExpired, NotReadable, ShardNotFound
from persist.machine.backup.beginning import Beginnings
from persist.machine.backup.copying import Store
from persist.machine.shards import NotYet, SnapshotPlan
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.storage.metered import Meter, MeteredBlob, MeteredConsensus


async def test_open_unknown_shard_without_create_is_refused_and_leaves_nothing():
    blob, consensus = memory_stores()
    shards = machine(blob, consensus)
    with pytest.raises(ShardNotFound):
        await shards.open(new_shard(), create=False, timeout=1)
    assert [key async for key in consensus.list_keys(timeout=1)] == []
    assert [key async for key in blob.list("", timeout=1)] == []


async def test_open_raced_by_eight_machines_makes_one_shard_and_leaves_one_rollup():
    blob, consensus = memory_stores()
    shard = new_shard()
    infos = await asyncio.gather(*(machine(blob, consensus).open(shard, timeout=5) for _ in range(8)))
    assert {info.seqno for info in infos} == {0}
    assert {info.upper for info in infos} == {Antichain.of(0)}
    assert len([key async for key in blob.list(f"{shard}/", timeout=1)]) == 1


async def test_append_is_seen_by_another_machine_and_mismatch_names_the_upper():
    blob, consensus = memory_stores()
    shard = new_shard()
    one, two = machine(blob, consensus), machine(blob, consensus)
    await one.open(shard, timeout=5)
    await two.open(shard, timeout=5)
    first = await one.apply(shard, empty_append(0, 5), timeout=5)
    assert isinstance(first, Appended)
    assert first.upper == Antichain.of(5)
    stale = await two.apply(shard, empty_append(0, 7, writer=2), timeout=5)
    assert stale == UpperMismatch(upper=Antichain.of(5), seqno=as_a(UpperMismatch, stale).seqno)
    assert (await two.open(shard, timeout=5)).upper == Antichain.of(5)


async def test_append_with_a_used_token_answers_the_original_outcome():
    blob, consensus = memory_stores()
    shard = new_shard()
    one, two = machine(blob, consensus), machine(blob, consensus)
    await one.open(shard, timeout=5)
    command = empty_append(0, 5, token=b"t" * 16)
    first = await one.apply(shard, command, timeout=5)
    await one.apply(shard, empty_append(5, 9), timeout=5)
    again = await two.apply(shard, command, timeout=5)
    assert again == dataclasses.replace(as_a(Appended, first), already_committed=True)
    assert (await one.open(shard, timeout=5)).upper == Antichain.of(9)


async def test_commit_of_many_commands_takes_one_seqno_and_answers_each():
    blob, consensus = memory_stores()
    shard = new_shard()
    shards = machine(blob, consensus)
    await shards.open(shard, timeout=5)
    good = [empty_append(0, 1), empty_append(1, 2)]
    outcomes = await shards.commit(shard, good, timeout=5)
    assert [outcome.upper for outcome in outcomes] == [Antichain.of(1), Antichain.of(2)]
    assert {outcome.seqno for outcome in outcomes} == {1}
    assert (sure(await consensus.head(shard, timeout=1))).seqno == 1


async def test_commit_with_one_bad_command_refuses_only_that_one():
    blob, consensus = memory_stores()
    shard = new_shard()
    shards = machine(blob, consensus)
    await shards.open(shard, timeout=5)
    late_reader = RegisterLeasedReader(reader_id=ReaderId.of(b"r" * 16), lease_ms=-1)
    outcomes = await shards.commit(shard, [empty_append(0, 4), late_reader], timeout=5)
    assert isinstance(outcomes[0], Appended)
    assert isinstance(outcomes[1], Exception)


async def test_cold_open_reads_a_bounded_number_of_times_whatever_the_history():
    blob, consensus = memory_stores()
    shard = new_shard()
    settings = dataclasses.replace(SETTINGS, rollup_every=16)
    shards = machine(blob, consensus, settings)
    await shards.open(shard, timeout=5)
    for time in range(200):
        await shards.apply(shard, empty_append(time, time + 1), timeout=5)
        # A rollup is written beside the commits that follow it: let it end, or fast commits outrun it.
        await asyncio.gather(*shards._tasks._running)
    state = await shards.inspect(shard, timeout=5)
    newest = max(int(seqno) for seqno in state["rollups"])
    assert newest >= 200 - 2 * 16
    meter = Meter()
    metered = MeteredBlob(blob, meter, system()), MeteredConsensus(consensus, meter, system())
    cold = machine(*metered, settings)
    assert (await cold.open(shard, timeout=5)).upper == Antichain.of(200)
    # Once the location's record on both sides, then for each shard one head, one scan and one blob.
    assert sum(tally.calls for tally in meter.tallies.values()) == 2 + 3
    assert await cold.inspect(shard, timeout=5) == await shards.inspect(shard, timeout=5)


async def test_snapshot_waits_for_the_upper_and_tells_when_it_did_not_come():
    blob, consensus = memory_stores()
    shard = new_shard()
    shards, other = machine(blob, consensus), machine(blob, consensus)
    await shards.open(shard, timeout=5)
    assert isinstance(await shards.snapshot(shard, Antichain.of(3), timeout=0.05), NotYet)
    waiting = asyncio.create_task(shards.snapshot(shard, Antichain.of(3), timeout=10))
    await other.apply(shard, empty_append(0, 4), timeout=5)
    plan = await waiting
    assert isinstance(plan, SnapshotPlan)
    assert plan.info.upper == Antichain.of(4)


async def test_snapshot_for_an_unknown_reader_is_refused_as_expired():
    blob, consensus = memory_stores()
    shard = new_shard()
    shards = machine(blob, consensus)
    await shards.open(shard, timeout=5)
    with pytest.raises(LeaseExpired):
        await shards.snapshot(shard, Antichain.of(0), reader_id=ReaderId.of(b"x" * 16), timeout=1)


async def test_snapshot_at_the_empty_frontier_is_refused():
    blob, consensus = memory_stores()
    shard = new_shard()
    shards = machine(blob, consensus)
    await shards.open(shard, timeout=5)
    with pytest.raises(NotReadable):
        await shards.snapshot(shard, Antichain(), timeout=1)


async def test_watch_sees_every_batch_once_also_from_another_machine_and_ends_at_closing():
    blob, consensus = memory_stores()
    shard = new_shard()
    shards, other = machine(blob, consensus), machine(blob, consensus)
    await shards.open(shard, timeout=5)

    async def follow():
        seen: list[Any] = []
        async for change in shards.watch(shard, Antichain.of(0), timeout=20):
            seen.extend((batch.desc.lower, batch.desc.upper) for batch in change.batches)
        return seen

    following = asyncio.create_task(follow())
    for time in range(20):
        who = (shards, other)[time % 2]
        await who.apply(shard, empty_append(time, time + 1, writer=1 + time % 2), timeout=5)
    await other.apply(shard, empty_append(20, None, writer=2), timeout=5)
    seen = await following
    assert seen[0][0] == Antichain.of(0)
    assert seen[-1][1] == Antichain()
    # Adjacent empty batches are fused, so a later one may begin before what was seen; it always brings news.
    for before, after in itertools.pairwise(seen):
        assert after[0].less_equal(before[1])
        assert before[1].less_than(after[1])


async def test_refresh_when_the_store_went_back_raises_history_rewound():
    blob, consensus = memory_stores()
    shard = new_shard()
    shards = machine(blob, consensus)
    await shards.open(shard, timeout=5)
    before = await consensus.scan(shard, 0, 10, timeout=1)
    await shards.apply(shard, empty_append(0, 4), timeout=5)
    _, restored = memory_stores()
    for entry in before:
        assert await restored.compare_and_set(shard, entry.seqno - 1, entry.data, timeout=1)
    shards._versions.consensus = restored
    with pytest.raises(HistoryRewound):
        await shards.open(shard, timeout=5)


async def test_refresh_when_the_store_shows_another_history_raises_history_rewound():
    blob, consensus = memory_stores()
    shard = new_shard()
    shards = machine(blob, consensus)
    await shards.open(shard, timeout=5)
    before = await consensus.scan(shard, 0, 10, timeout=1)
    await shards.apply(shard, empty_append(0, 4), timeout=5)
    _, forked = memory_stores()
    location = await consensus.head(LOCATION_KEY, timeout=1)
    assert location is not None
    for at in range(location.seqno):
        assert await forked.compare_and_set(LOCATION_KEY, at - 1, b"", timeout=1)
    assert await forked.compare_and_set(LOCATION_KEY, location.seqno - 1, location.data, timeout=1)
    for entry in before:
        assert await forked.compare_and_set(shard, entry.seqno - 1, entry.data, timeout=1)
    other = machine(blob, forked)
    await other.apply(shard, empty_append(0, 6, writer=7), timeout=5)
    await other.apply(shard, empty_append(6, 7, writer=7), timeout=5)
    shards._versions.consensus = forked
    with pytest.raises(HistoryRewound):
        await shards.apply(shard, empty_append(4, 8), timeout=5)


@pytest.mark.parametrize("commits", [0, 1, 4])
async def test_commit_on_another_history_that_has_come_to_the_same_seqno_is_none(commits: int):
    """What a restore brings may stand at the very seqno at which a process that lived through it stood."""
    blob, consensus = memory_stores()
    shard = new_shard()
    settings = dataclasses.replace(SETTINGS, compaction=False)
    before = machine(blob, consensus, settings)
    await before.open(shard, timeout=5)
    state = await before._of(shard).applier.refresh(Deadline(system(), 5))
    for time in range(commits):
        await before.apply(shard, empty_append(time, time + 1), timeout=5)
    there, anew = memory_stores()
    beginnings = Beginnings(Store(there, settings=settings, runtime=system()), anew)
    await beginnings.prepare(state, bytes(16))
    await beginnings.begin(shard, bytes(16))
    after = machine(there, anew, settings)
    for time in range(commits):
        await after.apply(shard, empty_append(time, time + 1, writer=7), timeout=5)
    assert (await after.open(shard, timeout=5)).seqno == (await before.open(shard, timeout=5)).seqno == commits
    before._versions.consensus, before._versions.blob = anew, there
    before._versions.identity = after._versions.identity
    outcome = await before.apply(shard, empty_append(commits, commits + 3), timeout=5)
    assert isinstance(outcome, Appended)
    # It is in the new history, and made from that.
    for each in (after, machine(there, anew, settings)):
        found = await each.inspect(shard, timeout=5)
        assert (found["upper"], found["incarnation"] != 0) == ([commits + 3], True)


async def test_upper_below_lower_is_refused_before_anything_is_asked():
    with pytest.raises(InvalidBounds):
        empty_append(5, 4)


class Hanging:
    """A Blob that returns no rollup any more, and says so when it is asked for one."""

    def __init__(self, blob: Any) -> None:
        self._blob = blob
        self.hangs = False
        self.asked = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blob, name)

    async def get(self, key: str, **options: Any) -> bytes | None:
        if self.hangs and "/rollup/" in key:
            self.asked.set()
            await asyncio.Event().wait()
        found: bytes | None = await self._blob.get(key, **options)
        return found


async def test_close_goes_on_where_other_calls_open_shards_meanwhile():
    """Each call of others ends with what is so, and is not cancelled; nothing stays open."""
    blob, consensus = memory_stores()
    known, *others = [new_shard() for _ in range(4)]
    first = machine(blob, consensus)
    for shard in (known, *others):
        await first.open(shard, timeout=5)
    hanging = Hanging(blob)
    closing = machine(hanging, consensus)
    await closing.open(known, timeout=5)
    hanging.hangs = True
    refused: dict[ShardId, str] = {}

    async def open_all(shards: list[ShardId], times: int) -> None:
        for shard in shards * times:
            try:
                await closing.open(shard, create=False, timeout=20)
            except Determinate as error:
                refused[shard] = error.message
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for shard in others:
            group.create_task(open_all([shard], 1))
        await hanging.asked.wait()
        group.create_task(open_all([known], 100))
        await closing.close()
        await closing.close()
    assert refused.keys() == {known, *others}
    assert all("closed" in message for message in refused.values())
