"""Transactions that are too large for one message: staged in pieces, committed once, beside small ones."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from client.support import file_place, memory_place
from services.catalog.cataloging import (
    QUICK,
    Serving,
    catalog_process,
    catalog_server,
    found,
    new_token,
    put,
    remote_catalog,
    stub_of,
)
from services.catalog.test_catalog_doubled import Keeping
from services.proxy import proxy_to
from sure import put as replaced
from sure import reached

from persist.client.catalog.remote import RemoteCatalog, RemoteOpened
from persist.client.shard.write.handle import WriteHandle
from persist.client.shard.write.kept import KeptBatch
from persist.core.catalog.errors import Fenced, NotWritable, OutOfSync
from persist.core.catalog.kinds import COMMIT, DATABASE, SETTING
from persist.core.catalog.objects import Database, DatabaseKey, Setting, SettingKey
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import Id, RoleRef, Space
from persist.errors import InvalidArgument, LeaseExpired, RequestTooLarge
from persist.v1 import catalog_pb2 as pb
from persist_catalog import passed, stages
from persist_catalog.servicer import Serving as Served

ROWS = 1_200
PATIENT = replace(QUICK, timeout_ms=60_000)


def many(catalog: Any, value: str = "1", rows: int = ROWS, token: Any = None) -> CatalogTransaction:
    transaction: CatalogTransaction = catalog.transaction(token=token)
    transaction.set_all(SETTING, ((SettingKey(f"many {number}"), Setting(value)) for number in range(rows)))
    return transaction


def shown(catalog: Any) -> dict[str, int]:
    """How many of the many have which value."""
    told: dict[str, int] = {}
    for key, setting in catalog.objects(SETTING).items():
        if key.name.startswith("many "):
            told[setting.value] = told.get(setting.value, 0) + 1
    return told


async def served(server: Serving) -> Served:
    """What a server in this loop serves."""
    serving: Served = await server.host._services[0].serving()
    return serving


@asynccontextmanager
async def one_server(**duty: Any) -> AsyncIterator[tuple[Served, RemoteCatalog, RemoteOpened]]:
    async with (
        catalog_server(memory_place(), generation=1, **duty) as server,
        remote_catalog(server.endpoint, settings=PATIENT) as catalog,
    ):
        yield await served(server), catalog, await catalog.join()


async def test_transaction_beyond_a_message_happens_at_one_time():
    async with one_server() as (serving, catalog, mine):
        reader, begin = await catalog.open_read_only(), mine.upper
        large = "x" * (100 << 10)
        transaction = many(mine, large, 60)
        for number in range(ROWS):
            key = DatabaseKey(Id(Space.USER, 1_000 + number))
            transaction.insert(DATABASE, key, Database(f"d{number}", RoleRef(Space.USER, 1), oid=20_000 + number))
        upper = await mine.commit(transaction)
        assert upper == begin + 1 == mine.upper
        assert [ts for ts, _ in await reader.sync()] == [begin]
        assert shown(reader) == shown(mine) == {large: 60}
        assert reader.count(DATABASE) == ROWS
        # The same again is known, and was nothing; what it takes is given back.
        assert await mine.commit(transaction) == upper
        assert (len(serving.stages), reader.count(COMMIT)) == (0, 1)


async def test_rows_of_a_large_one_are_encoded_and_uploaded_before_its_turn(monkeypatch):
    """Their time is not known by then: the batch that is appended says it. Small ones are committed meanwhile."""
    kept, appended = asyncio.Event(), list[str]()
    go = asyncio.Event()
    keep, append = WriteHandle.keep, WriteHandle.compare_and_append_kept

    async def held(self: WriteHandle, *args: Any, **options: Any) -> KeptBatch:
        found = await keep(self, *args, **options)
        kept.set()
        await go.wait()
        return found

    async def counted(self: WriteHandle, *args: Any, **options: Any) -> Any:
        appended.append("kept")
        return await append(self, *args, **options)

    monkeypatch.setattr(WriteHandle, "keep", held)
    monkeypatch.setattr(WriteHandle, "compare_and_append_kept", counted)
    async with one_server() as (_serving, catalog, mine):
        reader, other = await catalog.open_read_only(), await catalog.join()
        large = asyncio.create_task(mine.commit(many(mine, token=new_token())))
        await reached(kept, large)
        await put(other, "small", "1")
        await put(other, "small", "2")
        go.set()
        upper = await large
        assert appended == ["kept"]
        assert [ts for ts, changes in await reader.sync() if len(changes) > ROWS] == [upper - 1]
        assert (shown(reader), shown(mine), found(reader, "small")) == ({"1": ROWS}, {"1": ROWS}, "2")
        # Each is overwritten, and the rows are read back as they are durable.
        assert await mine.commit(many(mine, "2")) == mine.upper
        durable = [each for each in (await reader.dump(kinds=["setting"])).updates if b"many" in each.row.key]
        assert (len(durable), {each.diff for each in durable}) == (ROWS, {1})


async def test_rows_of_a_large_one_that_is_refused_leave_nothing_behind(monkeypatch):
    staged = list[KeptBatch]()
    keep = WriteHandle.keep

    async def noted(self: WriteHandle, *args: Any, **options: Any) -> KeptBatch:
        staged.append(await keep(self, *args, **options))
        await put(first, "many 7", "0")
        return staged[-1]

    monkeypatch.setattr(WriteHandle, "keep", noted)
    async with one_server() as (_serving, catalog, mine):
        first = await catalog.join()
        with pytest.raises(OutOfSync, match="many 7"):
            await mine.commit(many(mine))
        [kept] = staged
        target = kept._builder._target
        keys = [part.key for run in kept.runs for part in run.parts]
        assert keys
        assert None not in keys
        assert [key for key in keys if await target.blob.get(str(key), timeout=10) is not None] == []


async def test_rows_that_were_kept_for_too_long_are_encoded_anew(monkeypatch):
    monkeypatch.setattr(KeptBatch, "is_fresh", False)
    async with one_server() as (_serving, _catalog, mine):
        await mine.commit(many(mine))
        assert shown(mine) == {"1": ROWS}


async def test_small_ones_are_committed_while_a_large_one_is_sent_by_the_same_session_too():
    async with one_server() as (serving, catalog, mine):
        other = await catalog.join()
        staged, go = asyncio.Event(), asyncio.Event()
        send = mine._send

        async def halfway(pieces: Any) -> None:
            await send(pieces)
            staged.set()
            await go.wait()

        replaced(mine, "_send", halfway)
        large = asyncio.create_task(mine.commit(many(mine)))
        await reached(staged, large)
        assert len(serving.stages) == 1
        await put(mine, "small", "1")
        await put(other, "other", "1")
        go.set()
        assert await large == mine.upper
        assert (found(mine, "small"), found(mine, "other"), shown(mine)) == ("1", "1", {"1": ROWS})
        # One that began before it, and did something else, is not run again.
        late = other.transaction()
        late.set(SETTING, SettingKey("late"), Setting("1"))
        await mine.commit(many(mine, "2"))
        await other.commit(late)
        assert shown(other) == {"2": ROWS}


async def test_large_one_that_something_came_before_changes_nothing_and_is_run_again():
    async with one_server() as (serving, catalog, mine):
        other = await catalog.join()
        transaction = many(mine)
        await put(other, "many 7", "0")
        with pytest.raises(OutOfSync, match="many 7"):
            await mine.commit(transaction)
        assert (shown(mine), len(serving.stages)) == ({"0": 1}, 0)
        await mine.set(SETTING, {SettingKey(f"many {number}"): Setting("1") for number in range(ROWS)})
        assert shown(mine) == {"1": ROWS}


@pytest.mark.parametrize("kept", [passed.KEPT_MAX, ROWS // 2])
async def test_those_that_depend_on_nothing_of_each_other_are_all_committed(kept: int, monkeypatch):
    """However many changes those before them make: of what a server keeps for each what it waits for is a part.

    ``kept``: what it keeps where none waits.
    """
    monkeypatch.setattr(passed, "KEPT_MAX", kept)
    monkeypatch.setattr(passed, "HELD_MAX", 10 * ROWS)
    monkeypatch.setattr(passed, "PIECE", 100)
    async with one_server() as (serving, catalog, mine):
        serving.mirror._tail_max = ROWS // 2
        sessions = [mine, *[await catalog.join() for _ in range(3)]]
        # The first one writes what the one that comes last looked at.
        last = await catalog.join()
        late, early = last.transaction(), last.upper
        late.set(SETTING, SettingKey("0: 7"), Setting("late"))
        async with serving.leadership._turn:
            waiting = [asyncio.create_task(each.commit(apart(each, number))) for number, each in enumerate(sessions)]
            while len(serving.writes._conflicts._passed.held) < len(sessions):
                await asyncio.sleep(0.001)
        assert len(set(await asyncio.gather(*waiting))) == len(sessions)
        assert serving.writes._conflicts._passed.held == []
        assert serving.mirror.since(early) is None
        assert (await catalog.open_read_only()).count(SETTING) >= len(sessions) * ROWS
        with pytest.raises(OutOfSync, match="0: 7" if kept > 10 * ROWS else "too much"):
            await last.commit(late)


def apart(catalog: Any, number: int) -> CatalogTransaction:
    transaction: CatalogTransaction = catalog.transaction()
    transaction.set_all(SETTING, ((SettingKey(f"{number}: {each}"), Setting("1")) for each in range(ROWS)))
    return transaction


async def test_what_a_server_forgot_is_sent_again():
    async with one_server() as (serving, _, mine):
        async with mine._turn:
            large = asyncio.create_task(mine.commit(many(mine)))
            while not len(serving.stages) or not large_is_there(serving):
                await asyncio.sleep(0.001)
            # With its session, as both were not used for long.
            assert mine._session is not None
            serving.stages.drop(mine._session.session_id)
            serving.sessions.close(mine._session.session_id)
        await large
        assert shown(mine) == {"1": ROWS}


def large_is_there(serving: Served) -> bool:
    return all(stage.next == stage.elements for stage in serving.stages._open.values())


async def test_a_commit_has_one_timeout_however_often_it_is_asked_for():
    quick = replace(PATIENT, timeout_ms=8_000)
    async with (
        catalog_server(memory_place(), generation=1) as server,
        remote_catalog(server.endpoint, settings=quick) as catalog,
    ):
        mine = await catalog.join()
        write, had = mine._calls.write, list[float]()

        async def forgotten(rpc: str, *args: Any, timeout: float | None = None, **named: Any) -> Any:
            if rpc != "Commit":
                return await write(rpc, *args, timeout=timeout, **named)
            had.append(timeout or 8.0)
            await asyncio.sleep(0.2)
            raise LeaseExpired("forgotten", hint="send it again")

        replaced(mine._calls, "write", forgotten)
        replaced(mine, "_send", at_once)
        with pytest.raises(LeaseExpired):
            await mine.commit(many(mine))
    assert len(had) > 2
    assert all(before - after > 0.19 for before, after in itertools.pairwise(had)), had


async def at_once(staged: Any) -> None:
    """Takes no piece, so that there is no progress."""


async def test_one_token_is_one_large_transaction():
    async with one_server() as (_, catalog, mine):
        token, other = new_token(), await catalog.join()
        upper = await mine.commit(many(mine, token=token))
        assert await other.commit(many(other, token=token)) == upper
        with pytest.raises(InvalidArgument, match="another transaction"):
            await other.commit(many(other, "2", token=token))
        assert shown(other) == {"1": ROWS}


async def test_large_transactions_of_two_implementations_are_the_same(tmp_path: Path):
    async with one_server(implementation="shadow", stash=f"sqlite:{tmp_path}/stash.db") as (_, catalog, mine):
        await mine.commit(many(mine))
        await mine.commit(many(mine, "2", ROWS // 2))
        assert shown(await catalog.open_read_only()) == {"1": ROWS // 2, "2": ROWS // 2}


async def test_everything_delivered_twice_is_one_transaction():
    place = memory_place()
    async with (
        catalog_server(place, generation=1) as server,
        Keeping([server.endpoint]) as proxy,
        remote_catalog(proxy.endpoint, settings=PATIENT) as catalog,
    ):
        mine = await catalog.join()
        upper = await mine.commit(many(mine))
        with pytest.raises(grpc.aio.AioRpcError, match="not all of this stage"):
            await proxy.again("StageChanges")
        await proxy.again("Commit")
        await mine.sync()
        assert (mine.upper, shown(mine)) == (upper, {"1": ROWS})


class Earlier(Keeping):
    """A server of a release that does not know of stages."""

    def _handler(self, method: str) -> Any:
        return None if method.endswith("/StageChanges") else super()._handler(method)


async def test_server_of_an_earlier_release_takes_what_fits_a_message():
    async with (
        catalog_server(memory_place(), generation=1) as server,
        Earlier([server.endpoint]) as proxy,
        remote_catalog(proxy.endpoint, settings=PATIENT) as catalog,
    ):
        mine = await catalog.join()
        await mine.commit(many(mine))
        assert shown(mine) == {"1": ROWS}
        with pytest.raises(RequestTooLarge):
            await mine.commit(many(mine, "x" * 4_000))
        assert shown(mine) == {"1": ROWS}


@pytest.mark.timeout_s(240)
async def test_answer_that_is_lost_and_a_leader_that_is_killed_do_not_make_it_twice_or_not_at_all(tmp_path: Path):
    place = file_place(tmp_path)
    async with (
        catalog_process(place, "--generation", "1") as first,
        catalog_process(place) as second,
        proxy_to(first.endpoint) as proxy,
        remote_catalog(second.endpoint) as near,
        remote_catalog(proxy.endpoint, second.endpoint, settings=PATIENT) as catalog,
    ):
        mine, reader = await catalog.join(), await near.open_read_only()
        transaction = many(mine)
        await mine._prepare(transaction)
        prepared = transaction.batch().prepared
        assert prepared is not None
        staged = await mine._stage(transaction, prepared, prepared.rows)
        # From here on nothing that the leader says arrives; it is killed once others see the rows.
        proxy.deaf = True
        async with mine._turn:
            large = asyncio.create_task(mine._commit(transaction, 0, staged))
            while not shown(reader):
                await reader.sync()
            told = reader.upper
            await first.kill()
            leading = await near.open(2)
            assert await large == told
        assert shown(leading) == {"1": ROWS}
        # By a client that repeats it later, too, at a leader that was never sent a piece.
        assert await leading.commit(many(leading, token=transaction.token)) == told
        with pytest.raises((Fenced, NotWritable)):
            await mine.commit(many(mine, "2"))


@pytest.mark.timeout_s(240)
async def test_leader_that_is_killed_before_the_commit_takes_what_was_staged_with_it(tmp_path: Path):
    place = file_place(tmp_path)
    async with (
        catalog_process(place, "--generation", "1") as first,
        catalog_process(place) as second,
        remote_catalog(first.endpoint, second.endpoint, settings=PATIENT) as catalog,
    ):
        mine = await catalog.join()
        transaction = many(mine)
        async with mine._turn:
            await mine._prepare(transaction)
            prepared = transaction.batch().prepared
            assert prepared is not None
            staged = await mine._stage(transaction, prepared, prepared.rows)
            await first.kill()
            leading = await catalog.open(2)
            with pytest.raises(Fenced):
                await mine._commit(transaction, 0, staged)
        assert shown(leading) == {}
        await leading.commit(many(leading))
        assert shown(leading) == {"1": ROWS}


async def test_limits_are_told_before_anything_is_kept():
    async with (
        catalog_server(memory_place(), generation=1) as server,
        stub_of(server.endpoint) as stub,
    ):
        serving = await served(server)
        session = (await stub.OpenSession(pb.OpenSessionRequest(), timeout=60)).session
        request = pb.StageChangesRequest(session=session, bytes=1 << 40)
        request.stage.stage_id, request.stage.elements = b"s" * 16, 10
        request.changes.kinds.append("setting")
        with pytest.raises(grpc.aio.AioRpcError, match="too large"):
            await stub.StageChanges(request, timeout=60)
        request.bytes, request.stage.elements = 1_000, stages.ELEMENTS_MAX + 1
        with pytest.raises(grpc.aio.AioRpcError, match="too large"):
            await stub.StageChanges(request, timeout=60)
        assert len(serving.stages) == 0
        commit = pb.CommitRequest(session=session, request_id=b"r" * 16, token=str(new_token()), body=b"b" * 16)
        commit.stage.CopyFrom(request.stage)
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError, match="not all of this stage"):
                await stub.Commit(commit, timeout=60)
