"""Delete, update, overwrite and restore come to what a model says, and one that is refused changes nothing."""

import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf
from spark.change.conftest import Held
from spark.change.models import changed, rows_of
from sure import sure

import persist
from persist import InvalidArgument, InvalidBounds, NotReadable, SchemaMismatch, ShardClosed, ShardNotFound, UsageError
from persist.core.catalog.ddl.statements import CreateTable, QualifiedName
from persist.core.catalog.values import Retain
from pyspark_persist import PersistTable
from pyspark_persist.change.running import How

FIRST = [(1, "a", 1), (2, "b", None), (2, "b", None), (3, None, 5), (4, "d", -7), (None, "e", 3)]


def test_delete_takes_every_copy_of_the_rows_for_which_the_condition_is_true(held: Held) -> None:
    held.put(*FIRST, at=10)
    done = held.table.delete("n < 4", commitTime=20)
    assert held.rows(20) == changed(rows_of(FIRST), lambda row: None if row[2] is not None and row[2] < 4 else row)
    assert held.rows(19) == rows_of(FIRST)
    assert (done.rows_read, done.rows_deleted, done.rows_updated, done.rows_inserted) == (3, 3, 0, 0)
    assert (done.upper, done.read_at, done.attempts) == (persist.Antichain.of(21), 10, 1)
    assert held.table.delete(sf.col("id") == 2).rows_deleted == 2
    assert held.rows() == rows_of([(3, None, 5)])


def test_delete_that_finds_nothing_commits_nothing_and_all_of_an_empty_table_is_nothing(held: Held) -> None:
    assert held.table.delete().rows_deleted == 0
    assert held.upper == 0
    held.put(*FIRST, at=10)
    before = held.kept()
    done = held.table.delete("name = 'none'")
    assert (done.rows, done.rows_read, done.upper) == (0, 5, persist.Antichain.of(11))
    assert held.kept() == before
    assert held.table.delete().rows_deleted == 6
    assert held.rows() == rows_of([])
    assert held.table.delete().rows_deleted == 0


def test_update_sees_the_row_as_it_was_and_may_move_it_to_another_key(held: Held) -> None:
    held.put(*FIRST, at=10)
    done = held.table.update({"ID": "n", "n": "id", "name": None}, "id is not null and n > 0", readAt=10)
    expected = changed(
        rows_of(FIRST), lambda row: (row[2], None, row[0]) if row[0] is not None and (row[2] or 0) > 0 else row
    )
    assert held.rows() == expected
    assert (done.rows_updated, done.rows_deleted, done.rows) == (2, 0, 4)
    assert held.table.update({"name": sf.upper("name"), "n": 7}).rows_updated == 6
    assert held.rows() == changed(expected, lambda row: (row[0], row[1] and row[1].upper(), 7))
    before = held.upper
    again = held.table.update({"n": "n"})
    assert (again.rows_updated, again.rows) == (6, 0)
    assert held.upper == before


def test_update_of_every_type_and_of_columns_with_strange_names(made: Callable[..., Held]) -> None:
    held = made(
        persist.Schema(
            key={"a.b": pa.field("a.b", pa.uint64(), nullable=False), "_ts": pa.int32()},
            val={
                "d": pa.decimal128(10, 2),
                "when": pa.timestamp("us", tz="UTC"),
                "day": pa.date32(),
                "x": pa.float64(),
                "many": pa.list_(pa.string()),
                "o0": pa.struct([("n1", pa.bool_())]),
            },
        )
    )
    moment, day = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), datetime.date(2026, 1, 2)
    row = (2**64 - 1, 1, decimal.Decimal("1.50"), moment, day, float("inf"), ["p", None], {"n1": True})
    held.put(row, (5, 2, None, None, None, None, None, None), at=3)
    done = held.table.update({"TS": "ts + 1", "d": "cast(d * 2 as decimal(10, 2))"}, "`a.b` > 5")
    assert done.rows_updated == 1
    [new] = [each for each in held.table.toDF().collect() if each["a.b"] != 5]
    assert tuple(new)[:7] == (2**64 - 1, 2, decimal.Decimal("3.00"), moment.replace(tzinfo=None), *row[4:7])
    assert held.table.delete("o0.n1").rows_deleted == 1
    assert held.table.toDF().count() == 1


