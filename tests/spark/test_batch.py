import dataclasses
import datetime
import decimal
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pytest

import persist
import pyspark_persist
from persist.machine.applier import Applier
from pyspark_persist import PersistTable
from pyspark_persist.options.names import WRITE
from pyspark_persist.options.parsing import parse_read, parse_write
from pyspark_persist.read import planning
from pyspark_persist.write.writing import Write

Contents = Callable[..., list[tuple[Any, ...]]]
Where = dict[str, str]


def rows(spark: Any, *given: tuple[int, str]) -> Any:
    return spark.createDataFrame(list(given), "id bigint, name string")


def append(frame: Any, where: Where, **options: object) -> None:
    texts = {name: str(value) for name, value in options.items()}
    frame.write.format("persist").options(**where).option("keyColumns", "id").options(**texts).mode("append").save()


def load(spark: Any, source: Where, **options: object) -> Any:
    return spark.read.format("persist").options(**source).options(**{n: str(v) for n, v in options.items()}).load()


def found(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def blobs(location: str, where: Where) -> int:
    """Part files of a shard, referenced or not."""
    return sum(1 for path in Path(location, "blob", where["shard"]).rglob("p*") if path.is_file())


def test_write_then_read_at_each_commit_time_gives_that_time(spark: Any, where: Where, contents: Contents) -> None:
    append(rows(spark, (1, "a"), (2, "b")), where, commitTime=10)
    append(rows(spark, (3, "c"), (3, "c")), where, commitTime=20)
    assert found(load(spark, where, asOf=10)) == [(1, "a"), (2, "b")]
    assert found(load(spark, where, versionAsOf=19)) == [(1, "a"), (2, "b")]
    assert found(load(spark, where)) == [(1, "a"), (2, "b"), (3, "c"), (3, "c")]
    assert contents(where) == [(1, "a", 1), (2, "b", 1), (3, "c", 2)]


def test_write_without_a_time_commits_at_the_clock(spark: Any, where: Where, client: Any) -> None:
    append(rows(spark, (1, "a")), where)
    first = client.recent_upper(persist.ShardId.parse(where["shard"])).time
    append(rows(spark, (1, "b")), where)
    assert first > 1_600_000_000_000
    assert found(load(spark, where, asOf=first - 1)) == [(1, "a")]
    assert found(load(spark, where)) == [(1, "a"), (1, "b")]


def test_write_of_diffs_with_times_places_every_row(spark: Any, where: Where) -> None:
    updates = [(1, "a", 3, 1), (1, "a", 7, -1), (1, "b", 7, 2)]
    append(
        spark.createDataFrame(updates, "id bigint, name string, _ts bigint, _diff bigint"),
        where,
        expectedUpper=0,
        newUpper=10,
    )
    assert found(load(spark, where, asOf=6)) == [(1, "a")]
    assert found(load(spark, where, asOf=9)) == [(1, "b"), (1, "b")]
    diffs = load(spark, where, mode="diffs", startingVersion=0)
    assert found(diffs) == [(1, "a", 3, 1), (1, "a", 7, -1), (1, "b", 7, 2)]
    assert found(load(spark, where, mode="diffs", asOf=9)) == [(1, "b", 9, 2)]


def test_write_from_a_stale_upper_changes_nothing_and_names_the_upper(
    spark: Any, where: Where, contents: Contents
) -> None:
    append(rows(spark, (1, "a")), where, commitTime=10)
    with pytest.raises(Exception, match=r"not the expected one.*upper=\[11\]"):
        append(rows(spark, (2, "b")), where, expectedUpper=5, newUpper=20)
    with pytest.raises(Exception, match="complete already"):
        append(rows(spark, (2, "b")), where, commitTime=10)
    assert contents(where) == [(1, "a", 1)]


def test_write_with_a_transaction_happens_once(spark: Any, where: Where, contents: Contents) -> None:
    for version in (1, 1, 2):
        append(rows(spark, (version, "a")), where, txnAppId="app", txnVersion=version)
    with pytest.raises(Exception, match="something else was committed under this version"):
        append(rows(spark, (3, "b"), (4, "b")), where, txnAppId="app", txnVersion=2)
    with pytest.raises(Exception, match="a later version was committed"):
        append(rows(spark, (3, "b")), where, txnAppId="app", txnVersion=1)
    assert contents(where) == [(1, "a", 1), (2, "a", 1)]


def test_write_to_an_unknown_shard_says_how_to_initialise_it(spark: Any, where: Where) -> None:
    with pytest.raises(Exception, match="keyColumns"):
        rows(spark, (1, "a")).write.format("persist").options(**where).mode("append").save()


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("id bigint, name string, extra int", "mergeSchema=true"),
        ("id bigint, name int", "cast it to string"),
        ("name string", "lacks a column"),
        ("id bigint, name string, _ts string", "cast _ts to bigint"),
    ],
)
def test_write_of_other_columns_is_refused_by_name(spark: Any, where: Where, ddl: str, message: str) -> None:
    append(rows(spark, (1, "a")), where, commitTime=1)
    with pytest.raises(Exception, match=message):
        append(spark.createDataFrame([], ddl), where, commitTime=2)


