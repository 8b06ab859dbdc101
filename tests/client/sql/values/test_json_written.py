"""What is written as JSON is JSON: floats that it has no number for are texts, wherever they stand."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from client.sql.support import rows, sessions

from persist.core.data.schema import Schema
from persist.sinks.files import FilesSink
from persist.sinks.sql import plain

NAN, INFINITE = float("nan"), float("inf")


def strict(text: str) -> list[dict[str, object]]:
    def refuse(token: str) -> object:
        raise AssertionError(f"{token} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


async def test_copy_writes_json_and_reads_it_again(tmp_path: Path) -> None:
    async with sessions(files=True) as (session,):
        await session.execute("create table f (k bigint, v double precision)")
        await session.execute("insert into f values (1, 'NaN'), (2, '-Infinity'), (3, 1.5), (4, 'Infinity'), (5, null)")
        path = tmp_path / "f.json"
        await session.execute(f"copy (select * from f order by k) to '{path}' (format json)")
        assert [each["v"] for each in strict(path.read_text())] == ["NaN", "-Infinity", "1.5", "Infinity", None]
        await session.execute(f"copy (select * from f where k <> 3) to '{path}' (format json)")
        await session.execute("create table g (k bigint, v double precision)")
        await session.execute(f"copy g from '{path}' (format json)")
        assert await rows(session, "select k from g where v = 'NaN' or v = 'Infinity' or v = '-Infinity'") == [
            (1,),
            (2,),
            (4,),
        ]


def test_sinks_write_json(tmp_path: Path) -> None:
    schema = Schema({"k": pa.int64()}, {"v": pa.float64(), "l": pa.list_(pa.struct([("x", pa.float64())]))})
    given = {"k": [1, 2], "v": [NAN, 1.5], "l": [[{"x": -INFINITE}], [{"x": NAN}, None]]}
    updates = pa.table({**given, "ts": [1, 1], "diff": [1, 1]}, schema=schema.updates)
    sink = FilesSink(tmp_path, format="jsonl")
    sink.begin("k", 1, schema.updates)
    sink.write("k", 1, updates, None, 2)
    [path] = sink.files()
    sink.close()
    found = strict(path.read_text())
    assert [each["v"] for each in found] == ["NaN", 1.5]
    assert [each["l"] for each in found] == [[{"x": "-Infinity"}], [{"x": "NaN"}, None]]


@pytest.mark.parametrize(
    ("value", "text"), [([NAN], '["NaN"]'), ({"x": [1.5, -INFINITE]}, '{"x": [1.5, "-Infinity"]}')]
)
def test_nested_values_of_databases_are_json(value: object, text: str) -> None:
    assert plain(value) == text