def test_value_becomes_a_number_of_its_column_where_none_is_too_large_for_it(made: Callable[..., Held]) -> None:
    held = made(
        persist.Schema(key={"id": pa.int64()}, val={"x": pa.float64(), "f": pa.float32(), "d": pa.decimal128(20, 2)})
    )
    held.put((1, 0.5, 0.5, decimal.Decimal("0.50")), at=10)
    held.table.update({"x": 9, "f": "id", "d": "cast(7 as int)"})
    assert held.rows() == rows_of([(1, 9.0, 1.0, decimal.Decimal(7))])
    held.table.update({"x": "d * 1.15", "f": "d"})
    assert held.rows() == rows_of([(1, 8.05, 7.0, decimal.Decimal(7))])
    before = held.kept()
    for values in ({"id": "x"}, {"d": "x"}, {"d": "id"}, {"f": "x"}, {"d": "d * 1.15"}, {"x": "'9'"}, {"id": "d"}):
        with pytest.raises(SchemaMismatch, match="another type") as refused:
            held.table.update(values)
        assert refused.value.hint is not None
        assert "cast it to" in refused.value.hint
    assert held.kept() == before
    for on in ("id", "target.id <=> source.id"):
        source = held.frame((1, 2**53 + 1, 3, 4), (2, 5, 6, 7), columns="id int, x long, f int, d int")
        held.table.merge(source, on).whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
        assert held.rows() == rows_of([(1, float(2**53), 3.0, decimal.Decimal(4)), (2, 5.0, 6.0, decimal.Decimal(7))])
        held.table.restore(10)


def test_overwrite_puts_rows_in_the_place_of_those_that_are_chosen(held: Held) -> None:
    held.put(*FIRST, at=10)
    done = held.table.overwrite(held.frame((9, 2), (9, 2), (7, 3), columns="N long, Id long"), "id <= 3")
    kept = changed(rows_of(FIRST), lambda row: None if row[0] is not None and row[0] <= 3 else row)
    assert held.rows() == kept + rows_of([(2, None, 9), (2, None, 9), (3, None, 7)])
    assert (done.rows_deleted, done.rows_inserted) == (4, 3)
    held.table.overwrite(held.frame((1, "z", 1)))
    assert held.rows() == rows_of([(1, "z", 1)])
    held.table.overwrite(held.frame(columns="id long, name string, n long"))
    assert held.rows() == rows_of([])


def test_overwrite_by_rows_that_were_not_chosen_is_refused(held: Held) -> None:
    held.put(*FIRST, at=10)
    before = held.kept()
    for row in ((4, "x", 1), (None, "x", 1)):
        with pytest.raises(InvalidArgument, match="not among those"):
            held.table.overwrite(held.frame((2, "y", 1), row), "id <= 3")
    assert held.kept() == before


@pytest.mark.parametrize("given", [True, "3", 3.0, -1, None])
@pytest.mark.parametrize("asked", ["restore", "count", "tag"])
def test_what_is_no_time_changes_nothing(held: Held, asked: str, given: Any) -> None:
    """``True`` was the time 1, and all that came later was taken back."""
    if given is None and asked != "restore":
        return  # the newest
    held.put((1, "a", 1), at=1)
    held.put((2, "b", 2), at=5)
    before = held.kept()
    asks: dict[str, Any] = {
        "restore": held.table.restore,
        "count": held.table.count,
        "tag": lambda time: held.table.tag("x", time),
    }
    with pytest.raises(InvalidArgument, match="asOf is a time"):
        asks[asked](given)
    assert held.kept() == before


def test_restore_makes_it_what_it_was_and_keeps_what_lies_between(held: Held) -> None:
    held.put(*FIRST, at=10)
    held.put((2, "b", None), at=12, diff=-1)
    held.put((8, "h", 8), at=14)
    held.table.delete("id = 1", commitTime=16)
    held.table.restore(12, commitTime=20)
    assert held.rows(20) == held.rows(12) != held.rows(19)
    held.table.restore(10)
    assert held.rows() == rows_of(FIRST)
    assert held.table.restore(held.upper - 1).rows == 0
    before = held.kept()
    with pytest.raises(InvalidBounds, match="asOf is not complete"):
        held.table.restore(held.upper)
    with held.client.open_reader(held.shard) as reader:
        reader.downgrade_since(15)
    with pytest.raises(NotReadable, match="asOf"):
        held.table.restore(11)
    assert held.kept() | {"since": 0} == before | {"since": 0}


