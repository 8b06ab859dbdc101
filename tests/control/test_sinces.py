"""The since of a collection's shard follows its policy, and stays where holds, cursors and dependants need it."""

import pytest
from control.world import Gone, Stores, handles_of, leading, names_at, opened, since_of, write

from persist import aio
from persist.core.catalog.errors import Fenced
from persist.core.catalog.values import ObjectType, Retain
from persist.errors import NotReadable

DAY = 86_400_000


async def test_the_since_follows_the_policy(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        second = await world.table("second", retain=Retain(1_000))
        everything = await world.table("everything", retain=Retain(None))
        ten = await world.table("ten", retain=Retain(10))
        counted = await world.table("counted", timeline="U.steps", retain=Retain(3))
        kept = await world.table("kept", timeline="U.steps")
        for id in (second, everything, ten, counted, kept):
            await write(client, world.shard(id), 10, 5_000)
        await world.controller.passed("since")
        assert await since_of(client, world.shard(second)) == 4_001
        assert await since_of(client, world.shard(everything)) == 0
        assert await since_of(client, world.shard(ten)) == 4_991
        assert await since_of(client, world.shard(counted)) == 4_998
        assert await since_of(client, world.shard(kept)) == 0


async def test_a_longer_policy_counts_from_now_on_and_brings_nothing_back(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        id = await world.table("t", retain=Retain(10))
        await write(client, world.shard(id), 100)
        await world.controller.passed("since")
        assert await since_of(client, world.shard(id)) == 91
        await world.retain(id, Retain(50))
        await write(client, world.shard(id), 120)
        await world.controller.passed("since")
        assert await since_of(client, world.shard(id)) == 91
        with pytest.raises(NotReadable):
            await world.hold("h", [id], at=90)
        assert (await world.hold("h", [id])).at == 91


async def test_a_hold_keeps_its_time_until_it_is_advanced_or_dropped(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        id = await world.table("t", retain=Retain(10))
        shard = world.shard(id)
        await write(client, shard, 5, 40)
        await world.hold("h", [id], at=31)
        await write(client, shard, 100)
        await world.controller.passed("since")
        assert await since_of(client, shard) == 31
        assert await names_at(client, shard, 39) == ["5"]
        await world.advance("h", 60)
        await world.controller.passed("since")
        assert await since_of(client, shard) == 60
        await world.drop_hold("h")
        await world.controller.passed("since")
        assert await since_of(client, shard) == 91
        assert len(await handles_of(client, shard)) == 1


async def test_a_frontier_that_is_told_knows_of_no_hold(stores: Stores) -> None:
    """'Terminology side note: Both the compute and storage controllers expose a CollectionState with read_capabilities
    and implied_capability. Although reading these are both exposed in the API, read_capabilities should never be read
    by the adapter, which should limit itself to reading only implied_capability. When this document uses the term "read
    frontier", it is referring to the implied_capability.'"""
    async with await stores.client() as client, leading(client) as world:
        id = await world.table("t", retain=Retain(10))
        shard = world.shard(id)
        await write(client, shard, 40)
        await world.hold("h", [id], at=31)
        await write(client, shard, 100)
        await world.controller.passed("since")
        # What the shard's handle keeps is the hold's; what statements go by is not.
        assert await since_of(client, shard) == 31
        [item] = [each for each in world.view.items() if each.id == id]
        assert (await world.controller.storage.frontiers([item]))[id].implied == aio.Antichain.of(91)
        assert (await world.hold("later", [id])).at == 91
        assert (await world.advance("h")).at == 91


async def test_a_hold_may_go_back_under_cover_of_another(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        id = await world.table("t", retain=Retain(10))
        await write(client, world.shard(id), 50)
        await world.hold("first", [id], at=45)
        await world.hold("second", [id], at=45)
        await write(client, world.shard(id), 200)
        await world.advance("second", 190)
        assert (await world.advance("second", 45)).at == 45
        await world.advance("first", 195)
        await world.controller.passed("since")
        assert await since_of(client, world.shard(id)) == 45
        assert await names_at(client, world.shard(id), 60) == ["50"]


async def test_what_is_computed_keeps_its_inputs_where_it_ended(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        base = await world.table("base", retain=Retain(10))
        await write(client, world.shard(base), 5, 30)
        view = await world.table("v", kind=ObjectType.VIEW, timeline=None, depends_on=(base,), stored=False)
        derived = await world.table(
            "m", kind=ObjectType.MATERIALIZED_VIEW, timeline=None, depends_on=(view,), begins=25, retain=Retain(10)
        )
        assert await since_of(client, world.shard(derived)) == 25
        await write(client, world.shard(base), 100)
        await world.controller.passed("since")
        assert await since_of(client, world.shard(base)) == 25
        await write(client, world.shard(derived), 60)
        world.controller.room.frontiers.heard(world.shard(derived), aio.Antichain.of(61))
        await world.controller.passed("since")
        assert await since_of(client, world.shard(base)) == 60


async def test_what_begins_at_a_time_its_inputs_do_not_have_is_refused(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        base = await world.table("base", retain=Retain(10))
        await write(client, world.shard(base), 100)
        await world.controller.passed("since")
        with pytest.raises(NotReadable):
            await world.table("i", kind=ObjectType.INDEX, timeline=None, depends_on=(base,), begins=50)
        assert world.controller.room.claims.under_way == ()


async def test_one_handle_holds_for_all_holds_of_a_shard(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        id = await world.table("t", retain=Retain(10))
        await write(client, world.shard(id), 100)
        for number in range(20):
            await world.hold(f"h{number}", [id], at=91)
        assert len(await handles_of(client, world.shard(id))) == 1


async def test_a_new_leader_goes_on_with_holds_and_the_former_one_moves_nothing(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as former:
        id = await former.table("t", retain=Retain(10))
        shard = former.shard(id)
        await write(client, shard, 40)
        await former.hold("h", [id], at=31)
        async with leading(client) as successor:
            await write(client, shard, 500)
            with pytest.raises(Fenced):
                await former.controller.room.handles.move(shard, aio.Antichain.of(400))
            assert isinstance(former.controller.error, Fenced)
            await successor.controller.passed("since")
            assert await since_of(client, shard) == 31
            assert await names_at(client, shard, 45) == ["40"]
            with pytest.raises(Fenced):
                await former.table("another")


async def test_what_a_former_leader_releases_too_late_stays(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as former:
        id = await former.table("t", retain=Retain(10))
        shard = former.shard(id)
        room = former.controller.room
        handle = await client.open_since(room.handles.name, shard)
        assert await room.handles.take_over(shard) == aio.Antichain.of(0)
        async with leading(client) as successor:
            assert await handle.expire(expected=handle.opaque) is False
            assert await handles_of(client, shard) == [successor.controller.room.handles.name]
            with pytest.raises(Fenced):
                await room.handles.move(shard, aio.Antichain.of(1))
            with pytest.raises(Fenced):
                await room.handles.release(shard)


async def test_what_was_told_of_frontiers_can_be_held_whatever_moves_meanwhile(stores: Stores) -> None:
    async with await stores.client() as client, leading(client, told_seconds=60) as world:
        id = await world.table("t", retain=Retain(10))
        shard = world.shard(id)
        await write(client, shard, 40)
        [item] = [each for each in world.view.items() if each.id == id]
        told = (await world.controller.storage.frontiers([item]))[id]
        assert told.implied == aio.Antichain.of(31)
        await write(client, shard, 90)
        await world.controller.passed("since")
        assert await since_of(client, shard) == 31


STEPS = ("before prepare", "prepared", "committed")


@pytest.mark.parametrize("step", STEPS)
async def test_a_table_whose_creation_was_cut_short_leaves_no_handle(stores: Stores, step: str) -> None:
    async with await stores.client() as client:
        world = await opened(client)
        world.stop_at = step
        with pytest.raises(Gone):
            await world.table("t")
        await world.controller.close()
        shard = aio.ShardId.named("table", "t")
        async with leading(client) as successor:
            await successor.controller.passed("finalizer")
            there = shard in successor.controller.room.picture().shards
            assert there == (step == "committed")
            if step != "before prepare":
                assert len(await handles_of(client, shard)) == (1 if there else 0)
            assert not await successor.controller.room.begun.all()
            if not there:
                id = await successor.table("t")
                assert len(await handles_of(client, successor.shard(id))) == 1


@pytest.mark.parametrize("step", STEPS)
async def test_a_hold_whose_creation_was_cut_short_is_there_or_keeps_nothing(stores: Stores, step: str) -> None:
    async with await stores.client() as client:
        world = await opened(client)
        id = await world.table("t", retain=Retain(10))
        shard = world.shard(id)
        await write(client, shard, 40)
        world.stop_at = step
        with pytest.raises(Gone):
            await world.hold("h", [id], at=31)
        await world.controller.close()
        await write(client, shard, 100)
        async with leading(client) as successor:
            await successor.controller.passed("since")
            assert await since_of(client, shard) == (31 if step == "committed" else 91)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("leave", [False, True])
async def test_a_drop_that_was_cut_short_is_finished_or_never_was(stores: Stores, step: str, leave: bool) -> None:
    async with await stores.client() as client:
        world = await opened(client)
        id = await world.table("t", retain=Retain(10))
        shard = world.shard(id)
        await write(client, shard, 40)
        world.stop_at = step
        with pytest.raises(Gone):
            await world.drop(id, leave=leave)
        await world.controller.close()
        async with leading(client) as successor:
            await successor.controller.passed("finalizer")
            state = await client.inspect(shard)
            dropped = step == "committed"
            assert state["is_tombstone"] == (dropped and not leave)
            assert len(state["critical_readers"]) == (0 if dropped else 1)
            if not dropped or leave:
                assert await names_at(client, shard, 40) == ["40"]
            assert not await successor.controller.room.begun.all()
