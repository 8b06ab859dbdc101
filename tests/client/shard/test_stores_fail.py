"""Stores that are down, frozen, full, read-only or of another release, seen through handles.

Every time: a typed error with a next step, nothing changed, and the same handles work again once the store is healed.
"""

import asyncio
import dataclasses
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from client.support import SCHEMA, SMALL, Place, client_of, memory_place, rows_of, table

import persist
from persist import ShardId, errors
from persist.core import ids
from persist.core.shard.state import STATE_FORMAT
from persist.runtime import system
from persist.storage import open as stores
from persist.testing import servers
from persist.testing.faults import FaultProxy, Mode
from persist.v1 import state_pb2
from persist.wire.frame import framed
from persist.wire.shard import state

FIRST = [(1, "a", 0, 1)]
NEXT = [(2, "b", 1, 1)]
LARGE = [(key, f"{key * 7919:x}" * 20, 1, 1) for key in range(2000)]
RECOVERY_SECONDS = 50.0
BIG = dataclasses.replace(SMALL, sort_rows=1 << 20, row_group_rows=1 << 16, part_bytes_max=1 << 24)
Step = Callable[[], Any]

pytestmark = pytest.mark.parametrize("access", ["local", "remote"])


async def goes_through_it(
    place: Place,
    fail: Step,
    heal: Step,
    expected: type[errors.PersistError],
    *,
    rows: list[tuple[int, str, int, int]] = NEXT,
    settings: persist.Settings = SMALL,
) -> None:
    """Append before, during and after a failure, with the same handles."""
    async with client_of(place, settings=settings) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table(FIRST), 1)
        before = await client.inspect(writer.shard)
        await asyncio.to_thread(fail)
        try:
            with pytest.raises(expected) as refused:
                await writer.append(table(rows), 2, timeout=1.5)
            assert refused.value.hint
        finally:
            await asyncio.to_thread(heal)
        # What may have been under way either happened whole or not at all; what certainly did not, changed nothing.
        after = await client.inspect(writer.shard)
        if not isinstance(refused.value, errors.Indeterminate):
            assert {name: after[name] for name in ("upper", "since")} == {
                name: before[name] for name in ("upper", "since")
            }
        await writer.append(table(rows), 2, timeout=RECOVERY_SECONDS)
        found = rows_of(await (await reader.snapshot(1, timeout=RECOVERY_SECONDS)).to_arrow())
        assert found == sorted((key, name, diff) for key, name, _, diff in [*FIRST, *rows])


def redis_says(server: servers.Server, *words: str) -> None:
    import redis

    with redis.Redis.from_url(server.uri) as connection:
        assert connection.execute_command(*words)


@pytest.mark.parametrize("start", [servers.start_redis, servers.start_postgres], ids=["redis", "postgres"])
async def test_consensus_that_is_down(tmp_path: Path, access: str, start: Callable[[], servers.Server]):
    with start() as server:
        place = Place(f"file:{tmp_path}", server.uri, access)
        # A call on its way when the store dies may have happened.
        await goes_through_it(place, server.kill, server.start, errors.LocationError)


@pytest.mark.parametrize("start", [servers.start_redis, servers.start_s3], ids=["redis", "s3"])
async def test_store_that_is_frozen(tmp_path: Path, access: str, start: Callable[[], servers.Server]):
    with start() as server:
        redis = server.uri.startswith("redis:")
        place = Place(f"file:{tmp_path}", server.uri, access) if redis else memory_place(access)
        place = place if redis else dataclasses.replace(place, blob=server.uri)
        # What was sent may have happened.
        await goes_through_it(
            place, server.pause, server.resume, errors.LocationError, rows=NEXT if redis else LARGE, settings=BIG
        )


async def test_redis_that_is_full(tmp_path: Path, access: str):
    with servers.start_redis() as server:
        place = Place(f"file:{tmp_path}", server.uri, access)
        await goes_through_it(
            place,
            lambda: redis_says(server, "CONFIG", "SET", "maxmemory", "1"),
            lambda: redis_says(server, "CONFIG", "SET", "maxmemory", "0"),
            errors.StoreFull,
        )


async def test_redis_that_is_read_only(tmp_path: Path, access: str):
    with servers.start_redis() as server:
        place = Place(f"file:{tmp_path}", server.uri, access)
        await goes_through_it(
            place,
            lambda: redis_says(server, "REPLICAOF", "127.0.0.1", "1"),
            lambda: redis_says(server, "REPLICAOF", "NO", "ONE"),
            errors.StoreReadOnly,
        )