OF_NO_COLUMN: dict[str, Callable[[PersistTable, Any], object]] = {
    "delete": lambda table, df: table.delete("_ts < 1500"),
    "delete by a Column": lambda table, df: table.delete(sf.col("_DIFF") == 1),
    "update": lambda table, df: table.update({"n": "`_ts`"}),
    "overwrite": lambda table, df: table.overwrite(df, "_diff = 1"),
    "merge, a value": lambda table, df: table.merge(df, "id").whenMatchedUpdate(set={"n": "target._ts"}).execute(),
    "merge, a condition": lambda table, df: table.merge(df, "id").whenMatchedDelete("target._diff = 1").execute(),
    "merge, no side": lambda table, df: table.merge(df, "id").whenMatchedDelete("_ts = 1").execute(),
    "merge, a match": lambda table, df: table.merge(df, "target._ts = source.id").whenMatchedDelete().execute(),
}


@pytest.mark.parametrize("kind", OF_NO_COLUMN)
def test_times_and_counts_are_no_columns_of_a_change(held: Held, kind: str) -> None:
    held.put(*FIRST, at=10)
    before = held.kept()
    with pytest.raises(InvalidArgument, match="times and counts are summed before it is applied") as refused:
        OF_NO_COLUMN[kind](held.table, held.frame((1, "x", 1)))
    assert refused.value.hint is not None
    assert "name, n" in refused.value.hint.replace("target.", "")
    assert held.kept() == before


