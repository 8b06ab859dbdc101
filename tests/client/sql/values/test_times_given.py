"""Days and times as texts, on their way into tables: what PostgreSQL makes of them, or refused."""

import psycopg
import pytest
from client.sql.support import rows, sessions

from persist.client.sql.errors import SqlError, SqlFailed
from persist.client.sql.parse.literals import ROWS_MIN

GIVEN = {
    "timestamp": [
        "2024-01-31 10:11:12.1234567", "2024-01-31 10:11:12.9999995", "2024-01-31 10:11:12.1234565", "infinity",
        "-infinity", "+INFINITY", "0044-03-15 10:11:12 BC", "2024-01-31", "2024-01-31T10:11:12Z", "2024-1-3 1:2:3",
        "2024-01-31 10:11:12+02", "epoch", " 2024-01-31 10:11:12 ", "2024-01-31 24:00:00", "2024-01-31 10:11:60",
        "10000-01-01", "inf", "now", "-0044-03-15 00:00:00", "2024-01-31 24:00:01", "2024-02-30", "2024-13-01",
        "2024-01-31 10", "24-01-31", "2024-01-31 10:11:12 PM", "2024-01-31 10:11:12 XYZ", "0000-01-01",
        "294277-01-01", "4714-01-01 BC", "2024-01-31 10:60:00",
    ],
    "timestamptz": [
        "infinity", "0044-03-15 10:11:12 BC", "0044-03-15 10:11:12+02 BC", "2024-01-31 10:11:12.1234567-0230",
        "2024-01-31 10:11:12 +02:30", "2024-01-31 10:11", "2024-01-31", "2024-01-31 10:11:12 Z",
        "2024-01-31 10:11:12+16", "2024-01-31 10:11:12+02:30:15",
    ],
    "date": [
        "infinity", "-infinity", "0044-03-15 BC", "2024-01-31 23:59:59.9999999", "2024-1-3", "2024/01/03",
        "12024-01-31", "0000-01-01", "today", "0001-12-31 BC", "0005-02-29 BC", "0004-02-29 BC",
    ],
    "time": [
        "10:11:12.1234567", "10:11", "10:11:12+02", "2024-01-31 10:11:12", "23:59:59.9999994", "23:59:59.9999999",
        "24:00:00", "10", "10:11:12 PM", "25:00:00",
    ],
}  # fmt: skip


async def put(session, texts, *, many):
    """What a column has once one of these texts, or many of them, was put there; None: refused."""
    await session.execute("delete from t")
    listed = [f"({at}, '{text}')" for at, text in enumerate(texts)]
    more = [f"({len(texts) + at}, null)" for at in range(ROWS_MIN)] if many else []
    try:
        await session.execute(f"insert into t values {', '.join(listed + more)}")
    except SqlFailed:
        return None
    return [row[0] for row in await rows(session, f"select c::text from t where id < {len(texts)} order by id")]


async def test_they_are_what_postgresql_makes_of_them_or_refused(fresh_postgres_uri):
    with psycopg.connect(fresh_postgres_uri(), autocommit=True) as peer:
        peer.execute("SET TimeZone = 'UTC'")
        async with sessions() as (session,):
            for kind, texts in GIVEN.items():
                await session.execute(f"drop table if exists t; create table t (id int primary key, c {kind})")
                taken = {}
                for text in texts:
                    try:
                        ((wanted,),) = peer.execute(f"select ('{text}'::{kind})::text".encode()).fetchall()
                    except psycopg.Error:
                        wanted = None
                    found = await put(session, [text], many=False)
                    if found is not None:
                        assert found == [wanted], (kind, text)
                        taken[text] = wanted
                assert len(taken) > len(texts) / 3
                assert await put(session, list(taken), many=True) == list(taken.values())


async def test_what_copy_wrote_it_reads(tmp_path):
    texts = ("infinity", "0044-03-15 10:00:00.5 BC", "12024-01-31 00:00:00", "2024-01-31 10:11:12.123457")
    async with sessions(files=True) as (session,):
        made = "(id int primary key, d date, w timestamp, z timestamptz)"
        await session.execute(f"create table t {made}; create table u {made}")
        for at, text in enumerate(texts):
            await session.execute("insert into t values ($1, $2, $2, $2)", [at, text])
        for kind in ("csv", "jsonl", "parquet"):
            await session.execute(f"copy t to '{tmp_path / 'a'}.{kind}'; copy u from '{tmp_path / 'a'}.{kind}'")
            wanted = await rows(session, "select * from t order by id")
            assert await rows(session, "delete from u returning *") == wanted


async def test_what_copy_wrote_of_bytes_and_of_numbers_it_reads(tmp_path):
    given = [b"\\x41", b"\\", b"\xff\x00", b"", b'a,"b\n', None]
    numbers = [1.5, float("inf"), float("-inf"), 0.1, None, 5e-324]
    async with sessions(files=True) as (session,):
        made = "(id int primary key, z bytea, f double precision, g double precision)"
        await session.execute(f"create table t {made}; create table u {made}")
        for at, (z, f) in enumerate(zip(given, numbers, strict=True)):
            await session.execute("insert into t values (?, ?, ?, 0.5)", [at, z, f])
        for kind in ("csv", "jsonl", "parquet", "arrow"):
            await session.execute(f"copy t to '{tmp_path / 'a'}.{kind}'; copy u from '{tmp_path / 'a'}.{kind}'")
            assert await rows(session, "delete from u returning *") == await rows(
                session, "select * from t order by id"
            )
        with pytest.raises(SqlError, match="two columns have one name"):
            await session.execute(f"copy (select 1 as a, 2 as a) to '{tmp_path / 'b'}.json'")
        assert not [*tmp_path.glob("*b.json*")]


async def test_half_of_a_character_is_refused_by_name():
    async with sessions() as (session,):
        await session.execute("create table t (id int primary key, s text)")
        for text, given in (
            ("select ?", ["a\ud800b"]),
            ("insert into t values (1, ?)", ["\udfff"]),
            ("insert into t values (1, :s)", {"s": "\udfff"}),
            ("select * from t where s = any(?)", [["a", "\udc00"]]),
            ("select 'a\ud800'", None),
            ("comment on table t is 'a\ud800'", None),
        ):
            with pytest.raises(SqlFailed, match="half of a character"):
                await session.execute(text, given)
        assert await rows(session, "select * from t") == []
