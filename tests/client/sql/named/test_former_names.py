"""A shard that an item has is that item, by whatever name it is found: a former one is no way past what it refuses."""

import pyarrow as pa
import pytest
from client.sql.support import rows
from client.support import client_of, memory_place

import persist
from persist.client.table.unique import KeyTwice
from persist.core.catalog.ddl.statements import CreateSource, Export, QualifiedName
from persist.errors import InvalidArgument

SCHEMA = persist.Schema(key={"id": pa.int64()})


@pytest.mark.parametrize("mode", ["wal", "direct"])
async def test_by_a_former_name_a_table_is_the_one_that_it_became(mode):
    place = memory_place()
    async with client_of(place) as client, client_of(place) as other:
        session = await client.session()
        await session.execute(
            f"create table k (id int primary key, v text) with (mode = {mode});"
            "insert into k values (1, 'a'); alter table k rename to k2"
        )
        shard = (await session.environment.resolve("k2")).data
        for each in (client, other):
            with pytest.raises(KeyTwice, match="a primary key would be there twice"):
                await (await each.table("k", mode=mode)).insert([{"id": 1, "v": "dup"}])
            for door in (
                lambda each=each: each.open_writer("k"),
                lambda each=each: each.open("k"),
                lambda each=each: each.named("k", create=True),
                lambda each=each: each.named("k", writes=True),
                lambda each=each: each.table("k", mode="direct" if mode == "wal" else "wal"),
                lambda each=each: each.finalize("k", force=True),
            ):
                with pytest.raises(InvalidArgument) as refused:
                    await door()
                assert "persist.public.k2" in str(refused.value)
            assert await each.named("k") == shard
        assert await rows(session, "select * from k2") == [(1, "a")]
        # The name is free for another table, which is another shard.
        await session.execute("create table k (id int primary key, v text); insert into k values (1, 'new')")
        await (await other.table("k", mode="wal")).upsert([{"id": 1, "v": "newer"}])
        assert await rows(session, "select v from k union all select v from k2 order by v") == [("a",), ("newer",)]
        await session.close()


async def test_what_a_source_feeds_is_written_by_none_of_its_names():
    async with client_of(memory_place()) as client:
        session = await client.session()
        orders = await client.named("shop.public.orders", create=True)
        bindings = await client.named("shop_progress", create=True)
        for shard in (orders, bindings):
            await (await client.open_writer(shard, schema=SCHEMA)).append([(({"id": 1}, {}), 1, 1)], 2)
        exports = (Export("orders", SCHEMA, orders),)
        await session.environment.execute(
            CreateSource(QualifiedName("shop"), "postgres", exports=exports, timeline="M", remap=bindings)
        )
        for name, said in (("shop.public.orders", "persist.public.orders"), ("shop_progress", "persist.public.shop")):
            for door in (
                lambda name=name: client.table(name),
                lambda name=name: client.table(name, mode="wal"),
                lambda name=name: client.open_writer(name),
                lambda name=name: client.named(name, create=True),
            ):
                with pytest.raises(InvalidArgument, match="nothing else writes its rows") as refused:
                    await door()
                assert said in str(refused.value)
            await (await client.open_reader(name)).expire()
        await session.close()
