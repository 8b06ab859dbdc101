"""What a server works on, and remembers, of statements is bounded, also of callers that went away."""

import asyncio
from typing import Any

import grpc
import pytest
from client.support import Place
from services.catalog.cataloging import Serving, catalog_server, stub_of
from services.catalog.statements.test_execute import TOKEN, execute, refused, table

from persist.client.collections import executor as limits
from persist.core.catalog.ddl.asking.seen import SEEN_MAX, SEEN_OF_MOVE_MAX
from persist.runtime import system
from persist.v1 import catalog_ddl_pb2 as ddl
from persist.v1 import catalog_objects_pb2 as objects_pb


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(f"file:{tmp_path}/blob", f"sqlite:{tmp_path}/consensus.db")


async def executor_of(server: Serving) -> Any:
    serving = await server.host._services[0].serving()
    return (await serving.executing.led())._executor


async def test_outcomes_that_are_told_again_are_bounded_by_their_bytes(place, monkeypatch):
    monkeypatch.setattr(limits, "REMEMBERED_BYTES_MAX", 4_000)
    async with catalog_server(place) as server, stub_of(server.endpoint) as stub:
        made = await execute(stub, table("t"), token=f"{TOKEN}0")
        again = [table("t", if_not_exists=True)] * 3
        for number in range(1, 9):
            await execute(stub, *again, token=f"{TOKEN}{number}")
        known = await executor_of(server)
        assert 0 < known._done_bytes <= 4_000
        assert len(known._done) == 2
        assert not known._running
        assert not known._working
        # Of the others the catalog knows that they were done.
        told = await execute(stub, table("t"), token=f"{TOKEN}0")
        assert [each.id for each in told.executed] == [each.id for each in made.executed]
        assert await refused(execute(stub, *again, token=f"{TOKEN}0")) == "INVALID_ARGUMENT"


async def test_statements_whose_callers_went_away_are_bounded_by_their_bytes(place, monkeypatch):
    monkeypatch.setattr(limits, "WORK_BYTES_MAX", 6_000)
    async with catalog_server(place) as server, stub_of(server.endpoint) as stub:
        await execute(stub, table("t"))
        known = await executor_of(server)
        async with known._turn:
            for number in range(9):
                asked = [table(f"t{number}")] * 5
                with pytest.raises(grpc.RpcError) as error:
                    await stub.Execute(ddl.ExecuteRequest(statements=asked, token=f"{TOKEN}{number}"), timeout=1)
                if error.value.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    break
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert len(known._running) < 9
            assert known._working <= 6_000
        async with asyncio.timeout(60):
            while known._running:
                await asyncio.sleep(0.01)
        assert known._working == 0
        await execute(stub, table("later"))


async def test_statements_that_are_large_keep_the_event_loop_for_others(place):
    columns = [ddl.TableColumn(name=f"c{number}", type="int64", key=not number) for number in range(2_000)]
    wide = table("t", if_not_exists=True)
    wide.create_table.schema.CopyFrom(ddl.TableSchema(columns=columns))
    async with catalog_server(place) as server, stub_of(server.endpoint) as stub:
        await execute(stub, table("t"))
        request = ddl.ExecuteRequest(statements=[wide] * 20)
        stood, is_over = 0.0, asyncio.Event()

        async def others() -> None:
            nonlocal stood
            while not is_over.is_set():
                began = system().monotonic()
                await asyncio.sleep(0)
                stood = max(stood, system().monotonic() - began)

        began = system().monotonic()
        beside = asyncio.create_task(others())
        await stub.Execute(request, timeout=300)
        took = system().monotonic() - began
        is_over.set()
        await beside
        assert stood < took / 4


async def test_names_that_are_looked_up_are_bounded(place):
    named = ddl.SeenName(type=objects_pb.CATALOG_OBJECT_TYPE_TABLE, name=ddl.ObjectName(item="t"))
    async with catalog_server(place) as server, stub_of(server.endpoint) as stub:
        await execute(stub, table("t0"))
        await stub.Execute(ddl.ExecuteRequest(statements=[table("t1")], seen=[named] * SEEN_MAX), timeout=60)
        beyond = ddl.ExecuteRequest(statements=[table("t2")], seen=[named] * (SEEN_MAX + 1))
        assert await refused(stub.Execute(beyond, timeout=60)) == "REQUEST_TOO_LARGE"
        move = ddl.DdlStatement(advance_hold=ddl.AdvanceHoldStatement(name=ddl.ObjectName(item="h")))
        few, many = ([named] * SEEN_OF_MOVE_MAX, [named] * (SEEN_OF_MOVE_MAX + 1))
        assert await refused(stub.Execute(ddl.ExecuteRequest(statements=[move], seen=few), timeout=60)) != (
            await refused(stub.Execute(ddl.ExecuteRequest(statements=[move], seen=many), timeout=60))
        )
