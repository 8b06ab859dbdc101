"""Fences around SQL: nothing a statement says reaches another file, host or environment, nor takes all there is."""

import asyncio
import os

import duckdb
import pyarrow as pa
import pytest
from client.sql.support import rows, sessions

from persist.client.sql.errors import SqlError, SqlFailed, SqlLimit, SqlNotSupported
from persist.client.sql.run.engine import Engine
from persist.client.sql.run.instances import Instance, Limits
from persist.client.sql.run.relations import Rows
from persist.errors import PersistError

SECRET = "the-secret-of-this-file"

ATTACKS = [
    "select * from read_csv('{path}')",
    "select * from read_csv_auto('{path}')",
    "select * from read_text('{path}')",
    "select * from read_blob('{path}')",
    "select * from read_parquet('{path}')",
    "select * from read_json('{path}')",
    "select * from parquet_scan('{path}')",
    "select * from parquet_metadata('{path}')",
    "select * from sniff_csv('{path}')",
    "select * from glob('{folder}/*')",
    "select * from '{path}'",
    'select * from "{path}"',
    "select * from 'https://example.org/x.csv'",
    "select * from 's3://bucket/x.parquet'",
    "select * from query('select 1')",
    "select * from query_table('t')",
    "select * from json_execute_serialized_sql('x')",
    "select * from duckdb_settings()",
    "select * from duckdb_secrets()",
    "select * from pragma_database_size()",
    "select * from pragma_table_info('t')",
    "select * from which_secret('s3://x', 's3')",
    "select * from information_schema.tables",
    "select * from duckdb_tables",
    "select * from sqlite_master",
    "select * from pg_catalog.pg_settings",
    "select * from python_secret",
    "select * from rows from (read_text('{path}'))",
    "select * from lateral read_text('{path}') x",
    "select * from (values (1)) v(a), lateral repeat_row(1, 2) x",
    "select * from (values (1)) v(a), lateral main.checkpoint() x",
    "select * from (values (1)) v(a), lateral (repeat_row(1, 2)) x",
    "select * from t, read_text('{path}')",
    "select (select content from read_text('{path}'))",
    "with x as (select * from read_text('{path}')) select * from x",
    "select * from (values (1)) v, lateral (select * from read_text('{path}')) w",
    "select getenv('PATH')",
    "select current_setting('temp_directory')",
    "select current_query()",
    "select current_database()",
    "select getvariable('x')",
    "select nextval('s')",
    "select setseed(0.5)",
    "select write_log('x')",
    "select sleep_ms(100000)",
    "select pg_read_file('{path}')",
    "select txid_current()",
    "attach '{path}' as other",
    "copy t to '{out}'",
    "copy (select 1) to '{out}'",
    "copy t from '{path}'",
    "export database '{folder}'",
    "import database '{folder}'",
    "install httpfs",
    "load '{path}'",
    "pragma database_list",
    "set threads = 64",
    "set enable_external_access = true",
    "set memory_limit = '1TB'",
    "reset lock_configuration",
    "create secret (type s3)",
    "create macro m() as 1",
    "create table x as select * from read_text('{path}')",
    "create view x as select * from read_text('{path}')",
    "create materialized view x as select content from read_text('{path}')",
    "insert into t select 1, content from read_text('{path}')",
    "update t set name = (select content from read_text('{path}'))",
    "update t set name = x.content from read_text('{path}') x",
    "delete from t using read_text('{path}') x",
    "insert into t values (1, 'x') returning (select content from read_text('{path}'))",
    "subscribe (select * from read_text('{path}'))",
    "explain select * from read_text('{path}')",
    "select 1; call pragma_version()",
    "select 1 into outfile '{out}'",
    "from read_text('{path}')",
    "describe t",
    "summarize t",
    "checkpoint",
    "vacuum",
    "detach persist",
    "use memory",
    "prepare x as select 1",
    "select * from t for system_time as of 5",
]

python_secret = pa.table({"secret": [SECRET]})


@pytest.fixture
def files(tmp_path):
    path = tmp_path / "secret.csv"
    path.write_text(f"name\n{SECRET}\n")
    return {"path": path, "folder": tmp_path, "out": tmp_path / "out.csv"}


async def test_no_statement_reaches_a_file_a_host_or_the_process(files, monkeypatch):
    monkeypatch.chdir(files["folder"])
    before = set(os.listdir(files["folder"]))
    async with sessions() as (session,):
        await session.execute("create table t (id bigint primary key, name text)")
        for attack in ATTACKS:
            text = attack.format(**files)
            with pytest.raises(PersistError) as refused:
                await session.execute(text)
            assert SECRET not in str(refused.value)
        assert await rows(session, "select * from t") == []
    assert set(os.listdir(files["folder"])) == before


