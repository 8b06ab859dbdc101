"""Streams whose shard changes under them, by the calls that Spark makes: columns that are added, starts to come."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from spark.read.micro_batches import next_batch, stream_reader

import persist

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
WIDER = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string(), "extra": pa.int64()})
Where = dict[str, str]


@pytest.fixture
def feed(where: Where, client: Any) -> Callable[..., None]:
    """Append one batch of inserts: rows (id, name, time), and with a fourth value that of the column added later."""
    client.open_writer(where["shard"], schema=SCHEMA)

    def append(upper: int, *updates: tuple[Any, ...]) -> None:
        wide = any(len(update) > 3 for update in updates)
        writer = client.open_writer(where["shard"], schema=WIDER if wide else None)
        names = ("name", "extra") if wide else ("name",)
        writer.append(
            [(({"id": i}, dict(zip(names, (n, *extra), strict=True))), t, 1) for i, n, t, *extra in updates],
            new_upper=upper,
        )

    return append


SHOWN = [{}, {"mode": "diffs"}, {"readChangeFeed": "true"}]


@pytest.mark.parametrize("shown", SHOWN, ids=str)
@pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": 1}], ids=str)
def test_column_added_amid_a_stream_is_not_left_out(
    where: Where, client: Any, feed: Any, shown: Where, limit: dict[str, int]
) -> None:
    feed(10, (1, "a", 1))
    reader = stream_reader(**where, **shown, **limit)
    _, reached = next_batch(reader, reader.initialOffset())
    client.evolve_schema(where["shard"], WIDER)
    feed(20, (2, "b", 12, 7))
    with pytest.raises(persist.SchemaMismatch, match=r"load the DataFrame and start the query again.*columns"):
        next_batch(reader, reached)
    rows, _ = next_batch(stream_reader(**where, **shown, **limit), reached)
    assert [row[:3] for row in rows] == [(2, "b", 7)]


@pytest.mark.parametrize("shown", SHOWN, ids=str)
def test_stream_of_chosen_columns_goes_on_when_others_are_added(
    where: Where, client: Any, feed: Any, shown: Where
) -> None:
    feed(10, (1, "a", 1))
    reader = stream_reader(**where, **shown, columns="name,id")
    _, reached = next_batch(reader, reader.initialOffset())
    client.evolve_schema(where["shard"], WIDER)
    feed(20, (2, "b", 12, 7))
    rows, _ = next_batch(reader, reached)
    assert [row[:2] for row in rows] == [("b", 2)]


def test_stream_of_fewer_columns_than_there_are_names_them(where: Where, feed: Any) -> None:
    """To Spark a schema that a user gave and a DataFrame that was loaded before are one."""
    feed(10, (1, "a", 1))
    fewer = StructType().add("name", "string")
    with pytest.raises(persist.SchemaMismatch, match=r"load it again.*option columns"):
        stream_reader(schema=fewer, **where)
    reader = stream_reader(schema=fewer, columns="name", **where)
    assert next_batch(reader, reader.initialOffset())[0] == [("a",)]


def test_stream_that_is_started_again_without_being_loaded_again_is_refused(
    where: Where, client: Any, feed: Any
) -> None:
    feed(10, (1, "a", 1))
    loaded = StructType().add("id", "long").add("name", "string")
    stream_reader(schema=loaded, **where)
    client.evolve_schema(where["shard"], WIDER)
    with pytest.raises(persist.SchemaMismatch, match=r"load it again"):
        stream_reader(schema=loaded, **where)


@pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": 1}, {"maxTimesPerTrigger": 3}], ids=str)
@pytest.mark.parametrize("option", ["startingVersion", "startingTimestamp"])
def test_start_that_is_still_to_come_is_waited_for(where: Where, feed: Any, option: str, limit: dict[str, int]) -> None:
    feed(10, (1, "a", 1))
    start = {"startingVersion": 25, "startingTimestamp": "1970-01-01T00:00:00.025Z"}[option]
    reader = stream_reader(**where, **{option: start}, **limit)
    offset = reader.initialOffset()
    assert reader.latestOffset(offset, reader.getDefaultReadLimit()) == offset
    assert reader.reportLatestOffset()["upper"] == "10"
    feed(20, (2, "b", 12))
    assert reader.latestOffset(offset, reader.getDefaultReadLimit()) == offset
    feed(30, (3, "c", 24), (4, "d", 25))
    found = []
    while int(str(offset["upper"])) < 30:
        rows, offset = next_batch(reader, offset)
        reader.commit(offset)
        found += rows
    assert found == [(4, "d")]


def test_start_that_is_still_to_come_is_waited_for_by_a_query_that_begins_again(where: Where, feed: Any) -> None:
    feed(10, (1, "a", 1))
    for _ in range(2):
        reader = stream_reader(**where, startingVersion=25)
        offset = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(offset, reader.getDefaultReadLimit()) == offset
    feed(30, (3, "c", 24), (4, "d", 25))
    assert next_batch(stream_reader(**where, startingVersion=25), offset)[0] == [(4, "d")]
