"""Environments: found, begun, executed on once, followed, and given up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from client.support import client_of, memory_place
from sure import as_a, sure

from persist import aio
from persist.client.client import Client
from persist.client.collections.environment import Environment
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.statements import (
    AdvanceHold,
    CreateHold,
    CreateRole,
    CreateSchema,
    CreateTable,
    Drop,
    QualifiedName,
)
from persist.core.catalog.errors import PrivilegeMissing, Uninitialized, UniquenessViolation, UnknownObject
from persist.core.catalog.values import ObjectType, Retain
from persist.core.data.schema import Schema
from persist.core.ids import Token
from persist.core.shard.environments import hold_of
from persist.errors import InvalidArgument, PersistError, StoreReadOnly, UsageError
from persist.settings import Settings

ROWS = Schema({"id": pa.int64()}, {"name": pa.string()})
QUICK = Settings(poll_first_ms=5, poll_max_ms=50, timeout_ms=10_000)


def table(name: str, **more) -> CreateTable:
    return CreateTable(QualifiedName(name), ROWS, **more)


@asynccontextmanager
async def client_at(place: Path) -> AsyncIterator[Client]:
    async with await aio.embedded(place, settings=QUICK) as client:
        yield client


def names(environment: Environment) -> list[str]:
    return [item.name.item for item in environment.view.items() if item.id.space == "u"]


async def test_an_environment_that_does_not_exist_yet_says_so_and_its_first_statement_makes_it(tmp_path):
    async with client_at(tmp_path) as client:
        environment = await client.environment("fresh")
        assert not await environment.exists()
        for look in (lambda: environment.resolve("t"), environment.strict_view, environment.items):
            with pytest.raises(Uninitialized, match="does not exist yet") as refused:
                await look()
            assert "CREATE TABLE makes it" in refused.value.hint
        with pytest.raises(Uninitialized):
            _ = environment.view
        assert [shard async for shard in client.list_shards()] == []
        (executed,) = await environment.execute(table("t"))
        assert (executed.tag, executed.name) == ("CREATE TABLE", "persist.public.t")
        item = await environment.resolve("t")
        assert (item.id, item.schema, item.mode) == (executed.id, ROWS, "wal")
        assert await client.schema(sure(item.data)) == ROWS
        assert await environment.exists()


async def test_statements_of_one_request_all_happen_or_none(tmp_path):
    async with client_at(tmp_path) as client:
        environment = await client.environment()
        await environment.execute(table("there"))
        with pytest.raises(UniquenessViolation):
            await environment.execute(CreateSchema("s"), table("new"), table("there"))
        assert names(environment) == ["there"]
        done = await environment.execute(CreateSchema("s"), CreateTable(QualifiedName("new", "s"), ROWS))
        assert [each.tag for each in done] == ["CREATE SCHEMA", "CREATE TABLE"]
        with pytest.raises(InvalidArgument, match="a request has statements"):
            await environment.execute()


async def test_a_request_is_executed_once_however_often_its_token_comes(tmp_path):
    async with client_at(tmp_path) as client:
        environment, token = await client.environment(), Token.of(b"t" * 16)
        first = await environment.execute(table("t"), token=token)
        again = await asyncio.gather(*(environment.execute(table("t"), token=token) for _ in range(3)))
        assert again == [first] * 3
        with pytest.raises(InvalidArgument, match="under this token"):
            await environment.execute(table("u"), token=token)
        with pytest.raises(UniquenessViolation):
            await environment.execute(table("t"))
    async with client_at(tmp_path) as client:
        # Another leader: what it knows of the request is what the catalog has.
        environment = await client.environment()
        (known,) = await environment.execute(table("t"), token=token)
        assert (known.tag, known.id, known.name) == (first[0].tag, first[0].id, first[0].name)
        assert "before" in known.notice
        with pytest.raises(InvalidArgument, match="under this token"):
            await environment.execute(table("u"), token=token)
        assert names(environment) == ["t"]


async def test_a_request_that_was_refused_is_refused_from_then_on_under_its_token(tmp_path):
    async with client_at(tmp_path) as client:
        environment, token = await client.environment(), Token.of(b"t" * 16)
        drop = Drop(ObjectType.TABLE, (QualifiedName("t"),))
        with pytest.raises(UnknownObject):
            await environment.execute(drop, token=token)
        await environment.execute(table("t"))
        with pytest.raises(UnknownObject):
            await environment.execute(drop, token=token)
    async with client_at(tmp_path) as client:
        environment = await client.environment()
        with pytest.raises(InvalidArgument, match="refused when it came before"):
            await environment.execute(drop, token=token)
        (dropped,) = await environment.execute(drop)
        assert dropped.tag == "DROP TABLE"


async def test_a_role_without_privileges_is_refused_and_changes_nothing(tmp_path):
    async with client_at(tmp_path) as client:
        environment = await client.environment()
        await environment.execute(table("t"), CreateRole("ann"))
        ann = await client.environment(role="ann")
        for statement in (table("u"), Drop(ObjectType.TABLE, (QualifiedName("t"),)), CreateRole("eve")):
            with pytest.raises(PrivilegeMissing) as refused:
                await ann.execute(statement)
            assert refused.value.details["role"] == "ann"
        with pytest.raises(UnknownObject, match="role"):
            await ann.execute(table("u"), session=Session("nobody"))
        assert names(environment) == ["t"]


async def test_others_follow_what_one_executes_without_asking(tmp_path):
    async with client_at(tmp_path) as client, client_at(tmp_path) as other:
        environment = await client.environment()
        await environment.execute(table("t"))
        follower = await other.environment()
        changed = asyncio.Event()
        follower.on_change(changed.set)
        assert names(follower) == ["t"]
        await environment.execute(table("u"))
        await asyncio.wait_for(changed.wait(), 20)
        assert names(follower) == ["t", "u"]
        await environment.execute(table("v"))
        # What is not in memory yet is looked for before it is said to be unknown.
        assert (await follower.resolve("v")).name.item == "v"
        assert not follower.leads


async def test_an_unknown_name_is_told_with_near_ones(tmp_path):
    async with client_at(tmp_path) as client:
        environment = await client.environment()
        await environment.execute(table("flights"))
        with pytest.raises(UnknownObject) as refused:
            await environment.resolve("flihgts")
        assert "persist.public.flights" in refused.value.details["near"]
        for text in ("", "a.b.c.d", "a..b", 'a"', None):
            with pytest.raises(InvalidArgument, match="not a name"):
                await environment.resolve(cast(Any, text))
        assert (await environment.resolve('persist."public".flights')).name.item == "flights"


async def test_many_holds_that_move_go_in_few_transactions_each_with_its_own_outcome(tmp_path):
    async with client_at(tmp_path) as client:
        environment = await client.environment()
        await environment.execute(table("t", timeline="U.own", mode="direct", retain=Retain()))
        shard = sure((await environment.resolve("t")).data)
        writer = await client.open_writer(shard)
        await writer.compare_and_append(ROWS.updates.empty_table(), 0, 1_000)
        many = [QualifiedName(f"h{number}") for number in range(40)]
        for name in many:
            await environment.execute(CreateHold(name, (QualifiedName("t"),), at=5, max_lag=100_000))
        commits = count_commits(environment)
        moves = [environment.execute(AdvanceHold(name, 10 + number)) for number, name in enumerate(many)]
        moves.append(environment.execute(AdvanceHold(QualifiedName("gone"), 10)))
        *moved, gone = await asyncio.gather(*moves, return_exceptions=True)
        assert [as_a(tuple, each)[0].tag for each in moved] == ["ALTER HOLD"] * len(many)
        assert isinstance(gone, UnknownObject)
        found = [environment.view.hold(sure(environment.view.find(name, Session()))).at for name in many]
        assert found == [10 + number for number in range(len(many))]
        # The first went at once, the rest together.
        assert commits() <= 3


def count_commits(environment: Environment):
    heard = []
    environment.on_change(lambda: heard.append(1))
    return lambda: len(heard)


async def test_a_location_that_is_only_read_has_names_and_executes_nothing(tmp_path):
    async with client_at(tmp_path) as client:
        await (await client.environment()).execute(table("t"))
    async with await aio.embedded(tmp_path, read_only=True, settings=QUICK) as client:
        environment = await client.environment()
        item = await environment.resolve("t")
        assert await client.named("public.t") == item.data
        with pytest.raises(StoreReadOnly, match="reading only"):
            await environment.execute(table("u"))


async def test_a_closed_environment_says_so_and_a_closed_client_ends_it(tmp_path):
    async with client_at(tmp_path) as client:
        environment = await client.environment()
        await environment.execute(table("t"))
        kept = await client.environment()
        await environment.close()
        with pytest.raises(UsageError, match="the environment is closed"):
            await environment.execute(table("u"))
        with pytest.raises(UsageError, match="the environment is closed"):
            environment.view.items()
        assert list(kept.view.items())
    with pytest.raises(UsageError, match="closed"):
        await kept.resolve("t")


async def test_memory_of_one_process_is_led_by_it(tmp_path):
    async with await aio.embedded(blob="mem:environment", consensus="mem:environment", settings=QUICK) as client:
        environment = await client.environment()
        await environment.execute(table("t"))
        assert environment.leads
        assert names(environment) == ["t"]


async def test_closing_tells_statements_under_way_that_they_may_have_happened() -> None:
    """They looked as if they had been cancelled, which they had not, whether they were carried out or not."""
    done, unsure = set[str](), set[str]()
    async with client_of(memory_place()) as client:
        for turns in range(0, 160, 12):
            environment = await client.environment()
            name = f"r{turns}"
            under_way = asyncio.create_task(environment.execute(CreateRole(name)))
            for _ in range(turns):
                await asyncio.sleep(0)
            await environment.close()
            try:
                await under_way
                done.add(name)
            except PersistError:
                unsure.add(name)
        environment = await client.environment()
        roles = {each.name for each in (await environment.strict_view()).roles.values()}
    assert unsure
    assert done <= roles <= done | unsure | {"persist"}


async def test_one_shard_is_an_item_of_one_environment(tmp_path):
    async with client_at(tmp_path) as client:
        first, second = await client.environment(), await client.environment("second")
        await first.execute(table("t", mode="direct"))
        await second.execute(table("other"))
        with pytest.raises(InvalidArgument, match="another environment has this shard"):
            await second.adopt("t")
        assert names(second) == ["other"]
        await first.leave("t")
        shard = await client.named("t")
        while hold_of("default") in (await client.inspect(shard))["critical_readers"]:
            await asyncio.sleep(0.02)
        await second.adopt("t")
        assert names(second) == ["other", "t"]


async def test_what_another_environment_has_is_not_deleted_when_it_is_dropped_here(tmp_path):
    async with client_at(tmp_path) as client:
        environment = await client.environment()
        await environment.execute(table("t", mode="direct"), table("gone", mode="direct"))
        shard, gone = [(await environment.resolve(name)).data for name in ("t", "gone")]
        # As earlier releases left it, which let two adopt one shard.
        await client.open_since(hold_of("second"), sure(shard), opaque=b"its leader", purpose="collections")
        await environment.execute(Drop(ObjectType.TABLE, (QualifiedName("t"), QualifiedName("gone"))))
        while not (await client.inspect(sure(gone)))["is_tombstone"]:
            await asyncio.sleep(0.02)
        while hold_of("default") in (state := await client.inspect(sure(shard)))["critical_readers"]:
            await asyncio.sleep(0.02)
        assert not state["is_tombstone"]
        assert list(state["critical_readers"]) == [hold_of("second")]
        assert state["upper"] != []


@pytest.mark.parametrize("mode", ["direct", "wal"])
async def test_the_shard_of_another_environment_is_finalized_by_that_one_alone(tmp_path, mode):
    async with client_at(tmp_path) as client:
        await (await client.environment()).execute(table("here"))
        second = await client.environment("second")
        await second.execute(table("t", mode=mode))
        shard = sure((await second.resolve("t")).data)
        ways: list[dict[str, Any]] = [{}, {"environment": "default"}]
        for asked in ways:
            with pytest.raises(InvalidArgument, match="an environment holds this shard"):
                await client.finalize(shard, force=True, **asked)
        with pytest.raises(InvalidArgument, match="an item of the environment has this shard"):
            await client.finalize(shard, force=True, environment="second")
        after = await client.inspect(shard)
        assert (after["is_tombstone"], after["upper"] != [], [*after["critical_readers"]]) == (
            False,
            True,
            [hold_of("second")],
        )
        await second.leave("t")
        told = await client.finalize(shard, force=True, dry_run=True, environment="second")
        assert not told.finalized
        await client.finalize(shard, force=True, environment="second")
        assert (await client.inspect(shard))["is_tombstone"]


async def test_table_in_a_log_that_was_left_is_adopted_as_one(tmp_path):
    async with client_at(tmp_path) as client:
        environment = await client.environment()
        await environment.execute(CreateSchema("s"), CreateTable(QualifiedName("t", "s"), ROWS))
        shard = sure((await environment.resolve("s.t")).data)
        await (await client.table(shard, mode="wal")).insert([{"id": 1, "name": "a"}])
        await environment.leave("s.t")
        await environment.adopt("t", shard=shard)
        assert (await environment.resolve("t")).mode == "wal"
        async with await environment.read("t") as contents:
            assert (await contents.to_arrow()).num_rows == 1
