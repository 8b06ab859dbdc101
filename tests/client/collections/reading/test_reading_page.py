"""What docs/reading.md shows runs, from top to bottom."""

import asyncio
from pathlib import Path
from typing import Any

import polars
from client.collections.support import SCHEMA
from client.support import SMALL
from pages.fences import ROOT, fences

import persist
from persist.core.catalog.ddl.statements import CreateCursor, CreateTable, QualifiedName
from persist.core.catalog.values import Retain


async def test_examples_of_the_page_on_reading_run(tmp_path: Path, capsys: Any):
    def work() -> None:
        with persist.embedded(str(tmp_path / "data"), settings=SMALL) as client:
            orders = QualifiedName("orders")
            with client.environment() as environment:
                for name in ("orders", "lines"):
                    environment.execute(CreateTable(QualifiedName(name), SCHEMA, retain=Retain()))
                for cursor in ("c", "d"):
                    query = "SELECT * FROM persist.public.orders"
                    environment.execute(CreateCursor(QualifiedName(cursor), query, (orders,), SCHEMA))
                shard = environment.resolve("orders").data
            assert shard is not None
            client.table(shard, mode="wal").insert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
            names = {"client": client, "polars": polars, "database": tmp_path / "sink.db"}
            page = fences(ROOT / "docs/reading.md")
            ours = [each for each in page if each.elsewhere == "tests/client/collections/reading/test_reading_page.py"]
            assert len(ours) == 3
            for fence in ours:
                exec(compile(fence.code, str(fence), "exec"), names)

    await asyncio.to_thread(work)
    shown = capsys.readouterr().out
    assert "[{'name': 'b', 'diff': 1}]" in shown
    assert "can respond immediately" in shown
    assert (tmp_path / "sink.db").exists()
