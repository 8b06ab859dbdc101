"""Queries of views that do not go on: the error names the view, how far it is, and where its reason is."""

import asyncio
import logging

import pyarrow as pa
import pytest
from client.sql.support import rows, sessions
from client.support import client_of, file_place
from sure import sure

import persist
from persist.client.sql.session import SqlSession
from persist.core.catalog.ddl.statements import CreateSource, Export, QualifiedName
from persist.core.catalog.ddl.system_tables import UNTOLD
from persist.errors import NotYetAvailable


@pytest.mark.parametrize("query", ["select n from v", "begin; select n from v", "select t.name from t, v, idle"])
async def test_a_query_that_waits_in_vain_names_the_view_that_lags_and_where_its_reason_is(query, caplog):
    async with sessions() as [session]:
        await session.execute(
            "create table t (name text); insert into t values ('1'); create table idle (id bigint);"
            "create materialized view v with (refresh on commit) as select cast(name as bigint) as n from t"
        )
        assert await rows(session, "select n from v") == [(1,)]
        with caplog.at_level(logging.WARNING, "persist.views"):
            await session.execute("insert into t values ('x'); set statement_timeout = '4s'")
            with pytest.raises(NotYetAvailable, match=r"^persist\.public\.v not complete at this time yet") as late:
                await session.execute(query)
        item = await session.environment.resolve("v")
        upper = (await session.environment.access.client.recent_upper(sure(item.data))).time
        assert late.value.details["objects"] == f"persist.public.v (upper [{upper}])"
        assert int(late.value.details["as_of"]) >= sure(upper)
        # Where the error says that it is.
        assert late.value.hint.startswith("SHOW MATERIALIZED VIEWS")
        said = [each.getMessage() for each in caplog.records]
        assert any("persist.public.v does not go on at [" in each for each in said), said


async def test_a_subscription_waits_no_longer_than_it_may_and_names_the_view_that_lags():
    async with sessions() as [session]:
        await session.execute(
            "create table t (name text); insert into t values ('1');"
            "create materialized view v with (refresh on commit) as select cast(name as bigint) as n from t"
        )
        assert await rows(session, "select n from v") == [(1,)]
        await session.execute("insert into t values ('x')")
        with pytest.raises(NotYetAvailable) as late:
            await session.environment.subscribe("v", timeout=1)
        assert late.value.details["objects"].startswith("persist.public.v (upper")


async def test_why_a_view_does_not_go_on_is_seen_by_all_who_may_read_it(tmp_path, caplog):
    """Also by processes that do not lead, and when none does any more, until it goes on."""
    place = file_place(tmp_path)
    looks = "select state, reason, stalled_since_ms from persist_catalog.materialized_views where name = 'v'"
    async with sessions(place=place) as [session], client_of(place) as other:
        await session.execute(
            "create table t (name text); insert into t values ('1');"
            "create materialized view v with (refresh on commit) as select cast(name as bigint) as n from t;"
            "create role stranger; select n from v; show materialized views"
        )
        assert await rows(session, looks) == [("ok", "", None)]
        with caplog.at_level(logging.WARNING, "persist.views"):
            await session.execute("insert into t values ('x')")
            elsewhere = SqlSession(await other.environment())
            while (found := await rows(elsewhere, looks))[0][0] == "ok":
                await asyncio.sleep(0.05)
        ((state, reason, since),) = found
        assert (state, since > 0) == ("stalled", True)
        assert "no whole number got=x" in reason
        shown = sure((await elsewhere.execute("show materialized views"))[0].table).to_pylist()
        assert [(each["name"], each["state"], each["reason"]) for each in shown] == [("v", "stalled", reason)]
        item = await session.environment.resolve("v")
        upper = (await other.recent_upper(sure(item.data))).time
        assert f"persist.public.v does not go on at [{upper}]" in caplog.text
        # Reasons may have values in them.
        await elsewhere.execute("set role stranger")
        assert (await rows(elsewhere, looks))[0][1] == UNTOLD
        await elsewhere.close()
    async with client_of(place) as late:
        reading = await (await late.environment()).read("persist_catalog.materialized_views")
        assert (await reading.to_arrow())["reason"].to_pylist() == [reason]
    async with sessions(place=place) as [session]:
        # That the next leader looks at it takes it back.
        await session.execute("delete from t where name = 'x'; create table another (id int)")
        while await rows(session, looks) != [("ok", "", None)]:
            await asyncio.sleep(0.05)
        await session.execute("drop materialized view v")


async def test_what_waits_for_a_source_names_the_source_and_how_it_is_ingested():
    async with sessions() as [session]:
        environment = session.environment
        client = environment.access.client
        shard = await client.named("shop.orders", create=True)
        schema = persist.Schema(key={"id": pa.int64()})
        writer = await client.open_writer(shard, schema=schema)
        now = client.location.runtime.now_ms()
        await writer.append([(({"id": 1}, {}), now, 1)], now + 1)
        exports = (Export("orders", schema, shard),)
        await environment.execute(CreateSource(QualifiedName("shop"), "postgres", exports=exports, timeline="M"))
        await session.execute(
            "create table t (id bigint); create view plain as select * from orders;"
            "create materialized view kept as select count(*) as n from plain"
        )
        told: list[str] = []
        environment.reads.readers.told = lambda lagging: told.append(str(lagging))
        for name in ("plain", "kept"):
            told.clear()
            await session.execute("insert into t values (1); set statement_timeout = '5s'")
            with pytest.raises(NotYetAvailable, match="not complete at this time yet") as late:
                await session.execute(f"select * from {name}, t")
            assert late.value.hint.startswith("is it ingested? persist source run shop; or is the table stalled?")
            assert f"persist.public.orders (upper [{now + 1}])" in late.value.details["objects"]
            assert len(told) == 1, told
            assert told[0].startswith(f"waiting for persist.public.orders, complete before {now + 1} (2")
            assert "persist source run shop; or is the table stalled?" in told[0]
