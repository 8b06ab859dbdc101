"""What lives through a restore of its location at the same address: nothing goes on with what it knew before."""

from collections.abc import Awaitable, Callable
from typing import Any, Self

import pytest
from client.support import SCHEMA, table
from machine.support import SETTINGS, machine, memory_stores, new_shard

import persist
from persist import aio
from persist.client.client import Client
from persist.client.shard.location import Location
from persist.core.catalog.kinds import SYSTEM_CONFIGURATION
from persist.core.catalog.objects import SystemConfiguration, SystemConfigurationKey
from persist.core.shard.commands import ClaimCompaction, FenceWriters
from persist.core.shard.compaction import Wanted
from persist.core.shard.state import State
from persist.core.time.timeline import EPOCH_MILLISECONDS
from persist.errors import HistoryRewound, LeaseExpired
from persist.machine.backup.beginning import Beginnings
from persist.machine.backup.copying import Store
from persist.machine.compaction.compactor import Compactor
from persist.machine.local_shards import LocalShards
from persist.retry.deadline import Deadline
from persist.runtime import system

DAY_MS = 86_400_000


class Address:
    """Shards at an address behind which another location may come to lie."""

    def __init__(self) -> None:
        self.blob, self.consensus = memory_stores()
        self.behind: LocalShards = machine(self.blob, self.consensus)
        self._before: list[LocalShards] = []
        self._clients: list[aio.Client] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    def watch(self, *asked: Any, timeout: float) -> Any:
        """Short ones, so that the next is of whatever lies behind the address then."""
        return self.behind.watch(*asked, timeout=min(timeout, 0.02))

    async def close(self) -> None:
        """What lies behind the address outlives each of its clients."""

    def client(self) -> aio.Client:
        location = Location(self, blob=self.blob, settings=SETTINGS, runtime=system())
        self._clients.append(Client(location))
        return self._clients[-1]

    async def backup(self) -> list[State]:
        deadline = Deadline(system(), 10)
        return [await self.behind._of(shard).applier.refresh(deadline) async for shard in self.behind.list(timeout=10)]

    async def restore(self, states: list[State]) -> None:
        blob, consensus = memory_stores()
        beginnings = Beginnings(Store(blob, settings=SETTINGS, runtime=system()), consensus)
        for state in states:
            await beginnings.prepare(state, bytes(16))
            await beginnings.begin(state.shard, bytes(16))
        self._before.append(self.behind)
        self.behind = machine(blob, consensus)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()
        for shards in (*self._before, self.behind):
            await shards.close()


async def grown(client: aio.Client, shard: Any, upper: int, name: str) -> None:
    writer = await client.open_writer(shard, schema=SCHEMA)
    for time in range(writer.upper.time or 0, upper):
        await writer.append(table([(time, name, time, 1)]), time + 1)


async def test_listen_of_another_history_ends_and_tells_none_of_it():
    async with Address() as address:
        shard, old, new = new_shard(), address.client(), address.client()
        await grown(old, shard, 5, "common")
        states = await address.backup()
        await grown(old, shard, 10, "lost")
        reader = await old.open_reader(shard)
        listen = await reader.listen(0)
        async for event in listen:
            if isinstance(event, persist.Progress) and event.upper.beyond(9):
                break
        await address.restore(states)
        await grown(new, shard, 14, "new")
        with pytest.raises(LeaseExpired, match=r"restored|lease"):
            await anext(listen)


READS: dict[str, Callable[[aio.ReadHandle], Awaitable[object]]] = {
    "diffs": lambda reader: reader.diffs(6, 12),
    "changes": lambda reader: reader.changes_since(6),
    "latest": lambda reader: reader.snapshot(),
    "snapshot": lambda reader: reader.snapshot(8),
}


@pytest.mark.parametrize("read", READS)
async def test_reader_of_another_history_reads_nothing(read: str):
    async with Address() as address:
        shard, old = new_shard(), address.client()
        await grown(old, shard, 5, "common")
        states = await address.backup()
        await grown(old, shard, 10, "lost")
        reader = await old.open_reader(shard)
        await address.restore(states)
        await grown(address.client(), shard, 14, "new")
        for _ in range(2):
            with pytest.raises(LeaseExpired):
                await READS[read](reader)


async def test_oracle_never_goes_back_and_another_one_goes_on():
    async with Address() as address:
        old = address.client()
        oracle = await old.oracle(EPOCH_MILLISECONDS)
        await oracle.apply_write(await oracle.write_ts())
        states = await address.backup()
        lost = await oracle.write_ts()
        await oracle.apply_write(lost)
        await address.restore(states)
        for call in (oracle.read_ts, oracle.write_ts, oracle.peek_write_ts, lambda: oracle.apply_write(lost)):
            with pytest.raises(LeaseExpired):
                await call()
        again = await old.oracle(EPOCH_MILLISECONDS)
        assert again is not oracle
        await again.apply_write(lost)
        assert await again.read_ts() >= lost