def test_write_with_merge_schema_adds_nullable_columns(spark: Any, where: Where) -> None:
    append(rows(spark, (1, "a")), where, commitTime=1)
    wider = spark.createDataFrame([(2, "b", 7)], "id bigint, name string, extra int")
    append(wider, where, commitTime=2, mergeSchema="true")
    append(spark.createDataFrame([(3,)], "id bigint"), where, commitTime=3)
    assert sorted(load(spark, where).collect(), key=lambda row: row.id) == [
        (1, "a", None),
        (2, "b", 7),
        (3, None, None),
    ]


def test_overwrite_replaces_everything_at_one_time(spark: Any, where: Where) -> None:
    append(rows(spark, (1, "a"), (2, "b"), (2, "b")), where, commitTime=1)
    frame = rows(spark, (2, "b"), (9, "z"))
    frame.write.format("persist").options(**where).option("commitTime", 5).mode("overwrite").save()
    assert found(load(spark, where, asOf=4)) == [(1, "a"), (2, "b"), (2, "b")]
    assert found(load(spark, where, asOf=5)) == [(2, "b"), (9, "z")]


def test_task_that_fails_after_its_upload_counts_once(
    spark: Any, where: Where, location: str, contents: Contents
) -> None:
    frame = spark.range(0, 40_000, numPartitions=4).selectExpr("id", "cast(id as string) as name")
    writer = frame.write.format("persist_task_fails").options(**where).option("keyColumns", "id")
    writer.option("commitTime", 1).mode("append").save()
    found_rows = contents(where)
    assert len(found_rows) == 40_000
    assert {count for _, _, count in found_rows} == {1}
    assert blobs(location, where) == 8, "both attempts of each task uploaded, and nothing was deleted"


def test_commit_that_fails_before_it_happens_leaves_no_shard(
    spark: Any, where: Where, location: str, client: Any
) -> None:
    frame = spark.range(0, 40_000, numPartitions=2).selectExpr("id", "cast(id as string) as name")
    with pytest.raises(Exception, match="before commit"):
        frame.write.format("persist_commit_fails_before").options(**where).option("keyColumns", "id").mode(
            "append"
        ).save()
    with pytest.raises(persist.ShardNotFound):
        client.recent_upper(where["shard"])
    assert blobs(location, where) == 2, "abort deletes nothing"


def test_commit_that_fails_after_it_happened_keeps_its_rows(spark: Any, where: Where, contents: Contents) -> None:
    frame = spark.range(0, 40_000, numPartitions=2).selectExpr("id", "cast(id as string) as name")
    with pytest.raises(Exception, match="after commit"):
        frame.write.format("persist_commit_fails_after").options(**where).option("keyColumns", "id").mode(
            "append"
        ).save()
    assert len(contents(where)) == 40_000


def test_frame_is_pinned_to_one_time_and_a_new_load_is_not(spark: Any, where: Where) -> None:
    append(rows(spark, (1, "a")), where, commitTime=1)
    frame = load(spark, where)
    assert frame.count() == 1
    append(rows(spark, (2, "b")), where, commitTime=2)
    assert frame.count() == 1
    assert frame.where("id > 1").count() == 0
    assert load(spark, where).count() == 2


