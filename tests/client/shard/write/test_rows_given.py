"""What an append takes as rows: Arrow, dicts of columns and tuples; a missing diff, and a ts where it is clear."""

from typing import Any, cast

import pyarrow as pa
import pytest
from client.support import SCHEMA, Place, client_of, rows_of, table
from sure import as_a

import persist
from persist import Antichain, Appended, ShardId, errors

PLAIN = pa.table({"id": [1, 2], "name": ["a", "b"]})
DICTS = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
AT_FIVE = [(1, "a", 5, 1), (2, "b", 5, 1)]


async def rows_in(client: Any, shard: str, upper: int = 6) -> list[tuple[Any, ...]]:
    reader = await client.open_reader(shard)
    return rows_of(await (await reader.diffs(0, upper)).to_arrow())


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(PLAIN, id="table"),
        pytest.param(PLAIN.to_batches()[0], id="batch"),
        pytest.param(PLAIN.to_batches(), id="batches"),
        pytest.param(DICTS, id="dicts"),
        pytest.param(tuple(DICTS), id="tuple-of-dicts"),
        pytest.param([{**row, "ts": 5} for row in DICTS], id="dicts-with-ts"),
        pytest.param([{**row, "diff": 1} for row in DICTS], id="dicts-with-diff"),
        pytest.param(PLAIN.append_column("ts", pa.array([5, 5])), id="table-with-ts"),
    ],
)
async def test_rows_without_times_happen_at_the_only_time_there_is(place: Place, rows: Any):
    async with client_of(place) as client:
        for append in ("append", "compare_and_append"):
            writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
            await writer.append([], 5)
            bounds = (6,) if append == "append" else (5, 6)
            assert isinstance(await getattr(writer, append)(rows, *bounds), Appended)
            assert await rows_in(client, writer.shard) == AT_FIVE


async def test_generator_of_dicts_longer_than_what_is_taken_at_once(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await writer.append(({"id": number, "ts": number % 7, "diff": 2} for number in range(10_000)), 7)
        rows = await rows_in(client, writer.shard, 7)
        assert sorted(rows) == [(number, None, number % 7, 2) for number in range(10_000)]


async def test_dicts_are_taken_at_the_upper_and_by_tables_too(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await writer.append_at_upper(DICTS, not_before=5)
        assert await rows_in(client, writer.shard) == AT_FIVE


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        pytest.param(PLAIN, errors.SchemaMismatch, id="no-ts"),
        pytest.param(DICTS, errors.SchemaMismatch, id="dicts-no-ts"),
        pytest.param([{"id": 1, "ts": 3}, {"id": 2}], errors.SchemaMismatch, id="one-without-ts"),
        pytest.param([{"id": 1, "ts": 3, "nom": "a"}], errors.SchemaMismatch, id="unknown"),
        pytest.param([{"id": "x", "ts": 3}], errors.InvalidArgument, id="type"),
        pytest.param([{"id": 1, "ts": -3}], errors.InvalidArgument, id="negative-ts"),
        pytest.param([{"id": 1, "ts": None}], errors.InvalidArgument, id="null-ts"),
        pytest.param([{"id": 1, "ts": 3}, 7], errors.SchemaMismatch, id="mixed"),
        pytest.param({"id": 1}, errors.InvalidArgument, id="one-dict"),
        pytest.param([{"id": 1, "ts": 9}], errors.InvalidBounds, id="ts-beyond"),
    ],
)
async def test_rows_that_are_not_clear_are_refused_and_change_nothing(place: Place, rows: Any, error: type[Exception]):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        before = await client.inspect(writer.shard)
        for new_upper in cast(tuple[Any, ...], (9, [])):
            if new_upper == [] and error is errors.InvalidBounds:
                continue
            with pytest.raises(error) as refused:
                await writer.append(rows, new_upper)
            assert as_a(persist.PersistError, refused.value).hint
        assert writer.upper == Antichain.of(0)
        assert await client.inspect(writer.shard) == before


async def test_rows_without_times_in_an_interval_without_times_are_refused(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        with pytest.raises(errors.EmptyInterval):
            await writer.append(DICTS, 0)


async def test_table_without_rows_needs_no_times(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        assert (await writer.append(PLAIN.slice(0, 0), 9)).upper == Antichain.of(9)


def test_schema_of_a_table_takes_what_the_table_has(tmp_path):
    schema = persist.Schema.from_arrow(PLAIN.schema, ["id"])
    assert schema == SCHEMA
    with persist.embedded(tmp_path) as client:
        writer, reader = client.open(ShardId.new(), schema=schema)
        writer.append(PLAIN, new_upper=1)
        split = reader.snapshot().splits(1)[0]
        assert split.to_arrow().select(PLAIN.column_names).equals(PLAIN)
    assert table([]).schema == schema.updates
