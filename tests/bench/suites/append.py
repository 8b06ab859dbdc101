"""P1 and P2: one writer appends 100 rows at a time, through Blob and inline, next to what it takes at least."""

import tempfile
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa

from bench import ours, peers, rows
from bench.floor import parts
from bench.floor.server import SERVICE, message
from bench.measure import Laps, Spread, clock, ratios
from bench.outcome import Outcome
from bench.plan import Plan
from bench.rows import Sum
from bench.stage import Stage

ROWS = 100
DESCRIPTION = b"x" * 200
STEPS = 1000


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    await _blobs(stage, plan, outcome)
    await _inline(stage, plan, outcome)
    await _slope(stage, plan, outcome)


class _Writer:
    """One system under test: appends batch after batch to its own fresh table."""

    def __init__(self, append: Any) -> None:
        self.append = append
        self.time = 0
        self.sum = Sum()


async def _open(stack: AsyncExitStack, endpoint: str, settings: Any) -> Callable[[], Any]:
    client = await stack.enter_async_context(ours.client(endpoint, settings))

    async def fresh() -> tuple[Any, Any, Any]:
        shard = ours.new_shard()
        return client, shard, await client.open_writer(shard, schema=ours.SCHEMA)

    return fresh


async def _timed_append(laps: Laps, name: str, writer: Any, table: pa.Table, time: int) -> None:
    began = clock()
    answer = await writer.compare_and_append(table, time, time + 1)
    laps.add(name, (clock() - began) * 1e3)
    if not ours.is_appended(answer):
        raise RuntimeError(f"append {time} of {name} was not taken: {answer}")