def test_read_of_a_time_that_is_not_complete_is_refused(spark: Any, where: Where) -> None:
    append(rows(spark, (1, "a")), where, commitTime=1)
    with pytest.raises(Exception, match="waitForUpperMs"):
        load(spark, where, asOf=2).collect()


def test_read_with_an_unknown_option_says_what_was_meant(spark: Any, where: Where) -> None:
    with pytest.raises(Exception, match=r"did you mean asOf\?"):
        load(spark, where, as0f=3)


def test_read_of_an_unknown_shard_is_refused(spark: Any, where: Where) -> None:
    with pytest.raises(Exception, match="ShardNotFound"):
        load(spark, where)


def test_read_in_many_partitions_gives_every_row_once(spark: Any, where: Where) -> None:
    frame = spark.range(0, 200_000, numPartitions=2).selectExpr("id", "cast(id % 7 as string) as name")
    append(frame, where, commitTime=1)
    split = load(spark, where, minPartitions=3)
    assert split.rdd.getNumPartitions() == 3
    assert [tuple(row) for row in split.selectExpr("count(*)", "sum(id)", "count(distinct id)").collect()] == [
        (200_000, 199_999 * 100_000, 200_000)
    ]


def test_session_tells_its_planners_how_many_cores_it_has(
    spark: Any, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(spark.range(0, 50_000).selectExpr("id", "cast(id % 7 as string) as name"), where, commitTime=1)
    registered = list[Any]()
    monkeypatch.setattr(type(spark.dataSource), "register", lambda _, source: registered.append(source))
    pyspark_persist.register(spark)
    [source] = registered
    monkeypatch.setattr(planning, "PARALLEL_BYTES", 1)
    cut = source(where).reader(load(spark, where).schema).partitions()
    assert len(cut) == spark.sparkContext.defaultParallelism == 2


def test_rows_that_came_in_many_runs_are_each_there_as_often_as_was_added_less_what_was_taken(
    spark: Any, where: Where
) -> None:
    for time in (1, 2, 3):
        frame = spark.range(0, 20_000).selectExpr("id", "cast(id % 7 as string) as name", "id * 3 as other")
        append(frame, where, commitTime=time)
    for options, expected in (({}, 3), ({"columns": "name"}, 3), ({"columns": "name", "asOf": 2}, 2)):
        counted = load(spark, where, **options).groupBy("name").count().collect()
        assert {row["name"]: row["count"] for row in counted} == {
            str(n): expected * len(range(n, 20_000, 7)) for n in range(7)
        }
    gone = spark.range(0, 20_000, 2).selectExpr(
        "id", "cast(id % 7 as string) as name", "id * 3 as other", "-3L as _diff"
    )
    append(gone, where, commitTime=4)
    for options in ({}, {"columns": "other"}, {"columns": "id,other", "where": "name = '3'"}):
        frame = load(spark, where, **options)
        left = [n for n in range(1, 20_000, 2) if "where" not in options or n % 7 == 3]
        assert [tuple(row) for row in frame.selectExpr("count(*)", "sum(other)").collect()] == [
            (3 * len(left), 9 * sum(left))
        ]


def test_read_of_some_rows_and_columns_prunes(spark: Any, where: Where) -> None:
    append(rows(spark, *((n, f"n{n % 3}") for n in range(100))), where, commitTime=1)
    assert found(load(spark, where, keyMin=10, keyMax=12)) == [(10, "n1"), (11, "n2")]
    assert load(spark, where, where="id >= 10 and name = 'n1'").count() == 30
    assert load(spark, where, columns="name", keyMax=2).collect() == [("n0",), ("n1",)]
    projected = spark.read.format("persist").options(**where).schema("name string").load()
    assert projected.columns == ["name"]
    assert projected.distinct().count() == 3
    with pytest.raises(Exception, match="no such column"):
        spark.read.format("persist").options(**where).schema("nome string").load().collect()


def test_read_with_pushdown_gives_the_same_answers(spark: Any, where: Where) -> None:
    append(rows(spark, *((n, "x") for n in range(20))), where, commitTime=1)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert load(spark, where, pushdown="true").where("id > 9 and name = 'x'").count() == 10
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    # Without the option the class has no pushFilters: two scans of one relation stay independent.
    frame = load(spark, where)
    assert frame.where("id > 17").union(frame).count() == 22


def test_change_feed_shows_inserts_deletes_and_updates(spark: Any, where: Where) -> None:
    updates = [(1, "a", 3, 1), (2, "x", 3, 2), (1, "a", 7, -1), (1, "b", 7, 1), (2, "x", 8, -1)]
    append(spark.createDataFrame(updates, "id bigint, name string, _ts bigint, _diff bigint"), where)
    plain = load(spark, where, readChangeFeed="true", startingVersion=7).drop("_commit_timestamp")
    assert found(plain) == [(1, "a", "delete", 7), (1, "b", "insert", 7), (2, "x", "delete", 8)]
    paired = load(spark, where, readChangeFeed="true", startingVersion=4, endingVersion=7, computeUpdates="true")
    assert found(paired.drop("_commit_timestamp")) == [(1, "a", "update_preimage", 7), (1, "b", "update_postimage", 7)]
    net = load(spark, where, readChangeFeed="true", startingVersion="earliest", deduplicationMode="netChanges")
    assert found(net.select("id", "name", "_change_type")) == [(1, "b", "insert"), (2, "x", "insert")]
    stamp = plain_stamp = (
        load(spark, where, readChangeFeed="true", startingVersion=8).select("_commit_timestamp").collect()
    )
    assert stamp == plain_stamp
    assert stamp[0][0].replace(tzinfo=datetime.UTC).timestamp() == 0.008


def test_types_survive_the_round_trip(spark: Any, where: Where) -> None:
    ddl = (
        "id bigint, b boolean, i8 tinyint, i16 smallint, i32 int, f32 float, f64 double, s string, bin binary, d date,"
        " stamp timestamp, ntz timestamp_ntz, dec decimal(20,4), st struct<x:int,y:string>, ls array<int>,"
        " mp map<string,int>"
    )
    when = datetime.datetime(2013, 7, 4, 12, 30, 15, 123456)
    full = (
        1, True, -8, 16, 32, 0.5, 2.25, "é", b"\x00\xff", datetime.date(2013, 7, 4), when, when,
        decimal.Decimal("1234567890123456.7891"), (1, "y"), [1, None, 3], {"k": 1, "n": None},
    )  # fmt: skip
    empty = (2, *(None for _ in range(15)))
    frame = spark.createDataFrame([full, empty], ddl)
    append(frame, where, commitTime=1)
    read = load(spark, where)
    assert [f.dataType for f in read.schema] == [f.dataType for f in frame.schema]
    assert sorted(read.collect()) == sorted(frame.collect())


def test_unsigned_columns_of_python_writers_widen(spark: Any, where: Where, client: Any) -> None:
    schema = persist.Schema(key={"id": pa.uint64()}, val={"t": pa.timestamp("ms", tz="UTC"), "l": pa.large_string()})
    writer = client.open_writer(persist.ShardId.parse(where["shard"]), schema=schema)
    row = ({"id": 2**64 - 1}, {"t": datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC), "l": "x"})
    writer.append([(row, 0, 3)], new_upper=1)
    assert (
        load(spark, where).selectExpr("id", "unix_millis(t)", "l").collect()
        == [(decimal.Decimal(2**64 - 1), 1356998400000, "x")] * 3
    )


