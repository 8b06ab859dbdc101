"""Every fourth call to a store fails, half of those after the fact, and answers of the servers get lost as well.

Two servers over gRPC, eight writers that find out the fate of each append by repeating it with its token: nothing that
was acknowledged is lost, nothing is there twice, nothing stays unknown. Source: reliability.md B5 and I4.
"""

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scenarios.support import SCHEMA, Ledger, one_row
from soak.support import LIMIT_SECONDS, pick, problems
from sure import sure

import persist
from persist import aio
from persist.client.remote.shards import RemoteShards
from persist.client.shard.location import Location
from persist.core.ids import ShardId, Token, WriterId
from persist.errors import Indeterminate, LocationError
from persist.machine.local_shards import LocalShards
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus
from persist.testing.faults import Faults, Quadrant, UnreliableBlob, UnreliableConsensus
from persist_host import Address, Host, Telemetry
from persist_shard import ShardService

APPENDS = pick(160, 5_200)
INDETERMINATE_MIN = pick(8, 300)
WRITERS = 8
ATTEMPTS_MAX = 100
# Three quarters of the calls happen and are answered; an eighth returns a failure, and an eighth gets no answer.
HAPPENS, TOLD = 6 / 7, 7 / 8
OFTEN = pick((Quadrant.HAPPENED_LOST, Quadrant.MISSED_TOLD), tuple(Quadrant))
BUSY = Settings(
    rollup_every=16, compaction_takeover_ms=1_000, retry_first_ms=1, retry_max_ms=20, poll_first_ms=5, poll_max_ms=50,
)  # fmt: skip
# The first pause is longer than any call may take: every failure is the writer's to see.
ONCE = dataclasses.replace(BUSY, retry_first_ms=600_000, retry_max_ms=600_000)
CALL_SECONDS = 20.0


class Forgetful(LocalShards):
    """The machine over stores that fail, which itself does not always do or answer what it was asked to."""

    def __init__(self, blob: str, consensus: str, faults: Faults) -> None:
        runtime = system()
        super().__init__(
            UnreliableBlob(open_blob(blob, settings=BUSY, runtime=runtime), faults),
            UnreliableConsensus(open_consensus(consensus, settings=BUSY, runtime=runtime), faults),
            settings=BUSY,
            runtime=runtime,
        )
        self._faults = faults

    async def commit(self, shard: ShardId, commands: Sequence[Any], *, timeout: float) -> list[Any]:
        commit = super().commit
        return await self._faults.mutate("commit", lambda: commit(shard, commands, timeout=timeout))


@asynccontextmanager
async def server_over(blob: str, consensus: str, faults: Faults) -> AsyncIterator[str]:
    telemetry = Telemetry(service="test")
    shards = Forgetful(blob, consensus, faults)
    service = ShardService(shards, settings=BUSY, runtime=system(), telemetry=telemetry)
    host = Host((service,), settings=BUSY, runtime=system(), telemetry=telemetry)
    address = await host.start(Address("127.0.0.1", 0))
    try:
        yield str(address)
    finally:
        await host.stop(notice=0, grace=1)


def client_to(endpoint: str, blob: str, faults: Faults, *, inline: bool) -> aio.Client:
    """A client that tries everything once, and whose uploads fail like the server's."""
    settings = ONCE if inline else dataclasses.replace(ONCE, inline_part_bytes_max=0)
    store = UnreliableBlob(open_blob(blob, settings=settings, runtime=system()), faults)
    remote = RemoteShards(endpoint, settings=settings)
    return aio.Client(Location(remote, blob=store, settings=settings, runtime=system(), owns_blob=True))


