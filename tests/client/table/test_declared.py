"""What is declared not to be null inside of columns, at the doors of tables and handles; others declare less."""

from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

import persist
from persist.errors import InvalidArgument

C = pa.field("c", pa.int64(), nullable=False)
SCHEMA = persist.Schema({"id": pa.int64()}, {"a": pa.list_(pa.struct([C]))})
ROWS = [{"id": 1, "a": [{"c": None}]}]
GOOD = [{"id": 2, "a": [{"c": 3}, None]}]


def strict_data() -> pa.Table:
    inner = pa.StructArray.from_arrays([pa.array([None], pa.int64())], fields=[C])
    return pa.table({"id": [1], "a": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), inner)})


def rows_of(table: persist.Table) -> list[tuple[object, object]]:
    return [(each["id"], each["a"]) for each in table.snapshot().to_pylist()]


@pytest.mark.parametrize("mode", ["direct", "wal"])
def test_table_refuses_nulls_that_were_declared_away_and_still_lives_with_those_of_others(
    mode: Literal["direct", "wal"], tmp_path: Path
) -> None:
    with persist.embedded(tmp_path) as client, persist.embedded(tmp_path) as other:
        table = client.table("t", schema=SCHEMA, mode=mode)
        table.insert(GOOD)
        for rows in (ROWS, strict_data(), strict_data().to_reader()):
            for write in (table.insert, table.upsert):
                if not isinstance(rows, pa.RecordBatchReader) or write == table.insert:
                    with pytest.raises(InvalidArgument) as caught:
                        write(rows)
                    assert caught.value.details["column"] == "a[].c"
        free = other.table("t", mode=mode)
        with pytest.raises(InvalidArgument):
            free.insert(strict_data())
        free.insert(ROWS)
        assert sorted(rows_of(table)) == [(1, [{"c": None}]), (2, [{"c": 3}, None])]
        table.insert([{"id": 4, "a": None}])
        table.retract(ROWS)
        assert sorted(rows_of(table)) == [(2, [{"c": 3}, None]), (4, None)]


def test_appends_refuse_nulls_that_were_declared_away_or_that_data_says_are_none(tmp_path: Path) -> None:
    with persist.embedded(tmp_path) as client:
        writer, reader = client.open("s", schema=SCHEMA)
        for rows in (ROWS, strict_data(), strict_data().to_reader(), [(({"id": 1}, {"a": [{"c": None}]}), 5, 1)]):
            with pytest.raises(InvalidArgument) as caught:
                writer.append_at_upper(rows)
            assert caught.value.details["column"] == "a[].c"
        free, _ = client.open("s")
        free.append_at_upper(ROWS)
        writer.append_at_upper([{**ROWS[0], "diff": -1}])
        writer.append_at_upper(GOOD)
        assert [each["id"] for each in reader.snapshot().to_pylist()] == [2]
