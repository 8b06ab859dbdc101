"""Names, conditions and nullability of columns, by the calls that Spark makes: no job runs here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

import persist
from persist import InvalidArgument, SchemaMismatch, ShardNotFound
from pyspark_persist.finding import current_schema
from pyspark_persist.options.names import WRITE
from pyspark_persist.options.parsing import parse_read, parse_schema_target, parse_stream, parse_write
from pyspark_persist.read.reading import SnapshotReader, reader_for
from pyspark_persist.read.streaming import StreamReader
from pyspark_persist.read.view import schema_of
from pyspark_persist.spark_types import arrow_schema
from pyspark_persist.write.writing import BatchWriter, Write

Where = dict[str, str]
Rows = list[dict[str, Any]]

LONG = st.LongType()


def frame_of(*names: str, nullable: bool = True) -> st.StructType:
    """A DataFrame's schema of whole numbers."""
    return st.StructType([st.StructField(name, LONG, nullable) for name in names])


def write(where: Where, frame: st.StructType, rows: Rows, /, **options: object) -> None:
    given = {**where, **{name: str(value) for name, value in options.items()}}
    writer = BatchWriter(Write.plan(parse_write(given, WRITE), frame, overwrite=False))
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(frame))
    writer.commit([writer.write(iter([batch]))])


def reader(where: Where, schema: st.StructType | None = None, /, **options: object) -> SnapshotReader:
    parsed = parse_read({**where, **{name: str(value) for name, value in options.items()}})
    made = reader_for(parsed, schema or schema_of(parsed, current_schema(parsed.target)))
    assert isinstance(made, SnapshotReader)
    return made


def read(where: Where, schema: st.StructType | None = None, /, **options: object) -> Rows:
    source = reader(where, schema, **options)
    found: Iterator[pa.RecordBatch] = (batch for part in source.partitions() for batch in source.read(part))
    return [row for batch in found for row in batch.to_pylist()]


# ---- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", ["id,id", "id, price, ID"])
def test_column_that_is_named_twice_is_refused_when_it_is_planned(where: Where, client: Any, columns: str) -> None:
    """Spark refused the batches, by a Java error in its tasks."""
    write(where, frame_of("id", "price"), [{"id": 1, "price": 5}], keyColumns="id", commitTime=1)
    with pytest.raises(SchemaMismatch, match="twice"):
        reader(where, columns=columns)
    assert read(where, columns="price,id") == [{"price": 5, "id": 1}]


def test_columns_are_found_without_regard_to_case(where: Where, client: Any) -> None:
    write(where, frame_of("id", "Price"), [{"id": 1, "Price": 5}], keyColumns="ID", commitTime=1)
    write(where, frame_of("PRICE", "ID"), [{"ID": 2, "PRICE": 6}], commitTime=2)
    write(where, frame_of("ID", "price", "Tax"), [{"ID": 3, "price": 7, "Tax": 1}], mergeSchema="true", commitTime=3)
    write(where, frame_of("id", "TAX", "_DIFF"), [{"id": 3, "TAX": 9, "_DIFF": 2}], mergeSchema="true", commitTime=4)
    stored = client.schema(where["shard"])
    assert (stored.key.names, stored.val.names) == (["id"], ["Price", "Tax"])
    assert [row["Price"] for row in read(where, asOf=3)] == [5, 6, 7]
    assert read(where, columns="TAX,iD", where="ID >= 3 and pRiCe is not null") == [{"Tax": 1, "id": 3}]
    assert read(where, frame_of("TAX"), where="id = 3 and price is null") == [{"TAX": 9}, {"TAX": 9}]


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (("id", "v", "V"), {}),
        (("id", "v", "ID"), {}),
        (("id", "_ts", "_TS"), {}),
        (("id", "v"), {"keyColumns": "id,Id"}),
    ],
)
def test_columns_that_differ_by_case_alone_are_refused(
    where: Where, names: tuple[str, ...], options: dict[str, str]
) -> None:
    with pytest.raises(persist.UsageError, match=r"case alone|twice"):
        write(where, frame_of(*names), [], **{"keyColumns": "id"} | options)


