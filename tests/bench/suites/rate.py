"""P3: appends per second on one shard with 64 in flight: unary, by session, and without grouping."""

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import grpc.aio

from bench import ours, rows
from bench.floor.server import SERVICE, message
from bench.measure import Spread, clock, quantile, ratios
from bench.outcome import Outcome
from bench.plan import Plan
from bench.stage import Stage
from persist.client.remote.shards import RemoteShards
from persist.core.data.update import consolidate, normalise
from persist.core.shard.batch import Part
from persist.settings import Settings
from persist.v1.shard_pb2_grpc import PersistShardStub
from persist.wire.columnar import encode_parts
from persist.wire.rpc import method_of, outcome_of, request_of

IN_FLIGHT = 64
PAYLOAD = b"x" * 1024
CHANNELS = 4
Step = Callable[[int], Awaitable[None]]


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    rates, lags = dict[Any, Any](), dict[Any, Any]()
    seconds = plan.pick(2, 4)
    with ExitStack() as stack:
        floor, floor_process = stack.enter_context(stage.floor_server())
        grouped, process = stack.enter_context(stage.shard_server())
        single, _ = stack.enter_context(stage.shard_server(settings={"lane_fold_max": 1}))
        legs = [
            ("unary echo", lambda: _floor_unary(floor, "Echo"), floor_process),
            ("unary persist", lambda: _unary(grouped, outcome), process),
            ("session floor", lambda: _floor_session(floor), floor_process),
            ("session persist", lambda: _session(grouped, outcome), process),
            ("no grouping", lambda: _floor_unary(floor, "Solo"), floor_process),
            ("unary group floor", lambda: _floor_unary(floor, "Group"), floor_process),
            ("session persist, one fold each", lambda: _session(single, outcome), None),
        ]
        for _ in plan.rounds_of("P3 appends per second", 80):
            for name, leg, server in legs:
                before = server.cpu_seconds if server else 0.0
                laps = await drive(leg(), seconds)
                rates.setdefault(name, []).append(len(laps) / seconds)
                lags.setdefault(name, []).append([quantile(laps, 0.5) * 1e3, quantile(laps, 0.99) * 1e3])
                if server:
                    spent = (server.cpu_seconds - before) / max(1, len(laps))
                    lags.setdefault(f"{name}: server us", []).append(spent * 1e6)
    outcome.keep("appends_per_second", rates)
    outcome.keep("append_rate_latency_ms_p50_p99", lags)
    goals = (
        ("unary persist", "unary echo", 0.8),
        ("session persist", "session floor", 0.6),
        ("unary persist", "no grouping", 8.0),
        ("session persist", "no grouping", 8.0),
        ("unary persist", "unary group floor", None),
        ("session persist, one fold each", "no grouping", None),
    )
    for mine, theirs, limit in goals:
        outcome.check("P3", f"appends/s, {mine} against {theirs}", ratios(rates[mine], rates[theirs]).mid, limit,
                      at_most=False, ours=Spread.of(rates[mine]).show("/s", 0),
                      against=Spread.of(rates[theirs]).show("/s", 0))  # fmt: skip


async def drive(leg: Any, seconds: float) -> list[float]:
    """Latencies, in seconds, of what 64 loops got done in that time."""
    laps: list[float] = []
    numbers = itertools.count()

    async with leg as step:
        await step(next(numbers))
        end = clock() + seconds

        async def loop() -> None:
            while (began := clock()) < end:
                await step(next(numbers))
                laps.append(clock() - began)

        await asyncio.gather(*(loop() for _ in range(IN_FLIGHT)))
    return laps


class _floor_unary:
    def __init__(self, endpoint: str, method: str) -> None:
        self._endpoint, self._method = endpoint, method

    async def __aenter__(self) -> Step:
        shard = uuid.uuid4().hex
        self._channels = _channels(self._endpoint)
        calls = [channel.unary_unary(f"/{SERVICE}/{self._method}") for channel in self._channels]
        data = message(shard, 0, PAYLOAD)

        async def step(number: int) -> None:
            await calls[number % CHANNELS](data, timeout=30)

        return step

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels:
            await channel.close()


class _floor_session:
    """64 streams over four channels, one append in flight on each."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    async def __aenter__(self) -> Step:
        data = message(uuid.uuid4().hex, 0, PAYLOAD)
        self._channels = _channels(self._endpoint)
        streams = [
            self._channels[index % CHANNELS].stream_stream(f"/{SERVICE}/Session")() for index in range(IN_FLIGHT)
        ]
        free = list(streams)

        async def step(number: int) -> None:
            stream = free.pop()
            await stream.write(data)
            await stream.read()
            free.append(stream)

        self._streams = streams
        return step

    async def __aexit__(self, *_: object) -> None:
        for stream in self._streams:
            await stream.done_writing()
        for channel in self._channels:
            await channel.close()


class _Persist:
    """Pipelined appends of one writer. An append that overtook its predecessor is sent again."""

    def __init__(self, endpoint: str, outcome: Outcome) -> None:
        self._endpoint, self._outcome = endpoint, outcome
        self._done = 0

    async def _send(self, command: Any) -> Any:
        raise NotImplementedError

    async def __aenter__(self) -> Step:
        self._shards = RemoteShards(self._endpoint, settings=Settings())
        self._appends = await ours.hollow_shard(self._shards, _part())
        self._overtaken = 0

        async def step(number: int) -> None:
            command = self._appends.command(number)
            while not ours.is_appended(await self._send(command)):
                self._overtaken += 1
            self._done += 1

        return step

    async def __aexit__(self, kind: object, *_: object) -> None:
        shard = self._appends.shard
        info = await self._shards.open(shard, create=False, timeout=30)
        self._outcome.gate("P3", "upper after the run", expected=self._done, found=info.upper.time)
        self._outcome.raw.setdefault("overtaken", []).append([self._overtaken, self._done])
        await self._shards.close()


class _session(_Persist):
    async def _send(self, command: Any) -> Any:
        return await self._shards.apply(self._appends.shard, command, timeout=30)


class _unary(_Persist):
    """What a generated client does: a stub and messages, nothing of our library on the client's side."""

    async def __aenter__(self) -> Step:
        step = await super().__aenter__()
        # One connection keeps the order of calls; a pipelined writer needs it.
        self._channel = grpc.aio.insecure_channel(self._endpoint)
        self._stub = PersistShardStub(self._channel)
        return step

    async def _send(self, command: Any) -> Any:
        method = method_of(command)
        response = await getattr(self._stub, method.rpc)(request_of(self._appends.shard, command), timeout=30)
        return outcome_of(method, response)

    async def __aexit__(self, *details: object) -> None:
        await super().__aexit__(*details)
        await self._channel.close()


def _channels(endpoint: str) -> list[Any]:
    return [
        grpc.aio.insecure_channel(endpoint, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(CHANNELS)
    ]


def _part() -> Part:
    """The description of a real 100-row part."""
    table = consolidate(normalise(rows.make(100), ours.SCHEMA), ours.SCHEMA)
    [encoded] = encode_parts(iter((table,)), ours.SCHEMA, 0, part_bytes_max=1 << 27, row_group_rows=1 << 16)
    return encoded.part