def test_star_that_would_take_in_more_than_the_columns_is_refused_and_that_of_a_side_is_the_side(held: Held) -> None:
    held.put(*FIRST, at=10)
    before = held.kept()
    for change in (
        lambda: held.table.delete("hash(*) = 1"),
        lambda: held.table.update({"n": sf.xxhash64(sf.col("*"))}),
        lambda: held.table.merge(held.frame((1, "x", 1)), "id").whenMatchedDelete("hash(*) = 1").execute(),
        lambda: held.table.delete("nope = 1"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            change()
        assert "_0_" not in str(refused.value)
    assert held.kept() == before
    source = held.frame((1, 9, 5, 7), columns="id long, _ts long, _present long, _action long")
    [whole] = held.frame((1, "a", 1)).selectExpr("xxhash64(*) as h").collect()
    [theirs] = source.selectExpr("xxhash64(*) + _ts as h").collect()
    for on in ("id", "target.id <=> source.id"):
        values = {"n": "xxhash64(target.*)", "name": "cast(xxhash64(source.*) + source._ts as string)"}
        held.table.merge(source, on).whenMatchedUpdate("_present = 5 and _action = 7", set=values).execute()
        assert held.rows() == changed(rows_of(FIRST), lambda row: (1, str(theirs.h), whole.h) if row[0] == 1 else row)
        held.table.restore(10)


REFUSED: list[tuple[type[UsageError], Callable[[PersistTable, Any], object]]] = [
    (InvalidArgument, lambda table, df: table.delete("nope = 1")),
    (InvalidArgument, lambda table, df: table.delete("id >")),
    (InvalidArgument, lambda table, df: table.delete("id + 1")),
    (InvalidArgument, lambda table, df: table.delete(sf.col("target.id") == 1)),
    (InvalidArgument, lambda table, df: table.delete(5)),
    (InvalidArgument, lambda table, df: table.delete("_diff = 1 and nope")),
    (InvalidArgument, lambda table, df: table.delete("id = 1", readat=10)),  # type: ignore[call-arg]  # what users do
    (InvalidArgument, lambda table, df: table.delete("id = 1", readAt=-1)),
    (InvalidArgument, lambda table, df: table.delete("id = 1", onConflict="no")),  # type: ignore[arg-type]  # the same
    (InvalidArgument, lambda table, df: table.delete("id = 1", txnAppId="app")),
    (InvalidArgument, lambda table, df: table.delete("id = 1", commitTime=-4)),
    (InvalidArgument, lambda table, df: table.delete("id = 1", txnVersion=3)),
    (InvalidArgument, lambda table, df: table.delete("id = 1", txnNewSince=3)),
    (InvalidArgument, lambda table, df: table.delete("id = 1", userMetadata="x")),
    (InvalidBounds, lambda table, df: table.delete("id = 1", commitTime=10)),
    (InvalidBounds, lambda table, df: table.delete("id = 1", readAt=9)),
    (InvalidBounds, lambda table, df: table.delete("id = 1", readAt=11)),
    (InvalidArgument, lambda table, df: table.update({})),
    (SchemaMismatch, lambda table, df: table.update({"nope": "1"})),
    (InvalidArgument, lambda table, df: table.update({"n": "1", "N": "2"})),
    (SchemaMismatch, lambda table, df: table.update({"n": "name"})),
    (SchemaMismatch, lambda table, df: table.update({"n": "n * 1.5"})),
    (InvalidArgument, lambda table, df: table.update({"n": "sum(n)"})),
    (SchemaMismatch, lambda table, df: table.overwrite(df.withColumn("more", sf.lit(1)))),
    (SchemaMismatch, lambda table, df: table.overwrite(df.drop("id"))),
    (SchemaMismatch, lambda table, df: table.overwrite(df.withColumn("n", sf.lit("x")))),
    (InvalidArgument, lambda table, df: table.overwrite(df.withColumn("_diff", sf.lit(1)))),
    (InvalidArgument, lambda table, df: table.merge(df, "id").execute()),
    (InvalidArgument, lambda table, df: table.merge(df, []).whenMatchedDelete().execute()),
    (SchemaMismatch, lambda table, df: table.merge(df, ["nope"]).whenMatchedDelete().execute()),
    (SchemaMismatch, lambda table, df: table.merge(df.drop("id"), "id").whenMatchedDelete().execute()),
    (InvalidArgument, lambda table, df: table.merge(df, "id = id").whenMatchedDelete().execute()),
    (InvalidArgument, lambda table, df: table.merge(df, "id").whenMatchedDelete("n = 1").execute()),
    (SchemaMismatch, lambda table, df: table.merge(df.drop("n"), "id").whenMatchedUpdateAll().execute()),
    (SchemaMismatch, lambda table, df: table.merge(df, "id").whenNotMatchedInsert(values={"x": "1"}).execute()),
    (SchemaMismatch, lambda table, df: table.merge(df, "id").whenMatchedUpdate(set={"n": "source.name"}).execute()),
    (SchemaMismatch, lambda table, df: table.merge(df.selectExpr("99 id", "1 ID"), "id").whenMatchedDelete().execute()),
    (SchemaMismatch, lambda table, df: table.merge(df.selectExpr("1 id", "1 id"), "id").whenMatchedDelete().execute()),
    (SchemaMismatch, lambda table, df: table.overwrite(df.selectExpr("*", "1 ID"))),
]


@pytest.mark.parametrize("place", range(len(REFUSED)))
def test_change_that_is_refused_changes_nothing(held: Held, place: int) -> None:
    error, change = REFUSED[place]
    held.put(*FIRST, at=10)
    before = held.kept()
    with pytest.raises(error) as refused:
        change(held.table, held.frame((1, "x", 1)))
    assert refused.value.hint or refused.value.details
    assert held.kept() == before


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "readAt": [{"readAt": -1}, {"readAt": "10"}, {"readAt": True}, {"readAt": 9}, {"readAt": 11}],
    "onConflict": [{"onConflict": "no"}, {"onConflict": None}],
    "commitTime": [{"commitTime": -4}, {"commitTime": "x"}, {"commitTime": 10}],
    "txnAppId": [{"txnAppId": "app"}, {"txnAppId": "", "txnVersion": 1}],
    "txnVersion": [{"txnVersion": 3}, {"txnVersion": -1, "txnAppId": "app"}, {"txnVersion": "x", "txnAppId": "app"}],
    "txnNewSince": [{"txnNewSince": 3}, {"txnNewSince": "x", "txnAppId": "app", "txnVersion": 1}],
    "userMetadata": [{"userMetadata": "x"}, {"userMetadata": "x" * 65_537}],
}
"""For each option of a change what refuses it."""
CHANGES: dict[str, Callable[[PersistTable, Any, dict[str, Any]], object]] = {
    "delete": lambda table, df, how: table.delete("id < 3", **how),
    "update": lambda table, df, how: table.update({"n": 1}, **how),
    "merge": lambda table, df, how: table.merge(df, "id").whenMatchedUpdateAll().execute(**how),
    "overwrite": lambda table, df, how: table.overwrite(df, **how),
    "restore": lambda table, df, how: table.restore(5, **how),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_every_option_of_a_change_is_refused_without_a_trace(held: Held, kind: str) -> None:
    assert set(OPTIONS) == set(How.__annotations__)
    held.put((1, "x", 0), at=5)
    held.put((2, "x", 0), at=10)
    frame = held.frame((1, "x", 1))
    before = held.kept()
    for given in (case for cases in OPTIONS.values() for case in cases):
        with pytest.raises(UsageError):
            CHANGES[kind](held.table, frame, given)
        assert held.kept() == before, given


def test_null_in_a_column_that_takes_none_is_refused(made: Callable[..., Held]) -> None:
    held = made(persist.Schema(key={"id": pa.field("id", pa.int64(), nullable=False)}, val={"n": pa.int64()}))
    held.put((1, 2), (2, None), at=10)
    before = held.kept()
    with pytest.raises(InvalidArgument, match="holds nulls"):
        held.table.update({"id": "n"})
    source = held.frame((None, 2), columns="id long, n long")
    with pytest.raises(InvalidArgument, match="holds nulls"):
        held.table.merge(source, "id").whenNotMatchedInsertAll().execute()
    assert held.kept() == before


def test_task_that_fails_changes_nothing(held: Held) -> None:
    held.put(*FIRST, at=10)
    before = held.kept()
    with pytest.raises(Exception, match="BOOM"):
        held.table.update({"n": "if(id = 4, raise_error('BOOM'), n)"})
    assert held.kept() == before


def test_table_that_is_missing_is_not_made_and_one_that_is_closed_says_so(
    spark: Any, held: Held, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ShardNotFound):
        PersistTable.forName(spark, "nope", location=str(missing)).delete()
    assert not missing.exists()
    held.put(*FIRST, at=10)
    held.writer.append([], persist.Antichain(()))
    with pytest.raises(ShardClosed):
        held.table.delete("id = 1")


def test_column_added_since_is_taken_back_with_its_rows(held: Held) -> None:
    held.put(*FIRST, at=10)
    held.table.append(held.frame((7, 1), columns="id long, more long"), mergeSchema=True, commitTime=12)
    held.table.update({"more": "more + 1"}, "id >= 4", commitTime=14)
    assert held.rows(14) == rows_of([(*row, None) for row in FIRST] + [(7, None, None, 2)])
    held.table.delete()
    assert held.rows() == rows_of([])


def test_table_whose_rows_come_through_a_log_is_counted_but_not_changed(spark: Any, tmp_path: Path) -> None:
    place = str(tmp_path / "names")
    with persist.embedded(place) as client, client.environment() as environment:
        schema = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
        environment.execute(CreateTable(QualifiedName("orders"), schema, retain=Retain()))
        orders = client.table(sure(environment.resolve("orders").data), mode="wal")
        orders.insert([{"id": 1, "name": "a"}])
        table = PersistTable.forName(spark, "orders", location=place)
        with pytest.raises(InvalidArgument, match="through a log"):
            table.delete()
        assert table.count() == 1
        orders.insert([{"id": 2, "name": "b"}])
        assert table.count() == 2


def test_what_persist_computes_by_itself_is_changed_by_nobody(spark: Any, tmp_path: Path) -> None:
    place = str(tmp_path / "computed")
    with persist.embedded(place) as client:
        client.sql("create table t (id bigint primary key, n int); insert into t values (1, 1)")
        client.sql("create materialized view m with (refresh on commit) as select id, n from t")
        assert client.sql("select * from m")[0].rows == [(1, 1)]
        table = PersistTable.forName(spark, "m", location=place)
        frame = spark.createDataFrame([(1, 5)], "id long, n int")
        changes: list[Callable[[], Any]] = [
            table.delete,
            lambda: table.update({"n": "2"}),
            lambda: table.overwrite(frame),
            lambda: table.restore(table.frontiers()[1].elements[0] - 1),
            lambda: table.merge(frame, "id").whenMatchedUpdateAll().execute(),
            lambda: table.append(frame),
        ]
        for change in changes:
            with pytest.raises(InvalidArgument, match="materialized view: nothing else writes its rows"):
                change()
        assert client.sql("select * from m")[0].rows == [(1, 1)]
        assert table.count() == 1


def test_snapshot_is_of_the_time_it_was_taken_at_and_not_of_its_first_use(held: Held, spark: Any) -> None:
    held.put(*FIRST, at=10)
    before = held.table.toDF()
    held.table.createView("before")
    held.put((9, "z", 9), at=12)
    for frame in (before, spark.table("before")):
        assert sorted(row.id or 0 for row in frame.collect()) == [0, 1, 2, 2, 3, 4]
