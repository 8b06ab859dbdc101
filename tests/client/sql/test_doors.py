"""SQL through the client: blocking and asyncio, with sessions that are never shared."""

import asyncio

import pyarrow as pa
import pytest
from client.support import client_of, memory_place

import persist
from persist.client.sql.errors import SqlError, SqlNotSupported, SqlSyntax


def test_the_blocking_client_runs_sql(tmp_path):
    with persist.embedded(str(tmp_path / "data")) as client:
        client.sql("create table t (id bigint primary key, name text)")
        client.sql("insert into t values (:id, :name)", {"id": 1, "name": "ada"})
        (result,) = client.sql("select name, id from t where id = ?", [1])
        assert (result.rows, pa.table(result).to_pylist()) == ([("ada", 1)], [{"name": "ada", "id": 1}])
        with client.session() as session:
            session.execute("begin; insert into t values (2, 'bob')")
            assert session.in_transaction
            assert session.execute("select count(*) from t")[0].rows == [(2,)]
            assert client.sql("select count(*) from t")[0].rows == [(1,)]
            assert session.insert("t", pa.table({"id": [3], "name": ["eve"]})).tag == "INSERT 1"
            session.execute("commit")
        assert client.sql("select count(*) from t")[0].rows == [(3,)]
        with pytest.raises(SqlSyntax):
            client.sql("selct 1")


async def test_what_a_call_began_or_set_ends_with_it():
    async with client_of(memory_place()) as client:
        with pytest.raises(SqlError, match="nothing of it happened"):
            await client.sql(
                "create table t (id bigint primary key); begin; insert into t values (1); set isolation = serializable"
            )
        assert (await client.sql("select count(*) from t; show isolation"))[-1].rows == [("strict serializable",)]
        assert (await client.sql("select count(*) from t"))[0].rows == [(0,)]
        counted = await asyncio.gather(*(client.sql(f"insert into t values ({n})") for n in range(8)))
        assert len(counted) == 8
        assert (await client.sql("select count(*) from t"))[0].rows == [(8,)]


async def test_what_reaches_beyond_the_location_is_refused_with_what_carries_it_out():
    async with client_of(memory_place()) as client:
        with pytest.raises(SqlNotSupported, match="where their upstream is reached") as refused:
            await client.sql("create source s from load-generator (type = counter)")
        assert "persist source create" in refused.value.hint
        await client.sql("create table t (id bigint primary key); create sink k from t into files (path = 'x')")
        assert (await client.sql("show sources"))[0].rows == []
        assert [row[2] for row in (await client.sql("show sinks"))[0].rows] == ["k"]
