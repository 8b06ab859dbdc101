"""What reads a split may be dropped midway, and collected by any thread: that of the loop, too."""

import asyncio
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.client.shard import loop_thread
from persist.client.shard.read.split import _rows
from persist.machine.parts.fetch import Fetcher


class Cycle:
    """Only the collector ends it."""

    def __init__(self, rows: Iterator[pa.RecordBatch]) -> None:
        self.rows, self.own = rows, self


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_reader_of_a_split_that_the_loop_collects_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    with persist.embedded(tmp_path) as client:
        writer, reader = client.open("t", schema=persist.Schema({"id": pa.int64()}, {"v": pa.string()}))
        for first in (0, 1):
            ids = np.arange(first, 200_000, 2)
            writer.append_at_upper(pa.table({"id": ids, "v": [f"{each:060d}" for each in ids]}))
        [split] = reader.snapshot().splits(1)
        loop = loop_thread.process_loop()
        before = {id(each) for each in gc.get_objects() if isinstance(each, Fetcher)}
        cycle = Cycle(_rows(split, split.reading, None))
        next(cycle.rows)
        [fetcher] = [each for each in gc.get_objects() if isinstance(each, Fetcher) and id(each) not in before]
        del cycle

        async def collect() -> None:
            gc.collect()
            # What a finalizer left for the loop comes before what this one leaves.
            await asyncio.sleep(0)

        async def settle() -> None:
            while not fetcher._closed:
                await asyncio.sleep(0)

        loop.run(collect())
        loop.run(asyncio.wait_for(settle(), 30))
    assert raised == []
