"""P12: bindings and oracle times per second with 64 in flight. P13: a bank in PostgreSQL, ingested while it works."""

import itertools
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc.aio

from bench.floor.server import SERVICE, message
from bench.measure import Spread, quantile, ratios
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import Child, child
from bench.stage import Stage
from bench.suites.rate import CHANNELS, PAYLOAD, Step, drive
from persist.core.binding.binding_log import MintRules
from persist.core.ids import ShardId
from persist.core.source.source_time import Point, SourceKind
from persist.core.time.timeline import oracle_shards, timeline_of
from persist.v1 import minter_pb2 as pb
from persist.v1 import oracle_pb2 as oracle_pb
from persist.v1.minter_pb2_grpc import TimestampMinterStub
from persist.v1.oracle_pb2_grpc import TimestampOracleStub
from persist.wire.rpc_minter import source_message, time_message

CHANGES = 5_000
"""Changes a second that P13 asks of the pipeline: four for each transaction."""


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    await _bindings(stage, plan, outcome)
    _bank(plan, outcome)


# ---- P12 ---------------------------------------------------------------------------------------------------------


async def _bindings(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    rates: dict[str, list[float]] = {}
    lags: dict[str, list[list[float]]] = {}
    seconds = plan.pick(2, 4)
    with ExitStack() as stack:
        floor, floor_process = stack.enter_context(stage.floor_server())
        minter, process = stack.enter_context(_minter(stage))
        legs = [
            ("echo", lambda: _Echo(floor), floor_process),
            ("covered", lambda: _Ask(minter, covered=True), process),
            ("to be minted", lambda: _Ask(minter, covered=False), process),
            ("read_ts", lambda: _Times(minter, "ReadTs"), process),
            ("write_ts", lambda: _Times(minter, "WriteTs"), process),
        ]
        for _ in plan.rounds_of("P12 bindings per second", 40):
            for name, leg, server in legs:
                before = server.cpu_seconds
                laps = await drive(leg(), seconds)
                rates.setdefault(name, []).append(len(laps) / seconds)
                spent = (server.cpu_seconds - before) / max(1, len(laps)) * 1e6
                lags.setdefault(name, []).append([quantile(laps, 0.5) * 1e3, quantile(laps, 0.99) * 1e3, spent])
    outcome.keep("bindings_per_second", rates)
    outcome.keep("binding_latency_ms_p50_p99_server_us", lags)
    goals = (
        ("covered", "GetBinding/s, covered", 0.8),
        ("to be minted", "GetBinding/s, to be minted", 0.6),
        ("read_ts", "read_ts/s of the oracle", 0.6),
        ("write_ts", "write_ts/s of the oracle", 0.5),
    )
    for mine, what, limit in goals:
        outcome.check("P12", f"{what}, against unary echo", ratios(rates[mine], rates["echo"]).mid, limit,
                      at_most=False, ours=Spread.of(rates[mine]).show("/s", 0),
                      against=Spread.of(rates["echo"]).show("/s", 0))  # fmt: skip


@contextmanager
def _minter(stage: Stage) -> Iterator[tuple[str, Child]]:
    stores = ["--blob", stage.blob_uri(), "--consensus", stage.redis_uri]
    with child("persist_cli", ["serve", "minter", *stores, "--listen", "127.0.0.1:0"]) as process:
        yield process.line().rpartition(" ")[2], process


class _Echo:
    """The floor: a message there and back."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    async def __aenter__(self) -> Step:
        self._channels = _channels(self._endpoint)
        calls = [channel.unary_unary(f"/{SERVICE}/Echo") for channel in self._channels]
        data = message(uuid.uuid4().hex, 0, PAYLOAD[:64])

        async def step(number: int) -> None:
            await calls[number % CHANNELS](data, timeout=30)

        return step

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels:
            await channel.close()


class _Ask(_Echo):
    """What a generated client does. ``covered``: what is asked was bound before; else every call asks for the next."""

    def __init__(self, endpoint: str, *, covered: bool) -> None:
        super().__init__(endpoint)
        self._covered = covered

    async def __aenter__(self) -> Step:
        kind = SourceKind.PARTITIONS
        rules = MintRules(interval_ms=1, max_jump=1_000)
        self._channels = _channels(self._endpoint)
        stubs = [TimestampMinterStub(channel) for channel in self._channels]
        told, shard = source_message(kind, "bench", rules), ShardId.of(uuid.uuid4().bytes)

        def request(offset: int) -> Any:
            return pb.GetBindingRequest(shard_id=shard, source=told, times=[time_message(Point(0, offset))])

        await stubs[0].Mint(pb.MintRequest(shard_id=shard, source=told), timeout=30)
        await stubs[0].GetBinding(request(0), timeout=30)
        first, numbers = request(0), itertools.count(1)

        async def step(number: int) -> None:
            asked = first if self._covered else request(next(numbers))
            await stubs[number % CHANNELS].GetBinding(asked, timeout=30)

        return step


class _Times(_Echo):
    """Times of a timeline of its own, as a generated client asks for them."""

    def __init__(self, endpoint: str, method: str) -> None:
        super().__init__(endpoint)
        self._method = method

    async def __aenter__(self) -> Step:
        timeline = timeline_of(f"U.bench{uuid.uuid4().hex}")
        self._channels = _channels(self._endpoint)
        stubs = [TimestampOracleStub(channel) for channel in self._channels]
        named = {"shard_id": oracle_shards(timeline)[0], "timeline": str(timeline)}
        if self._method == "ReadTs":
            request: Any = oracle_pb.ReadTsRequest(**named)
        else:
            request = oracle_pb.WriteTsRequest(**named, count=1)
        calls = [getattr(stub, self._method) for stub in stubs]
        await calls[0](request, timeout=30)

        async def step(number: int) -> None:
            await calls[number % CHANNELS](request, timeout=30)

        return step


def _channels(endpoint: str) -> list[Any]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    return [grpc.aio.insecure_channel(endpoint, options=options) for _ in range(CHANNELS)]


# ---- P13 ---------------------------------------------------------------------------------------------------------


def _bank(plan: Plan, outcome: Outcome) -> None:
    seconds, rate = plan.pick(20, 60), CHANGES // 4
    plan.say(f"P13 TPC-B at {rate:,} transactions/s for {seconds} s")
    arguments = ["--seconds", str(seconds), "--rate", str(rate), "--scale", "10", "--no-kill", "--json"]
    with child("examples.tpcb", arguments) as process:
        found = process.answer()
    outcome.keep("bank", found)
    outcome.gate("P13", "the books balance and every row is PostgreSQL's", expected=True, found=found["agrees"])
    outcome.check("P13", "changes ingested per second, with the database on the same machine", 4 * found["tps"], 4_900,
                  at_most=False, unit="/s", ours=f"{found['tps']:,.0f} transactions/s", against="")  # fmt: skip
    outcome.check("P13", "99 % of looks behind by less than", found["lag_p99"], 3.0, unit=" s",
                  ours=f"median {found['lag_p50']:.2f} s")  # fmt: skip
