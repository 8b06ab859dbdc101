"""A crowd at one shard: pushes only of what moved, and reads that share what they fetch."""

import asyncio
import contextlib

import pytest
from machine.support import empty_append, machine, memory_stores, new_shard
from simulation.budget import FULL

from persist.core.frontier import MINIMUM, Antichain
from persist.core.ids import ReaderId, ShardId
from persist.core.shard.commands import DowngradeSince, ExpireReader, HeartbeatReader, RegisterLeasedReader
from persist.errors import LocationError
from persist.machine.local_shards import LocalShards
from persist.machine.shards import ShardMoved
from persist.retry.turns import AT_ONCE
from persist.runtime import system
from persist.storage.metered import Meter, MeteredConsensus

CROWD = 1_000 if FULL else 200


def reader(number: int) -> ReaderId:
    return ReaderId.of(number.to_bytes(16, "big"))


class Watchers:
    """Watchers of one shard, and what they were sent."""

    def __init__(self, shards: LocalShards, shard: ShardId, count: int) -> None:
        self.changes: list[list[ShardMoved]] = [[] for _ in range(count)]
        self._shards = shards
        self._shard = shard
        self._tasks = [asyncio.create_task(self._watch(told)) for told in self.changes]

    async def _watch(self, told: list[ShardMoved]) -> None:
        async for change in self._shards.watch(self._shard, MINIMUM, timeout=300):
            told.append(change)

    @property
    def messages(self) -> int:
        return sum(map(len, self.changes))

    async def until_each(self, *, upper: Antichain | None = None, since: Antichain | None = None) -> None:
        async with asyncio.timeout(120):
            while not all(
                told and upper in (None, told[-1].info.upper) and since in (None, told[-1].info.since)
                for told in self.changes
            ):
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_very_many_watchers_with_a_heartbeat_each_receive_few_messages():
    shards, shard = machine(*memory_stores()), new_shard()
    await shards.open(shard, timeout=5)
    watchers = Watchers(shards, shard, CROWD)
    await watchers.until_each()
    for number in range(CROWD):
        await shards.apply(shard, RegisterLeasedReader(reader_id=reader(number)), timeout=30)
    for number in range(CROWD):
        await shards.apply(shard, HeartbeatReader(reader_id=reader(number)), timeout=30)
    for number in range(CROWD):
        await shards.apply(shard, ExpireReader(reader_id=reader(number)), timeout=30)
    # What moves the upper arrives, and after everything before it.
    await shards.apply(shard, empty_append(0, 5), timeout=30)
    await watchers.until_each(upper=Antichain.of(5))
    assert watchers.messages <= 3 * CROWD
    await watchers.end()
    await shards.close()


async def test_since_that_many_readers_move_is_pushed_folded_and_arrives():
    shards, shard = machine(*memory_stores()), new_shard()
    await shards.open(shard, timeout=5)
    await shards.apply(shard, RegisterLeasedReader(reader_id=reader(1)), timeout=30)
    await shards.apply(shard, empty_append(0, 1_000), timeout=5)
    watchers = Watchers(shards, shard, 20)
    await watchers.until_each()
    for since in range(1, 301):
        await shards.apply(shard, DowngradeSince(reader_id=reader(1), since=Antichain.of(since)), timeout=30)
    state = await shards.open(shard, timeout=5)
    assert state.since == Antichain.of(300)
    await watchers.until_each(since=state.since)
    assert watchers.messages <= 20 * 10
    await watchers.end()
    await shards.close()


async def test_reads_at_the_same_time_share_what_they_fetch():
    blob, consensus = memory_stores()
    meter, shard = Meter(), new_shard()
    writer = machine(blob, consensus)
    await writer.open(shard, timeout=5)
    shards = machine(blob, MeteredConsensus(consensus, meter, system()))
    await shards.open(shard, timeout=5)
    for at in range(20):
        await writer.apply(shard, empty_append(at, at + 1), timeout=5)
    before = meter.tallies["consensus.scan"].calls
    infos = await asyncio.gather(*(shards.open(shard, timeout=5) for _ in range(200)))
    assert {info.upper for info in infos} == {Antichain.of(20)}
    assert meter.tallies["consensus.scan"].calls - before <= 2


