"""What a catalog has any client may have put there: texts of views are looked at where they run; roles stay theirs."""

import pyarrow as pa
import pytest
from client.sql.support import rows, sessions

from persist.client.sql.errors import SqlError, SqlSyntax
from persist.client.sql.session import SqlSession
from persist.core.catalog.ddl.statements import CreateView, QualifiedName
from persist.core.catalog.errors import PrivilegeMissing
from persist.core.data.schema import Schema

COLUMNS = Schema(pa.schema([pa.field("a", pa.int64())]))
SECRET = QualifiedName("secret", "public", "persist")


async def made(session, text, reads=()):
    await session.environment.execute(CreateView(QualifiedName("w"), text, tuple(reads), COLUMNS))


@pytest.mark.parametrize(
    "text",
    [
        "select random() as a", "select current_setting('temp_directory') as a", "select getvariable('x') as a",
        "select write_log('x') as a", "select sleep_ms(1) as a", "select a from query('select 1 as a')",
        "drop table secret", "insert into secret values (2)", "selec", "", "select 1 as a; select 2 as a",
        "select a from persist.public.secret", "select now() as a", "select a from (select random() as a) x",
        "select " + "(select count(*) from persist.public.secret) + " * 60 + "1 as a",
    ],
)  # fmt: skip
@pytest.mark.parametrize("many", [False, True])
async def test_a_text_that_no_statement_made_does_not_run(text, many):
    more = " and " + " and ".join(f"w.a <> {at}" for at in range(200)) if many else ""
    async with sessions() as (session,):
        await session.execute("create table secret (a bigint)")
        await made(session, text)
        with pytest.raises(SqlError):
            await session.execute(f"select * from w where true{more}")


async def test_what_a_view_depends_on_it_reads():
    async with sessions() as (session,):
        await session.execute("create table secret (a bigint); insert into secret values (1)")
        await made(session, "select a from persist.public.secret", [SECRET])
        assert await rows(session, "select * from w") == [(1,)]
        await session.execute("create view s as select id from persist_catalog.objects; create view x as table w")
        assert len(await rows(session, "select * from s")) > 1
        await session.execute(
            "begin; create table n (a int); create view y as select a from n; create view z as select * from y;"
            "create or replace view x as select 5::bigint as a; create view q as select * from x; commit"
        )
        assert await rows(session, "select * from z") == []
        assert await rows(session, "select * from q") == [(5,)]


async def test_reset_gives_back_what_a_session_was_opened_with():
    async with sessions() as (session,):
        await session.execute("create role eve; create table secret (a int)")
        eve = SqlSession(session.environment, role="eve")
        for text in ("reset role", "set role = default", "set statement_timeout = '1m'; reset role"):
            await eve.execute(text)
            assert await rows(eve, "show role") == [("eve",)]
            with pytest.raises(PrivilegeMissing):
                await eve.execute("select * from secret")
        await eve.reset()
        assert await rows(eve, "show role") == [("eve",)]
        await eve.close()


async def test_a_text_that_is_no_statement_fails_the_transaction():
    async with sessions() as (session,):
        await session.execute("create table t (a int)")
        for wrong in ("insrt into t values (2)", "insert into t values (2) on conflict do nothing", "select 'a"):
            await session.execute("begin; insert into t values (1)")
            with pytest.raises(SqlError):
                await session.execute(wrong)
            with pytest.raises(SqlError, match="the transaction failed"):
                await session.execute("insert into t values (3)")
            assert (await session.execute("commit"))[0].tag == "ROLLBACK"
            assert await rows(session, "select * from t") == []
        with pytest.raises(SqlSyntax):
            await session.execute("insrt")
        await session.execute("insert into t values (4)")
        assert await rows(session, "select * from t") == [(4,)]


async def test_audit_events_are_rows():
    async with sessions() as (session,):
        await session.execute("create table t (a int); drop table t")
        found = await rows(session, "select event_type, object_type from persist_catalog.audit_events order by id")
        assert found[-2:] == [("create", "table"), ("drop", "table")]
        assert await rows(session, "begin; select count(*) > 1 from persist_catalog.audit_events") == [(True,)]