def test_columns_called_as_those_of_updates_keep_their_names(where: Where, client: Any) -> None:
    frame = frame_of("diff", "ts", "_id", "_x", "_ts", "_diff")
    rows = [{"diff": 1, "ts": 2, "_id": 3, "_x": 4, "_ts": 5, "_diff": 2}]
    write(where, frame, rows, keyColumns="_id,diff")
    columns = {"_id": 3, "diff": 1, "ts": 2, "_x": 4}
    assert read(where) == [columns, columns]
    assert read(where, where="ts = 2 and diff <= 1", columns="ts,_x") == [{"ts": 2, "_x": 4}] * 2
    assert read(where, where="ts > 2") == []
    assert read(where, mode="diffs", startingVersion=1) == [columns | {"_ts": 5, "_diff": 2}]
    (changed, _) = read(where, readChangeFeed="true", startingVersion=1, computeUpdates="true")
    assert changed.items() >= (columns | {"_change_type": "insert", "_commit_version": 5}).items()
    net = read(where, readChangeFeed="true", startingVersion=1, deduplicationMode="netChanges", columns="ts")
    assert [row["ts"] for row in net] == [2, 2]
    assert client.schema(where["shard"]).updates.names == ["_id", "_diff", "_ts", "_x", "ts", "diff"]
    assert client.open_reader(where["shard"]).snapshot(5).to_pylist() == [
        {"_id": 3, "_diff": 1, "_ts": 2, "_x": 4, "diff": 2}
    ]


def test_names_of_change_feeds_are_refused_with_a_way_out(where: Where) -> None:
    with pytest.raises(InvalidArgument, match="rename it"):
        write(where, frame_of("id", "_Change_Type"), [], keyColumns="id")


def test_values_are_nullable_whatever_the_first_data_frame_says(where: Where, client: Any) -> None:
    write(where, frame_of("id", "n", nullable=False), [{"id": 1, "n": 1}], keyColumns="id", commitTime=1)
    write(where, frame_of("id", "n"), [{"id": 2, "n": None}], commitTime=2)
    write(where, frame_of("id"), [{"id": 3}], commitTime=3)
    assert [row["n"] for row in read(where)] == [1, None, None]
    assert not client.schema(where["shard"]).key.field("id").nullable


# ---- conditions ----------------------------------------------------------------------------------------------------


@pytest.fixture
def gone(where: Where) -> Where:
    """A shard whose only row was there from 1 to 2."""
    frame = frame_of("id", "_ts", "_diff")
    rows = [{"id": 1, "_ts": 1, "_diff": 1}, {"id": 1, "_ts": 2, "_diff": -1}]
    write(where, frame, rows, keyColumns="id")
    return where


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("ts <= 1", "asOf"),
        ("diff = 1", "asOf"),
        ("_ts <= 1", "asOf"),
        ("_diff = 1", "DataFrame.where"),
        ("idd = 1", "did you mean id"),
        ("other = 1", "the columns are: id"),
        ("id = 'x'", "it holds int64"),
        ("id = 1 or", "cannot be read"),
    ],
)
def test_condition_that_cannot_be_answered_is_refused_before_anything_is_planned(
    gone: Where, condition: str, message: str
) -> None:
    options = [{}, {"mode": "diffs", "startingVersion": 1}, {"readChangeFeed": "true", "startingVersion": 1}]
    for given in options:
        with pytest.raises(InvalidArgument, match=message):
            reader(gone, where=condition, **given)
    parsed = parse_stream({**gone, "where": condition})
    with pytest.raises(InvalidArgument, match=message):
        StreamReader(parsed, frame_of("id"))


def test_key_bound_that_is_no_key_is_refused_before_anything_is_planned(gone: Where) -> None:
    with pytest.raises(InvalidArgument, match="key bound"):
        reader(gone, keyMin="x")


