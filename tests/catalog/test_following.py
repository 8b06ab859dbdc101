"""Taking over what others committed. Catalog-semantics.md sections 1.2.3 and 1.2.7."""

import asyncio

import pytest
from catalog.conftest import LogPlace, Place
from catalog.memory_log import MemoryLog, MemoryRows
from unit.core.catalog.samples import cluster, user

from persist.client.catalog.durable import DurableCatalog
from persist.core.catalog.errors import IncompatibleDataVersion
from persist.core.catalog.kinds import CLUSTER, COMMIT, CONFIG
from persist.core.catalog.objects import ClusterKey, Config
from persist.core.catalog.open_rules import DATA_VERSION
from persist.core.catalog.rows import Row
from persist.core.catalog.snapshot import Change
from persist.errors import CorruptData, InvalidArgument
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CODEC

ONE, TWO = ClusterKey(user(1)), ClusterKey(user(2))


async def test_a_reader_goes_on_only_when_told_and_hears_what_changed_when(place: Place):
    async with place as another:
        leader = await (await another()).open(1)
        reader = await (await another()).open_read_only()
        first = await leader.set(CLUSTER, {ONE: cluster("a")})
        second = await leader.set(CLUSTER, {ONE: cluster("b"), TWO: cluster("a")})
        assert reader.objects(CLUSTER) == {}
        told = await reader.sync()
        # A server gives a commit without a token one of its own.
        assert [(ts, {each for each in changes if each.kind is not COMMIT}) for ts, changes in told] == [
            (first - 1, {Change(CLUSTER, ONE, None, cluster("a"))}),
            (
                second - 1,
                {Change(CLUSTER, ONE, cluster("a"), cluster("b")), Change(CLUSTER, TWO, None, cluster("a"))},
            ),
        ]
        assert (reader.objects(CLUSTER), reader.upper) == (leader.objects(CLUSTER), second)
        assert await reader.sync() == []


async def test_syncing_waits_for_what_was_asked_for(place: Place):
    async with place as another:
        leader = await (await another()).open(1)
        reader = await (await another()).open_read_only()
        target = leader.upper + 2
        waiting = asyncio.create_task(reader.sync(target, timeout=60))
        first = await leader.set(CLUSTER, {ONE: cluster("a")})
        await asyncio.sleep(0.05)
        assert not waiting.done()
        second = await leader.set(CLUSTER, {TWO: cluster("b")})
        assert [ts for ts, _ in await waiting] == [first - 1, second - 1]
        assert reader.upper == target == second


async def test_what_was_taken_over_before_time_ran_out_is_told_the_next_time(place: Place):
    async with place as another:
        leader = await (await another()).open(1)
        reader = await (await another()).open_read_only()
        upper = await leader.set(CLUSTER, {ONE: cluster("a")})
        with pytest.raises(TimeoutError):
            await reader.sync(upper + 1, timeout=0.5)
        assert [ts for ts, _ in await reader.sync()] == [upper - 1]


async def test_a_savepoint_waits_for_nobody(log: LogPlace):
    async with log as another:
        catalog = DurableCatalog(await another())
        await catalog.open(1)
        savepoint = await catalog.open_savepoint(1)
        with pytest.raises(InvalidArgument):
            await savepoint.sync(savepoint.upper + 1)


async def test_what_an_open_catalog_gives_away_is_a_copy(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        await catalog.set(CLUSTER, {ONE: cluster("a")})
        found = catalog.objects(CLUSTER)
        await catalog.set(CLUSTER, {ONE: None})
        assert (found, catalog.objects(CLUSTER)) == ({ONE: cluster("a")}, {})


async def test_a_reader_stops_where_a_newer_release_migrated():
    log = MemoryLog(MemoryRows())
    leader = await DurableCatalog(log).open(1)
    reader = await DurableCatalog(log).open_read_only()
    upper = await leader.set(CLUSTER, {ONE: cluster("a")})
    newer = MIGRATIONS.current + 1
    rows = [
        (CODEC.encode(CONFIG.tag, DATA_VERSION, Config(MIGRATIONS.current)), -1),
        (CODEC.encode(CONFIG.tag, DATA_VERSION, Config(newer)), 1),
        (Row("a kind of tomorrow", b"", b""), 1),
    ]
    assert await log.append(rows, upper, expected_upper=upper) is None
    for _ in range(2):
        with pytest.raises(IncompatibleDataVersion) as refused:
            await reader.sync()
        assert refused.value.details["found"] == str(newer)
    assert reader.objects(CLUSTER) == {ONE: cluster("a")}


async def test_who_read_nonsense_does_not_go_on():
    log = MemoryLog(MemoryRows())
    await DurableCatalog(log).open(1)
    reader = await DurableCatalog(log).open_read_only()
    assert await log.append([(Row("cluster", b"\xff", b""), 1)], reader.upper, expected_upper=reader.upper) is None
    for _ in range(2):
        with pytest.raises(CorruptData):
            await reader.sync()
