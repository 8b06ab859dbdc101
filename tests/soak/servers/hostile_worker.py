"""Callers as processes of their own: some that mean no good, one that is busy, one that asks and takes the time.

``python -m soak.servers.hostile_worker ENDPOINT KIND...`` says ``ready``, goes on until its standard input ends, and
then writes what came of it as one line of JSON. Each line of input says to a ``bystander`` what goes on beside it
from now on. ``SECRET`` is the server's: no answer may hold it.
"""

import asyncio
import contextlib
import itertools
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pyarrow as pa
from grpc_health.v1 import health_pb2, health_pb2_grpc
from machine.places import SCHEMA
from machine.test_intake import WRONG, append, good
from services.host.hostile import METHODS, empty_calls, empty_parts, meaning, send
from services.host.hostile import field as field_of
from simulation.budget import FULL

import persist
from persist import aio
from persist.core.ids import ShardId
from persist.core.shard.commands import Appended, Command, RegisterSchema
from persist.errors import PersistError
from persist.runtime import system
from persist.v1 import shard_pb2 as pb
from persist.v1.shard_pb2_grpc import PersistShardStub
from persist.wire import rpc

SHARD = "/persist.v1.PersistShard/"
SESSION, APPEND = SHARD + "Session", SHARD + "CompareAndAppend"
SECRET = "Can4rySecret"
VOLLEY = 30
PARTS = 1_800_000
IDLE_SESSIONS = 5_000 if FULL else 2_000
CONNECTIONS = 20
PAUSE_SECONDS = 0.01
CALL_SECONDS = 60.0


@dataclass
class Told:
    """What a caller was answered."""

    calls: int = 0
    answered: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    secrets: list[str] = field(default_factory=list)
    took: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    begun: int = 0
    appended: int = 0
    lies_taken: int = 0
    failures: list[str] = field(default_factory=list)

    def heard(self, error: grpc.aio.AioRpcError | None) -> None:
        """An answer, or what came instead of one."""
        self.calls += 1
        if error is None:
            self.answered += 1
            return
        self.refusals[f"{error.code().name} {type(meaning(error)).__name__}"] += 1
        if SECRET in f"{error.details()} {error.trailing_metadata()}":
            self.secrets.append(str(error.details()))


