"""Views and tables of Spark SQL."""

import datetime
from typing import Any

import pyarrow as pa
import pytest

import persist

Where = dict[str, str]


def test_view_is_read_and_written_and_tables_are_refused(spark: Any, where: Where, client: Any, contents: Any) -> None:
    frame = spark.createDataFrame([(1, "a")], "id bigint, name string")
    options = ", ".join(f"{name} '{value}'" for name, value in where.items())
    save = frame.write.format("persist").options(**where).option("keyColumns", "id").mode("append")
    for refused in (
        lambda: save.saveAsTable("made"),
        lambda: spark.sql(f"CREATE TABLE made USING persist OPTIONS (shard '{where['shard']}')"),
        lambda: spark.sql("CREATE TABLE made USING persist OPTIONS (table 't') AS SELECT 1L AS id"),
    ):
        message = ""
        try:
            refused()
        except Exception as error:
            message = str(error)
        assert "CREATE TEMPORARY VIEW" in message
    assert not spark.catalog.tableExists("made")
    assert persist.ShardId.parse(where["shard"]) not in client.list_shards()
    save.save()
    spark.sql(f"CREATE TEMPORARY VIEW shown USING persist OPTIONS ({options})")
    spark.sql("INSERT INTO shown VALUES (2, 'b')")
    assert contents(where) == [(1, "a", 1), (2, "b", 1)]
    assert spark.sql("SELECT id FROM shown WHERE name = 'a'").collect() == [(1,)]
    spark.catalog.dropTempView("shown")


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_table_functions_show_a_table_as_it_was_and_how_it_changed(spark: Any, tmp_path: Any) -> None:
    place = str(tmp_path / "place")
    schema = persist.Schema(
        key={"id": pa.int64()}, val={"at": pa.timestamp("us", "UTC"), "tags": pa.list_(pa.string())}
    )
    moment = datetime.datetime(2026, 6, 1, 12)
    with persist.embedded(place) as client:
        shard = client.named("flights", create=True)
        writer = client.open_writer(shard, schema=schema)
        first, second = ({"id": 1}, {"at": moment, "tags": ["a", "b"]}), ({"id": 2}, {"at": None, "tags": None})
        writer.append([(first, 5, 2)], new_upper=6)
        writer.append([(first, 8, -1), (second, 9, 1)], new_upper=10)
    whole = f"location => '{place}'"
    shown = (1, moment, ["a", "b"])
    assert rows(spark.sql(f"SELECT * FROM persist_snapshot('flights', 5, {whole})")) == [shown] * 2
    assert rows(spark.sql(f"SELECT id FROM persist_snapshot('{shard}', {whole}) WHERE id > 1")) == [(2,)]
    assert rows(spark.sql(f"SELECT * FROM persist_snapshot(table => 'flights', as_of => 3, {whole})")) == []
    changes = f"persist_changes('flights', 6, 9, {whole})"
    found = rows(spark.sql(f"SELECT _commit_version, _change_type, id FROM {changes}"))
    assert found == [(8, "delete", 1), (9, "insert", 2)]
    joined = f"SELECT count(*) AS n FROM {changes} JOIN persist_snapshot('flights', 5, {whole}) USING (id)"
    assert rows(spark.sql(joined)) == [(2,)]
    view = f"CREATE OR REPLACE TEMPORARY VIEW old AS SELECT * FROM persist_snapshot('flights', 8, {whole})"
    spark.sql(view)
    assert rows(spark.sql("SELECT id FROM old")) == [(1,)]
    spark.catalog.dropTempView("old")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("persist_snapshot('flight', {whole})", "did you mean flights"),
        ("persist_snapshot('flights', 50, {whole})", "not complete yet"),
        ("persist_snapshot('flights', 'noon', {whole})", "asOf"),
        ("persist_snapshot('flights', cast(rand() as int), {whole})", "must be a constant"),
        ("persist_snapshot('flights', place => 'x')", "no such argument"),
        ("persist_changes('flights', NULL, {whole})", "needs a start"),
    ],
)
def test_table_function_that_asks_for_what_is_not_there_says_so(
    spark: Any, tmp_path: Any, call: str, told: str
) -> None:
    place = str(tmp_path / "place")
    with persist.embedded(place) as client:
        shard = client.named("flights", create=True)
        client.open_writer(shard, schema=persist.Schema(key={"id": pa.int64()})).append([], new_upper=4)
    with pytest.raises(Exception, match=told):
        spark.sql("SELECT * FROM " + call.format(whole=f"location => '{place}'")).collect()


WHERES = [
    ("id = 1 or name like 'b%'", [1, 2]),
    ("not (id in (1, 2) or name is null)", [3]),
    ("id between 2 and 3 and name not like '%b%'", [3]),
    ("year(day) = 2026 and (month(day) >= 6 or DAY(day) = 1)", [1, 2]),
    ("date(moment) = '2026-06-01' or ts = 7", [1, 3]),
    ("id not between 2 and 4", [1]),
]


@pytest.mark.parametrize(("where_text", "found"), WHERES)
def test_conditions_of_a_read_choose_what_sparks_own_do(
    spark: Any, where: Where, client: Any, where_text: str, found: list[int]
) -> None:
    val = {"name": pa.string(), "day": pa.date32(), "moment": pa.timestamp("us", "UTC"), "_ts": pa.int64()}
    writer = client.open_writer(where["shard"], schema=persist.Schema(key={"id": pa.int64()}, val=val))
    held = [
        (1, "abc", datetime.date(2026, 1, 1), datetime.datetime(2026, 6, 1, 23, 59), 1),
        (2, "bc", datetime.date(2026, 7, 3), datetime.datetime(2026, 6, 2), 2),
        (3, "c", datetime.date(2025, 7, 3), None, 7),
        (4, None, None, None, None),
    ]
    updates = [(({"id": row[0]}, dict(zip(val, row[1:], strict=True))), 0, 1) for row in held]
    writer.append(updates, new_upper=1)
    frame = spark.read.format("persist").options(**where)
    assert sorted(row.id for row in frame.option("where", where_text).load().collect()) == found
    assert sorted(row.id for row in frame.load().where(where_text).collect()) == found