async def test_table_and_its_log_are_refused_and_opened_anew():
    async with Address() as address:
        old = address.client()
        orders = await old.table("orders", schema=SCHEMA, mode="wal")
        await orders.insert([{"id": 1, "name": "common"}])
        states = await address.backup()
        await orders.insert([{"id": 2, "name": "lost"}])
        await address.restore(states)
        with pytest.raises(LeaseExpired):
            await orders.insert([{"id": 3, "name": "zombie"}])
        with pytest.raises(LeaseExpired):
            await orders.snapshot()
        again = await old.table("orders", mode="wal")
        await again.insert([{"id": 4, "name": "new"}])
        rows = (await (await again.snapshot()).to_arrow()).to_pylist()
        assert sorted(row["name"] for row in rows) == ["common", "new"]


def named(name: str, value: str) -> dict[SystemConfigurationKey, SystemConfiguration | None]:
    return {SystemConfigurationKey(name): SystemConfiguration(value)}


async def test_catalog_leader_of_another_history_changes_nothing_and_says_so():
    async with Address() as address:
        zombie = await (await address.client().catalog("env")).open(1)
        await zombie.set(SYSTEM_CONFIGURATION, named("x", "before"))
        states = await address.backup()
        for number in range(4):
            await zombie.set(SYSTEM_CONFIGURATION, named(f"lost{number}", "after"))
        await address.restore(states)
        leader = await (await address.client().catalog("env")).open(1)
        # Its fence lies below what the other one takes for its own past.
        while leader.upper <= zombie.upper:
            await leader.set(SYSTEM_CONFIGURATION, named("y", str(leader.upper)))
        for _ in range(2):
            with pytest.raises(HistoryRewound, match="restored"):
                await zombie.set(SYSTEM_CONFIGURATION, named("x", "by the zombie"))
        with pytest.raises(HistoryRewound):
            await zombie.confirm_leadership()
        with pytest.raises(HistoryRewound):
            zombie.objects(SYSTEM_CONFIGURATION)
        await leader.set(SYSTEM_CONFIGURATION, named("x", "after"))
        follower = await (await address.client().catalog("env")).open_read_only()
        assert follower.get(SYSTEM_CONFIGURATION, SystemConfigurationKey("x")) == SystemConfiguration("after")


async def test_catalog_follower_of_another_history_says_so():
    async with Address() as address:
        leader = await (await address.client().catalog("env")).open(1)
        states = await address.backup()
        await leader.set(SYSTEM_CONFIGURATION, named("lost", "1"))
        follower = await (await address.client().catalog("env")).open_read_only()
        await address.restore(states)
        with pytest.raises(HistoryRewound):
            await follower.sync()


async def test_new_writers_and_compactors_begin_behind_a_fence_of_a_clock_ahead():
    async with Address() as address:
        shard, client = new_shard(), address.client()
        await grown(client, shard, 8, "before")
        waiting = await client.open_writer(shard)
        [state] = await address.backup()
        ahead = state.evolved(writers_since_ms=system().now_ms() + DAY_MS)
        await address.restore([ahead])
        await grown(client, shard, 9, "after")
        with pytest.raises(LeaseExpired):
            await waiting.append(table([(9, "zombie", 9, 1)]), 10)
        compactor = Compactor(address.behind, address.behind)
        with pytest.raises(LeaseExpired, match="fence"):
            await compactor.claim(shard, compactor.new_owner(), wanted=Wanted(whole=True))
        assert await compactor.claim(shard, compactor.new_owner(), wanted=Wanted(whole=True)) is not None
        await compactor.close()


async def test_fence_names_itself_and_who_it_refused():
    async with Address() as address:
        shard, client = new_shard(), address.client()
        await grown(client, shard, 1, "before")
        late = await client.open_writer(shard)
        fence = system().now_ms()
        await address.behind.apply(shard, FenceWriters(born_before_ms=fence), timeout=10)
        owner = type(late.writer_id).born(fence - 5, bytes(16))
        with pytest.raises(LeaseExpired) as refused:
            await address.behind.apply(shard, ClaimCompaction(owner=owner, takeover_ms=5), timeout=10)
        assert refused.value.details["fence_ms"] == str(fence)
        assert refused.value.details["began_ms"] == str(fence - 5)
