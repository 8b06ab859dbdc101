"""Queries of views that do not go on: the error names the view, how far it is, and where its reason is."""

import logging

import pyarrow as pa
import pytest
from client.sql.support import rows, sessions

import persist
from persist.core.catalog.ddl.statements import CreateSource, Export, QualifiedName
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
        upper = (await session.environment.access.client.recent_upper(item.data)).time
        assert late.value.details["objects"] == f"persist.public.v (upper [{upper}])"
        assert int(late.value.details["as_of"]) >= upper
        # Where the error says that it is.
        assert "in the log of the process that leads" in late.value.hint
        said = [each.getMessage() for each in caplog.records]
        assert any("persist.public.v does not go on at [" in each for each in said), said


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
            assert late.value.hint.startswith("is it ingested? persist source run shop;"), late.value
            assert f"persist.public.orders (upper [{now + 1}])" in late.value.details["objects"]
            assert len(told) == 1, told
            assert told[0].startswith(f"waiting for persist.public.orders, complete before {now + 1} (2")
            assert told[0].endswith("persist source run shop")
