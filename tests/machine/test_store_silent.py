"""A wait for a shard whose store does not answer raises that, and never returns that there was no news."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from machine.support import SETTINGS, empty_append, machine, memory_stores, new_shard

from persist.core.frontier import MINIMUM, Antichain
from persist.errors import Determinate, LocationError
from persist.machine.local_shards import LocalShards
from persist.runtime import system

OFTEN = dataclasses.replace(SETTINGS, poll_first_ms=5, poll_max_ms=50)


class Away:
    """A store whose scans fail while it is away."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.away = False
        self.missed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def scan(self, *args: Any, **options: Any) -> Any:
        if self.away:
            self.missed.set()
            raise Determinate("the store is away")
        return await self._store.scan(*args, **options)


async def until(check: Callable[[], bool]) -> None:
    while not check():
        await asyncio.sleep(0.005)


async def drained(here: LocalShards, shard: Any) -> None:
    async for _ in here.watch(shard, MINIMUM, timeout=1.0):
        pass


WAITS: dict[str, Callable[[LocalShards, Any], Awaitable[Any]]] = {
    "fetch": lambda here, shard: here.fetch(shard, Antichain.of(5), timeout=1.0),
    "snapshot": lambda here, shard: here.snapshot(shard, Antichain.of(5), timeout=1.0),
    "watch": drained,
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
async def test_wait_that_ends_while_the_store_is_away_is_a_failure(wait):
    blob, consensus = memory_stores()
    shard, store = new_shard(), Away(consensus)
    here = LocalShards(blob, store, settings=OFTEN, runtime=system())
    await here.open(shard, timeout=5)
    waiting = asyncio.ensure_future(wait(here, shard))
    await until(lambda: not here._of(shard).follower.idle)
    store.away = True
    with pytest.raises(LocationError):
        await waiting
    assert store.missed.is_set()
    store.away = False
    await wait(here, shard)
    await here.close()


async def test_watch_of_a_store_that_stays_away_breaks_and_a_new_one_follows():
    soon = dataclasses.replace(OFTEN, store_timeout_ms=100)
    blob, consensus = memory_stores()
    shard, store = new_shard(), Away(consensus)
    here = LocalShards(blob, store, settings=soon, runtime=system())
    await here.open(shard, timeout=5)
    changes = here.watch(shard, MINIMUM, timeout=600)
    await anext(changes)
    store.away = True
    async with asyncio.timeout(100):
        with pytest.raises(LocationError):
            await anext(changes)
    store.away = False
    other = machine(blob, consensus)
    await other.apply(shard, empty_append(0, 1), timeout=5)
    again = here.watch(shard, MINIMUM, timeout=600)
    assert (await anext(again)).info.upper == Antichain.of(1)
    await cast(Any, again).aclose()
    await here.close()
