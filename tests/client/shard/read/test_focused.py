"""Conditions on keys: a read looks at the blocks that may hold such keys alone, and finds what it found before."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist import Predicate, Schema, Settings

SMALL_BLOCKS = Settings(row_group_rows=16, inline_part_bytes_max=0, compaction=False)
NAMES = [None, "", "a", "ab", "b", "b\0", "é"]


@pytest.fixture(params=[("id",), ("id", "name"), ("name", "id")], ids=str)
def snapshot(tmp_path: Path, request: pytest.FixtureRequest) -> persist.Snapshot:
    kinds = {"id": pa.int64(), "name": pa.string()}
    val = {name: kind for name, kind in kinds.items() if name not in request.param} | {"n": pa.int64()}
    client = persist.embedded(tmp_path, settings=SMALL_BLOCKS)
    schema = Schema(key={name: kinds[name] for name in request.param}, val=val)
    writer = client.open_writer(persist.ShardId.new(), schema=schema)
    for at in range(2):
        ids = [None if n % 50 == 0 else n - 100 for n in range(at, 400, 2)]
        rows: dict[str, Any] = {"id": ids, "name": [NAMES[n % 7] for n in range(200)], "n": range(200)}
        columns = {name: pa.array(rows[name], kinds.get(name, pa.int64())) for name in schema.rows.names[:-1]}
        writer.append_at_upper(pa.table(columns))
    return client.open_reader(writer.shard).snapshot(1)


@pytest.mark.parametrize(
    "where",
    [
        "id = 5",
        "id between 20 and 33 and n >= 0",
        "id in (-80, 299) or id is null",
        "id is null",
        "id > 250 or id < -60",
        "id < 10 and id > 20",
        "not id >= 0",
        "name like 'b%'",
        "name = 'b' and id > 200",
        "name in ('', 'é')",
        "name > 'ab' and name <= 'b'",
    ],
)
def test_conditions_on_keys_find_the_same_rows_in_fewer_blocks(snapshot: persist.Snapshot, where: str) -> None:
    table = snapshot.to_arrow()
    expected = Predicate.parse(where).filter(table)
    assert snapshot.to_arrow(where=where).equals(expected)
    [split] = snapshot.splits(1)
    assert split.to_arrow(where=where).equals(expected)
    narrowed = split.reading.narrowed(where=Predicate.parse(where))
    first = split.reading.schema.key.names[0]
    about_first = all(column == first for column in Predicate.parse(where).columns(table.schema) - {"n"})
    assert (narrowed.focused.key_range is not None or not narrowed.focused.runs) >= about_first


def test_values_of_an_arrow_array_are_looked_for_as_they_are(snapshot: persist.Snapshot) -> None:
    values = pa.array([7, None, -3, 7, 10**6])
    found = snapshot.to_arrow(where=[("id", "in", values), ("id", ">=", 0)])
    assert found["id"].to_pylist() == [7]
    expression = (pc.field("id") > 290) & (pc.field("n") > 0)
    assert sorted(snapshot.to_arrow(columns=["name"], where=expression).column_names) == ["diff", "name"]
    assert snapshot.to_arrow(columns=["id"], where=expression)["id"].to_pylist() == [
        each for each in snapshot.to_arrow(columns=["id"])["id"].to_pylist() if each is not None and each > 290
    ]
