"""Leases: holds that follow what is read and never run ahead of it, heartbeats in every wait, and how they end."""

import asyncio
import dataclasses
import gc
import queue
import sys
import threading
import weakref
from collections.abc import Iterator
from time import monotonic
from typing import Any, cast

import pytest
from client.support import SCHEMA, SMALL, Place, client_of, collect, memory_place, rows_of, table
from sure import reached

from persist import Antichain, Progress, ShardId, Updates
from persist.client.shard.read import lease
from persist.core import ids
from persist.core.shard.commands import DowngradeSince, RegisterLeasedReader
from persist.errors import CorruptData, Determinate, Indeterminate, LeaseExpired, NotReadable
from persist.runtime import system
from persist.storage.open import open_consensus

EVERY = 8
OFTEN = dataclasses.replace(SMALL, rollup_every=EVERY)
PINS = 40_000
IN_BLOB = dataclasses.replace(SMALL, inline_part_bytes_max=0)


async def diffs_of(place: Place, shard: ids.ShardId) -> int:
    """Rows of the shard in Consensus."""
    consensus = open_consensus(place.consensus, settings=SMALL, runtime=system())
    try:
        return len(await consensus.scan(shard, 0, 1 << 20, timeout=5))
    finally:
        await consensus.close()


async def append(writer: Any, lower: int, upper: int) -> None:
    for time in range(lower, upper):
        await writer.append(table([(time, "a", time, 1)]), time + 1)


async def held(client: Any, reader: Any) -> dict[str, Any]:
    """What the shard's state says of a reader."""
    return (await client.inspect(reader.shard))["leased_readers"][str(reader.reader_id)]


async def expire(place: Place, reader: Any) -> None:
    """End a reader's lease behind its back: as when it ran out and another process committed."""
    async with client_of(place) as other:
        await (await other.open_reader(reader.shard, reader_id=reader.reader_id)).expire()


async def waiting_listen(reader: Any) -> Any:
    """A listen that has returned everything up to 3."""
    listen = await reader.listen(2)
    assert await anext(listen) == Progress(upper=Antichain.of(3))
    return listen


class Held:
    """The machine, with answers or requests of one kind held up until ``go``."""

    def __init__(self, shards: Any, kind: type[Any]) -> None:
        self._shards = shards
        self._kind = kind
        self.waiting = asyncio.Event()
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)

    async def apply(self, shard: Any, command: Any, *, timeout: float) -> Any:
        if isinstance(command, self._kind):
            self.waiting.set()
            await self.go.wait()
        return await self._shards.apply(shard, command, timeout=timeout)


async def test_a_lease_that_ran_out_is_lost_although_a_late_attempt_registers_it_again():
    place = memory_place()
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 5)
        lost = await client.open_reader(writer.shard)
        await expire(place, lost)
        keeper = await client.open_reader(writer.shard)
        await keeper.downgrade_since(3)
        late = RegisterLeasedReader(reader_id=lost.reader_id, lease_ms=60_000)
        await client._location.shards.apply(writer.shard, late, timeout=5)
        with pytest.raises(LeaseExpired):
            await lost.snapshot(1)
        with pytest.raises(LeaseExpired):
            await lost.snapshot(4)


async def test_what_a_lease_gave_up_itself_is_not_readable_and_no_more():
    place = memory_place()
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 5)
        shards = client._location.shards
        reader = await client.open_reader(writer.shard)
        client._location.shards = late = Held(shards, DowngradeSince)
        giving_up = asyncio.create_task(reader.downgrade_since(3))
        await reached(late.waiting, giving_up)
        first = DowngradeSince(reader_id=reader.reader_id, since=Antichain.of(3), outstanding_seqno=0)
        await shards.apply(writer.shard, first, timeout=5)
        client._location.shards = shards
        with pytest.raises(NotReadable):
            await reader.snapshot(1)
        late.go.set()
        await giving_up
        assert rows_of(await (await reader.snapshot(4)).to_arrow())


class Silent(Held):
    """Shards whose store says nothing to some commands."""

    async def apply(self, shard: ShardId, command: Any, *, timeout: float) -> Any:
        if isinstance(command, self._kind):
            await system().sleep(timeout)
            raise Indeterminate("no answer in time")
        return await self._shards.apply(shard, command, timeout=timeout)


