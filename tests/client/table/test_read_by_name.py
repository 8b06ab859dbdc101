"""What was acknowledged through a log is read by its name at once, by every door that reads the shard of a name."""

import contextlib
from pathlib import Path

import pytest

import persist


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with persist.embedded(tmp_path / "data") as client:
        client.sql("CREATE TABLE flights (id bigint, v text); INSERT INTO flights VALUES (3, 'ddl')")
    return tmp_path / "data"


def ids(reader: persist.ReadHandle) -> list[int]:
    return [each["id"] for each in reader.snapshot().to_pylist()]


def test_reader_by_name_has_what_was_inserted(place: Path) -> None:
    with persist.embedded(place) as client, persist.embedded(place) as other:
        reader = client.open_reader("flights")
        assert reader.upper.time is not None
        assert reader.snapshot(reader.upper.time - 1).to_pylist()[0]["id"] == 3
        for at in range(4, 8):
            writer = (client, other)[at % 2]
            writer.sql("INSERT INTO flights VALUES (?, 'more')", [at])
            assert sorted(ids(reader)) == [*range(3, at + 1)]
            assert sorted(ids(other.open_reader("flights"))) == [*range(3, at + 1)]
        table = client.table("flights", mode="wal")
        table.insert([{"id": 9, "v": "by table"}])
        assert 9 in ids(reader)


def test_reader_of_a_dropped_table_reads_what_it_held_or_says_that_it_is_gone(place: Path) -> None:
    with persist.embedded(place) as client:
        reader = client.open_reader("flights")
        client.sql("DROP TABLE flights")
        with contextlib.suppress(persist.NotReadable, persist.LeaseExpired):
            assert ids(reader) == [3]