def test_negative_counts_are_refused_as_rows_and_shown_as_diffs(spark: Any, where: Where) -> None:
    append(spark.createDataFrame([(1, "a", -1)], "id bigint, name string, _diff bigint"), where, commitTime=1)
    with pytest.raises(Exception, match="mode"):
        load(spark, where).collect()
    assert found(load(spark, where, mode="diffs")) == [(1, "a", 1, -1)]


def test_closed_shard_is_read_as_it_ended(spark: Any, where: Where, client: Any) -> None:
    schema = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
    writer = client.open_writer(where["shard"], schema=schema)
    writer.append([(({"id": 1}, {"name": "a"}), 3, 1)], new_upper=[])
    assert found(load(spark, where)) == [(1, "a")]
    assert found(load(spark, where, mode="diffs", startingVersion=1)) == [(1, "a", 3, 1)]
    with pytest.raises(Exception, match="closed"):
        append(rows(spark, (2, "b")), where)


def test_read_waits_for_a_time_to_be_complete_when_asked(spark: Any, where: Where, client: Any) -> None:
    append(rows(spark, (1, "a")), where, commitTime=1)
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.extend(found(load(spark, where, asOf=5, waitForUpperMs=60_000))))
    waiting.start()
    client.open_writer(where["shard"]).append([(({"id": 2}, {"name": "b"}), 5, 1)], new_upper=6)
    waiting.join(60)
    assert answers == [(1, "a"), (2, "b")]


