"""One name, one shard: whichever door made it, and never a choice where two doors did."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
from client.support import SCHEMA, Place, client_of, memory_place, rows_of, table

import persist
from persist import AmbiguousName, InvalidArgument, ShardId, ShardNotFound
from persist.core import names

ROWS = table([(1, "a", 0, 1)])
OLD = ShardId.named("persist.table", "direct", "M", "flights")


async def test_a_name_is_one_shard_for_handles_and_tables(place: Place):
    async with client_of(place) as one, client_of(place) as two:
        writer, _ = await one.open("flights", schema=SCHEMA)
        await writer.append(ROWS, 1)
        flights = await two.table("flights")
        assert rows_of(await (await flights.snapshot()).to_arrow()) == [(1, "a", 1)]
        assert flights.shard == writer.shard == ShardId.for_name("flights") == await two.named("flights")
        await flights.insert([{"id": 2, "name": "b"}])
        reader = await one.open_reader("flights")
        assert rows_of(await (await reader.snapshot()).to_arrow()) == [(1, "a", 1), (2, "b", 1)]


async def test_every_call_takes_a_name():
    async with client_of(memory_place()) as client:
        made = await client.table("flights", schema=SCHEMA)
        spec = await client.batch_spec("flights", SCHEMA, writer_id=persist.WriterId.named("w"))
        hold = await client.open_since("hold", "flights")
        state = await client.inspect("flights")
        assert {spec.shard, hold.shard, state["shard"]} == {made.shard}
        assert await client.schema("flights") == SCHEMA
        assert (await client.recent_upper("flights")).time == 0
        assert await client.place("flights") == await client.place(made.shard)
        await client.finalize("flights", force=True)
        assert (await client.inspect("flights"))["is_tombstone"]


@pytest.mark.parametrize("timeline", ["M", "U.mine"])
@pytest.mark.parametrize("mode", names.MODES)
async def test_what_was_made_under_the_other_derivation_stays_where_it_is(mode: Any, timeline: str):
    async with client_of(memory_place()) as client:
        old = ShardId.named("persist.table", mode, timeline, "flights")
        written = await client.table(old, schema=SCHEMA, mode=mode, timeline=timeline)
        await written.insert([{"id": 1, "name": "a"}])
        again = await client.table("flights", mode=mode, timeline=timeline)
        assert again.shard == old
        assert rows_of(await (await again.snapshot()).to_arrow()) == [(1, "a", 1)]
        if timeline == "M":
            assert (await client.open_reader("flights")).shard == old
            with pytest.raises(InvalidArgument, match=f'mode="{mode}"'):
                await client.table("flights", schema=SCHEMA, mode="wal" if mode == "direct" else "direct")
            if mode == "wal":
                with pytest.raises(InvalidArgument, match="through a log"):
                    await client.open_writer("flights", schema=SCHEMA)
        assert len([each async for each in client.list_shards() if each in {n.shard for n in POSSIBLE}]) == 1


POSSIBLE = names.possible("flights", ["U.mine"])


async def test_where_both_are_there_every_call_lists_both_and_makes_no_choice():
    async with client_of(memory_place()) as client:
        for shard in (OLD, ShardId.for_name("flights")):
            await client.open_writer(shard, schema=SCHEMA)
        before = {each async for each in client.list_shards()}
        for call in (
            lambda: client.open("flights", schema=SCHEMA),
            lambda: client.open_writer("flights", schema=SCHEMA),
            lambda: client.open_reader("flights"),
            lambda: client.table("flights", schema=SCHEMA),
            lambda: client.table("flights", schema=SCHEMA, mode="wal"),
            lambda: client.named("flights", create=True),
            lambda: client.inspect("flights"),
            lambda: client.finalize("flights", force=True),
        ):
            with pytest.raises(AmbiguousName) as refused:
                await call()
            assert refused.value.details["name"] == "flights"
            assert all(shard in refused.value.details["shards"] for shard in (OLD, ShardId.for_name("flights")))
            assert f"client.open('{ShardId.for_name('flights')}')" in refused.value.hint
        assert {each async for each in client.list_shards() if "oracle" not in each} >= before
        for shard in (OLD, ShardId.for_name("flights")):
            assert (await client.open_reader(shard)).shard == shard
        # What is over no longer has the name.
        await client.finalize(OLD, force=True)
        assert await client.named("flights") == ShardId.for_name("flights")


async def test_a_name_of_nothing_tells_near_ones_and_makes_nothing(place: Place):
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_of(place))
        await client.open_writer("flights", schema=SCHEMA)
        await client.table("trains", schema=SCHEMA, mode="wal")
        before = {each async for each in client.list_shards()}
        for typed, near in (("flihgts", "flights"), ("Flights", "flights"), ("train", "trains"), ("planes", "")):
            for call in (client.open, client.open_reader, client.inspect, client.named):
                with pytest.raises(ShardNotFound) as missing:
                    await call(typed)
                assert (missing.value.details["name"], missing.value.details.get("near", "")) == (typed, near)
        with pytest.raises(ShardNotFound):
            await client.table("planes")
        created = await client.named("planes", create=True)
        assert created == ShardId.for_name("planes")
        unseen = {each async for each in client.list_shards()} - before
        assert not unseen & {each.shard for each in names.possible("planes")}


@pytest.mark.parametrize("name", ["", " ", "a\0b", "a\nb", 5, None])
async def test_what_is_no_name_is_refused(name: Any):
    async with client_of(memory_place()) as client:
        for call in (client.open, client.named, client.table, client.inspect):
            with pytest.raises(InvalidArgument):
                await call(name)


@pytest.mark.parametrize(("looks", "plain"), [("flights ", "flights"), (" flights", "flights"), ("e\u0301", "\xe9")])
async def test_a_new_name_looks_like_no_other_and_an_old_one_is_found(looks: str, plain: str):
    async with client_of(memory_place()) as client:
        for door in (client.table(looks, schema=SCHEMA), client.open(looks, schema=SCHEMA)):
            with pytest.raises(InvalidArgument) as refused:
                await door
            assert repr(plain) in str(refused.value.hint)
        await client.table(plain, schema=SCHEMA)
        with pytest.raises(ShardNotFound) as missing:
            await client.open_reader(looks)
        assert missing.value.details["near"] == plain
        # As an earlier release made it.
        writer, _ = await client.open(ShardId.named("table", looks), schema=SCHEMA)
        assert (
            (await client.table(looks, schema=SCHEMA)).shard == (await client.open_reader(looks)).shard == writer.shard
        )