class Slow(MeteredConsensus):
    """A store whose answers come when they are let through, each as things stood when it was asked."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.asked = 0
        self.gates: list[asyncio.Event] | None = None

    async def scan(self, key, from_seqno, limit, *, timeout):
        found = await super().scan(key, from_seqno, limit, timeout=timeout)
        self.asked += 1
        if self.gates is not None:
            self.gates.append(gate := asyncio.Event())
            await gate.wait()
        return found

    async def asked_times(self, count: int) -> None:
        async with asyncio.timeout(20):
            while self.asked < count:
                await asyncio.sleep(0)


async def test_read_that_begins_during_a_fetch_waits_for_the_next_one():
    blob, consensus = memory_stores()
    slow, shard = Slow(consensus, Meter(), system()), new_shard()
    writer, shards = machine(blob, consensus), machine(blob, slow)
    await writer.open(shard, timeout=5)
    await shards.open(shard, timeout=5)
    slow.asked, slow.gates = 0, []
    early = asyncio.create_task(shards.open(shard, timeout=60))
    await slow.asked_times(1)
    await writer.apply(shard, empty_append(0, 5), timeout=5)
    late = [asyncio.create_task(shards.open(shard, timeout=60)) for _ in range(50)]
    await asyncio.sleep(0.05)
    assert slow.asked == 1
    slow.gates[0].set()
    assert (await early).upper == Antichain.of(0)
    await slow.asked_times(2)
    slow.gates[1].set()
    assert {info.upper for info in await asyncio.gather(*late)} == {Antichain.of(5)}
    assert slow.asked == 2


async def test_reader_that_gives_up_does_not_end_the_fetch_of_others():
    blob, consensus = memory_stores()
    slow, shard = Slow(consensus, Meter(), system()), new_shard()
    shards = machine(blob, slow)
    await shards.open(shard, timeout=5)
    slow.asked, slow.gates = 0, []
    leaving = [asyncio.create_task(shards.open(shard, timeout=60)) for _ in range(3)]
    impatient = asyncio.create_task(shards.open(shard, timeout=0.05))
    staying = asyncio.create_task(shards.open(shard, timeout=60))
    await slow.asked_times(1)
    for task in leaving:
        task.cancel()
    with pytest.raises(LocationError):
        await impatient
    for gate in slow.gates:
        gate.set()
    slow.gates = None
    assert (await staying).upper == Antichain.of(0)
    assert all(task.cancelled() for task in leaving)


async def test_each_of_those_that_shared_a_failure_has_an_error_of_its_own():
    blob, consensus = memory_stores()
    shards, shard = machine(blob, consensus), new_shard()
    await shards.open(shard, timeout=5)
    await consensus.close()
    failures = await asyncio.gather(*(shards.open(shard, timeout=1) for _ in range(10)), return_exceptions=True)
    assert all(isinstance(failure, LocationError) for failure in failures), failures
    assert len(set(map(id, failures))) == 10


class Most:
    """The most changes that a crowd was given in one turn of the loop."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._count = 0
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            before = self._watchers.messages
            await asyncio.sleep(0)
            self._count = max(self._count, self._watchers.messages - before)

    async def end(self) -> int:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        return self._count


@pytest.mark.parametrize("news", ["first", "upper", "since"])
async def test_a_crowd_is_given_its_news_a_few_at_a_time(news: str):
    shards, shard = machine(*memory_stores()), new_shard()
    await shards.open(shard, timeout=5)
    await shards.apply(shard, RegisterLeasedReader(reader_id=reader(1)), timeout=30)
    await shards.apply(shard, empty_append(0, 10), timeout=5)
    watchers = Watchers(shards, shard, CROWD)
    most = Most(watchers)
    await watchers.until_each()
    if news != "first":
        await most.end()
        most = Most(watchers)
    if news == "upper":
        await shards.apply(shard, empty_append(10, 11), timeout=5)
        await watchers.until_each(upper=Antichain.of(11))
    if news == "since":
        await shards.apply(shard, DowngradeSince(reader_id=reader(1), since=Antichain.of(5)), timeout=30)
        await watchers.until_each(since=Antichain.of(5))
    # The look may come amid two turns.
    assert 0 < await most.end() <= 2 * AT_ONCE
    await watchers.end()
    await shards.close()