async def test_refused_read_looks_at_its_lease_within_the_time_it_was_given():
    place = memory_place()
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 5)
        reader, keeper = [await client.open_reader(writer.shard) for _ in range(2)]
        await expire(place, reader)
        await keeper.downgrade_since(3)
        client._location.shards = cast(Any, Silent(client._location.shards, DowngradeSince))
        began = monotonic()
        # Not that it may have happened: nothing did.
        with pytest.raises((Determinate, LeaseExpired)) as refused:
            await reader.snapshot(1, timeout=1.0)
        assert not isinstance(refused.value, Indeterminate)
        assert monotonic() - began < 10


# ---- holds -------------------------------------------------------------------------------------------------------


async def test_reader_that_follows_does_not_hold_garbage_back(place: Place):
    async with client_of(place, settings=OFTEN) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 1)
        reader = await client.open_reader(writer.shard)
        listen, seen = await reader.listen(0, timeout=30), []

        async def follow() -> None:
            async for event in listen:
                if isinstance(event, Updates):
                    seen.extend(rows_of(event.table))

        following = asyncio.create_task(follow())
        await append(writer, 1, 20 * EVERY)
        upper = 20 * EVERY
        # Rollups, collections and downgrades go on beside the appends: a few more give them their turn.
        while await diffs_of(place, writer.shard) > 2 * EVERY:
            assert upper < 40 * EVERY, "garbage waits for the reader"
            await append(writer, upper, upper + 1)
            await asyncio.sleep(0.01)
            upper += 1
        while len(seen) < upper - 1:
            await asyncio.sleep(0.01)
        following.cancel()
        assert seen == [(time, "a", time, 1) for time in range(1, upper)]
        state = await client.inspect(writer.shard)
        assert sum(len(each["batches"]) for each in state["spine"]) <= 16
        assert (await held(client, reader))["since"] == [0], "since moved without being asked to"


async def test_reader_that_does_nothing_does_not_hold_garbage_back_until_its_next_heartbeat(place: Place, monkeypatch):
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(lease, "LOOK_SECONDS_MAX", 0.05)
    async with client_of(place, settings=OFTEN) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 1)
        reader = await client.open_reader(writer.shard)
        upper, far = 1, 20 * EVERY
        while (await held(client, reader))["seqno"] < far:
            assert upper < 100 * EVERY, "garbage waits for the reader"
            await append(writer, upper, upper + 1)
            upper += 1
        while await diffs_of(place, writer.shard) > far:
            await append(writer, upper, upper + 1)
            upper += 1
        assert (await held(client, reader))["since"] == [0], "since moved without being asked to"


async def test_subscriber_that_pauses_holds_no_garbage_back_and_goes_on_without_loss(place: Place):
    settings = dataclasses.replace(OFTEN, inline_part_bytes_max=0)
    async with client_of(place, settings=settings) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 1)
        reader = await client.open_reader(writer.shard, lease=8.0)
        listen, seen = await reader.subscribe(0, timeout=30), list[Any]()

        async def take(until: int) -> None:
            async for event in listen:
                if isinstance(event, Updates):
                    seen.extend(rows_of(event.table))
                elif event.upper.time is None or event.upper.time >= until:
                    break

        upper = 1
        for pause in (5, 20, 20):
            await take(upper)
            before = (await held(client, reader))["seqno"]
            while (await held(client, reader))["seqno"] < before + pause * EVERY:
                assert upper < 300 * EVERY, "garbage waits for who pauses"
                await append(writer, upper, upper + 1)
                upper += 1
        await take(upper)
        assert seen == [(time, "a", time, 1) for time in range(upper)]
        await listen.aclose()
        assert (await held(client, reader))["since"] == [0]


async def test_reader_that_does_nothing_commits_nothing_where_little_happens(place: Place, monkeypatch):
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(lease, "LOOK_SECONDS_MAX", 0.01)
    looks, look = list[bool](), lease.Lease._is_far_behind

    async def looked(self: lease.Lease) -> bool:
        looks.append(await look(self))
        return looks[-1]

    monkeypatch.setattr(lease.Lease, "_is_far_behind", looked)
    async with client_of(place, settings=OFTEN) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        reader = await client.open_reader(writer.shard)
        registered = (await held(client, reader))["seqno"]
        await append(writer, 0, 5 * EVERY)
        looks.clear()
        while len(looks) < 3:
            await asyncio.sleep(0.01)
        assert not any(looks)
        assert (await held(client, reader))["seqno"] == registered


