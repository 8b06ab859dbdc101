"""Cursors, positions and targets over a restore: nothing goes on with what that took back."""

from contextlib import nullcontext, suppress
from typing import Any, cast

import pyarrow as pa
import pytest
from client.collections.cursors.conftest import Sunk
from client.collections.cursors.test_cursors import CURSOR, environment_of, row, table_in
from client.collections.cursors.test_sinks import CREATE_SINK
from client.collections.support import Items, reads_of, shard_of, source_of
from client.collections.support import updates as changes
from client.shard.test_restored import Address

import persist.sinks
from persist import HistoryRewound, InvalidArgument, LeaseExpired
from persist.client.collections.cursors.cursor import open_cursor
from persist.core.catalog.ddl.statements import CreateRole
from persist.core.catalog.values import Id, ObjectType


async def test_a_target_of_before_a_restore_is_refused(sunk: Sunk):
    """What was acknowledged after the backup is in the target, not in the location: it would stay there for ever."""
    async with Address() as address:
        client = address.client()
        async with environment_of(client) as environment:
            table = await table_in(client, environment)
            await environment.execute(CURSOR)
            await table.insert([row(1)])
            states = await address.backup()
            await table.insert([row(2)])
            sink = sunk.opened()
            async with await environment.cursor("c") as cursor:
                await cursor.deliver(sink, idle=0.01)
            sink.close()
        assert sorted(sunk.ids()) == [1, 2]
        await address.restore(states)
        client = address.client()
        environment = await client.environment(take_over=True)
        await (await table_in(client, environment)).insert([row(3)])
        sink = sunk.opened()
        async with await environment.cursor("c") as cursor:
            for _ in range(2):
                with pytest.raises(InvalidArgument, match="restored"):
                    await cursor.deliver(sink, idle=0.01)
        sink.close()
        assert sorted(sunk.ids()) == [1, 2]


@pytest.mark.parametrize("kind", [ObjectType.CURSOR, ObjectType.SINK])
async def test_one_that_is_made_anew_after_a_restore_goes_into_an_empty_table(database, kind: ObjectType):
    """Under its name, or under an id that was given to another one which the restore took back."""
    opened, run = database
    made = CURSOR if kind is ObjectType.CURSOR else CREATE_SINK
    async with Address() as address:
        client = address.client()
        async with environment_of(client) as environment:
            table = await table_in(client, environment)
            await table.insert([row(1)])
            states = await address.backup()
            await environment.execute(made)
            sink = opened("a")
            async with await environment.cursor("c") as cursor:
                await cursor.deliver(sink, idle=0.01)
                key = cursor.key
            sink.close()
        await address.restore(states)
        client = address.client()
        environment = await client.environment(take_over=True)
        await (await table_in(client, environment)).insert([row(2)])
        await environment.execute(made)
        async with await environment.cursor("c") as cursor:
            assert cursor.key == key
            for name, ids in (("a", [1]), ("b", [1, 2]), ("a", [1]), ("b", [1, 2])):
                sink = opened(name)
                with pytest.raises(InvalidArgument, match="restored") if name == "a" else nullcontext():
                    await cursor.deliver(sink, idle=0.01)
                sink.close()
                assert [id for (id,) in run(f"SELECT id FROM {name} ORDER BY id")] == ids


async def test_a_position_of_before_a_restore_is_refused_where_its_history_was_kept():
    async with Address() as address:
        client = address.client()
        async with environment_of(client) as environment:
            table = await table_in(client, environment)
            await environment.execute(CURSOR)
            states = await address.backup()
            await table.insert([row(1)])
            async with await environment.cursor("c") as cursor:
                fetched = await cursor.fetch(timeout=10)
                kept = {"position": fetched.position, "history": cursor.history}
                await cursor.acknowledge()
            await (await environment.cursor("c", **kept)).aclose()
        await address.restore(states)
        client = address.client()
        environment = await client.environment(take_over=True)
        table = await table_in(client, environment)
        await table.insert([row(2)])
        with pytest.raises(HistoryRewound, match="since this position was kept"):
            await environment.cursor("c", **kept)
        async with await environment.cursor("c") as cursor:
            assert cursor.history != kept["history"]
            fetched = await cursor.fetch(timeout=10)
        assert fetched.updates["id"].to_pylist() == [2]


class Followed(Items):
    """Items with cursors of which nothing was acknowledged."""

    def acknowledged(self, id: Id) -> int | None:
        return None


async def test_a_cursor_that_an_index_answers_for_is_of_the_history_of_its_collection():
    """Which the collection's shard says: an index may have been made after a restore, and has another one."""
    by_name = persist.Schema(key={"name": pa.string()}, val={"id": pa.int64()})

    async def kept(client: Any, base: int, index: int) -> None:
        for name, since in (("s", base), ("i", index)):
            hold = await client.open_since(f"hold{since}", shard_of(name))
            await hold.compare_and_downgrade(hold.opaque, since)

    async def never(statement: object) -> None:
        raise AssertionError(statement)

    async with Address() as address:
        client, items = address.client(), Followed()
        base = await source_of(client, items, "s", timeline="E.u900")
        await base.compare_and_append(changes((1, "a", 10, 1), (2, "b", 70, 1)), 0, 100)
        items.add("c", ObjectType.CURSOR, "s")
        states = await address.backup()
        index = await client.open_writer(shard_of("i"), schema=by_name)
        await index.compare_and_append([], 0, 100)
        await kept(client, 50, 20)
        items.add("i", ObjectType.INDEX, "s", data=shard_of("i"), schema=by_name)
        async with await open_cursor(reads_of(client, items), cast(Any, never), "c", position=31) as cursor:
            assert cursor._found.held[cursor._of.id].reader.shard == shard_of("i")
            await address.restore(states)
            for _ in range(2):
                with pytest.raises(LeaseExpired, match="restored"):
                    await cursor.seek(61)
        client = address.client()
        async with await open_cursor(reads_of(client, items), cast(Any, never), "c", position=61) as cursor:
            before = cursor._found.held[cursor._of.id].reader
            assert (before.shard, before.incarnation) == (shard_of("s"), cursor.history)
            index = await client.open_writer(shard_of("i"), schema=by_name)
            rows = changes((1, "a", 10, 1), (2, "b", 70, 1)).select(by_name.updates.names)
            await index.compare_and_append(rows, 0, 100)
            await kept(client, 50, 20)
            await cursor.seek(31)
            after = cursor._found.held[cursor._of.id].reader
            assert (after.shard, after.incarnation == cursor.history) == (shard_of("i"), False)
            assert (await cursor.fetch()).updates["id"].to_pylist() == [2]


async def test_what_a_client_keeps_for_reads_and_statements_is_given_up_after_a_restore():
    async with Address() as address:
        client = address.client()
        async with environment_of(client) as environment:
            table = await table_in(client, environment)
            await table.insert([row(1)])
            states = await address.backup()
            await table.insert([row(2)])
        user = address.client()

        async def seen() -> list[list[int]]:
            read = await (await user.read("t")).to_pylist()
            [found] = await user.sql("select id from t order by id")
            return [sorted(each["id"] for each in read), pa.table(found)["id"].to_pylist()]

        assert await seen() == [[1, 2], [1, 2]]
        await address.restore(states)
        await (await address.client().environment(take_over=True)).execute(CreateRole("leader"))
        # That a history is over is found by using it, if not before: by the read at most once, and by the query.
        found = None
        for _ in range(3):
            with suppress(HistoryRewound):
                found = found or await seen()
        assert found == [[1], [1]]
