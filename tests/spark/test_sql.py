"""Views and tables of Spark SQL."""

from typing import Any

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
