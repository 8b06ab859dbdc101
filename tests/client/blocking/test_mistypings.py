"""What is mistyped is named in the error, beside what may have been meant."""

from pathlib import Path

import pyarrow as pa
import pytest

import persist

PEOPLE = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})


def test_a_table_that_is_not_there_is_named_and_near_ones(tmp_path: Path) -> None:
    with persist.embedded(tmp_path) as client:
        client.table("people", schema=PEOPLE).insert([{"id": 1, "name": "Ada"}])
        for opened in (client.open, client.table):
            with pytest.raises(persist.ShardNotFound) as refused:
                opened("poeple")
            assert refused.value.details == {"name": "poeple", "near": "people"}
            assert "did you mean people?" in str(refused.value)


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    with persist.embedded(tmp_path) as client:
        table = client.table("people", schema=PEOPLE)
        with pytest.raises(persist.SchemaMismatch, match="unknown=nme"):
            table.insert([{"id": 1, "nme": "Ada"}])


@pytest.mark.parametrize("directory", ["./data", "/data", "file:///data", "s3://bucket/data"])
def test_a_directory_is_not_connected_to(directory: str) -> None:
    with pytest.raises(persist.InvalidArgument, match=r"persist\.embedded"):
        persist.connect(directory)
