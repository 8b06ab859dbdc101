"""An S3 server that answers 503 and 409, before or after doing as asked: nothing is lost or doubled; it recovers."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist import aio, errors
from persist.testing.http_faults import HttpFaultProxy, Refusal, port_of, through

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
# Everything goes to S3, and is compacted, rolled up and collected all the time.
BUSY = persist.Settings(
    inline_part_bytes_max=0, rollup_every=16, store_timeout_ms=2_000, blob_timeout_ms=2_000, timeout_ms=20_000,
    retry_max_ms=200, compaction_takeover_ms=1_000,
)  # fmt: skip
REFUSALS = (
    Refusal(status=503, code="SlowDown"),
    Refusal(status=503, code="ServiceUnavailable"),
    Refusal(status=503, code="ServiceUnavailable", done=True),
    Refusal(status=409, code="ConditionalRequestConflict"),
    Refusal(status=500, code="InternalError", done=True),
)


def rows(time_: int, ids: list[int]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": [f"n{id_}" for id_ in ids],
            "ts": pa.array([time_] * len(ids), pa.uint64()),
            "diff": pa.array([1] * len(ids), pa.int64()),
        }
    )


@pytest.mark.timeout_s(240)
@pytest.mark.parametrize("client", ["boto3", "obstore"])
async def test_shard_on_s3_that_refuses_a_third_of_all_requests(
    client: str, fresh_s3_uri: Callable[[], str], fresh_redis_uri: Callable[[], str]
):
    uri, entropy = fresh_s3_uri(), random.Random(5)
    async with HttpFaultProxy(port_of(uri), REFUSALS, probability=0.0, seed=5) as proxy:
        opened = await aio.embedded(
            blob=through(uri, proxy.endpoint, client=client), consensus=fresh_redis_uri(), settings=BUSY
        )
        async with opened:
            writer, reader = await opened.open(persist.ShardId.new(), schema=SCHEMA)
            expected: list[int] = []
            proxy.probability = 0.3
            for step in range(60):
                ids = [entropy.randrange(10_000) for _ in range(20)]
                await _append(writer, rows(step, ids), step)
                expected += ids
            struck = dict(proxy.fired)
            proxy.probability = 0.0
            healed = time.monotonic()
            await _append(writer, rows(60, [1]), 60)
            found = await (await reader.snapshot(60)).to_arrow()
            assert time.monotonic() - healed < 50
            assert _ids(found) == sorted([*expected, 1])
            await reader.downgrade_since(60)
            await _quiet(opened, writer)
            assert _ids(await (await reader.snapshot(max(60, (writer.upper.time or 1) - 1))).to_arrow()) == sorted(
                [*expected, 1]
            )
    assert all(struck.get(f"{each.code}{' done' if each.done else ''}", 0) > 0 for each in REFUSALS), struck


async def _append(writer: Any, table: pa.Table, step: int) -> None:
    """Append once, whatever S3 says meanwhile; a time that ran out is asked again by the same token."""
    token = persist.Token.of(step.to_bytes(16, "big"))
    for _ in range(10):
        try:
            outcome = await writer.compare_and_append(table, step, step + 1, token=token)
        except errors.LocationError:
            continue
        assert isinstance(outcome, persist.Appended)
        return
    raise AssertionError("ten attempts were not enough")


async def _quiet(client: Any, writer: Any) -> None:
    """Commit until maintenance has caught up: few batches, few diffs."""
    for _ in range(100):
        at = writer.upper.time
        await writer.append([], at + 1)
        state = await client.inspect(writer.shard)
        if sum(len(each["batches"]) for each in state["spine"]) <= 16 and len(state["rollups"]) <= 3:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("maintenance does not catch up")


def _ids(table: pa.Table) -> list[int]:
    counted: Iterator[Any] = zip(table.column("id").to_pylist(), table.column("diff").to_pylist(), strict=True)
    return sorted(id_ for id_, diff in counted for _ in range(diff))
