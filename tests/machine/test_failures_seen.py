"""What fails in the background is raised in waiting calls, logged and counted, and goes on when the store is well."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from machine.support import SETTINGS, empty_append, machine, memory_stores, new_shard

from persist.core.frontier import MINIMUM, Antichain
from persist.errors import CorruptData, Determinate, LocationError, VersionMismatch
from persist.machine.local_shards import LocalShards
from persist.retry.tasks import FAILURES
from persist.runtime import system
from persist_host import Telemetry

FOLLOWING = (("work", "following a shard"),)


class Spoilt:
    """A store whose calls of one kind fail as often as asked."""

    def __init__(self, store: Any, method: str) -> None:
        self._store = store
        self._method = method
        self.failures: list[BaseException] = []

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name != self._method or not self.failures:
            return call

        async def fails(*args: Any, **options: Any) -> Any:
            raise self.failures.pop()

        return fails


async def until(check: Any) -> None:
    while not check():
        await asyncio.sleep(0.005)


async def uppers(changes: AsyncIterator[Any], told: list[Any]) -> None:
    async for change in changes:
        told.append(change.info.upper.time)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (RuntimeError("a bug in a driver"), Determinate),
        (CorruptData("a rollup cannot be read"), CorruptData),
        (VersionMismatch("written by a newer release"), VersionMismatch),
    ],
    ids=["unexpected", "corrupt", "newer"],
)
async def test_follower_that_fails_tells_who_waits_and_goes_on(failure, told, unseen):
    blob, consensus = memory_stores()
    shard, telemetry = new_shard(), Telemetry(service="test")
    spoilt = Spoilt(consensus, "scan")
    other = machine(blob, consensus)
    await other.open(shard, timeout=5)
    here = LocalShards(blob, spoilt, settings=SETTINGS, runtime=system(), counts=telemetry)
    present: list[Any] = []
    watching = [asyncio.create_task(uppers(here.watch(shard, MINIMUM, timeout=60), present)) for _ in range(2)]
    await until(lambda: len(present) == 2)
    spoilt.failures = [failure, failure]
    await other.apply(shard, empty_append(0, 1), timeout=5)
    done, _ = await asyncio.wait(watching, timeout=60)
    assert [type(task.exception()) for task in done] == [told, told]
    # One failure may have ended both: then nothing follows any more, and the other goes unseen.
    spoilt.failures = []
    assert telemetry.value(FAILURES, FOLLOWING) == len(unseen) >= 1
    unseen.clear()
    again: list[Any] = []
    watching = [asyncio.create_task(uppers(here.watch(shard, MINIMUM, timeout=60), again)) for _ in range(2)]
    await until(lambda: again == [1, 1])
    await other.apply(shard, empty_append(1, 2), timeout=5)
    await until(lambda: again == [1, 1, 2, 2])
    for task in watching:
        task.cancel()
    await here.close()


async def test_watcher_that_stays_hears_again_after_the_follower_failed(unseen):
    blob, consensus = memory_stores()
    shard = new_shard()
    spoilt = Spoilt(consensus, "scan")
    other, here = machine(blob, consensus), machine(blob, spoilt)
    await other.open(shard, timeout=5)
    waiting = [asyncio.create_task(here.fetch(shard, Antichain.of(1), timeout=60)) for _ in range(2)]
    await asyncio.sleep(0.05)
    spoilt.failures = [RuntimeError("a bug in a driver") for _ in range(2)]
    stays = asyncio.create_task(asked_again(here, shard))
    await until(lambda: not spoilt.failures)
    await other.apply(shard, empty_append(0, 2), timeout=5)
    assert (await asyncio.wait_for(stays, 60)).info.upper == Antichain.of(2)
    done, _ = await asyncio.wait(waiting, timeout=60)
    assert {type(task.exception()) for task in done} <= {Determinate, type(None)}
    unseen.clear()
    await here.close()


async def asked_again(shards: Any, shard: Any) -> Any:
    """What a client does: repeat what the location failed with."""
    while True:
        try:
            return await shards.fetch(shard, Antichain.of(1), timeout=60)
        except (LocationError, RuntimeError):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("failure", "times"),
    [(Determinate("the store is away"), 8), (CorruptData("what is this?"), 1), (RuntimeError("a bug"), 1)],
    ids=["away", "corrupt", "unexpected"],
)
async def test_rollup_and_collection_that_fail_are_counted_and_done_later(failure, times, unseen):
    often = dataclasses.replace(SETTINGS, rollup_every=4, blob_timeout_ms=400, maintenance_timeout_ms=400)
    blob, consensus = memory_stores()
    shard, telemetry = new_shard(), Telemetry(service="test")
    rollups, collections = Spoilt(blob, "set"), Spoilt(consensus, "truncate")
    shards = LocalShards(rollups, collections, settings=often, runtime=system(), counts=telemetry)
    await shards.open(shard, timeout=5)
    rollups.failures, collections.failures = [failure] * times, [failure] * times
    for upper in range(1_000):
        await shards.apply(shard, empty_append(upper, upper + 1), timeout=5)
        await asyncio.sleep(0.01)
        oldest = (await consensus.scan(shard, 0, 1, timeout=5))[0].seqno
        if oldest > 0 and not rollups.failures and not collections.failures:
            break
    else:
        raise AssertionError("nothing is collected any more")
    counted = [telemetry.value(FAILURES, (("work", what),)) for what in ("writing a rollup", "collecting garbage")]
    assert all(count >= 1 for count in counted)
    # Stores that do not answer are no news; all else is reported in full.
    assert len(unseen) == (0 if isinstance(failure, LocationError) else sum(counted))
    unseen.clear()
    await shards.close()