async def test_snapshot_that_lies_idle_holds_its_seqno_and_no_older_one(place: Place):
    async with client_of(place, settings=OFTEN) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 20)
        reader = await client.open_reader(writer.shard)
        await append(writer, 20, 40)
        planned = (await client.inspect(writer.shard))["seqno"]
        snapshot = await reader.snapshot(39)
        await append(writer, 40, 100)
        await reader.heartbeat()
        assert planned <= (await held(client, reader))["seqno"] < planned + EVERY
        assert rows_of(await snapshot.to_arrow()) == [(time, "a", 1) for time in range(40)]
        del snapshot
        await reader.heartbeat()
        await reader.heartbeat()
        assert (await held(client, reader))["seqno"] >= planned + 60


async def test_late_heartbeat_does_not_take_the_hold_of_a_read_planned_before_it_arrives(place: Place):
    async with client_of(place, settings=OFTEN) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 5)
        reader = await client.open_reader(writer.shard)
        location = client._location
        location.shards = late = Held(location.shards, DowngradeSince)
        beating = asyncio.create_task(reader.heartbeat())
        await reached(late.waiting, beating)
        planned = (await client.inspect(writer.shard))["seqno"]
        snapshot = await reader.snapshot(4)
        await append(writer, 5, 5 + 4 * EVERY)
        late.go.set()
        await beating
        assert (await held(client, reader))["seqno"] <= planned
        assert rows_of(await snapshot.to_arrow()) == [(time, "a", 1) for time in range(5)]


# ---- heartbeats --------------------------------------------------------------------------------------------------


@pytest.mark.few
@pytest.mark.parametrize("waiting", ["snapshot", "listen", "diffs", "slow-consumer"])
async def test_lease_is_renewed_while_a_reader_waits(place: Place, waiting: str):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 3)
        reader = await client.open_reader(writer.shard, lease=1.0)
        snapshot = await reader.snapshot(2)
        batches = snapshot.to_batches()
        if waiting == "slow-consumer":
            first = await anext(batches)
            work = asyncio.create_task(asyncio.Event().wait())
        elif waiting == "listen":
            work = asyncio.create_task(anext(await waiting_listen(reader)))
        else:
            read = reader.snapshot(9, timeout=60) if waiting == "snapshot" else reader.diffs(0, 10, timeout=60)
            work = asyncio.ensure_future(cast(Any, read))
        beats: set[Any] = set()
        while len(beats) < 6:  # more than a lease
            beats.add((await held(client, reader))["heartbeat_ms"])
            await asyncio.sleep(0.02)
        assert not work.done()
        await writer.append(table([(9, "b", 9, 1)]), 10)
        if waiting == "slow-consumer":
            work.cancel()
            assert first.num_rows + sum([batch.num_rows async for batch in batches]) == 3
        else:
            await work
        await reader.heartbeat()


# ---- the end of a lease ------------------------------------------------------------------------------------------


@pytest.mark.few
@pytest.mark.parametrize("waiting", ["snapshot", "listen", "diffs"])
async def test_reader_that_waits_is_told_that_its_lease_is_gone(place: Place, waiting: str):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 3)
        reader = await client.open_reader(writer.shard, lease=1.0)
        if waiting == "listen":
            work = asyncio.create_task(anext(await waiting_listen(reader)))
        else:
            read = reader.snapshot(9, timeout=50) if waiting == "snapshot" else reader.diffs(0, 10, timeout=50)
            work = asyncio.ensure_future(cast(Any, read))
        await asyncio.sleep(0)
        await expire(place, reader)
        with pytest.raises(LeaseExpired) as told:
            await work
        assert told.value.hint == "open a new reader"


async def test_missing_part_after_the_lease_ran_out_is_told_as_that(place: Place):
    async with client_of(place, settings=IN_BLOB) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 4)
        reader = await client.open_reader(writer.shard)
        snapshot, alive = await reader.snapshot(3), await (await client.open_reader(writer.shard)).snapshot(3)
        listen, stream = await reader.listen(0), snapshot.to_batches()
        await expire(place, reader)
        blob = client._location.blob
        for key in [key async for key, _ in blob.list(f"{writer.shard}/n", timeout=10)]:
            await blob.delete(key, timeout=10)
        with pytest.raises(LeaseExpired):
            await collect(listen, until=3)
        for read in (snapshot.to_arrow, stream.__anext__, lambda: reader.snapshot(3), reader.heartbeat):
            with pytest.raises(LeaseExpired):
                await read()
        with pytest.raises(CorruptData):
            await alive.to_arrow()


async def test_since_that_went_on_without_an_expired_reader_is_told_as_its_end(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 12)
        one, two, other = [await client.open_reader(writer.shard) for _ in range(3)]
        for reader in (one, two):
            await expire(place, reader)
        await other.downgrade_since(8)
        with pytest.raises(LeaseExpired):
            await one.diffs(4, 10)
        with pytest.raises(LeaseExpired):
            await two.snapshot(4)
        with pytest.raises(NotReadable):
            await other.diffs(4, 10)


