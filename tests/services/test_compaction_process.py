"""PersistCompaction and PersistShard as processes of the command line: signals, kill -9, takeovers, exit codes."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from client.support import Place, file_place
from services.compacting import (
    SETTINGS,
    SLOW,
    SLOW_BATCHES,
    SLOW_ROWS,
    ServeProcess,
    append_many,
    batches,
    check_snapshot,
    claims,
    serve_process,
    stub_of,
    unnamed,
    until,
)

from persist import aio
from persist.client.remote import RemoteShards
from persist.v1 import compaction_pb2 as pb

TAKEOVER_MS = 1500
SLOW_ENVIRONMENT = {
    "PERSIST_COMPACTION_MEMORY_BYTES": str(SLOW.compaction_memory_bytes),
    "PERSIST_COMPACTION_ROUND_MS": str(SLOW.compaction_round_ms),
    "PERSIST_COMPACTION_TAKEOVER_MS": str(TAKEOVER_MS),
}


@asynccontextmanager
async def shards_at(path: Path) -> AsyncIterator[tuple[Place, ServeProcess, aio.Client, RemoteShards]]:
    """``persist serve shard --no-compaction``, clients of it, and where its stores are."""
    place = file_place(path)
    async with (
        serve_process("shard", *stores_of(place), "--no-compaction") as process,
        await aio.connect(process.endpoint, settings=SETTINGS) as client,
    ):
        remote = RemoteShards(process.endpoint)
        try:
            yield place, process, client, remote
        finally:
            await remote.close()


def stores_of(place: Place) -> tuple[str, ...]:
    """The options that name a place's stores."""
    return "--blob", place.blob, "--consensus", place.consensus


async def begun(stub, shard) -> None:
    """A request is being fulfilled, and its merge has written something."""
    async for news in stub.Compact(pb.CompactRequest(shard_id=shard, whole=True), timeout=50):
        if news.progress.rows_written:
            return
    raise AssertionError("the merge was over before it could be interrupted")


async def test_process_told_endpoints_only_finds_parts_and_work(tmp_path):
    async with shards_at(tmp_path) as (_, shards, client, remote):
        shard = await append_many(client, 60, 5)
        assert len(await batches(remote, shard)) == 60
        environment = {"PERSIST_COMPACTION_MEMORY_BYTES": str(64 << 20), "PERSIST_COMPACTIONS_AT_ONCE": "2"}
        async with serve_process("compaction", "--endpoint", shards.endpoint, "--json", **environment) as process:
            told = json.loads(process.line)
            assert told == {
                "compaction": process.endpoint, "compactions_at_once": 2, "compaction_memory_bytes": 64 << 20
            }  # fmt: skip
            await until(lambda: few(remote, shard))
            # Hints break off with the server, and are heard again when it is back.
            await shards.kill()
            await shards.start()
            later = await append_many(client, 60, 5)
            await until(lambda: few(remote, later))
            await check_snapshot(client, shard, 60, 5)
            await check_snapshot(client, later, 60, 5)
            process.signal(signal.SIGTERM)
            assert (await process.end())[0] == 0


async def few(remote: RemoteShards, shard) -> bool:
    return len(await batches(remote, shard)) <= 15


@pytest.mark.timeout_s(120)
async def test_sigterm_during_a_merge_releases_the_claim_and_leaves_no_blob(tmp_path):
    async with shards_at(tmp_path) as (place, _, client, remote):
        async with serve_process("compaction", *stores_of(place), **SLOW_ENVIRONMENT) as process:
            assert "1 at a time in at most 2 MiB each" in process.line
            shard = await append_many(client, SLOW_BATCHES, SLOW_ROWS)
            async with stub_of(process.endpoint) as stub:
                await begun(stub, shard)
                process.signal(signal.SIGTERM)
                code, said = await process.end()
            assert (code, said) == (0, "")
        assert len(await batches(remote, shard)) == SLOW_BATCHES
        assert await claims(remote, shard) == []
        assert await unnamed(remote, shard, place) == set()
        await check_snapshot(client, shard, SLOW_BATCHES, SLOW_ROWS)


@pytest.mark.timeout_s(120)
async def test_another_takes_over_from_one_that_was_killed_during_a_merge(tmp_path):
    async with shards_at(tmp_path) as (place, shards, client, remote):
        async with serve_process("compaction", *stores_of(place), **SLOW_ENVIRONMENT) as victim:
            shard = await append_many(client, SLOW_BATCHES, SLOW_ROWS)
            async with stub_of(victim.endpoint) as stub:
                await begun(stub, shard)
                await victim.kill()
        [left] = await claims(remote, shard)
        assert len(await batches(remote, shard)) == SLOW_BATCHES
        environment = {"PERSIST_COMPACTION_TAKEOVER_MS": str(TAKEOVER_MS), "PERSIST_COMPACTION_ROUND_MS": "200"}
        async with serve_process("compaction", "--endpoint", shards.endpoint, **environment):
            await until(lambda: merged(remote, shard))
        assert left not in await claims(remote, shard)
        await check_snapshot(client, shard, SLOW_BATCHES, SLOW_ROWS)


async def merged(remote: RemoteShards, shard) -> bool:
    return len(await batches(remote, shard)) == 1


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ((), 2, "name one place"),
        (("--blob", "mem:x"), 2, "go together"),
        (("--blob", "nonsense", "--consensus", "mem:x"), 1, "unknown blob URI"),
    ],
    ids=["nothing", "half", "malformed"],
)
async def test_wrong_options_end_in_one_sentence(options, code, says):
    process = ServeProcess("compaction", *options)
    with pytest.raises(AssertionError) as failed:
        await process.start()
    assert f"({code}, " in str(failed.value)
    assert says in str(failed.value)
    assert "Traceback" not in str(failed.value)


async def test_silent_endpoint_ends_in_one_sentence():
    process = ServeProcess("compaction", "--endpoint", "127.0.0.1:1", PERSIST_TIMEOUT_MS="500")
    with pytest.raises(AssertionError, match=r"\(1, ") as failed:
        await process.start()
    assert "Traceback" not in str(failed.value)
