"""Bindings: minted once, the same for every caller, by any minter and whatever happens to the clock."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from client.support import SMALL, Place, client_of
from sure import sure

from persist import aio
from persist.client.binding.local_minter import LocalMinter
from persist.client.binding.port import RemapSource
from persist.client.binding.remap_shard import GATHER_SECONDS
from persist.client.remote.minter import RemoteMinter
from persist.core.binding.binding_log import MintRules
from persist.core.binding.lives import succeeding
from persist.core.binding.remap_rows import REMAP_SCHEMA
from persist.core.binding.succession import succession
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import Lsn, Point, SourceKind
from persist.core.time.errors import JumpTooLarge, UpstreamReplaced
from persist.errors import LocationError, NotReadable, SchemaMismatch, ShardNotFound
from persist.runtime import SystemRuntime, system
from persist_host import Address, Host, Telemetry
from persist_minter import MinterService

pytestmark = pytest.mark.few

PARTITIONS = SourceKind.PARTITIONS
ROWS = Schema(key={"id": pa.int64()})


NewMinter = Callable[[], Awaitable[tuple[Any, aio.Client]]]


@pytest.fixture(params=["here", "served"])
def way(request: pytest.FixtureRequest) -> str:
    """Where bindings are minted: in the process that asks, or by a TimestampMinter."""
    way: str = request.param
    return way


@contextlib.asynccontextmanager
async def minters_at(place: Place, way: str) -> AsyncIterator[NewMinter]:
    """Minters, each with a client of its own, so that they meet in the stores alone."""
    async with contextlib.AsyncExitStack() as stack:

        async def new() -> tuple[Any, aio.Client]:
            client = await stack.enter_async_context(client_of(place))
            minter = LocalMinter(client)
            if way == "here":
                stack.push_async_callback(minter.close)
                return minter, client
            return await stack.enter_async_context(served(minter, client)), client

        yield new


@contextlib.asynccontextmanager
async def served(minter: LocalMinter, client: aio.Client) -> AsyncIterator[RemoteMinter]:
    """The minter behind a server in this loop."""
    telemetry = Telemetry(service="test")
    service = MinterService(minter, client, settings=SMALL, telemetry=telemetry)
    host = Host((service,), settings=SMALL, runtime=system(), telemetry=telemetry, with_reflection=False)
    remote = RemoteMinter(str(await host.start(Address("127.0.0.1", 0))), settings=SMALL)
    try:
        yield remote
    finally:
        await remote.close()
        await host.stop(notice=0, grace=0)


def source_of(incarnation: str = "one", **rules: int) -> RemapSource:
    return RemapSource(
        remap=ShardId.of(b"r" * 16),
        kind=PARTITIONS,
        incarnation=incarnation,
        rules=MintRules(**{"interval_ms": 1, **rules}),
    )


def through(**offsets: int) -> list[Point]:
    return [Point(int(name[1:]), offset) for name, offset in offsets.items()]


async def test_the_same_time_for_everybody(place: Place, way: str) -> None:
    async with minters_at(place, way) as new:
        (first, _), (second, _) = await new(), await new()
        source = source_of()
        await first.mint(source)
        [mine] = await first.get_binding(source, through(p1=10))
        [theirs] = await second.get_binding(source, through(p1=10))
        [lower] = await second.get_binding(source, through(p1=3))
        assert mine == theirs == lower
        assert mine.frontier.bound(1) == 11
        [later] = await second.get_binding(source, through(p1=11))
        assert later.ts > mine.ts
        assert await first.get_binding(source, through(p1=0) + through(p1=11)) == [mine, later]


async def test_racing_minters_agree(place: Place, way: str) -> None:
    async with minters_at(place, way) as new:
        minters = [(await new())[0] for _ in range(3)]
        source = source_of()
        await minters[0].mint(source)

        async def ask(number: int) -> dict[int, int]:
            minter = minters[number % len(minters)]
            answers = {}
            for offset in range(number, 60, 3):
                [binding] = await minter.get_binding(source, through(p0=offset))
                answers[offset] = binding.ts
            return answers

        told: dict[Any, Any] = {}
        for answers in await asyncio.gather(*(ask(number) for number in range(12))):
            for offset, ts in answers.items():
                assert told.setdefault(offset, ts) == ts
        assert sorted(told) == list(range(60))
        times = [told[offset] for offset in sorted(told)]
        assert times == sorted(times)
        traces = [await minter.bindings(source) for minter in minters]
        assert traces[0].bindings == traces[1].bindings == traces[2].bindings
        fresh = await (await new())[0].bindings(source)
        assert fresh.bindings == traces[0].bindings


async def test_one_append_serves_all_that_wait(place: Place) -> None:
    async with minters_at(place, "here") as new:
        minter, _ = await new()
        source = source_of()
        await minter.mint(source)
        before = minter.counters["minted"]
        await asyncio.gather(*(minter.get_binding(source, through(p0=offset)) for offset in range(40)))
        assert minter.counters["minted"] - before <= 3


class SetBack(SystemRuntime):
    """A clock that is set back by an hour once it has been asked ``asked`` times from now on."""

    def __init__(self) -> None:
        self.asked = 1 << 62

    def now_ms(self) -> int:
        self.asked -= 1
        return super().now_ms() + (3_600_000 if self.asked >= 0 else 0)


async def test_a_clock_that_is_set_back_while_one_waits_holds_up_nobody(tmp_path: Path) -> None:
    """The tick at asking lies beyond the tick now: a minter that completes the one and waits for the other spins."""
    stores: dict[str, Any] = {"blob": f"file:{tmp_path}/blob", "consensus": f"sqlite:{tmp_path}/consensus.db"}
    clock = SetBack()
    async with await aio.embedded(**stores, runtime=clock) as client:
        minter = LocalMinter(client)
        await minter.mint(source_of())
        await asyncio.sleep(0.01)
        asked = clock.now_ms()
        clock.asked = 1
        bound = await minter.mint(source_of())
        assert sure(bound.upper.time) > asked
        await minter.close()


class Leaping(SystemRuntime):
    """A monotonic clock that goes on by a minute while asks gather."""

    gathered = 0

    def monotonic(self) -> float:
        return super().monotonic() + 60.0 * self.gathered

    async def sleep(self, seconds: float) -> None:
        self.gathered += seconds == GATHER_SECONDS
        await super().sleep(seconds)


async def test_time_that_runs_out_before_the_append_is_told_as_that(tmp_path: Path) -> None:
    """Nothing is left after the pause in which asks gather: to append within no time was called a wrong argument."""
    stores: dict[str, Any] = {"blob": f"file:{tmp_path}/blob", "consensus": f"sqlite:{tmp_path}/consensus.db"}
    async with await aio.embedded(**stores, runtime=Leaping()) as client:
        minter = LocalMinter(client)
        await minter.mint(source_of())
        asks = (minter.get_binding(source_of(), through(p0=offset), timeout=30.0) for offset in range(3))
        found = await asyncio.gather(*asks, return_exceptions=True)
        late = [each for each in found if isinstance(each, BaseException)]
        assert late
        assert all(isinstance(each, LocationError) for each in late), late
        await minter.close()


async def test_watermarks_bind_and_idle_ticks_advance(place: Place, way: str) -> None:
    async with minters_at(place, way) as new:
        minter, _ = await new()
        source = source_of()
        frontier = SourceFrontier.at(PARTITIONS, {0: 5, 7: 9})
        bound = await minter.mint(source, frontier, high=frontier)
        assert bound.frontier == frontier
        await asyncio.sleep(0.005)
        idle = await minter.mint(source)
        assert idle.frontier == frontier
        assert bound.upper.less_than(idle.upper)
        again = await minter.mint(source, SourceFrontier.at(PARTITIONS, {0: 3}))
        assert again.frontier == frontier


async def test_what_the_upstream_does_not_have_is_not_bound(place: Place, way: str) -> None:
    async with minters_at(place, way) as new:
        minter, _ = await new()
        source = source_of(max_jump=100)
        await minter.mint(source)
        high = SourceFrontier.at(PARTITIONS, {0: 50})
        with pytest.raises(JumpTooLarge):
            await minter.get_binding(source, through(p0=50), high=high)
        with pytest.raises(JumpTooLarge):
            await minter.get_binding(source, through(p0=1_000))
        answers: tuple[Any, ...] = await asyncio.gather(
            minter.get_binding(source, through(p0=49), high=high),
            minter.get_binding(source, through(p0=2**40)),
            return_exceptions=True,
        )
        good, bogus = answers
        assert isinstance(bogus, JumpTooLarge)
        assert not isinstance(good, BaseException)
        assert (await minter.bindings(source)).frontier.bound(0) == 50


async def test_another_incarnation_is_refused(place: Place, way: str) -> None:
    async with minters_at(place, way) as new:
        minter, _ = await new()
        await minter.mint(source_of())
        await minter.get_binding(source_of(), through(p0=1))
        with pytest.raises(UpstreamReplaced):
            await minter.mint(source_of(incarnation="two"))


def asks(minter: Any, source: RemapSource) -> list[Awaitable[object]]:
    """All calls that ask about a source and do not begin it."""
    exports = {"a": ShardId.of(b"a" * 16)}
    return [
        minter.bindings(source),
        minter.get_binding(source, through(p0=5)),
        minter.resumption(source, exports),
        minter.compact(source, exports),
        anext(minter.watch(source)),
    ]


async def test_who_asks_for_a_source_that_nobody_began_makes_nothing(place: Place, way: str) -> None:
    async with minters_at(place, way) as new:
        (minter, client), (other, _) = await new(), await new()
        begun = source_of()
        await other.mint(begun)
        there = {shard async for shard in client.list_shards()}
        mistyped = dataclasses.replace(begun, remap=ShardId.parse(str(begun.remap)[:-1] + "3"))
        for asked in asks(minter, mistyped):
            with pytest.raises(ShardNotFound, match="did you mean " + str(begun.remap)):
                await asked
        for asked in asks(minter, dataclasses.replace(begun, remap=ShardId.of(b"z" * 8 + b"y" * 8))):
            with pytest.raises(ShardNotFound, match="begins with mint"):
                await asked
        assert {shard async for shard in client.list_shards()} == there


async def test_who_asks_about_another_incarnation_writes_nothing(place: Place, way: str) -> None:
    async with minters_at(place, way) as new:
        (minter, client), (fresh, _) = await new(), await new()
        source = source_of()
        await minter.mint(source)
        await minter.get_binding(source, through(p0=5))
        seqno = (await client.inspect(source.remap))["seqno"]
        for each in (fresh, minter):
            for incarnation in ("two", "three"):
                other = dataclasses.replace(source, incarnation=incarnation)
                for asked in [*asks(each, other), each.mint(other)]:
                    with pytest.raises(UpstreamReplaced) as told:
                        await asked
                    assert told.value.details == {"incarnation": source.incarnation, "expected": incarnation}
        assert (await client.inspect(source.remap))["seqno"] == seqno
        assert (await fresh.bindings(source)).is_initialized


async def test_who_asks_a_shard_of_something_else_writes_nothing(place: Place, way: str) -> None:
    async with minters_at(place, way) as new:
        minter, client = await new()
        source = source_of()
        await client.open_writer(source.remap, schema=ROWS)
        seqno = (await client.inspect(source.remap))["seqno"]
        for asked in [*asks(minter, source), minter.mint(source)]:
            with pytest.raises(SchemaMismatch):
                await asked
        assert (await client.inspect(source.remap))["seqno"] == seqno


async def test_resumption_follows_the_data_shards(place: Place, way: str) -> None:
    async with minters_at(place, way) as new:
        minter, client = await new()
        source = source_of()
        exports = {"a": ShardId.of(b"a" * 16), "b": ShardId.of(b"b" * 16)}
        await minter.mint(source)
        nothing = await minter.resumption(source, exports)
        assert nothing.source.offsets is None

        [first] = await minter.get_binding(source, through(p0=9))
        [second] = await minter.get_binding(source, through(p0=19))
        writers = {name: await client.open_writer(shard, schema=ROWS) for name, shard in exports.items()}
        await writers["a"].append([], [second.ts + 1])
        told = await minter.resumption(source, exports)
        assert told.source.offsets is None, "b has nothing yet"
        assert told.exports["a"].offsets == second.frontier

        await writers["b"].append([], [first.ts + 1])
        told = await minter.resumption(source, exports)
        assert told.source.time == Antichain.of(first.ts + 1)
        assert told.source.offsets == first.frontier
        assert told.exports["b"].time == Antichain.of(first.ts + 1)


async def test_compaction_forgets_and_a_restart_at_the_boundary_works(place: Place, way: str) -> None:
    async with minters_at(place, way) as new:
        minter, client = await new()
        source, data = source_of(), {"a": ShardId.of(b"a" * 16)}
        writer = await client.open_writer(data["a"], schema=ROWS)
        await minter.mint(source)
        bindings = []
        for step in range(30):
            [binding] = await minter.get_binding(source, through(p0=step * 10 + 9))
            bindings.append(binding)
        await writer.append([], [bindings[20].ts + 1])
        since = await minter.compact(source, data)
        assert since == Antichain.of(bindings[20].ts)

        for restarted in (minter, (await new())[0]):
            told = await restarted.resumption(source, data)
            assert told.source.offsets == bindings[20].frontier
            assert await restarted.get_binding(source, through(p0=211)) == [bindings[21]]
            with pytest.raises(NotReadable):
                await restarted.get_binding(source, through(p0=5))
            assert len((await restarted.bindings(source)).bindings) <= 11


async def test_watch_tells_every_binding(place: Place, way: str) -> None:
    async with minters_at(place, way) as new:
        (watcher, _), (minter, _) = await new(), await new()
        source = source_of()
        await minter.mint(source)
        await minter.get_binding(source, through(p0=1))
        seen = []

        async def watch() -> None:
            async with contextlib.aclosing(watcher.watch(source)) as traces:
                async for trace in traces:
                    seen.append(trace)
                    if trace.frontier.bound(0) == 6:
                        return

        task = asyncio.create_task(watch())
        for offset in range(2, 6):
            await minter.get_binding(source, through(p0=offset))
        await asyncio.wait_for(task, 60)
        assert seen[-1].bindings[-4:] == (await minter.bindings(source)).bindings[-4:]


async def test_a_minter_that_lost_its_lease_reads_anew(place: Place, way: str) -> None:
    async with minters_at(place, way) as new:
        minter, client = await new()
        other, _ = await new()
        source = source_of()
        await minter.mint(source)
        await minter.get_binding(source, through(p0=1))
        inspected = await client.inspect(source.remap)
        for reader in list(inspected["leased_readers"]):
            name = reader if isinstance(reader, str) else reader["reader_id"]
            taken = await client.open_reader(source.remap, reader_id=name)
            await taken.expire()
        await other.get_binding(source, through(p0=2))
        [mine] = await minter.get_binding(source, through(p0=2))
        assert mine.frontier.bound(0) == 3


async def test_a_log_has_positions(place: Place, way: str) -> None:
    async with minters_at(place, way) as new:
        minter, _ = await new()
        source = dataclasses.replace(source_of(), kind=SourceKind.LSN)
        await minter.mint(source)
        [binding] = await minter.get_binding(source, [Lsn(0x1_0000_0010)])
        assert binding.frontier == SourceFrontier.at(SourceKind.LSN, {0: 0x1_0000_0011})


async def test_bindings_go_on_with_a_later_incarnation_and_nobody_binds_for_the_earlier_one(
    place: Place, way: str
) -> None:
    async with minters_at(place, way) as new:
        (first, client), (second, _) = await new(), await new()
        one, two = source_of(), source_of(succeeding("one", "here"))
        rival = source_of(succeeding("one", "there"))
        await first.mint(one)
        await first.get_binding(one, through(p1=10))
        await second.get_binding(one, through(p1=10))
        before = await first.bindings(one)
        # Not before they went on.
        with pytest.raises(UpstreamReplaced):
            await second.mint(two)
        upper = before.upper.time
        async with await client.open_reader(one.remap) as reader:
            found = await (await reader.snapshot(upper - 1)).to_arrow()
        rows = succession(PARTITIONS, one.incarnation, two.incarnation, found, upper, before.frontier)
        assert rows is not None
        writer = await client.open_writer(one.remap, schema=REMAP_SCHEMA)
        await writer.compare_and_append(rows, [upper], [upper + 1])
        for minter in (first, second):
            for refused in (one, rival):
                with pytest.raises(UpstreamReplaced):
                    await minter.mint(refused, SourceFrontier.at(PARTITIONS, {1: 99}))
            [binding] = await minter.get_binding(two, through(p1=12))
            assert binding.frontier.bound(1) == 13
        after = await second.bindings(two)
        assert after.bindings[: len(before.bindings)] == before.bindings
        third, _ = await new()
        with pytest.raises(UpstreamReplaced):
            await third.bindings(one)
        assert (await third.bindings(two)).bindings == after.bindings
