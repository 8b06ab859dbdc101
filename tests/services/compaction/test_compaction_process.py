"""PersistCompaction and PersistShard as processes of the command line: signals, kill -9, takeovers, exit codes.

A merge that is to be interrupted writes to S3 by way of a proxy which holds one of its uploads until that has happened.
"""

import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from client.support import Place, file_place
from services.compaction.compacting import (
    SETTINGS,
    THRIFTY,
    THRIFTY_BATCHES,
    THRIFTY_ROWS,
    UPLOADS_BEFORE,
    append_many,
    batches,
    check_snapshot,
    claims,
    stub_of,
    unnamed,
    until,
)
from services.process import ServeProcess, serve_process
from sure import heard

from persist import aio
from persist.client.remote.shards import RemoteShards
from persist.testing.http_faults import HeldRequests, HttpFaultProxy, port_of, through
from persist.v1 import compaction_pb2 as pb

TAKEOVER_MS = 1500
ENVIRONMENT = {
    "PERSIST_COMPACTION_MEMORY_BYTES": str(THRIFTY.compaction_memory_bytes),
    "PERSIST_PART_BYTES_MAX": str(THRIFTY.part_bytes_max),
    "PERSIST_ROW_GROUP_ROWS": str(THRIFTY.row_group_rows),
    "PERSIST_COMPACTION_ROUND_MS": str(THRIFTY.compaction_round_ms),
    "PERSIST_COMPACTION_TAKEOVER_MS": str(TAKEOVER_MS),
}


@asynccontextmanager
async def shards_at(place: Place) -> AsyncIterator[tuple[ServeProcess, aio.Client, RemoteShards]]:
    """``persist serve shard --no-compaction``, and clients of it."""
    async with (
        serve_process("shard", *stores_of(place), "--no-compaction") as process,
        await aio.connect(process.endpoint, settings=SETTINGS) as client,
    ):
        remote = RemoteShards(process.endpoint)
        try:
            yield process, client, remote
        finally:
            await remote.close()


def stores_of(place: Place) -> tuple[str, ...]:
    """The options that name a place's stores."""
    return "--blob", place.blob, "--consensus", place.consensus


async def test_process_told_endpoints_only_finds_parts_and_work(tmp_path):
    async with shards_at(file_place(tmp_path)) as (shards, client, remote):
        shard = await append_many(client, 60, 5)
        assert len(await batches(remote, shard)) == 60
        environment = {"PERSIST_COMPACTION_MEMORY_BYTES": str(64 << 20), "PERSIST_COMPACTIONS_AT_ONCE": "2"}
        async with serve_process("compaction", "--endpoint", shards.endpoint, "--json", **environment) as process:
            told = json.loads(process.line)
            assert told == {
                "compaction": process.endpoint, "compactions_at_once": 2, "compaction_memory_bytes": 64 << 20
            }  # fmt: skip
            if sys.platform == "linux":
                [pid] = process.pids
                assert b"\0ARROW_DEFAULT_MEMORY_POOL=system\0" in Path(f"/proc/{pid}/environ").read_bytes()
            await until(lambda: few(remote, shard))
            # Hints break off with the server, and come again when it is back.
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


@pytest.fixture
def place(tmp_path: Path, fresh_s3_uri: Callable[[], str]) -> Place:
    return Place(fresh_s3_uri(), f"sqlite:{tmp_path / 'consensus.db'}")


@asynccontextmanager
async def held_up(place: Place) -> AsyncIterator[tuple[ServeProcess, HeldRequests]]:
    """A compaction server, and the hold on the parts it uploads after the first."""
    async with HttpFaultProxy(port_of(place.blob)) as proxy:
        hold = proxy.hold(r"PUT \S+/n\d+-", after=UPLOADS_BEFORE)
        behind = Place(through(place.blob, proxy.endpoint), place.consensus)
        async with serve_process("compaction", *stores_of(behind), **ENVIRONMENT) as process:
            yield process, hold


async def test_sigterm_during_a_merge_releases_the_claim_and_leaves_no_blob(place: Place):
    async with shards_at(place) as (_, client, remote):
        shard = await append_many(client, THRIFTY_BATCHES, THRIFTY_ROWS)
        async with held_up(place) as (process, hold), stub_of(process.endpoint) as stub:
            assert "1 at a time in at most 64 MiB each" in process.line
            merging = stub.Compact(pb.CompactRequest(shard_id=shard, whole=True), timeout=100)
            await hold.reached.wait()
            assert len(await unnamed(remote, shard, place)) == UPLOADS_BEFORE
            waiting = stub.Compact(pb.CompactRequest(shard_id=shard), timeout=100)
            assert (await heard(waiting)).HasField("queued")
            process.signal(signal.SIGTERM)
            # Once those that wait are sent away, the merge is being stopped. What it was uploading arrives after that.
            with pytest.raises(grpc.aio.AioRpcError, match="draining"):
                await waiting.read()
            hold.release()
            assert await process.end() == (0, "")
            merging.cancel()
        assert len(await batches(remote, shard)) == THRIFTY_BATCHES
        assert await claims(remote, shard) == []
        assert await unnamed(remote, shard, place) == set()
        await check_snapshot(client, shard, THRIFTY_BATCHES, THRIFTY_ROWS)


async def test_another_takes_over_from_one_that_was_killed_during_a_merge(place: Place):
    async with shards_at(place) as (shards, client, remote):
        shard = await append_many(client, THRIFTY_BATCHES, THRIFTY_ROWS)
        async with held_up(place) as (victim, hold), stub_of(victim.endpoint) as stub:
            merging = stub.Compact(pb.CompactRequest(shard_id=shard, whole=True), timeout=100)
            await hold.reached.wait()
            await victim.kill()
            merging.cancel()
            [left] = await claims(remote, shard)
            assert len(await batches(remote, shard)) == THRIFTY_BATCHES
            environment = {"PERSIST_COMPACTION_TAKEOVER_MS": str(TAKEOVER_MS), "PERSIST_COMPACTION_ROUND_MS": "200"}
            async with serve_process("compaction", "--endpoint", shards.endpoint, **environment):
                await until(lambda: merged(remote, shard))
            assert left not in await claims(remote, shard)
            before = await unnamed(remote, shard, place)
            # What the dead one was uploading arrives after all, and is garbage like what it had uploaded.
            hold.release()
            await until(lambda: more_unnamed(remote, shard, place, before))
        await check_snapshot(client, shard, THRIFTY_BATCHES, THRIFTY_ROWS)


async def more_unnamed(remote: RemoteShards, shard, place: Place, before: set[str]) -> bool:
    return bool(await unnamed(remote, shard, place) - before)


async def merged(remote: RemoteShards, shard) -> bool:
    return len(await batches(remote, shard)) == 1


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ((), 2, "name one place"),
        (("--blob", "mem:x"), 2, "go together"),
        (("--blob", "nonsense", "--consensus", "mem:x"), 2, "unknown blob URI"),
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
