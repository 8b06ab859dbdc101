"""A gRPC server without generated code: echo, append with one CAS each, group commit, and push of what was committed.

    python -m bench.floor.server REDIS_PORT

Same kind as PersistShard: grpc.aio on uvloop. Requests and answers are bytes: 32 of the shard's name, 8 of the
expected number, then the payload.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio
import redis.asyncio as aioredis
import uvloop

SERVICE = "bench.Floor"
NAME_BYTES, HEAD_BYTES = 32, 40

CAS = """
if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then return {0, tonumber(redis.call('GET', KEYS[1]) or '0')} end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('PUBLISH', KEYS[1], ARGV[2] .. ' ' .. ARGV[3])
return {1, tonumber(ARGV[2])}
"""


def message(shard: str, number: int, payload: bytes = b"") -> bytes:
    return shard.encode().ljust(NAME_BYTES) + number.to_bytes(8, "little") + payload


def parse(data: bytes) -> tuple[str, int, bytes]:
    return data[:NAME_BYTES].decode().rstrip(), int.from_bytes(data[NAME_BYTES:HEAD_BYTES], "little"), data[HEAD_BYTES:]


def keys(shard: str) -> tuple[str, str]:
    """Where Redis keeps a shard's newest number and its log."""
    return f"{{{shard}}}:h", f"{{{shard}}}:l"


class Log:
    """Numbered appends in Redis: one CAS each, or gathered while one is under way."""

    def __init__(self, port: int) -> None:
        self._redis = aioredis.Redis(host="127.0.0.1", port=port, max_connections=256)
        self._script = self._redis.register_script(CAS)
        self._heads: dict[str, int] = {}
        self._waiting: dict[str, list[tuple[bytes, asyncio.Future[int]]]] = {}
        self._flushing: dict[str, asyncio.Task[None]] = {}

    async def cas(self, shard: str, expected: int, payload: bytes) -> tuple[bool, int]:
        won, head = await self._script(keys=keys(shard), args=[expected, expected + 1, payload])
        return bool(won), head

    async def alone(self, shard: str, payload: bytes) -> int:
        """Its own CAS, again and again until it wins."""
        while True:
            won, head = await self.cas(shard, self._heads.get(shard, 0), payload)
            self._heads[shard] = max(head, self._heads.get(shard, 0))
            if won:
                return head

    def grouped(self, shard: str, payload: bytes) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(shard, []).append((payload, future))
        if shard not in self._flushing:
            self._flushing[shard] = asyncio.ensure_future(self._flush(shard))
        return future

    async def _flush(self, shard: str) -> None:
        while group := self._waiting.get(shard):
            self._waiting[shard] = []
            head = await self.alone(shard, b"".join(payload for payload, _ in group))
            for _, future in group:
                if not future.done():
                    future.set_result(head)
        del self._flushing[shard]

    async def published(self, shard: str) -> AsyncIterator[bytes]:
        """b"" once listening, then every append."""
        channel = self._redis.pubsub()
        await channel.subscribe(keys(shard)[0])
        async for news in channel.listen():
            yield b"" if news["type"] == "subscribe" else news["data"]


class Floor:
    """The handlers."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def echo(self, request: bytes, context: Any) -> bytes:
        return request

    async def append(self, request: bytes, context: Any) -> bytes:
        shard, expected, payload = parse(request)
        won, head = await self._log.cas(shard, expected, payload)
        return head.to_bytes(8, "little") if won else b""

    async def solo(self, request: bytes, context: Any) -> bytes:
        shard, _, payload = parse(request)
        return (await self._log.alone(shard, payload)).to_bytes(8, "little")

    async def group(self, request: bytes, context: Any) -> bytes:
        shard, _, payload = parse(request)
        return (await self._log.grouped(shard, payload)).to_bytes(8, "little")

    async def session(self, requests: AsyncIterator[bytes], context: Any) -> None:
        answers: asyncio.Queue[asyncio.Future[int] | None] = asyncio.Queue()

        async def read() -> None:
            async for request in requests:
                shard, _, payload = parse(request)
                answers.put_nowait(self._log.grouped(shard, payload))
            answers.put_nowait(None)

        reading = asyncio.ensure_future(read())
        while (answer := await answers.get()) is not None:
            await context.write((await answer).to_bytes(8, "little"))
        await reading

    async def listen(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        async for news in self._log.published(parse(request)[0]):
            yield news

    def handlers(self) -> grpc.GenericRpcHandler:
        unary: dict[str, Callable[[bytes, Any], Awaitable[bytes]]] = {
            "Echo": self.echo,
            "Append": self.append,
            "Solo": self.solo,
            "Group": self.group,
        }
        methods: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(handler) for name, handler in unary.items()
        }
        methods["Session"] = grpc.stream_stream_rpc_method_handler(self.session)
        methods["Listen"] = grpc.unary_stream_rpc_method_handler(self.listen)
        return grpc.method_handlers_generic_handler(SERVICE, methods)


async def _main(redis_port: int) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Floor(Log(redis_port)).handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"floor listening on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1])))
