"""Names of an environment in Spark: complete when they are loaded, and several at one checked time.

What docs/reading.md shows of Spark is here, too.
"""

import itertools
from typing import Any

import pyarrow as pa
import pytest

import persist
import pyspark_persist
from persist.core.catalog.ddl.statements import CreateSource, CreateTable, Export, QualifiedName
from persist.core.catalog.values import Retain
from persist.core.time.errors import MultipleTimelines
from persist_ingest.location import Location, release
from pyspark_persist.finding import found
from pyspark_persist.options.names import WRITE
from pyspark_persist.options.parsing import parse_write

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})


@pytest.fixture(scope="module")
def tables(tmp_path_factory: Any) -> Any:
    """A place, and two tables of its environment whose rows come through a log."""
    place = str(tmp_path_factory.mktemp("names"))
    with persist.embedded(place) as client, client.environment() as environment:
        for name in ("orders", "lines"):
            environment.execute(CreateTable(QualifiedName(name), SCHEMA, retain=Retain()))
        environment.execute(
            CreateSource(QualifiedName("cdc"), "files", exports=(Export("changes", SCHEMA),), timeline="U.brought")
        )
        shards = [environment.resolve(name).data for name in ("orders", "lines")]
        yield place, client, [client.table(shard, mode="wal") for shard in shards if shard is not None]


def load(spark: Any, place: str, name: str, **more: Any) -> list[tuple[Any, ...]]:
    frame = spark.read.format("persist").options(location=place, table=name, **more).load()
    return sorted((row.id, row.name) for row in frame.collect())


def test_a_name_is_loaded_with_every_write_that_had_returned(spark: Any, tables: Any):
    place, _, (orders, _) = tables
    before = orders.insert([{"id": 1, "name": "a"}])
    assert load(spark, place, "orders") == [(1, "a")]
    orders.insert([{"id": 2, "name": "b"}])
    assert load(spark, place, "persist.public.orders") == [(1, "a"), (2, "b")]
    assert load(spark, place, "public.orders", asOf=before) == [(1, "a")]


def test_names_of_one_timeline_are_joined_at_one_time(spark: Any, tables: Any):
    place, client, (orders, lines) = tables
    with client.transaction() as transaction:
        for table in (orders, lines):
            transaction.insert(table, [{"id": 7, "name": "x"}])
    both = pyspark_persist.timedomain(spark, ["orders", "lines"], location=place)
    with client.transaction() as transaction:
        for table in (orders, lines):
            transaction.insert(table, [{"id": 8, "name": "y"}])
    joined = both["orders"].join(both["lines"], "id")
    assert [row.id for row in joined.collect()] == [7]
    assert both["orders"].columns == ["id", "name"]
    assert "query timestamp" in str(both.explanation)
    later = pyspark_persist.timedomain(spark, list(both), at_least=both.ts + 1, location=place)
    assert later.ts > both.ts
    assert later["lines"].count() == 2
    both.release()
    later.release()


def test_names_of_several_timelines_are_refused(spark: Any, tables: Any):
    place, _, _ = tables
    with pytest.raises(MultipleTimelines) as refused:
        pyspark_persist.timedomain(spark, ["orders", "changes"], location=place)
    assert "U.brought" in refused.value.details["timelines"]


def test_a_table_in_a_log_is_not_written_by_its_id(spark: Any, tables: Any):
    place, _, (orders, _) = tables
    frame = spark.createDataFrame([(7, "x")], "id long, name string")
    table = pyspark_persist.PersistTable.forShard(spark, orders.shard, location=place)
    before = orders.snapshot().to_arrow().num_rows
    writes: Any = (lambda: table.append(frame), lambda: table.overwrite(frame), lambda: table.delete("id = 1"))
    for write in writes:
        with pytest.raises(persist.InvalidArgument, match="written through a log") as refused:
            write()
        assert "persist.public.orders" in refused.value.hint
    assert orders.snapshot().to_arrow().num_rows == before


def test_what_is_written_by_name_is_refused_where_its_keys_or_its_rows_are_not_the_writers(tmp_path: Any):
    place = str(tmp_path)
    with persist.embedded(place) as client:
        client.sql(
            "create table keyed (id bigint primary key) with (mode = direct); create table t (id bigint);"
            "create materialized view kept as select id from t; create table bag (id bigint) with (mode = direct);"
            "create table former (id bigint primary key) with (mode = direct); alter table former rename to latter"
        )
        for name, message in (
            ("keyed", "a table with a primary key"),
            ("former", "a table with a primary key"),
            ("kept", "nothing else writes its rows"),
            ("t", "written through a log"),
        ):
            for create, given in itertools.product(
                (False, True), ({"table": name}, {"shard": str(client.named(name))})
            ):
                options = parse_write({"location": place, "keyColumns": "id", **given}, WRITE)
                with pytest.raises(persist.InvalidArgument, match=message):
                    found(options, create=create, writes=True)
        bag = parse_write({"location": place, "table": "bag"}, WRITE)
        assert found(bag, writes=True).target.shard == str(client.named("bag"))
    release(Location(directory=place))


def test_a_column_that_sql_added_is_there_in_spark_and_null_before(spark: Any, tmp_path: Any):
    place = str(tmp_path)
    with persist.embedded(place) as client, client.session() as session:
        session.execute("create table t (id bigint primary key, name text) with (retain history forever)")
        session.execute("create table bag (id bigint) with (mode = direct)")
        before = session.execute("insert into t values (1, 'a'), (2, 'b'); select * from t")[-1].ts
        reader = spark.read.format("persist").options(location=place)
        old = reader.option("table", "t").load()
        bag = spark.createDataFrame([(1,)], "id long")
        bag.write.format("persist").options(location=place, table="bag").mode("append").save()
        for name in ("t", "bag"):
            session.execute(f"alter table {name} add column note string, add n int")
        session.execute(
            "update t set note = 'x' where id = 1; delete from t where id = 2; insert into t values (3, 'c')"
        )
        # A frame that was loaded before goes on with its columns.
        assert sorted(old.collect()) == [(1, "a"), (3, "c")]
        assert sorted(reader.option("table", "t").load().collect()) == [(1, "a", "x", None), (3, "c", None, None)]
        assert sorted(reader.option("table", "t").option("asOf", before).load().collect()) == [
            (1, "a", None, None),
            (2, "b", None, None),
        ]
        both = pyspark_persist.timedomain(spark, ["t", "bag"], location=place)
        assert both["t"].columns == ["id", "name", "note", "n"]
        assert both["bag"].collect() == [(1, None, None)]
        both.release()
        # Who writes past SQL gives the column or does not.
        wide = spark.createDataFrame([(2, "y", 7)], "id long, note string, n int")
        for frame in (bag, wide):
            frame.write.format("persist").options(location=place, table="bag").mode("append").save()
        assert sorted(session.execute("select id, note, n from bag order by id, n")[-1].rows, key=str) == [
            (1, None, None),
            (1, None, None),
            (2, "y", 7),
        ]
    release(Location(directory=place))
