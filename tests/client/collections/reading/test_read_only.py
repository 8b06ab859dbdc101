"""Names at a location that is only read: all that looks works, and writes nothing; tables with what their log has."""

import shutil
from pathlib import Path

import pytest
from client.sql.support import rows
from client.support import SMALL

from persist import aio
from persist.client.collections.reading.frozen import uncopied
from persist.client.sql.session import SqlSession
from persist.errors import NotYetAvailable, PersistError, StoreReadOnly

MADE = """
create table t (id int primary key, s text); create table u (a int); create table d (a int) with (mode = direct);
create table empty (a int); create view v as select s, count(*) as n from t group by s;
create materialized view m as select count(*) as n from u;
insert into t values (1, 'a'), (2, 'b'), (3, 'c'); insert into u values (7), (7), (8); insert into d values (5);
select * from t, u, d, m;
"""
LATER = """
delete from t where id = 1; update t set s = 'z' where id = 2; insert into t values (4, 'd');
begin; delete from u where a = 7; insert into u values (8), (9); commit; alter table t add column more int;
insert into t values (5, 'e', 5);
"""
QUERIES = {
    "select * from t order by id": [(2, "z", None), (3, "c", None), (4, "d", None), (5, "e", 5)],
    "select a from u order by a": [(8,), (8,), (9,)],
    "select * from d": [(5,)],
    "select * from empty": [],
    "select * from v order by s": [("c", 1), ("d", 1), ("e", 1), ("z", 1)],
    "select t.id, u.a from t join u on u.a = 9 and t.id > 3 order by id": [(4, 9), (5, 9)],
    "select count(*) from t where s > 'c' and id in (2, 4)": [(2,)],
    "select 1": [(1,)],
    "show isolation": [("strict serializable",)],
    "begin; select id from t order by id; select a from u; commit; select id from t where id = 4": [(4,)],
}


def is_kept(path: Path) -> bool:
    """Whether a file is one of the location: what SQLite shares among its readers is not."""
    return path.is_file() and not path.name.endswith("-shm")


async def copied(tmp_path: Path) -> Path:
    """A copy of a directory, taken while rows were in the log alone, whose files may not be written."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    async with await aio.embedded(live, settings=SMALL) as client:
        await client.sql(MADE)
        environment = await client.environment()
        await environment.close()  # so that nothing copies the log beside
    async with await aio.embedded(live, settings=SMALL) as client:
        session = SqlSession(await client.environment())
        while await rows(session, "select n from m") != [(3,)]:
            pass  # it is of its last refresh time, each time
        await session.execute(LATER)
        shutil.copytree(live, copy, ignore=shutil.ignore_patterns("*.sock"))
        await session.close()
    return copy


async def test_reading_statements_work(tmp_path: Path):
    place = await copied(tmp_path)
    before = {path: path.read_bytes() for path in place.rglob("*") if is_kept(path)}
    async with await aio.embedded(place, read_only=True, settings=SMALL) as client:
        session = SqlSession(await client.environment())
        item = await session.environment.resolve("t")
        assert item.data is not None
        async with await client.open_reader(item.data) as reader:
            rest = await uncopied(client, item, reader, client.location.attempts.deadline(None))
        assert rest is not None
        assert rest.updates.num_rows  # or the test would show nothing of logs
        for text, wanted in QUERIES.items():
            assert await rows(session, text) == wanted, text
        assert ("t",) in [row[2:3] for row in await rows(session, "show tables")]
        for text in ("explain select * from t", "explain timestamp for select * from t, u", "show columns from t"):
            assert await rows(session, text)
        assert await rows(session, "select n from m") == [(3,)]  # before what came later, or after it
        contents = await session.environment.read("t", columns=["id"], where=[("id", "<", 4)])
        assert sorted(row["id"] for row in await contents.to_pylist()) == [2, 3]
        for text in (
            "insert into t values (9, 'x', 1)",
            "delete from t",
            "create table w (a int)",
            "begin; update t set s = 'q'; commit",
        ):
            with pytest.raises(PersistError):
                await session.execute(text)
            await session.execute("rollback")
        with pytest.raises(StoreReadOnly):
            await session.subscribe("subscribe t")
        with pytest.raises(NotYetAvailable, match="only read"):
            await session.execute("select * from t as of '2100-01-01'")
        await session.close()
    assert {path: path.read_bytes() for path in place.rglob("*") if is_kept(path)} == before


async def test_a_copy_whose_table_its_log_is_ahead_of_from_the_first_row_on_is_read(tmp_path: Path):
    """Nothing is readable in the shard itself yet: it begins at the time it was made, and has come to none."""
    live = tmp_path / "live"
    async with await aio.embedded(live) as client:
        await client.sql("CREATE TABLE t (id int)")
        for count in (1, 2):
            await client.sql(f"INSERT INTO t VALUES ({count})")
            copy = tmp_path / f"copy{count}"
            shutil.copytree(live, copy, ignore=shutil.ignore_patterns("*.sock"))
            async with await aio.embedded(copy, read_only=True) as copied:
                assert (await copied.sql("SELECT count(*) FROM t"))[-1].rows == [(count,)]
                found = await copied.read("t")
                assert sorted(row["id"] for row in await found.to_pylist()) == [*range(1, count + 1)]