def test_a_read_waits_no_longer_than_asked_and_reads_for_as_long_as_it_takes(where: Where, client: Any) -> None:
    schema = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
    client.open_writer(where["shard"], schema=schema).append([(({"id": 1}, {"name": "a"}), 0, 1)], new_upper=5)
    given = {**where, "waitForUpperMs": "50", "timeoutMs": "900000"}
    with client.open_reader(persist.ShardId.parse(where["shard"])) as reader:
        options = parse_read({**given, "asOf": "5"})
        before = monotonic()
        for read in (
            lambda: planning.snapshot_partitions(reader, 5, options, ()),
            lambda: planning.diff_partitions(reader, 0, 6, options, ()),
        ):
            with pytest.raises((persist.NotYetAvailable, persist.LocationError)):
                read()
        assert monotonic() - before < 300
        assert len(planning.snapshot_partitions(reader, 4, options, ())) == 1
        assert len(planning.diff_partitions(reader, 0, 5, options, ())) == 1
    assert planning.seconds_to_complete(options) == 900
    ahead = parse_read({**given, "asOf": str(2**62)})
    assert planning.seconds_to_complete(ahead) == 0.05


def test_empty_shard_reads_as_no_rows(spark: Any, where: Where) -> None:
    append(rows(spark), where, commitTime=5)
    assert load(spark, where).collect() == []
    assert load(spark, where).columns == ["id", "name"]


def test_persist_table_appends_and_tells_what_happened(spark: Any, where: Where) -> None:
    table = PersistTable.forShard(spark, where["shard"], location=where["location"])
    result = table.append(rows(spark, (1, "a"), (2, "b")), commitTime=4, keyColumns=["id"])
    assert (result.upper, result.rows, result.already_committed) == (persist.Antichain.of(5), 2, False)
    assert result.parts >= 1
    assert result.bytes > 0
    again = [table.append(rows(spark, (3, "c")), txnAppId="a", txnVersion=1) for _ in range(2)]
    assert [r.already_committed for r in again] == [False, True]
    since, upper = table.frontiers()
    assert since == persist.Antichain.of(0)
    assert upper == again[0].upper
    assert table.toDF(asOf=4).count() == 2
    assert table.changes(0, 4).count() == 2
    assert table.detail().collect()[0]["rows"] == 3
    assert table.history().count() >= 1


def test_metadata_tables_are_read_beside_a_shard(spark: Any, where: Where) -> None:
    append(rows(spark, (1, "a"), (2, "b")), where, commitTime=4)
    assert load(spark, where, table="frontiers").select("since", "upper").collect() == [(0, 5)]
    assert load(spark, where, table="parts").selectExpr("sum(rows)").collect() == [(2,)]
    assert load(spark, where, table="writers").count() == 1
    assert load(spark, where, table="readers").count() >= 0


