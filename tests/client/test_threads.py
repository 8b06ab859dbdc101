"""Threads by purpose: code of users that takes its time stops nothing else."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from client.support import SCHEMA, SMALL, Place, client_of, file_place

import persist

SLOW = 40
"""More than the threads that any machine this runs on has for computing, doubled."""


@pytest.fixture(params=["file", "s3"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    files = file_place(tmp_path)
    return files if request.param == "file" else Place(request.getfixturevalue("fresh_s3_uri")(), files.consensus)


def rows(count: int) -> pa.Table:
    ids = range(count)
    return pa.table(
        {"id": ids, "name": [f"name {n}" for n in ids], "ts": pa.array([0] * count, pa.uint64()), "diff": [1] * count}
    )


async def test_slow_iterators_of_users_stop_neither_stores_nor_one_another(here):
    """More appends than there are threads wait for their rows; others write to Blob, and read, as if alone."""
    let = threading.Event()
    waiting = threading.Semaphore(0)

    def slow() -> Iterator[pa.Table]:
        waiting.release()
        let.wait(300)
        yield rows(1)

    async with client_of(here, settings=SMALL) as client:
        shards = [persist.ShardId.new() for _ in range(SLOW + 1)]
        writers = [await client.open_writer(shard, schema=SCHEMA) for shard in shards]
        appends = [asyncio.create_task(writer.append(slow(), 1, timeout=300)) for writer in writers[:SLOW]]
        try:
            async with asyncio.timeout(60):
                for _ in range(SLOW):
                    while not waiting.acquire(blocking=False):
                        await asyncio.sleep(0.01)
            # Large enough for parts in Blob, which are written and read by threads of the stores.
            await writers[SLOW].append(rows(500), 1, timeout=8)
            reader = await client.open_reader(shards[SLOW])
            assert (await (await reader.snapshot(as_of=0)).to_arrow()).num_rows == 500
        finally:
            let.set()
        assert all(one.upper.time == 1 for one in await asyncio.gather(*appends))


async def test_user_that_takes_every_thread_of_the_loop_stops_no_store(here):
    """Embedded, the loop and its threads are the user's."""
    let = threading.Event()
    async with client_of(here, settings=SMALL) as client:
        writer = await client.open_writer(persist.ShardId.new(), schema=SCHEMA)
        taken = [asyncio.create_task(asyncio.to_thread(let.wait, 300)) for _ in range(SLOW)]
        try:
            await asyncio.sleep(0)
            assert (await writer.append(rows(500), 1, timeout=8)).upper.time == 1
        finally:
            let.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*taken)