async def test_listen_that_ends_for_want_of_news_does_not_hide_that_the_lease_is_gone(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 2)
        reader = await client.open_reader(writer.shard)
        listen = await reader.listen(0, timeout=0.3)
        while listen.frontier != Antichain.of(2):
            await anext(listen)
        await expire(place, reader)
        with pytest.raises(LeaseExpired):
            await reader.heartbeat()
        with pytest.raises(LeaseExpired):
            await anext(listen)


async def test_reader_registered_again_under_its_id_does_not_bring_the_old_hold_back(place: Place):
    async with client_of(place, settings=OFTEN) as client, client_of(place) as other:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 5)
        reader = await client.open_reader(writer.shard)
        snapshot = await reader.snapshot(2)
        lost = (await held(client, reader))["seqno"]
        await expire(place, reader)
        await append(writer, 5, 9)
        again = await other.open_reader(writer.shard, reader_id=reader.reader_id)
        assert (await held(client, reader))["seqno"] > lost
        with pytest.raises(LeaseExpired):
            await reader.heartbeat()
        with pytest.raises(LeaseExpired):
            await snapshot.to_arrow()
        await again.heartbeat()
        assert rows_of(await (await again.snapshot(8)).to_arrow()) == [(time, "a", 1) for time in range(9)]


async def test_since_that_went_on_before_a_reader_was_registered_again_is_reported_as_its_end(place: Place):
    async with client_of(place) as client, client_of(place) as other:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 12)
        reader, another = [await client.open_reader(writer.shard) for _ in range(2)]
        await expire(place, reader)
        await another.downgrade_since(8)
        # As when its registration arrives a second time.
        again = await other.open_reader(writer.shard, reader_id=reader.reader_id)
        assert again.since == Antichain.of(8)
        with pytest.raises(LeaseExpired):
            await reader.snapshot(4)
        with pytest.raises(LeaseExpired):
            await reader.snapshot(9)
        assert len(rows_of(await (await again.snapshot(9)).to_arrow())) == 10


async def test_reader_that_stops_reading_lets_everybody_go_on(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 10)
        idle, reader = await client.open_reader(writer.shard), await client.open_reader(writer.shard)
        await reader.downgrade_since(9)
        assert (await client.inspect(writer.shard))["since"] == [0]
        await idle.expire()
        await reader.downgrade_since(10)
        assert (await client.inspect(writer.shard))["since"] == [10]
        assert (await client.open_reader(writer.shard)).since == Antichain.of(10)


# ---- threads -----------------------------------------------------------------------------------------------------


@pytest.fixture
def often_switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("often_switching")
async def test_pins_let_go_of_in_other_threads_are_neither_lost_nor_kept():
    async with client_of(memory_place(), settings=OFTEN) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 1)
        reader = await client.open_reader(writer.shard)
        planned = (await client.inspect(writer.shard))["seqno"]
        kept: list[Any] = [await reader.snapshot(0)]
        pins: queue.SimpleQueue[Any] = queue.SimpleQueue()
        droppers = [threading.Thread(target=lambda: [*iter(pins.get, None)]) for _ in range(2)]
        for thread in droppers:
            thread.start()
        for _ in range(PINS):
            pins.put(reader._lease.pin())
        for _ in droppers:
            pins.put(None)
        for thread in droppers:
            await asyncio.to_thread(thread.join)
        await append(writer, 1, 4 * EVERY)
        await reader.heartbeat()
        await reader.heartbeat()
        assert (await held(client, reader))["seqno"] <= planned, "what is still read would be collected"
        kept.clear()
        await reader.heartbeat()
        await reader.heartbeat()
        assert (await held(client, reader))["seqno"] > planned + EVERY, "nothing is read, and garbage waits"


async def test_what_read_under_a_lease_that_was_lost_is_forgotten_with_all_it_had(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 4)

        async def read() -> list[weakref.ref[Any]]:
            reader = await client.open_reader(writer.shard)
            snapshot = await reader.snapshot(3)
            await expire(place, reader)
            with pytest.raises(LeaseExpired):
                await reader.heartbeat()
            return [weakref.ref(reader), weakref.ref(snapshot)]

        held = await read()
        for _ in range(20):
            await asyncio.sleep(0)
            gc.collect()
        assert [each() for each in held] == [None, None]
