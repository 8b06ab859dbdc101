"""What becomes of holds that fall behind. Sentences of design document 5 stand before the tests that show them."""

from typing import Any

import pytest
from control.world import Stores, World, leading, since_of, write

from persist import aio
from persist.client.collections.reading.live import HOLDS, rows_of, states_of_holds
from persist.core.catalog.lag import HoldState
from persist.core.catalog.values import Id, Retain
from persist.core.time.errors import BelowHold, HoldOverdue
from persist.core.time.hold import Interval, NamedHold, OnLag
from persist.errors import NotReadable


def hold_of(world: World, name: str = "h") -> NamedHold:
    return world.view.holds({}).by_name[f"public.{name}"]


async def at_100(client: aio.Client, world: World, **how: Any) -> Id:
    """A table with ten times, held at 91 with MAX LAG 1s."""
    id = await world.table("t", retain=Retain(10))
    await write(client, world.shard(id), 100)
    await world.hold("h", [id], at=91, max_lag=Interval(1_000), **how)
    return id


async def test_max_lag(stores: Stores) -> None:
    """'If difference between the write frontier of the objects and the HOLD time is greater than MAX LAG, the HOLD's
    time is automatically advanced to write frontier - MAX HOLD.'"""
    async with await stores.client() as client, leading(client) as world:
        id = await at_100(client, world)
        await write(client, world.shard(id), 1_090)
        await world.controller.passed("since", "holds")
        assert hold_of(world).at == 91
        await write(client, world.shard(id), 1_091)
        await world.controller.passed("since", "holds")
        found = hold_of(world)
        assert (found.at, found.auto_advanced_count) == (92, 1)
        assert found.last_auto_advance_ms is not None
        standing = world.controller.standings()[found.id]
        # It lags, too; but what was given up does not come back. Wherever its state is shown, it is this one.
        assert standing.state is HoldState.AUTO_ADVANCED
        shown = await rows_of(HOLDS, client, world.view)
        assert shown.select(["state", "reason"]).to_pylist() == [
            {"state": "auto-advanced", "reason": standing.reason},
        ]
        assert await states_of_holds(client, world.view) == {found.id: "auto-advanced"}
        await world.advance("h", 1_000)
        assert await states_of_holds(client, world.view) == {found.id: "ok"}
        await world.controller.passed("since")
        assert await since_of(client, world.shard(id)) == 1_000


