"""Timelines without a clock follow what brings their times; bad clocks are doubted, and move nothing of others."""

from control.world import Stores, leading, write

from persist.core.catalog.values import ObjectType, Retain

HOUR = 3_600_000


async def test_a_timeline_without_a_clock_is_as_far_as_all_that_brings_its_times(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        first = await world.table("first", timeline="U.steps")
        second = await world.table("second", timeline="U.steps")
        await write(client, world.shard(first), 10)
        oracle = await client.oracle("U.steps")
        await world.controller.passed("since", "timelines")
        assert await oracle.read_ts() == 0
        await write(client, world.shard(second), 7)
        await world.controller.passed("since", "timelines")
        assert await oracle.read_ts() == 7


async def test_tables_of_such_a_timeline_follow_and_do_not_hold_it_back(stores: Stores) -> None:
    from control.world import SCHEMA

    async with await stores.client() as client, leading(client) as world:
        brought = await world.table("brought", timeline="U.steps")
        table = await client.table("t", schema=SCHEMA, timeline="U.steps", mode="wal")
        await world.table("t", timeline="U.steps", mode="wal", shard=table.shard)
        await write(client, world.shard(brought), 10)
        await world.controller.passed("since", "timelines")
        await world.controller.passed("ticker")
        assert (await client.recent_upper(table.shard)).beyond(10)


async def test_a_source_whose_milliseconds_are_not_of_now_is_quarantined(stores: Stores) -> None:
    """'Since we don't verify that the timestamps are indeed milliseconds from the epoch in this case, features that use
    this timeline (linearizability or transaction time domains, for example) will need to protect against data problems
    (for example, a CDCv2 source that is in the wrong units or has timezone errors, or is otherwise ahead or behind by
    many minutes).'"""
    async with await stores.client() as client, leading(client) as world:
        seconds = await world.table("seconds", kind=ObjectType.SOURCE, claims_epoch=True)
        sound = await world.table("sound", kind=ObjectType.SOURCE, claims_epoch=True, retain=Retain(HOUR))
        now = world.now_ms()
        await write(client, world.shard(seconds), now // 1_000)
        await write(client, world.shard(sound), now)
        await world.controller.passed("since", "timelines")
        assert world.controller.quarantined == {seconds}
        # What moves the timeline of clocks is the clock.
        assert await (await client.oracle()).read_ts() <= world.now_ms()


async def test_bad_clocks_make_no_hold_of_others_lag(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        ahead = await world.table("ahead", kind=ObjectType.SOURCE, claims_epoch=True, retain=Retain(None))
        await write(client, world.shard(ahead), world.now_ms() + 100 * HOUR)
        await world.controller.passed("since", "timelines")
        await world.hold("h", [ahead], at=5)
        await world.controller.passed("holds")
        assert world.view.holds({}).by_name["public.h"].at == 5
