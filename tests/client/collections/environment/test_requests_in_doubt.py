"""Requests whose answer was lost: the caller is answered that it may have happened, or that it did, and never that not.

Guarantee 12: once an attempt of a call may have happened, no refusal of a later one is taken for its outcome.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from catalog.memory_log import MemoryRows
from client.support import Place, client_of, memory_place
from services.catalog.cataloging import ENVIRONMENT, catalog_server
from services.catalog.test_catalog_truth import Losing
from services.catalog.test_catalog_writes import LossyLog

from persist import aio
from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.log.shard_log import open_shard_log
from persist.client.collections.environment import Environment
from persist.client.collections.executor import Executor
from persist.client.collections.seat import Occupied, take_seat
from persist.core.catalog.ddl.described import Described, Frontiers, Session
from persist.core.catalog.ddl.effects import Effects
from persist.core.catalog.ddl.statements import CreateRole, CreateTable, QualifiedName
from persist.core.catalog.errors import NotWritable
from persist.core.catalog.values import Id
from persist.core.data.schema import Schema
from persist.core.ids import Token
from persist.errors import Indeterminate, PersistError, UsageError
from persist.runtime import system
from persist.settings import Settings
from persist.storage.layout import CONSENSUS_NAME

ROWS = Schema({"id": pa.int64()}, {"name": pa.string()})
QUICK = Settings(poll_first_ms=5, poll_max_ms=50, timeout_ms=3_000)
TABLE = CreateTable(QualifiedName("t"), ROWS)
SILENCE = 15.0
"""Seconds after which the leader does not answer."""
STATEMENTS = 60.0
"""Seconds that a statement may take: far more than it does."""


class Cutting(Losing):
    """``after`` is awaited once Execute was carried out; ``away``: no method answers but that one and GetStatus."""

    away = False
    after: Callable[[], Awaitable[None]] | None = None

    def _unary(self, method: str, name: str) -> Callable[..., Any]:
        carry_out = super()._unary(method, name)

        async def handle(request: bytes, context: Any) -> bytes:
            if name != "Execute":
                return await carry_out(request, context)
            losing, self.losing = self.losing, ""
            answer = await carry_out(request, context)
            after, self.after = self.after, None
            if after is not None:
                await after()
            if losing:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "lost by the proxy")
            return answer

        return handle

    def _stream(self, method: str) -> Callable[..., Any]:
        pass_on = super()._stream(method)

        async def handle(request: bytes, context: Any) -> AsyncIterator[bytes]:
            if self.away:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
            async for each in pass_on(request, context):
                if self.away:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
                yield each

        return handle


@asynccontextmanager
async def behind_a_proxy() -> AsyncIterator[tuple[Cutting, Environment, aio.Client]]:
    place = memory_place()
    async with (
        catalog_server(place, generation=1) as server,
        Cutting([server.endpoint]) as proxy,
        client_of(place, settings=QUICK) as client,
    ):
        environment = await client.environment(endpoints=proxy.endpoint)
        await environment.execute(CreateRole("first"), timeout=STATEMENTS)
        yield proxy, environment, client


async def names_at(client: aio.Client) -> set[str]:
    catalog = DurableCatalog(await open_shard_log(client, ENVIRONMENT))
    dumped = await catalog.dump(kinds=["item"])
    await catalog.close()
    return {name for name in ("t",) if any(name.encode() in update.row.value for update in dumped.updates)}


async def test_statement_that_happened_is_told_so_though_nothing_can_be_read_any_more():
    async with behind_a_proxy() as (proxy, environment, _):

        async def leave() -> None:
            proxy.away = True

        proxy.after = leave
        (done,) = await environment.execute(TABLE, timeout=STATEMENTS)
        assert done.name == "persist.public.t"
        proxy.away = False
        assert (await environment.resolve("t")).id == done.id


async def test_refusal_of_who_leads_no_more_is_not_the_outcome_of_a_statement_whose_answer_was_lost():
    async with behind_a_proxy() as (proxy, environment, client):

        async def depose() -> None:
            # By a program that none of the endpoints knows.
            await DurableCatalog(await open_shard_log(client, ENVIRONMENT)).open(1)

        proxy.after, proxy.losing = depose, "Execute"
        with pytest.raises(Indeterminate) as told:
            await environment.execute(TABLE, timeout=STATEMENTS)
        assert isinstance(told.value.__cause__, UsageError)
        assert await names_at(client) == {"t"}
        with pytest.raises(NotWritable):
            await environment.execute(CreateRole("second"), timeout=STATEMENTS)


@asynccontextmanager
async def with_another_leader(tmp_path: Path) -> AsyncIterator[tuple[Environment, Environment, Cutting]]:
    """Who leads in a directory, and who does not and finds it behind a proxy."""
    async with (
        await aio.embedded(tmp_path, settings=QUICK) as leader,
        await aio.embedded(tmp_path, settings=QUICK) as client,
    ):
        leading, following = await leader.environment(), await client.environment()
        await leading.execute(CreateRole("first"), timeout=STATEMENTS)
        host = system().hostname
        found, seat = take_seat(leader.location.home, ENVIRONMENT, host=host), leading._leading._seat
        assert isinstance(found, Occupied)
        assert seat is not None
        async with Cutting([found.address]) as proxy:
            seat.say(proxy.endpoint, host=host)
            yield leading, following, proxy


async def test_closing_an_environment_cancels_nobody_who_waits_for_a_statement(tmp_path: Path):
    async with with_another_leader(tmp_path) as (leading, following, proxy):
        proxy.after = following.close
        with pytest.raises(Indeterminate, match="closed during the call"):
            await following.execute(TABLE, timeout=STATEMENTS)
        assert (await leading.resolve("t", strict=True)).name.item == "t"


async def test_refusal_of_another_process_is_not_the_outcome_of_a_statement_whose_answer_was_lost(tmp_path: Path):
    place = Place(f"file:{tmp_path}/blob", f"sqlite:{tmp_path / CONSENSUS_NAME}")
    async with (
        with_another_leader(tmp_path) as (leading, following, proxy),
        catalog_server(place, follow=True) as follower,
    ):

        async def leave() -> None:
            proxy._channels = [grpc.aio.insecure_channel(follower.endpoint)]

        proxy.after, proxy.losing = leave, "Execute"
        with pytest.raises(Indeterminate):
            await following.execute(TABLE, timeout=SILENCE)
        await proxy._channels[0].close()
        assert (await leading.resolve("t", strict=True)).name.item == "t"


class Nothing:
    """Storage without shards. What is undone is in ``undone``."""

    def __init__(self) -> None:
        self.undone: list[Effects] = []

    async def frontiers(self, collections: Iterable[Described]) -> Mapping[Id, Frontiers]:
        return {}

    async def each_frontiers(
        self, collections: Iterable[Described]
    ) -> tuple[Mapping[Id, Frontiers], Mapping[Id, PersistError]]:
        return {}, {}

    async def prepare(self, effects: Effects) -> None:
        pass

    async def settle(self, effects: Effects) -> None:
        pass

    async def undo(self, effects: Effects) -> None:
        self.undone.append(effects)


@asynccontextmanager
async def executing() -> AsyncIterator[tuple[LossyLog, Nothing, Executor]]:
    """An executor whose log fails as it is asked to."""
    log, storage = LossyLog(MemoryRows()), Nothing()
    catalog = await DurableCatalog(log).open(1)
    settings = Settings(retry_first_ms=1, retry_max_ms=1, timeout_ms=60_000)
    executor = Executor(catalog, storage, ENVIRONMENT, settings=settings, runtime=system())
    await executor.begin()
    try:
        yield log, storage, executor
    finally:
        await executor.close()


async def test_failure_after_a_commit_in_doubt_is_not_its_outcome_and_gives_up_nothing():
    async with executing() as (log, storage, executor):
        token = Token.named("tests", "role")
        log.next = ["lost", "failed"]
        with pytest.raises(Indeterminate):
            await executor.execute([CreateRole("r")], Session(), token=token)
        assert not storage.undone
        done = await executor.execute([CreateRole("r")], Session(), token=token)
        assert done.executed[0].tag == "CREATE ROLE"