async def test_a_hold_that_falls_behind_all_the_time_is_told_once(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    async with await stores.client() as client, leading(client) as world:
        id = await at_100(client, world)
        for upper in (1_091, 1_092, 1_093):
            await write(client, world.shard(id), upper)
            await world.controller.passed("since", "holds")
        assert hold_of(world).auto_advanced_count == 3
        await world.advance("h", 100)
        await write(client, world.shard(id), 1_200)
        await world.controller.passed("since", "holds")
        assert hold_of(world).auto_advanced_count == 4
        told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert [each for each in told if "fell behind" in each] == [
            f"hold {hold_of(world).name} fell behind by more than its MAX LAG of 1s: it is at {at} now"
            for at in (92, 201)
        ]


async def test_a_hold_of_no_given_time_begins_where_its_max_lag_lets_it_stay(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    async with await stores.client() as client, leading(client) as world:
        id = await world.table("t", retain=Retain())
        await write(client, world.shard(id), 100_000)
        least = await since_of(client, world.shard(id))
        assert (await world.hold("wide", [id], max_lag=Interval(300_000))).at == least
        assert (await world.hold("h", [id], max_lag=Interval(1_000))).at == 99_001
        # Nor does what has not begun hold it back, to be left behind once it begins.
        new = await world.table("new", retain=Retain())
        assert (await world.hold("both", [id, new], max_lag=Interval(1_000))).at == 99_001
        # One that ends when it lags is not made where it would end at once.
        assert (await world.hold("ends", [id], max_lag=Interval(1_000), on_lag=OnLag.ERROR)).at == 99_501
        assert (await world.hold("given", [id], at=99_200, max_lag=Interval(1_000))).at == 99_200
        states = await states_of_holds(client, world.view)
        assert [states[hold_of(world, name).id] for name in ("h", "ends", "wide")] == ["auto-advanced", "ok", "ok"]
        await write(client, world.shard(id), 100_010)
        await world.controller.passed("since", "holds")
        assert (hold_of(world).at, hold_of(world, "ends").is_active) == (99_011, True)
        assert [each for each in caplog.records if "hold public.h fell behind" in each.getMessage()] == []


async def test_over_several_objects_the_one_furthest_behind_counts(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        ids = [await world.table(name, retain=Retain(10)) for name in ("a", "b")]
        for id in ids:
            await write(client, world.shard(id), 100)
        await world.hold("h", ids, at=91, max_lag=Interval(1_000))
        await write(client, world.shard(ids[0]), 5_000)
        await world.controller.passed("since", "holds")
        assert hold_of(world).at == 91
        await write(client, world.shard(ids[1]), 2_000)
        await world.controller.passed("since", "holds")
        assert hold_of(world).at == 1_001


async def test_below_the_hold(stores: Stores) -> None:
    """'SELECT and SUBSCRIBE AS OF a time that is before a HOLD's time will return a helpful error message that a HOLD
    exists but is in advance of the AS OF time.'"""
    async with await stores.client() as client, leading(client) as world:
        id = await at_100(client, world)
        await write(client, world.shard(id), 500)
        await world.controller.passed("since")
        room = world.controller.room
        picture = room.picture()
        holds = room.holds(picture, room.known(picture))
        with pytest.raises(BelowHold, match="a hold exists, but is in advance of as_of") as raised:
            holds.check_as_of(str(id), 50)
        assert (raised.value.details["hold"], raised.value.details["at"]) == ("public.h", "91")


async def test_on_lag_error_ends_it(stores: Stores) -> None:
    """'If the timestamp falls behind a configurable window, the HOLD is marked in an error state and the read holds are
    released.'"""
    async with await stores.client() as client, leading(client) as world:
        id = await at_100(client, world, on_lag=OnLag.ERROR)
        await write(client, world.shard(id), 2_000)
        await world.controller.passed("since", "holds")
        found = hold_of(world)
        assert not found.is_active
        standing = world.controller.standings()[found.id]
        assert (standing.state, standing.inactive_since_ms) == (HoldState.OVERDUE, found.overdue_since_ms)
        await world.controller.passed("since")
        assert await since_of(client, world.shard(id)) == 1_991
        with pytest.raises(HoldOverdue):
            await world.advance("h", 1_995)


async def test_advance(stores: Stores) -> None:
    """'For each object of the HOLD, the new time must be greater or equal to the lowest of all HOLDs (including this
    one) and the implied_capability.'"""
    async with await stores.client() as client, leading(client) as world:
        id = await at_100(client, world)
        await write(client, world.shard(id), 200)
        with pytest.raises(NotReadable):
            await world.advance("h", 90)
        assert (await world.advance("h", 150)).at == 150
        assert (await world.advance("h", 500)).at == 500


async def test_drop_releases(stores: Stores) -> None:
    """'A DROP will release its current read hold. In-progress SUBSCRIBEs and transactions will not be affected'."""
    async with await stores.client() as client, leading(client) as world:
        id = await at_100(client, world)
        shard = world.shard(id)
        await write(client, shard, 500)
        await world.controller.passed("since")
        async with await client.open_reader(shard) as reader:
            await world.drop_hold("h")
            await world.controller.passed("since")
            assert [row["name"] for row in await (await reader.snapshot(100)).to_pylist()] == ["100"]
            [held] = (await client.inspect(shard))["critical_readers"].values()
            assert held["since"] == [491]


async def test_a_hold_whose_time_is_gone_says_so(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        id = await at_100(client, world)
        await world.controller.room.handles.move(world.shard(id), aio.Antichain.of(95))
        standing = world.controller.standings()[hold_of(world).id]
        assert standing.state is HoldState.LOST
        assert str(id) in standing.reason


async def test_a_hold_on_what_was_just_made_does_not_lag(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        before = world.now_ms()
        id = await world.table("t", retain=Retain(1_000), fresh=True, mode="wal")
        hold = await world.hold("h", [id], max_lag=Interval(60_000))
        assert before - 1_000 <= hold.at <= world.now_ms()
        await world.controller.passed("ticker", "since", "holds")
        assert hold_of(world) == hold
