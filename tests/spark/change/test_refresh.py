"""TPC-H's refresh functions as changes of two tables: after each, what DuckDB holds after the same one."""

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from spark.change.refresh import made

from pyspark_persist import PersistTable

ORDERS, PER_REFRESH, SEED = 1_500, 60, 20
KEYS = {"orders": ["o_orderkey"], "lineitem": ["l_orderkey", "l_linenumber"]}
QUERIES = (
    "select l_returnflag, count(*), sum(l_quantity), sum(l_extendedprice), count(l_comment) from lineitem group by 1",
    "select o_orderstatus, count(*), sum(o_totalprice), sum(l_extendedprice) from orders"
    " join lineitem on l_orderkey = o_orderkey where o_orderdate < date '1996-01-01' group by 1",
    "select count(*) from lineitem where l_orderkey not in (select o_orderkey from orders)",
)


@pytest.fixture
def tables(spark: Any, tmp_path: Any) -> dict[str, PersistTable]:
    """Both tables as they are populated."""
    first = made(0, ORDERS, refresh=0, seed=SEED)
    opened = {name: PersistTable.forName(spark, name, location=str(tmp_path / "data")) for name in KEYS}
    for name, rows in (("orders", first.orders), ("lineitem", first.lines)):
        opened[name].append(spark.createDataFrame(rows), keyColumns=KEYS[name])
    return opened


@pytest.fixture
def model() -> Iterator[Any]:
    """DuckDB with the same population."""
    first = made(0, ORDERS, refresh=0, seed=SEED)
    with duckdb.connect() as connection:
        connection.register("o", first.orders)
        connection.register("l", first.lines)
        connection.execute("create table orders as from o")
        connection.execute("create table lineitem as from l")
        yield connection


def same(spark: Any, tables: dict[str, PersistTable], model: Any) -> None:
    """Row for row, and by queries over both."""
    for name, table in tables.items():
        table.createView(name)
        columns = [row[0] for row in model.execute(f"describe {name}").fetchall()]
        wanted = model.execute(f"from {name}").fetchall()
        assert sorted(map(tuple, table.toDF().select(*columns).collect()), key=repr) == sorted(wanted, key=repr)
        assert table.count() == len(wanted)
    for query in QUERIES:
        assert sorted(map(tuple, spark.sql(query).collect())) == sorted(model.execute(query).fetchall())


def test_tables_are_duckdbs_after_each_refresh_function(
    spark: Any, tables: dict[str, PersistTable], model: Any
) -> None:
    """Old orders are taken away by matching their keys, then by a condition as text."""
    same(spark, tables, model)
    for pair, by_key in enumerate((True, False), 1):
        added = made((pair - 1) * PER_REFRESH, PER_REFRESH, refresh=1, seed=SEED + pair)
        for name, rows in (("orders", added.orders), ("lineitem", added.lines)):
            merge = tables[name].merge(spark.createDataFrame(rows), KEYS[name]).whenNotMatchedInsertAll()
            done = merge.execute()
            assert (done.rows_inserted, done.rows_updated) == (rows.num_rows, 0)
            assert merge.execute().rows == 0  # all of it is there
            model.register("rows", rows)
            model.execute(f"insert into {name} by name from rows")
        same(spark, tables, model)
        old = made(0, ORDERS, refresh=0, seed=SEED).orders["o_orderkey"]
        keys = old.slice((pair - 1) * PER_REFRESH, PER_REFRESH).combine_chunks()
        listed = ", ".join(map(str, keys.to_pylist()))
        for name, table in tables.items():
            column = KEYS[name][0]
            gone = model.execute(f"delete from {name} where {column} in ({listed})").fetchall()[0][0]
            if by_key:
                source = spark.createDataFrame(pa.table({column: keys}))
                done = table.merge(source, [column]).whenMatchedDelete().execute()
            else:
                done = table.delete(f"{column} in ({listed})")
            assert done.rows_deleted == gone > 0
        same(spark, tables, model)
