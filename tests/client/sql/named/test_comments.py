"""COMMENT ON is shown, by SHOW and by the system's collections, until what it is on is dropped, or it is taken back."""

from client.sql.support import rows, sessions

MADE = """
create table t (id int primary key, s text); create view v as select id from t; create schema more; create role eve;
create index by_s on t (s); create hold h on t;
comment on table t is 'orders'; comment on column t.s is 'who'; comment on view v is 'it''s a view';
comment on index by_s is 'by who'; comment on hold h is 'for a report'; comment on schema more is 'more';
comment on database persist is 'all'; comment on role eve is 'who looks'; comment on column t.id is 'gone';
comment on column t.id is null;
"""
ALL = "select object_type, object_sub_id, comment from mz_catalog.mz_comments order by 1, 2 nulls first, 3"


async def test_comments_are_shown():
    async with sessions() as (session,):
        await session.execute(MADE)
        assert [(each[2], each[-1]) for each in await rows(session, "show tables")] == [("t", "orders")]
        assert [(each[2], each[-1]) for each in await rows(session, "show views")] == [("v", "it's a view")]
        assert [(each[2], each[-1]) for each in await rows(session, "show indexes")] == [("by_s", "by who")]
        assert [(each[2], each[-1]) for each in await rows(session, "show holds")] == [("h", "for a report")]
        columns = [(each[0], each[-1]) for each in await rows(session, "show columns from t")]
        assert columns == [("id", ""), ("s", "who")]
        assert ("persist", "more", "more") in await rows(session, "show schemas")
        assert await rows(session, "show databases") == [("persist", "all")]
        assert ("eve", "who looks") in await rows(session, "show roles like 'e%'")
        assert await rows(session, ALL) == [
            ("database", None, "all"),
            ("hold", None, "for a report"),
            ("index", None, "by who"),
            ("role", None, "who looks"),
            ("schema", None, "more"),
            ("table", None, "orders"),
            ("table", 2, "who"),
            ("view", None, "it's a view"),
        ]
        ours = "select o.name from mz_catalog.mz_comments as c join persist_catalog.objects as o using (id)"
        assert await rows(session, f"{ours} where object_type = 'view' and kind = 'view'") == [("v",)]
        await session.execute("comment on table t is null; drop view v; drop role eve; drop hold h; drop schema more")
        assert await rows(session, "select comment from mz_catalog.mz_comments order by 1") == [
            ("all",), ("by who",), ("who",),
        ]  # fmt: skip