class Caller:
    """One process: its connections, and what it got back."""

    def __init__(self, endpoint: str, channels: list[grpc.aio.Channel], kinds: int) -> None:
        self._not_ready = kinds
        self.endpoint = endpoint
        self.channels = channels
        self.told = Told()
        self.entropy = random.Random(7)
        self.beside = ""

    def ready(self) -> None:
        """One of the kinds it is has begun."""
        self._not_ready -= 1
        if not self._not_ready:
            print("ready", flush=True)

    def channel(self) -> grpc.aio.Channel:
        return self.entropy.choice(self.channels)

    async def send(self, method: str, data: bytes) -> bytes | None:
        answer, error = await send(self.channel(), method, data, timeout=CALL_SECONDS)
        self.told.heard(error)
        return answer

    # ---- who mean no good ----------------------------------------------------------------------------------------

    async def frames(self, calls: int) -> None:
        data = empty_calls(calls)
        while True:
            await self.send(SESSION, data)

    async def parts(self) -> None:
        data = empty_parts(PARTS)
        while True:
            await asyncio.gather(*(self.send(APPEND, data) for _ in range(VOLLEY)))

    async def sessions(self) -> None:
        streams: list[Any] = [self.channels[at % CONNECTIONS].stream_stream(SESSION)() for at in range(IDLE_SESSIONS)]
        await asyncio.gather(*(stream.wait_for_connection() for stream in streams))
        self.told.calls += len(streams)
        self.ready()
        await asyncio.Event().wait()

    async def garbage(self) -> None:
        """Bytes that are nothing, and requests with nonsense in every field, of every method."""
        while True:
            for method in sorted(METHODS):
                for data in self._nonsense():
                    with contextlib.suppress(grpc.aio.UsageError):
                        await self.send(method, data)

    def _nonsense(self) -> list[bytes]:
        word = b"nonsense"
        some = self.entropy.randbytes(self.entropy.randrange(1, 400))
        named = b"".join(field_of(number, word) for number in range(1, 8))
        return [some, field_of(1, word), named, field_of(1, ShardId.named("nonsense").encode()) + some, b""]

    async def lies(self) -> None:
        """Appends whose inline parts are not what they say, good ones, and good ones with some bits turned."""
        await asyncio.gather(*(self._lie(number) for number in range(4)))

    async def _lie(self, number: int) -> None:
        for turn in itertools.count():
            shard = ShardId.named("lies", number, turn)
            stub = PersistShardStub(self.channel())
            await stub.Open(pb.OpenRequest(shard_id=shard, create=True), timeout=CALL_SECONDS)
            await self._command(shard, RegisterSchema(schema=SCHEMA.to_bytes(), codec=SCHEMA.codec_name))
            for lie in WRONG.values():
                self.told.lies_taken += isinstance(await self._command(shard, append(lie())), Appended)
            for command in (append(good()), append(good(10), 10)):
                data = rpc.request_of(shard, command).SerializeToString()
                for _ in range(len(WRONG)):
                    await self.send(APPEND, self._turned(data))
                self.told.appended += isinstance(await self._command(shard, command), Appended)

    def _turned(self, data: bytes) -> bytes:
        turned = bytearray(data)
        for _ in range(self.entropy.randrange(1, 4)):
            turned[self.entropy.randrange(len(turned))] ^= 1 << self.entropy.randrange(8)
        return bytes(turned)

    async def _command(self, shard: ShardId, command: Command[Any]) -> Any:
        method, request = rpc.method_of(command), rpc.request_of(shard, command)
        if self.entropy.random() < 0.5:
            answer = await self.send(SHARD + method.rpc, request.SerializeToString())
            return answer and rpc.outcome_of(method, method.response.FromString(answer))
        frame = pb.SessionRequest(calls=[rpc.call_of(1, 20_000, method, request)])
        answer = await self.send(SESSION, frame.SerializeToString())
        if not answer:
            return None
        try:
            return rpc.outcome_in(pb.SessionResponse.FromString(answer).answers[0])
        except PersistError as error:
            self.told.answered -= 1
            self.told.refusals[f"in a session {type(error).__name__}"] += 1
            return None

    # ---- who do --------------------------------------------------------------------------------------------------

    async def honest(self) -> None:
        """As many appends at a time as a volley has, each to a shard of its own."""
        async with await aio.connect(self.endpoint) as client:
            writers = [await client.open_writer(persist.ShardId.new(), schema=BYSTANDER) for _ in range(VOLLEY)]
            self.ready()
            await asyncio.gather(*(self._append_for_ever(writer, 0.0) for writer in writers))

    async def bystander(self) -> None:
        """Appends, reads and asks for health, each every few milliseconds, and says how long each took."""
        async with await aio.connect(self.endpoint) as client:
            writers = [await client.open_writer(ShardId.named("bystander", at), schema=BYSTANDER) for at in range(2)]
            self.ready()
            await asyncio.gather(
                *(self._append_for_ever(writer, PAUSE_SECONDS) for writer in writers),
                self._for_ever("read", partial(client.recent_upper, writers[0].shard)),
                self._for_ever("health", self._health),
            )

    async def hear(self) -> None:
        """What standard input says, until it ends."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self.beside = line.decode().strip()
            print("heard", flush=True)

    async def _append_for_ever(self, writer: Any, pause: float) -> None:
        for upper in itertools.count():
            row = pa.table({"k": [upper], "ts": pa.array([upper], pa.uint64()), "diff": [1]})
            self.told.begun += 1
            await self._taken("append", partial(writer.append, row, upper + 1))
            self.told.appended += 1
            await asyncio.sleep(pause)

    async def _for_ever(self, what: str, ask: Callable[[], Awaitable[Any]]) -> None:
        while True:
            await self._taken(what, ask)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _taken(self, what: str, ask: Callable[[], Awaitable[Any]]) -> None:
        beside, began = self.beside, system().monotonic()
        try:
            await ask()
        except (PersistError, grpc.aio.AioRpcError) as error:
            self.told.failures.append(f"{what} beside {beside}: {error}"[:200])
        self.told.took[beside][what].append(system().monotonic() - began)

    async def _health(self) -> None:
        stub = health_pb2_grpc.HealthStub(self.channels[0])
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


BYSTANDER = persist.Schema(key={"k": pa.int64()})
KINDS: dict[str, Callable[[Caller], Awaitable[None]]] = {
    "frames of 100,000 calls": lambda caller: caller.frames(100_000),
    "frames of 2,000,000 calls": lambda caller: caller.frames(2_000_000),
    "volleys of empty parts": Caller.parts,
    "idle sessions": Caller.sessions,
    "garbage": Caller.garbage,
    "lies": Caller.lies,
    "honest": Caller.honest,
    "bystander": Caller.bystander,
}
TELL_THEMSELVES = ("idle sessions", "honest", "bystander")


async def main(endpoint: str, *kinds: str) -> None:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(endpoint, options=options))
            for _ in range(CONNECTIONS)
        ]
        caller = Caller(endpoint, channels, len(kinds))
        working = asyncio.gather(*(KINDS[kind](caller) for kind in kinds))
        for _ in set(kinds).difference(TELL_THEMSELVES):
            caller.ready()
        ended = asyncio.ensure_future(caller.hear())
        both: list[asyncio.Future[Any]] = [working, ended]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        told = vars(caller.told)
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