async def _blobs(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    """Per iteration and interleaved: each floor part alone, the floor composed, persist by two S3 clients, peers."""
    laps, steps = Laps(), plan.pick(100, 300)
    async with AsyncExitStack() as stack:
        floor, _ = stack.enter_context(stage.floor_server())
        opens = {}
        for name in ("obstore", "boto3"):
            endpoint, _ = stack.enter_context(stage.shard_server(name))
            opens[name] = await _open(stack, endpoint, ours.NEVER_INLINE)
        channel = stack.enter_context(grpc.insecure_channel(floor))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for _ in plan.rounds_of("P1 appends through Blob", 60):
            laps.begin_round()
            await _blob_round(stage, outcome, laps, steps, channel, opens, directory)
    outcome.keep("append_ms", laps.as_json())
    sums = {"obstore": ("encode", "put", "rpc", "cas"), "boto3": ("encode", "put boto3", "rpc", "cas")}
    for name, floor_parts in sums.items():
        floors = [sum(parts_) for parts_ in zip(*(laps.per_round(part) for part in floor_parts), strict=True)]
        mine = laps.per_round(f"persist {name}")
        outcome.check(
            "P1", f"append 100 rows p50, {name}, against encode + PUT + RPC + CAS", ratios(mine, floors).mid, 1.3,
            ours=Spread.of(mine).show(" ms"), against=Spread.of(floors).show(" ms"),
        )  # fmt: skip
    mine = laps.per_round("persist obstore")
    for peer, limit in (("deltalake", 0.2), ("pyiceberg", None)):
        theirs = laps.per_round(peer)
        outcome.check(
            "P1", f"append 100 rows p50, against {peer}", ratios(mine, theirs).mid, limit,
            ours=Spread.of(mine).show(" ms"), against=Spread.of(theirs).show(" ms"),
        )  # fmt: skip
    composed = laps.per_round("composed")
    outcome.check("P1", "the same against the composed floor", ratios(mine, composed).mid, None,
                  ours=Spread.of(mine).show(" ms"), against=Spread.of(composed).show(" ms"))  # fmt: skip


async def _blob_round(
    stage: Stage, outcome: Outcome, laps: Laps, steps: int, channel: Any, opens: Any, directory: Path
) -> None:
    name = uuid.uuid4().hex
    echo, append = (channel.unary_unary(f"/{SERVICE}/{method}") for method in ("Echo", "Append"))
    objects, objects_boto3 = parts.Obstore(stage.s3_endpoint), parts.Boto3(stage.s3_endpoint)
    alone = parts.Consensus(stage.redis_port, name + "a")
    handles = {client: await opened() for client, opened in opens.items()}
    lakes: list[Any] = [peers.Delta(stage.s3_endpoint, name), peers.Iceberg(stage.s3_endpoint, f"t{name}", directory)]
    total, iceberg_total = Sum(), Sum()

    def composed(table: pa.Table, step: int) -> None:
        objects.put(f"floor/{name}/c{step}", parts.encode(table))
        if not append(message(name[:30], step, DESCRIPTION), timeout=30):
            raise RuntimeError("the floor lost its own race")

    warm = rows.make(ROWS, salt=1)
    objects.put("warm", parts.encode(warm))
    objects_boto3.put("warm", parts.encode(warm))
    echo(b"x", timeout=30)
    for step in range(steps):
        table = rows.make(ROWS, time=step, start=step * ROWS)
        total.add(table)
        data = laps.timed("encode", parts.encode, table)
        laps.timed("put", objects.put, f"floor/{name}/{step}", data)
        laps.timed("put boto3", objects_boto3.put, f"floor/{name}/b{step}", data)
        laps.timed("rpc", echo, DESCRIPTION, 30)
        laps.timed("cas", alone.commit, DESCRIPTION)
        laps.timed("composed", composed, table, step)
        for client, (_, _, writer) in handles.items():
            await _timed_append(laps, f"persist {client}", writer, table, step)
        lake = peers.lake_rows(table)
        laps.timed("deltalake", lakes[0].append, lake)
        if step % 5 == 0:
            iceberg_total.add(table)
            laps.timed("pyiceberg", lakes[1].append, lake)
    for client, (opened, shard, _) in handles.items():
        outcome.gate_rows("P1", f"persist through {client}", total, await ours.sum_at(opened, shard, steps - 1))
    outcome.gate_rows("P1", "deltalake", total, Sum.of(lakes[0].read()))
    outcome.gate_rows("P1", "pyiceberg", iceberg_total, Sum.of(lakes[1].read()))


async def _inline(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    """The same rows inside the state: no S3 request may be seen but the server's own rollups."""
    laps, steps = Laps(), plan.pick(100, 140)
    async with AsyncExitStack() as stack:
        proxy = stack.enter_context(stage.counting())
        floor, _ = stack.enter_context(stage.floor_server())
        endpoint, _ = stack.enter_context(stage.shard_server(endpoint=proxy.endpoint))
        fresh = await _open(stack, endpoint, ours.ALWAYS_INLINE)
        channel = stack.enter_context(grpc.insecure_channel(floor))
        echo: Any = channel.unary_unary(f"/{SERVICE}/Echo")
        requests: dict[str, int] = {}
        for _ in plan.rounds_of("P2 appends inline", 25):
            laps.begin_round()
            client, shard, writer = await fresh()
            alone = parts.Consensus(stage.redis_port, uuid.uuid4().hex)
            total = Sum()
            echo(b"x", timeout=30)
            proxy.take()
            for step in range(steps):
                table = rows.make(ROWS, time=step, start=step * ROWS)
                total.add(table)
                data = laps.timed("encode", parts.encode_inline, table).to_pybytes()
                laps.timed("rpc", echo, data, 30)
                laps.timed("cas", alone.commit, data)
                await _timed_append(laps, "persist", writer, table, step)
            for kind, count in proxy.take().items():
                requests[kind] = requests.get(kind, 0) + count
            outcome.gate_rows("P2", "persist inline", total, await ours.sum_at(client, shard, steps - 1))
    outcome.keep("inline_ms", laps.as_json())
    outcome.keep("inline_s3_requests", requests)
    floors = [sum(parts_) for parts_ in zip(*(laps.per_round(part) for part in ("encode", "rpc", "cas")), strict=True)]
    mine = laps.per_round("persist")
    outcome.check("P2", "append 100 rows inline p50, against encode + RPC + CAS", ratios(mine, floors).mid, 1.3,
                  ours=Spread.of(mine).show(" ms"), against=Spread.of(floors).show(" ms"))  # fmt: skip
    writes = sum(count for kind, count in requests.items() if not kind.endswith("rollup"))
    outcome.check("P2", f"S3 requests in {plan.rounds * steps} inline appends", writes, 0, unit="", ours=str(writes))


async def _slope(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    """A thousand appends to one shard: the last fifth against the first."""
    laps, lasts, firsts = Laps(), [], []
    async with AsyncExitStack() as stack:
        endpoint, _ = stack.enter_context(stage.shard_server())
        fresh = await _open(stack, endpoint, ours.NEVER_INLINE)
        for _ in plan.rounds_of(f"P1 slope over {STEPS:,} appends", 20):
            client, shard, writer = await fresh()
            total = Sum()
            for step in range(STEPS):
                if step % (STEPS // 5) == 0:
                    laps.begin_round()
                table = rows.make(ROWS, time=step, start=step * ROWS)
                total.add(table)
                await _timed_append(laps, "persist", writer, table, step)
            fifths = laps.per_round("persist")[-5:]
            firsts.append(fifths[0])
            lasts.append(fifths[-1])
            outcome.gate_rows(
                "P1", "persist after a thousand appends", total, await ours.sum_at(client, shard, STEPS - 1)
            )
    outcome.keep("slope_ms_by_fifth", laps.as_json())
    outcome.check("P1", f"append p50: last fifth of {STEPS:,} against the first", ratios(lasts, firsts).mid, 1.2,
                  ours=Spread.of(lasts).show(" ms"), against=Spread.of(firsts).show(" ms"))  # fmt: skip
