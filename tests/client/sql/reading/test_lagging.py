"""Queries of views that do not go on: the error names the view, how far it is, and where its reason is."""

import logging

import pytest
from client.sql.support import rows, sessions

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
        assert any(f"persist.public.v does not go on at [{upper}]" in each.getMessage() for each in caplog.records)