class Writer:
    """Appends rows one by one, each until it knows its fate. One of two contends for the upper, with both servers."""

    def __init__(self, number: int, handles: list[aio.WriteHandle], ledger: Ledger) -> None:
        self.number, self.handles, self.ledger = number, handles, ledger
        self.entropy = random.Random(number)
        self.resolved = 0
        self.unresolved = 0

    async def run(self) -> None:
        for n in range(APPENDS // WRITERS):
            await self.append(n)

    async def append(self, n: int) -> None:
        upper, token, unsure = 0, self.token(), False
        self.ledger.unknown.add((self.number, n))
        for _ in range(ATTEMPTS_MAX):
            try:
                outcome = await self.attempt(n, upper, token)
            except Indeterminate:
                unsure = True
                continue
            except LocationError:
                continue
            self.resolved += unsure
            if isinstance(outcome, persist.Appended):
                self.ledger.acknowledged.add((self.number, n))
                return
            # Definitely not there: the next attempt, at another upper, is another append.
            upper, token, unsure = outcome.upper.time or 0, self.token(), False
        self.unresolved += 1

    async def attempt(self, n: int, upper: int, token: Token) -> persist.Appended | persist.UpperMismatch:
        if self.number % 2:
            rows = one_row(self.number, n, 0)
            return await self.handles[0].append_at_upper(rows, token=token, timeout=CALL_SECONDS)
        handle = self.entropy.choice(self.handles)
        rows = one_row(self.number, n, upper)
        return await handle.compare_and_append(rows, upper, upper + 1, token=token, timeout=CALL_SECONDS)

    def token(self) -> Token:
        return Token.of(self.entropy.randbytes(16))


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_unreliable_stores_and_servers_lose_nothing_and_double_nothing(tmp_path: Path):
    place = f"file:{tmp_path}/blob", f"sqlite:{tmp_path}/consensus.db"
    faults = [Faults(seed, happens=HAPPENS, told=TOLD) for seed in range(3)]
    for each in faults:
        each.enabled = False
    shards = [ShardId.of(bytes([number] * 16)) for number in range(WRITERS // 2)]
    ledgers, writers = [Ledger() for _ in shards], []
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(server_over(*place, faults[number])) for number in range(2)]
        for number in range(WRITERS):
            writer_id, handles = WriterId.born(system().now_ms(), bytes([number] * 16)), []
            for endpoint in servers:
                client = client_to(endpoint, place[0], faults[2], inline=number < WRITERS // 2)
                await stack.enter_async_context(client)
                handles.append(await client.open_writer(shards[number // 2], schema=SCHEMA, writer_id=writer_id))
            writers.append(Writer(number, handles, ledgers[number // 2]))
        for each in faults:
            each.enabled = True
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.run())
        for each in faults:
            each.enabled = False
    for shard, ledger in zip(shards, ledgers, strict=True):
        async with await aio.embedded(blob=place[0], consensus=place[1], settings=BUSY) as client:
            reader = await client.open_reader(shard)
            upper = (await client.recent_upper(shard)).time
            ledger.compare((await (await reader.snapshot(sure(upper) - 1)).to_arrow()).to_pylist())
        assert await problems(*place, shard, BUSY, sweep=True) == []
    resolved = sum(writer.resolved for writer in writers)
    acknowledged = sum(len(ledger.acknowledged) for ledger in ledgers)
    fired = sum((each.fired for each in faults[1:]), faults[0].fired)
    print(f"\n{acknowledged} acknowledged, {resolved} of them resolved by token; {report(fired)}")
    assert sum(writer.unresolved for writer in writers) == 0
    assert acknowledged == APPENDS // WRITERS * WRITERS
    assert resolved >= INDETERMINATE_MIN
    for method in ("set", "compare_and_set", "commit"):
        assert all(fired[method, quadrant] for quadrant in OFTEN), "a fault that never struck shows nothing"


def report(fired: Any) -> str:
    """Calls by method, and how many of them failed."""
    methods = sorted({method for method, _ in fired})
    calls = {method: [fired[method, quadrant] for quadrant in Quadrant] for method in methods}
    return ", ".join(f"{method} {sum(each[1:])}/{sum(each)}" for method, each in calls.items())
