"""Opening a catalog in each mode. Catalog-semantics.md sections 1.2.2, 1.2.4 and 1.2.9."""

import pytest
from catalog.conftest import LogPlace, Place
from sure import sure
from unit.core.catalog.samples import cluster, item, token, user

from persist.client.catalog.durable import DurableCatalog
from persist.core.catalog.allocation import FIRST_IDS
from persist.core.catalog.errors import FencedByGeneration, IncompatibleContentVersion, NotWritable, Uninitialized
from persist.core.catalog.kinds import CLUSTER, CONFIG, ID_ALLOCATOR, ITEM, SETTING
from persist.core.catalog.objects import ClusterKey, Config, IdAllocatorKey, ItemKey, Setting
from persist.core.catalog.open_rules import CONTENT_VERSION, DATA_VERSION, Mode
from persist.errors import CorruptData, InvalidArgument
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CODEC

ONE = ClusterKey(user(1))


async def test_the_first_writable_open_makes_the_catalog(place: Place):
    async with place as another:
        catalog = await another()
        assert not await catalog.is_initialized()
        assert await catalog.fence_token() is None
        opened = await catalog.open(7)
        assert await catalog.is_initialized()
        assert (opened.mode, opened.token) == (Mode.WRITABLE, token(7, 2))
        assert await catalog.fence_token() == token(7, 2)
        assert opened.get(CONFIG, DATA_VERSION) == Config(MIGRATIONS.current)
        ids = {key.name: value.next_id for key, value in opened.objects(ID_ALLOCATOR).items()}
        assert ids == FIRST_IDS
        assert sure(opened.get(ID_ALLOCATOR, IdAllocatorKey("database"))).next_id == 2


async def test_what_is_not_there_is_neither_read_nor_made_by_others_than_writers(place: Place):
    async with place as another:
        catalog = await another()
        with pytest.raises(Uninitialized):
            await catalog.open_read_only()
        with pytest.raises(Uninitialized):
            await catalog.upgrade_check()
        with pytest.raises(Uninitialized):
            await catalog.edit(CLUSTER, ONE, cluster("a"))
        with pytest.raises(NotWritable) as refused:
            await catalog.open_savepoint(1)
        assert refused.value.details["recoverable_by"] == "opening writable"
        begun = await catalog.open_savepoint(1, allow_uninitialized=True)
        assert (begun.token, list(await begun.allocate("user", 2))) == (None, [1, 2])
        assert not await catalog.is_initialized()
        assert (await catalog.dump()).updates == []


async def test_writing_needs_a_generation(place: Place):
    async with place as another:
        catalog = await another()
        for opening in (catalog.open, catalog.open_savepoint):
            with pytest.raises(InvalidArgument):
                await opening(None)  # type: ignore[arg-type]  # what a careless program gives


async def test_readers_and_savepoints_find_the_token_and_leave_it(place: Place):
    async with place as another:
        first = await (await another()).open(3)
        catalog = await another()
        before = await catalog.dump()
        assert (await catalog.open_read_only()).token == token(3, 2)
        savepoint = await catalog.open_savepoint(4)
        assert (savepoint.token, savepoint.mode) == (token(3, 2), Mode.SAVEPOINT)
        assert await catalog.dump() == before
        await first.confirm_leadership()


async def test_a_savepoint_of_a_deposed_generation_is_refused(place: Place):
    async with place as another:
        catalog = await another()
        await catalog.open(3)
        with pytest.raises(FencedByGeneration):
            await catalog.open_savepoint(2)


async def test_objects_outlive_who_made_them(place: Place):
    async with place as another:
        first = await (await another()).open(1)
        await first.set(CLUSTER, {ONE: cluster("a")})
        await first.allocate("user", 5)
        second = await (await another()).open(1)
        assert second.objects(CLUSTER) == {ONE: cluster("a")}
        assert await second.allocate("user") == range(6, 7)


async def test_items_of_sessions_go_with_who_led_them(place: Place):
    async with place as another:
        first = await (await another()).open(1)
        mine, ours = ItemKey(user(1)), ItemKey(user(2))
        await first.set(ITEM, {mine: item("mine", oid=20_001, session="s1"), ours: item("ours", oid=20_002)})
        savepoint = await (await another()).open_savepoint(1)
        assert set(savepoint.objects(ITEM)) == {ours}
        assert set((await (await another()).open_read_only()).objects(ITEM)) == {mine, ours}
        second = await (await another()).open(1)
        assert set(second.objects(ITEM)) == {ours}
        assert set((await (await another()).open_read_only()).objects(ITEM)) == {ours}


async def left_by(log: LogPlace, release: str, opening: str, by: str = "open") -> str | None:
    async with log as another:
        await DurableCatalog(await another(), content_version=release).open(1)
        catalog = DurableCatalog(await another(), content_version=opening)
        opened = await (catalog.open(1) if by == "open" else getattr(catalog, by)())
        found: Setting | None = opened.get(SETTING, CONTENT_VERSION) if opened is not None else None
        return None if found is None else found.value


async def test_a_newer_release_leaves_its_version(log: LogPlace):
    assert await left_by(log, "1.2.3", "1.10.0") == "1.10.0"


async def test_an_older_release_is_refused_before_it_fences_anybody(log: LogPlace):
    async with log as another:
        leader = await DurableCatalog(await another(), content_version="1.3.0").open(1)
        old = DurableCatalog(await another(), content_version="1.2.9")
        for opening in (old.open(1), old.open_savepoint(1), old.open_read_only(), old.upgrade_check()):
            with pytest.raises(IncompatibleContentVersion):
                await opening
        await leader.confirm_leadership()


async def test_a_release_that_skips_a_major_version_is_refused(log: LogPlace):
    with pytest.raises(IncompatibleContentVersion):
        await left_by(log, "1.3.0", "3.0.0")


async def test_build_metadata_is_no_order(log: LogPlace):
    assert await left_by(log, "1.3.0+b", "1.3.0+a") == "1.3.0+a"


async def test_rows_without_a_data_version_are_no_catalog_to_begin_over(log: LogPlace):
    async with log as another:
        rows = await another()
        catalog = DurableCatalog(rows)
        await catalog.open(1)
        gone = CODEC.encode(CONFIG.tag, DATA_VERSION, Config(MIGRATIONS.current))
        upper = await rows.upper()
        assert await rows.append([(gone, -1)], upper, expected_upper=upper) is None
        before = await catalog.dump()
        with pytest.raises(CorruptData):
            await catalog.open(1)
        assert await catalog.dump() == before