@pytest.mark.parametrize("fence", ["engine", "instance"])
async def test_the_engine_by_itself_reaches_nothing_either(files, fence):
    """Nor does what it runs on, which is not asked to: the engine runs nothing but queries."""
    engine = Engine()
    here = {"r": Rows(pa.table({"a": [1]}))}
    instance = Instance(threads=1, memory_mib=64)
    beneath = instance.cursor()
    beneath.register("r", here["r"])
    for text in [
        "select * from read_text('{path}')",
        "select * from '{path}'",
        "select * from python_secret",
        "copy r to '{out}'",
        "copy r to ':memory:'",
        "attach '{folder}/x.db'",
        "set threads = 9",
        "reset lock_configuration",
        "set disabled_filesystems = ''",
        "install httpfs",
        "load httpfs",
        "select * from 'https://example.org/x.parquet'",
        "create persistent secret s (type http)",
    ]:
        if fence == "engine":
            with pytest.raises(SqlError):
                await engine.table(text.format(**files), here)
        else:
            with pytest.raises(duckdb.Error):
                beneath.execute(text.format(**files))
    assert (await engine.table("select a from r", here)).to_pylist() == [{"a": 1}]
    assert not files["out"].exists()
    beneath.close()
    instance.close()


async def test_copy_reads_and_writes_files_where_that_is_allowed_only(files):
    async with sessions(files=True) as (session,):
        await session.execute("create table t (name text primary key)")
        (copied,) = await session.execute(f"copy t from '{files['path']}'")
        assert copied.tag == "COPY 1"
        for suffix in ("csv", "json", "parquet", "arrow"):
            out = files["folder"] / f"out.{suffix}"
            await session.execute(f"copy t to '{out}'; delete from t; copy t from '{out}'")
            assert await rows(session, "select * from t") == [(SECRET,)]
        with pytest.raises(SqlFailed, match="this file cannot be read"):
            await session.execute("copy t from '/nonexistent/x.csv'")
        with pytest.raises(SqlError, match="the format of this file is not known"):
            await session.execute("copy t to 'x'")
    async with sessions() as (session,):
        await session.execute("create table t (name text primary key)")
        with pytest.raises(SqlNotSupported, match="COPY reads and writes files at the client"):
            await session.execute(f"copy t from '{files['path']}'")


async def test_memory_is_limited():
    engine = Engine(Limits(memory_bytes=32 << 20, threads=1))
    with pytest.raises(SqlLimit, match="more memory"):
        await engine.table("select list(g) from generate_series(1, 50000000) as s(g)", {})
    assert (await engine.table("select 1 as a", {})).num_rows == 1


async def test_time_is_limited_and_the_next_statement_runs():
    async with sessions() as (session,):
        await session.execute("set statement_timeout = '200ms'")
        with pytest.raises(SqlLimit, match="took too long"):
            await session.execute("select count(*) from generate_series(1, 100000000000) as s(g) where g % 7 = 8")
        await session.execute("reset statement_timeout")
        assert await rows(session, "select 1") == [(1,)]


async def test_a_cancelled_statement_ends_in_the_engine_too():
    async with sessions() as (session,):
        query = "select count(*) from generate_series(1, 100000000000) as s(g) where g % 7 = 8"
        task = asyncio.create_task(session.execute(query))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await rows(session, "select 2") == [(2,)]


async def test_errors_of_rows_are_told_without_the_text_that_was_made():
    async with sessions() as (session,):
        await session.execute("create table t (id bigint primary key, name text); insert into t values (1, 'x')")
        with pytest.raises(SqlFailed, match="no whole number got=x") as refused:
            await session.execute("select name::int from t")
        assert "persist_relation" not in str(refused.value)
        with pytest.raises(SqlError):
            await session.execute("select id, count(*) from t")


@pytest.mark.parametrize("number", ["12345678901234567890", "9007199254740993, 1.5"])
async def test_copy_makes_no_other_number_of_one_that_becomes_a_text(tmp_path, number):
    path = tmp_path / "t.json"
    path.write_text("".join(f'{{"name": {each.strip()}}}\n' for each in number.split(",")))
    async with sessions(files=True) as (session,):
        await session.execute("create table t (name text primary key)")
        with pytest.raises(SqlFailed, match="is not kept by a float"):
            await session.execute(f"copy t from '{path}'")
        assert await rows(session, "select * from t") == []