# ---- places --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"table": "t"}, {"path": "t"}, {"shard": str(persist.ShardId.of(bytes(16)))}])
def test_read_of_a_location_that_is_not_there_makes_none(tmp_path: Path, options: dict[str, str]) -> None:
    missing = tmp_path / "missing"
    parsed = parse_read({"location": str(missing), **options})
    for attempt in (
        lambda: current_schema(parsed.target),
        lambda: SnapshotReader(parsed, frame_of("id")),
        lambda: StreamReader(parse_stream({"location": str(missing), **options}), frame_of("id")),
    ):
        with pytest.raises(ShardNotFound, match=str(missing)):
            attempt()
    assert not missing.exists()


@pytest.mark.parametrize("mistyped", ["flihgts", "flight", "flightss", "Flights", "fl1ghts"])
def test_missing_table_is_called_by_its_name_and_near_ones_are_told(tmp_path: Path, mistyped: str) -> None:
    where = {"location": str(tmp_path)}
    write({**where, "table": "flights"}, frame_of("id"), [], keyColumns="id")
    write({**where, "table": "trains"}, frame_of("id"), [], keyColumns="id")
    with pytest.raises(ShardNotFound) as caught:
        reader({**where, "table": mistyped})
    assert f"table={mistyped}" in str(caught.value)
    assert "did you mean flights?" in str(caught.value)
    assert "schema=" not in str(caught.value)
    with pytest.raises(ShardNotFound, match="there is no such table"):
        reader_for(parse_read({**where, "path": mistyped}), frame_of("id"))


def test_a_name_is_the_shard_that_python_has_under_it(tmp_path: Path) -> None:
    where = {"location": str(tmp_path), "table": "flights"}
    with persist.embedded(tmp_path) as client:
        flights = client.table("flights", schema=persist.Schema(key={"id": pa.int64()}))
        flights.insert([{"id": 1}])
        write(where, frame_of("id"), [{"id": 2}])
        assert sorted(row["id"] for row in client.table("flights").snapshot().to_pylist()) == [1, 2]
        assert sorted(row["id"] for row in read(where)) == [1, 2]


def test_two_shards_of_one_name_are_told_to_readers_and_writers(tmp_path: Path) -> None:
    where = {"location": str(tmp_path), "table": "flights"}
    both = [persist.ShardId.for_name("flights"), persist.ShardId.named("persist.table", "wal", "M", "flights")]
    with persist.embedded(tmp_path) as client:
        for shard in both:
            client.open_writer(shard, schema=persist.Schema(key={"id": pa.int64()}))
    for attempt in (
        lambda: reader(where),
        lambda: write(where, frame_of("id"), [{"id": 1}], keyColumns="id"),
        lambda: StreamReader(parse_stream(where), frame_of("id")),
        lambda: reader_for(
            parse_read({"location": str(tmp_path), "path": "flights", "table": "parts"}), st.StructType()
        ).partitions(),
    ):
        with pytest.raises(persist.AmbiguousName) as refused:
            attempt()
        assert all(shard in refused.value.details["shards"] for shard in both)
        assert f'.option("shard", "{both[0]}")' in refused.value.hint


def test_metadata_of_a_missing_table_is_called_by_its_name(tmp_path: Path) -> None:
    write({"location": str(tmp_path), "table": "trains"}, frame_of("id"), [], keyColumns="id")
    parsed = parse_read({"location": str(tmp_path), "path": "planes", "table": "parts"})
    with pytest.raises(ShardNotFound, match="table=planes"):
        reader_for(parsed, st.StructType()).partitions()


# ---- tables of Spark's catalog -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "told",
    [
        {"option.table": "x", "provider": "persist", "table": "x", "owner": "root"},
        {"provider": "persist", "owner": "root"},
        {},
    ],
)
def test_table_of_sparks_catalog_is_refused_with_a_view_as_remedy(told: dict[str, str], where: Where) -> None:
    for parse in (parse_schema_target, parse_read, parse_stream, lambda raw: parse_write(raw, WRITE)):
        with pytest.raises(InvalidArgument, match="CREATE TEMPORARY VIEW"):
            parse(told)
