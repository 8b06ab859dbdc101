"""Reads as Arrow streams, by the recipes of the docs, with those of the tools that are installed; and in notebooks."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sure import sure

import persist

ROWS = [{"id": number, "name": f"<{number}>"} for number in range(50)]


@pytest.fixture
def flights(tmp_path: Path) -> Iterator[persist.Table]:
    with persist.embedded(tmp_path) as client:
        table = client.table("flights", schema=persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()}))
        table.upsert(ROWS)
        yield table


def with_duckdb(read: Any) -> int:
    import duckdb

    return int(duckdb.sql("select sum(id * diff) from read").fetchall()[0][0])


def with_polars(read: Any) -> int:
    import polars

    return int(polars.DataFrame(read)["id"].sum())


def with_pandas(read: Any) -> int:
    return int(pa.table(read).to_pandas()["id"].sum())


def with_arrow(read: Any) -> int:
    return sum(sum(map(sure, batch.column("id").to_pylist())) for batch in pa.RecordBatchReader.from_stream(read))


RECIPES: dict[str, Callable[[Any], int]] = {
    "duckdb": with_duckdb, "polars": with_polars, "pandas": with_pandas, "pyarrow": with_arrow,
}  # fmt: skip


@pytest.mark.parametrize("tool", [tool for tool in RECIPES if importlib.util.find_spec(tool)])
def test_snapshots_and_splits_are_read_by_their_tools_more_than_once(flights: persist.Table, tool: str) -> None:
    snapshot = flights.snapshot()
    assert [RECIPES[tool](snapshot) for _ in range(2)] == [sum(range(50))] * 2
    splits = snapshot.splits(2)
    assert sum(RECIPES[tool](split) for split in splits) == sum(range(50))


def test_a_notebook_shows_what_a_read_is_and_its_first_rows(flights: persist.Table) -> None:
    snapshot = flights.snapshot()
    shown = snapshot._repr_html_()
    assert shown.startswith("<p><code>&lt;Snapshot of s")
    assert "<tr><th>id</th><th>name</th><th>diff</th></tr><tr><td>0</td><td>&lt;0&gt;</td><td>1</td></tr>" in shown
    assert shown.count("<tr>") == 21
    flights.expire()


def test_a_notebook_says_what_a_read_is_that_can_be_read_no_more(tmp_path: Path) -> None:
    client = persist.embedded(tmp_path)
    snapshot = client.table("t", schema=persist.Schema(key={"id": pa.int64()})).snapshot()
    client.close()
    assert snapshot._repr_html_().endswith("</code></p>")
