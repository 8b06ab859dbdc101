"""P7: from the call of an inline append to its rows in another process, by one server and across two.

The clock starts before the append is sent, so the figures include the way to the server and the commit itself.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio

from bench import ours, rows
from bench.floor import parts
from bench.floor.server import SERVICE, message
from bench.measure import Spread, clock, quantile, ratios
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import Child, child
from bench.stage import Stage

ROWS = 10
LATE_MAX = 4.0
"""Times the middle that the 99th percentile may take."""
Append = Callable[[int], Awaitable[None]]


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    lags: dict[str, list[list[float]]] = {}
    appends = plan.pick(60, 300)
    async with AsyncExitStack() as stack:
        floor, _ = stack.enter_context(stage.floor_server())
        one, _ = stack.enter_context(stage.shard_server())
        other, _ = stack.enter_context(stage.shard_server())
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(floor))
        client = await stack.enter_async_context(ours.client(one, ours.ALWAYS_INLINE))
        for _ in plan.rounds_of("P7 listening", 80):
            lags.setdefault("rpc", []).append(await _empty_calls(channel, appends))
            lags.setdefault("notification", []).append(await _notified(stage, appends))
            lags.setdefault("floor push", []).append(await _pushed(channel, floor, appends))
            lags.setdefault("persist, one server", []).append(await _heard(client, one, appends))
            lags.setdefault("persist, two servers", []).append(await _heard(client, other, appends))
    _judge(outcome, lags)


def _judge(outcome: Outcome, lags: dict[str, list[list[float]]]) -> None:
    middles = {name: [quantile(one, 0.5) for one in found] for name, found in lags.items()}
    outcome.keep("listen_ms", {
        name: {"p50": middles[name], "p99": [quantile(one, 0.99) for one in found]} for name, found in lags.items()
    })  # fmt: skip
    floors = [a + b for a, b in zip(middles["rpc"], middles["notification"], strict=True)]
    for name in ("persist, one server", "persist, two servers"):
        outcome.check("P7", f"append to delivered p50, {name[9:]}, against RPC + notification",
                      ratios(middles[name], floors).mid, 2.0, ours=Spread.of(middles[name]).show(" ms"),
                      against=Spread.of(floors).show(" ms"))  # fmt: skip
        late = _late(lags[name])
        outcome.check("P7", f"append to delivered p99, {name[9:]}", late, 15.0, unit=" ms", ours=f"{late:.1f} ms")
        middle = Spread.of(middles[name]).mid
        outcome.check("P7", f"append to delivered p99 against its p50, {name[9:]}", late / middle if middle else 0.0,
                      LATE_MAX, ours=f"{late:.1f} ms", against=f"{middle:.1f} ms")  # fmt: skip
    pushed, late = middles["floor push"], _late(lags["floor push"])
    outcome.check("P7", "append to delivered p99, pushing floor", late, None, unit=" ms", against=f"{late:.1f} ms")
    mine = middles["persist, one server"]
    outcome.check("P7", "one server against the pushing floor", ratios(mine, pushed).mid, None,
                  against=Spread.of(pushed).show(" ms"))  # fmt: skip


def _late(rounds: list[list[float]]) -> float:
    """The 99th percentile over all rounds together: one round alone is too short for it."""
    return quantile([lag for one in rounds for lag in one], 0.99)


async def _paced(listener: Child, append: Append, first: int, appends: int) -> list[float]:
    """Milliseconds from each append to its arrival; 20 to 40 ms apart."""
    told: list[float] = []
    for number in range(first, first + appends):
        await asyncio.sleep(0.02 + 0.01 * (number % 3))
        told.append(time.monotonic())
        await append(number)
    answer = await asyncio.to_thread(listener.answer)
    return [(heard - sent) * 1e3 for heard, sent in zip(answer["heard"], told, strict=True)]


async def _heard(client: Any, listen_at: str, appends: int) -> list[float]:
    shard = ours.new_shard()
    writer = await client.open_writer(shard, schema=ours.SCHEMA)
    tables = [rows.make(ROWS, time=number, start=number * ROWS) for number in range(appends + 2)]

    async def append(number: int) -> None:
        if not ours.is_appended(await writer.compare_and_append(tables[number], number, number + 1)):
            raise RuntimeError("an append was not taken")

    await append(0)
    request = {"system": "persist", "endpoint": listen_at, "table": shard, "appends": appends, "rows": ROWS}
    with child("bench.jobs.listener", [json.dumps(request)]) as listener:
        await append(1)
        await asyncio.to_thread(listener.answer)
        return await _paced(listener, append, 2, appends)


async def _pushed(channel: Any, endpoint: str, appends: int) -> list[float]:
    """The floor: a compare-and-set that publishes, pushed on by the server."""
    name, call = uuid.uuid4().hex[:30], channel.unary_unary(f"/{SERVICE}/Append")
    data = parts.encode_inline(rows.make(ROWS)).to_pybytes()

    async def append(number: int) -> None:
        if not await call(message(name, number, data), timeout=30):
            raise RuntimeError("the floor lost its own race")

    request = {"system": "push", "endpoint": endpoint, "table": name, "appends": appends}
    with child("bench.jobs.listener", [json.dumps(request)]) as listener:
        await asyncio.to_thread(listener.answer)
        return await _paced(listener, append, 0, appends)


async def _notified(stage: Stage, appends: int) -> list[float]:
    """Redis alone: from before its compare-and-set to its subscriber."""
    name = uuid.uuid4().hex
    consensus = parts.Consensus(stage.redis_port, name)
    data = parts.encode_inline(rows.make(ROWS)).to_pybytes()

    async def append(number: int) -> None:
        consensus.commit(data)

    request = {"system": "redis", "redis": stage.redis_port, "table": name, "appends": appends}
    with child("bench.jobs.listener", [json.dumps(request)]) as listener:
        await asyncio.to_thread(listener.answer)
        return await _paced(listener, append, 0, appends)


async def _empty_calls(channel: Any, calls: int) -> list[float]:
    """Round trips of an empty RPC, paced as the appends are."""
    echo, laps = channel.unary_unary(f"/{SERVICE}/Echo"), []
    for number in range(calls):
        await asyncio.sleep(0.02 + 0.01 * (number % 3))
        began = clock()
        await echo(b"x" * 200, timeout=30)
        laps.append((clock() - began) * 1e3)
    return laps
