"""Two servers of which one falls silent: frozen, behind a black hole, or gone. No caller waits long for it, nor twice.

Every kind of client, all at once in the suite, each kind alone and with eight clients in ``make sim``. What a call
takes while all is well is allowed for, and what the machine keeps all waiting; more so in the suite, where many
tests share it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from soak.servers.silence import KINDS, WATCHES, Crowd, Figures, Stage, servers
from soak.support import LIMIT_SECONDS, pick

from persist.client.remote.shards import ANSWER_SECONDS
from persist.settings import Settings

WORST_SECONDS = pick(15.0, 3.0)
SLOW_SECONDS = pick(6.0, 1.0)
LAGS = 4
"""How often a call may wait for the machine: here, at the server, and at each on the way back."""
CALLER_SECONDS = 2.0
FAILS_SECONDS = CALLER_SECONDS + SLOW_SECONDS
LEAVES_SECONDS = 4.0
"""A watch has the caller's time from when it left the first server, and leaves another one after that."""
WAITS = frozenset({"snapshot"})
"""Reads that wait for a time have the server's answer, that it did not come, to wait for after the caller's time."""
CLIENTS = pick(1, 8)
QUIET_SECONDS = pick(1.0, 3.0)
SILENT_SECONDS = pick(3.0, 6.0)
TROUBLES = pick(["frozen"], ["frozen", "black hole", "refusing"])
GROUPS: Any = pick([tuple(KINDS)], [(kind,) for kind in KINDS])
STORES_BESIDE = "append, stores beside"


def check(told: str, found: Sequence[Figures], quiet: Sequence[Figures], lag: float) -> None:
    for each in found:
        print(f"{told:24} {each}  lag {lag:.2f} s", flush=True)
    for each, before in zip(found, quiet, strict=True):
        allowed = before.worst + LAGS * lag
        assert not each.failures, each
        assert each.worst <= WORST_SECONDS + allowed, each
        assert max(each.slow(SLOW_SECONDS + allowed)) <= 1, each


async def one_falls_silent(stage: Stage) -> None:
    await stage.one.hush()
    await asyncio.sleep(SILENT_SECONDS)


async def they_change_places(stage: Stage, catalog: Any) -> None:
    """The first one comes back when the other one, which leads the catalog, falls silent."""
    await stage.one.wake()
    stage.awake = 0
    # What helpers have begun at the other one is answered first.
    await asyncio.sleep(0.5)
    await stage.other.hush()
    await catalog.open(1)
    await asyncio.sleep(SILENT_SECONDS)


@pytest.mark.timeout_s(LIMIT_SECONDS)
@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("kinds", GROUPS, ids=lambda kinds: kinds[0] if len(kinds) == 1 else "all kinds")
async def test_silent_server_is_left_once_and_used_again(tmp_path: Path, fresh_redis_uri, kinds, trouble):
    async with servers(trouble, f"file:{tmp_path}/blob", fresh_redis_uri()) as stage, AsyncExitStack() as stack:
        near = [stage.catalog(endpoint) for endpoint in stage.near]
        for catalog in near:
            stack.push_async_callback(catalog.close)
        await near[1].open(1)
        crowd = Crowd(stage, stack)
        await crowd.enter(kinds, CLIENTS)
        quiet = await crowd.work(asyncio.sleep(QUIET_SECONDS))
        for each in quiet:
            print(f"{'all is well':24} {each}", flush=True)
        check(trouble, await crowd.work(one_falls_silent(stage)), quiet, crowd.lag)
        check(f"{trouble}, the other one", await crowd.work(they_change_places(stage, near[0])), quiet, crowd.lag)
        await stage.other.wake()

        stage.settings = Settings(timeout_ms=int(CALLER_SECONDS * 1000))
        async with AsyncExitStack() as others:
            impatient = Crowd(stage, others)
            await impatient.enter([kind for kind in kinds if kind != STORES_BESIDE], CLIENTS)
            await stage.one.hush()
            await stage.other.hush()
            for each in await impatient.fail(CALLER_SECONDS):
                print(f"{trouble + ', both':24} {each}", flush=True)
                assert len(each.failures) == len(each.took), each
                leaves = LEAVES_SECONDS if each.kind in WATCHES else ANSWER_SECONDS if each.kind in WAITS else 0.0
                assert each.worst <= FAILS_SECONDS + leaves + LAGS * impatient.lag, each
            await stage.one.wake()
            await stage.other.wake()