def test_write_survives_pickling_with_its_token(where: Where, client: Any) -> None:
    from pyspark.sql import types as st

    schema = persist.Schema(key={"id": pa.int64()})
    client.open_writer(persist.ShardId.parse(where["shard"]), schema=schema)
    frame = st.StructType().add("id", "long")
    write = Write.plan(parse_write(where, WRITE), frame, overwrite=False)
    copy = pickle.loads(pickle.dumps(write))
    assert copy == write
    output = copy.write(iter([pa.record_batch({"id": [1, 2]})]))
    results = [w.commit([pickle.loads(pickle.dumps(output))], None) for w in (write, copy)]
    assert [r.already_committed for r in results] == [False, True]


def test_overwrite_that_is_committed_twice_happens_once(where: Where, client: Any, contents: Contents) -> None:
    from pyspark.sql import types as st

    client.open_writer(where["shard"], schema=persist.Schema(key={"id": pa.int64()})).append(
        [(({"id": 9}, {}), 0, 1)], new_upper=5
    )
    frame = st.StructType().add("id", "long")
    write = Write.plan(parse_write(where, WRITE), frame, overwrite=True)
    output = write.write(iter([pa.record_batch({"id": [1, 2]})]))
    assert [write.commit([output], None).already_committed for _ in range(2)] == [False, True]
    assert contents(where) == [(1, 1), (2, 1)]


def test_write_of_an_application_that_may_be_forgotten_says_so(
    where: Where, client: Any, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import types as st

    right = Applier._context
    few: dict[str, Any] = {"transactions_max": 2, "tokens_max": 0}
    monkeypatch.setattr(Applier, "_context", lambda self: dataclasses.replace(right(self), **few))
    client.open_writer(where["shard"], schema=persist.Schema(key={"id": pa.int64()}))
    frame = st.StructType().add("id", "long")

    def written(number: int, app: int, new_since: int = 0) -> Any:
        write = Write.plan(parse_write(where, WRITE), frame, overwrite=False)
        output = write.write(iter([pa.record_batch({"id": [number]})]))
        return write.commit([output], persist.Transaction(app_id=f"app {app}", version=1, new_since=new_since))

    for app in range(3):
        written(app, app)
    with pytest.raises(persist.OutcomeForgotten, match="not known") as forgotten:
        written(90, 0)
    with pytest.raises(persist.OutcomeForgotten):
        written(91, 7)
    new_since = int(forgotten.value.details["new_since"])
    assert not written(7, 7, new_since).already_committed
    assert written(92, 7, new_since).already_committed
    assert written(93, 2).already_committed
    assert contents(where) == [(0, 1), (1, 1), (2, 1), (7, 1)]


def test_write_of_times_that_happened_before_is_recognised_and_a_late_one_refused(
    where: Where, client: Any, contents: Contents
) -> None:
    from pyspark.sql import types as st

    client.open_writer(where["shard"], schema=persist.Schema(key={"id": pa.int64()}))
    frame = st.StructType().add("id", "long").add("_ts", "long")
    write = Write.plan(parse_write(where, WRITE), frame, overwrite=False)
    output = write.write(iter([pa.record_batch({"id": [1, 2], "_ts": [3, 7]})]))
    transactions = [persist.Transaction(app_id="a", version=n) for n in (1, 1, 2)]
    assert [write.commit([output], t).already_committed for t in transactions[:2]] == [False, True]
    late = Write.plan(parse_write(where, WRITE), frame, overwrite=False)
    for transaction in (None, transactions[2]):
        with pytest.raises(persist.InvalidBounds, match="complete already"):
            late.commit([late.write(iter([pa.record_batch({"id": [9], "_ts": [5]})]))], transaction)
    assert contents(where) == [(1, 1), (2, 1)]


def test_commits_at_the_clock_follow_each_other_s_upper(where: Where, client: Any, contents: Contents) -> None:
    from pyspark.sql import types as st

    client.open_writer(where["shard"], schema=persist.Schema(key={"id": pa.int64()}))
    frame = st.StructType().add("id", "long")

    def commit(n: int) -> Any:
        write = Write.plan(parse_write(where, WRITE), frame, overwrite=False)
        return write.commit([write.write(iter([pa.record_batch({"id": [n]})]))], None)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(commit, range(40)))
    assert len({result.upper for result in results}) == 40
    assert sorted(contents(where)) == [(n, 1) for n in range(40)]
