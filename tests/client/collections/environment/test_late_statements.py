"""Statements that arrive late: what was refused does not happen, and what happens does on the objects that were named.

A network that stands still, at the level of RPCs: a first attempt is kept, while its client goes on by another one.
Guarantee 12.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pyarrow as pa
import pytest
from client.support import Place, client_of, memory_place
from services.catalog.cataloging import catalog_server
from services.catalog.test_catalog_truth import Losing

from persist.client.collections.environment import Environment
from persist.client.sql.session import SqlSession
from persist.core.catalog.ddl.statements import AdvanceHold, CreateTable, Drop, Grant, QualifiedName
from persist.core.catalog.kinds import COMMENT, SYSTEM_PRIVILEGE
from persist.core.catalog.values import ObjectType, Space
from persist.core.data.schema import Schema
from persist.core.ids import Token
from persist.core.time.errors import DependentObjects
from persist.errors import Indeterminate, InvalidArgument, PersistError
from persist.settings import Settings
from persist.testing.twice import _raw

ROWS = Schema({"id": pa.int64()})
QUICK = Settings(poll_first_ms=5, poll_max_ms=50, timeout_ms=20_000)
T = QualifiedName("t")
DROP = Drop(ObjectType.TABLE, (T,))


class Standing(Losing):
    """The next attempts at Execute stand still: they arrive when ``arrive`` lets them, wherever that leads to."""

    keeps = 0
    """Attempts that are kept; the ones after them are passed on."""

    def __init__(self, endpoints: list[str]) -> None:
        super().__init__(endpoints)
        self.kept: list[tuple[str, bytes, Any]] = []

    def _unary(self, method: str, name: str) -> Callable[..., Any]:
        pass_on = super()._unary(method, name)

        async def handle(request: bytes, context: Any) -> bytes:
            if name == "Execute" and self.keeps:
                self.keeps -= 1
                metadata = [each for each in context.invocation_metadata() if each[0].startswith("persist")]
                self.kept.append((method, request, metadata))
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection stands still")
            answer: bytes = await pass_on(request, context)
            return answer

        return handle

    async def arrive(self, at: str | None = None) -> str:
        """What the kept attempts are answered, at another server if one is given: ``done``, or the last refusal."""
        told = ""
        channel = self._channels[0] if at is None else grpc.aio.insecure_channel(at)
        for method, request, metadata in self.kept:
            try:
                await channel.unary_unary(method, _raw, _raw)(request, metadata=metadata, timeout=20)
                told = "done"
            except grpc.aio.AioRpcError as refused:
                told = refused.details() or "refused"
        self.kept.clear()
        return told


@asynccontextmanager
async def standing(place: Place) -> AsyncIterator[tuple[Standing, Environment, SqlSession]]:
    async with (
        catalog_server(place, generation=1) as server,
        Standing([server.endpoint]) as proxy,
        client_of(place, settings=QUICK) as client,
    ):
        environment = await client.environment(endpoints=proxy.endpoint)
        session = SqlSession(environment)
        yield proxy, environment, session
        await session.close()
        await environment.close()


async def found(session: SqlSession, text: str) -> list[tuple[Any, ...]]:
    return (await session.execute(text))[-1].rows


async def test_a_refused_statement_does_not_happen_when_its_first_attempt_arrives():
    async with standing(memory_place()) as (proxy, environment, session):
        await session.execute("create table t (id bigint); insert into t values (1); create view v as select * from t")
        proxy.keeps = 1
        with pytest.raises(DependentObjects):
            await environment.execute(DROP)
        await session.execute("drop view v; insert into t values (42)")
        assert proxy.kept
        assert await proxy.arrive() != "done"
        assert sorted(await found(session, "select id from t")) == [(1,), (42,)]


async def test_a_refused_statement_does_not_happen_at_a_later_leader_either():
    place = memory_place()
    async with standing(place) as (proxy, environment, session):
        await session.execute("create table t (id bigint); insert into t values (1); create view v as select * from t")
        proxy.keeps = 1
        with pytest.raises(DependentObjects):
            await environment.execute(DROP)
        await session.execute("drop view v")
        async with catalog_server(place, generation=2) as later, client_of(place, settings=QUICK) as client:
            assert "refused when it came before" in await proxy.arrive(later.endpoint)
            other = await client.environment(endpoints=later.endpoint)
            assert (await other.resolve("t", strict=True)).name.item == "t"


async def test_a_request_under_a_token_of_its_caller_stays_refused_behind_a_later_leader():
    place, token = memory_place(), Token.named("tests", "refused")
    async with standing(place) as (_, environment, session):
        await session.execute("create table t (id bigint); create view v as select * from t")
        with pytest.raises(DependentObjects):
            await environment.execute(DROP, token=token)
        await session.execute("drop view v")
        with pytest.raises(DependentObjects):
            await environment.execute(DROP, token=token)
        async with catalog_server(place, generation=2) as later, client_of(place, settings=QUICK) as client:
            other = await client.environment(endpoints=later.endpoint)
            with pytest.raises(InvalidArgument, match="refused when it came before"):
                await other.execute(DROP, token=token)
            await other.execute(DROP)


async def test_a_statement_that_changed_nothing_changes_nothing_when_its_first_attempt_arrives():
    place = memory_place()
    async with standing(place) as (proxy, _, session):
        await session.execute("create table t (id bigint)")
        proxy.keeps = 1
        assert "skipping" in (await session.execute("create table if not exists t (id bigint)"))[-1].notice
        await session.execute("drop table t")
        async with catalog_server(place, generation=2) as later, client_of(place, settings=QUICK) as client:
            await proxy.arrive(later.endpoint)
            other = await client.environment(endpoints=later.endpoint)
            made = await other.items(ObjectType.TABLE)
            assert [each.name for each in made if each.id.space is Space.USER] == []


LATE = {
    "drop": ("drop table t", "drop table t; create table t (id bigint); insert into t values (77)", "select * from t"),
    "drop if exists": (
        "drop table if exists w",
        "create table w (id bigint); insert into w values (77)",
        "select * from w",
    ),
    "drop schema": (
        "drop schema s cascade",
        "drop schema s cascade; create schema s; create table s.x (id bigint); insert into s.x values (77)",
        "select * from s.x",
    ),
    "rename": (
        "alter table t rename to old",
        "alter table t rename to old; create table t (id bigint); insert into t values (77); drop table old cascade",
        "select * from t",
    ),
    "drop hold": ("drop hold h", "drop hold h; create hold h on t", "show holds"),
    "advance": ("alter hold h advance", "drop hold h; create hold h on t", "show holds"),
    "grant": (
        "grant select on table t to eve",
        "drop table t cascade; create table t (id bigint); insert into t values (77)",
        "show tables",
    ),
    "grant to a role": (
        "grant select on table t to eve",
        "drop role eve; create role eve",
        "show roles",
    ),
    "grant after a revoke": (
        "grant select on table t to eve",
        "revoke select on table t from eve",
        "show tables",
    ),
    "revoke after a grant": (
        "revoke select on table t from eve",
        "grant select on table t to eve",
        "show tables",
    ),
    "grant on a schema": (
        "grant create on schema s to eve",
        "revoke create on schema s from eve",
        "show schemas",
    ),
    "owner": (
        "alter table t owner to eve",
        "alter table t owner to eve; alter table t owner to persist",
        "show tables",
    ),
    "owner of a schema": (
        "alter schema s owner to eve",
        "alter schema s owner to eve; alter schema s owner to persist",
        "show schemas",
    ),
    "retain after a later one": (
        "alter table t set (retain history for '1s')",
        "alter table t set (retain history for '2h')",
        "show tables",
    ),
    "rename there and back": (
        "alter table t rename to old",
        "alter table t rename to old; alter table old rename to t",
        "show tables",
    ),
    "comment": ("comment on table t is 'late'", "comment on table t is null", "show tables"),
    "comment on a column": ("comment on column t.id is 'late'", "comment on column t.id is 'newer'", "show tables"),
    "replaced again": (
        "create or replace view v as select 1 as a",
        "create or replace view v as select 2 as a",
        "select * from v",
    ),
    "system": (
        "alter system set max_hold_lag = '1h'",
        "alter system set max_hold_lag = '5h'",
        "show all",
    ),
    "by a role that is another one by now": (
        "create table s.x (id bigint)",
        "revoke all on schema s from eve; drop role eve; create role eve; grant usage, create on schema s to eve",
        "show tables",
    ),
    "retain": (
        "alter table t set (retain history for '1s')",
        "drop table t cascade; create table t (id bigint); insert into t values (77)",
        "show tables",
    ),
    "columns": (
        "alter table t add column more text",
        "drop table t cascade; create table t (id bigint); insert into t values (77)",
        "select * from t",
    ),
    "view": (
        "create or replace view v as select 1 as a",
        "drop view v; create view v as select 2 as a",
        "select * from v",
    ),
    "table in a schema": ("create table s.x (id bigint)", "drop schema s cascade; create schema s", "show tables"),
    "table in a database": (
        "create table d.public.x (id bigint)",
        "drop database d cascade; create database d",
        "show tables",
    ),
    "schema in a database": ("create schema d.x", "drop database d cascade; create database d", "show schemas"),
}


@pytest.mark.parametrize("case", LATE)
async def test_a_statement_in_doubt_does_not_act_on_what_was_created_since_under_a_name(case: str):
    doubtful, since, look = LATE[case]
    async with standing(memory_place()) as (proxy, environment, session):
        await session.execute(
            "create role eve; create schema s; create database d; "
            "create table t (id bigint) with (retain history for '1h'); insert into t values (1); "
            "create view v as select 1 as a"
        )
        if "hold h" in doubtful:
            await session.execute("create hold h on t")
        acting = session
        if "by a role" in case:
            await session.execute("grant usage, create on schema s to eve")
            acting = SqlSession(environment, role="eve")
        await in_doubt(proxy, acting, doubtful)
        await session.execute("set statement_timeout = '60s'")
        await session.execute(since)
        before = await found(session, look), await objects(environment)
        assert re.search("means another object|was changed since", await proxy.arrive())
        assert (await found(session, look), await objects(environment)) == before


async def in_doubt(proxy: Standing, session: SqlSession, doubtful: str) -> None:
    """Have attempts at a statement kept until its time is up. It gets more where it was up before there was one."""
    proxy.keeps = 1_000_000
    for seconds in (1, 10, 100):
        await session.execute(f"set statement_timeout = '{seconds}s'")
        with pytest.raises(PersistError) as failed:
            await session.execute(doubtful)
        if proxy.kept:
            break
        assert not isinstance(failed.value, Indeterminate), "nothing was asked for: it did not happen"
    assert isinstance(failed.value, Indeterminate)
    proxy.keeps = 0
    await session.execute("set statement_timeout = '60s'")


async def objects(environment: Environment) -> list[tuple[object, ...]]:
    view = await environment.strict_view()
    items = [(each.id, str(each.name), each.owner, each.acls, each.retain, each.schema) for each in view.items()]
    places = [(id, each.name, each.owner, each.acls) for id, each in view.schemas.items()]
    said = [*view.objects(SYSTEM_PRIVILEGE).items(), *view.objects(COMMENT).items()]
    return [*items, *places, *said, *sorted(view.variables.items())]


async def test_grants_that_are_given_at_the_same_time_are_all_there():
    async with standing(memory_place()) as (_, environment, session):
        names = [f"r{number}" for number in range(4)]
        await session.execute("create table t (id bigint);" + ";".join(f"create role {name}" for name in names))
        others = [SqlSession(environment) for _ in names]
        await asyncio.gather(
            *(each.execute(f"grant select on t to {name}") for each, name in zip(others, names, strict=True))
        )
        view = await environment.strict_view()
        granted = {acl.grantee for acl in view.resolve(T, environment.session).acls}
        assert granted == {view.role(name) for name in names}
        await environment.execute(Grant("C", ObjectType.SYSTEM, QualifiedName("system"), ("r0",)))
        await environment.execute(Grant("C", ObjectType.SYSTEM, QualifiedName("system"), ("r0",), revoke=True))
        await session.execute("drop table t; create table t (id bigint); grant select on t to r0")
        assert [*(await environment.strict_view()).counts.values()] == [2, 1]


async def test_a_repetition_at_a_later_leader_names_what_was_made_whatever_has_the_name_by_now():
    place, token = memory_place(), Token.named("tests", "again")
    async with standing(place) as (_, environment, session):
        (first,) = await environment.execute(CreateTable(T, ROWS), token=token)
        await session.execute("alter table t rename to old; create table t (id bigint)")
        async with catalog_server(place, generation=2) as later, client_of(place, settings=QUICK) as client:
            other = await client.environment(endpoints=later.endpoint)
            (again,) = await other.execute(CreateTable(T, ROWS), token=token)
            assert (again.id, again.name) == (first.id, "persist.public.old")
            await other.execute(Drop(ObjectType.TABLE, (QualifiedName("old"),)))
            (gone,) = await other.execute(CreateTable(T, ROWS), token=token)
            # This leader remembers; what it says is of its first answer.
            assert gone.id == first.id


async def test_a_refused_advance_does_not_happen_when_its_first_attempt_arrives():
    place = memory_place()
    async with standing(place) as (proxy, environment, session):
        await session.execute("create role eve; create table t (id bigint) with (retain history for '1h')")
        await session.execute("create hold h on t")
        eve = SqlSession(environment, role="eve")
        proxy.keeps = 1
        with pytest.raises(PersistError):
            await eve.execute("alter hold h advance")
        await session.execute("alter hold h owner to eve")
        before = await found(session, "select at from mz_catalog.mz_holds")
        async with catalog_server(place, generation=2) as later:
            assert "refused when it came before" in await proxy.arrive(later.endpoint)
        async with client_of(place, settings=QUICK) as client, catalog_server(place, generation=3) as third:
            other = await client.environment(endpoints=third.endpoint)
            again = SqlSession(other)
            assert await found(again, "select at from mz_catalog.mz_holds") == before
            await again.close()
        await eve.close()


async def test_an_advance_is_done_once_though_another_leader_is_asked_again():
    place, token = memory_place(), Token.named("tests", "advance")
    async with standing(place) as (_, environment, session):
        await session.execute("create table t (id bigint) with (retain history for '1h'); create hold h on t")
        await environment.execute(AdvanceHold(QualifiedName("h")), token=token)
        at = await found(session, "select at from mz_catalog.mz_holds")
        async with catalog_server(place, generation=2) as later, client_of(place, settings=QUICK) as client:
            other = await client.environment(endpoints=later.endpoint)
            (again,) = await other.execute(AdvanceHold(QualifiedName("h")), token=token)
            assert "before" in again.notice
            with pytest.raises(InvalidArgument, match="under this token"):
                await other.execute(AdvanceHold(QualifiedName("h"), 5), token=token)
            session2 = SqlSession(other)
            assert await found(session2, "select at from mz_catalog.mz_holds") == at
            await session2.close()