async def test_postgres_that_is_read_only(tmp_path: Path, access: str, fresh_postgres_uri: Callable[[], str]):
    import psycopg

    uri = fresh_postgres_uri()

    def set_read_only(value: str) -> None:
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            connection.execute("SELECT pg_reload_conf()")
        reached = ""
        while reached != value:
            with psycopg.connect(uri, autocommit=True) as connection:
                [reached] = connection.execute("SHOW default_transaction_read_only").fetchone() or ("",)

    place = Place(f"file:{tmp_path}", uri, access)
    await goes_through_it(place, lambda: set_read_only("on"), lambda: set_read_only("off"), errors.StoreReadOnly)


async def test_folder_that_is_full(tmp_path: Path, access: str, fresh_redis_uri: Callable[[], str]):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    await goes_through_it(
        Place(f"file:{tmp_path}", fresh_redis_uri(), access),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard)),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)),
        errors.StoreFull,
        rows=LARGE,
        settings=BIG,
    )


async def test_opening_a_shard_in_a_folder_that_is_full_says_so_at_once(
    tmp_path: Path, access: str, fresh_redis_uri: Callable[[], str]
):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    place, shard = Place(f"file:{tmp_path}", fresh_redis_uri(), access), ShardId.new()
    async with client_of(place) as client:
        began = system().monotonic()
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
        try:
            with pytest.raises(errors.StoreFull):
                await client.open(shard, schema=SCHEMA, timeout=100)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert system().monotonic() - began < 50
        await client.open(shard, schema=SCHEMA, timeout=RECOVERY_SECONDS)


async def test_s3_whose_connections_break(access: str, s3_uri: str, fresh_s3_uri: Callable[[], str]):
    port = urlsplit(parse_qs(urlsplit(s3_uri).query)["endpoint"][0]).port
    assert port is not None
    turn = asyncio.get_running_loop().call_soon_threadsafe
    async with FaultProxy("127.0.0.1", port, seed=1) as proxy:
        uri = fresh_s3_uri().replace(f":{port}", f":{proxy.port}")
        await goes_through_it(
            dataclasses.replace(memory_place(access), blob=uri),
            lambda: turn(proxy.set, Mode.RESET),
            lambda: turn(proxy.set, Mode.PASS),
            errors.LocationError,
            rows=LARGE,
            settings=BIG,
        )
        assert sum(proxy.fired.values()) > 0


async def test_request_over_the_limit_is_refused_and_a_smaller_one_taken(access: str):
    settings = dataclasses.replace(SMALL, inline_part_bytes_max=1 << 25, inline_total_bytes_max=1 << 26, **{
        name: getattr(BIG, name) for name in ("sort_rows", "row_group_rows", "part_bytes_max")
    })  # fmt: skip
    huge = [(key, system().random_bytes(3000).hex(), 1, 1) for key in range(1600)]
    async with client_of(memory_place(access), settings=settings) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table(FIRST), 1)
        before = await client.inspect(writer.shard)
        with pytest.raises(errors.RequestTooLarge) as refused:
            await writer.append(table(huge), 2, timeout=50)
        assert refused.value.hint
        # The call is closed, so that no late attempt of it happens after all; nothing else is changed.
        closed = {"seqno", "walltime_ms", "sessions"}
        after = await client.inspect(writer.shard)
        assert {name for name in after if after[name] != before[name]} == closed
        await writer.append(table(NEXT), 2)
        assert rows_of(await (await reader.snapshot(1)).to_arrow()) == [(1, "a", 1), (2, "b", 1)]


def of_another_release(shard: ids.ShardId, seqno: int) -> bytes:
    """A whole diff in the format after ours."""
    return framed(b"pDIF", STATE_FORMAT + 1, state._binding(shard, seqno), state_pb2.StateDiff())


async def test_state_of_another_release(access: str):
    place = memory_place(access)
    log = stores._logs
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table(FIRST), 1)
        name = place.consensus.partition(":")[2]
        heads, entries = log[name].heads, log[name].entries[writer.shard]
        seqno = heads[writer.shard] + 1
        entries[seqno] = of_another_release(writer.shard, seqno)
        heads[writer.shard] = seqno
        for call in (lambda: writer.append(table(NEXT), 2, timeout=2), lambda: client.inspect(writer.shard)):
            with pytest.raises(errors.VersionMismatch) as refused:
                await call()
            assert refused.value.hint
        assert heads[writer.shard] == seqno
        del entries[seqno]
        heads[writer.shard] = seqno - 1
        await writer.append(table(NEXT), 2)
        assert rows_of(await (await reader.snapshot(1)).to_arrow()) == [(1, "a", 1), (2, "b", 1)]
