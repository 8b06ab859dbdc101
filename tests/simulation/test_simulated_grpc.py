"""Simulated gRPC behaves like real gRPC in everything that clients and servers here use; and it breaks as asked."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from persist.testing.simulation.grpc import wired
from persist.testing.simulation.simulator import VirtualLoop, simulation
from persist.testing.simulation.wires import Wires

NAME = "persist.test.Echo"
Story = Callable[[Any], Awaitable[list[Any]]]


class Echo:
    """Methods that end in every way there is."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, bytes]] = []

    def register(self, server: Any) -> None:
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Once": grpc.unary_unary_rpc_method_handler(self.once),
            "Many": grpc.unary_stream_rpc_method_handler(self.many),
            "Talk": grpc.stream_stream_rpc_method_handler(self.talk),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, methods),))
        server.add_registered_method_handlers(NAME, methods)

    async def once(self, request: bytes, context: Any) -> bytes:
        self.seen.append((round(context.time_remaining(), 1), request))
        if request == b"refuse":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no", (("why", "because"), ("key-bin", b"\0")))
        if request == b"late":
            await asyncio.sleep(60)
        if request == b"bug":
            raise ZeroDivisionError
        return request + str(dict(context.invocation_metadata()).get("x")).encode()

    async def many(self, request: bytes, context: Any) -> Any:
        for at in range(3):
            yield request + str(at).encode()
        if request == b"refuse":
            await context.abort(grpc.StatusCode.NOT_FOUND, "gone")

    async def talk(self, requests: Any, context: Any) -> None:
        async for request in requests:
            await context.write(request * 2)
            if request == b"leave":
                return


def _method(channel: Any, kind: str, name: str) -> Any:
    codec = {"request_serializer": bytes, "response_deserializer": bytes}
    return getattr(channel, kind)(f"/{NAME}/{name}", **codec)


async def _end(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() if "no" in (error.details() or "") else "", dict(error.trailing_metadata())
    except asyncio.CancelledError:
        return "cancelled"


async def _unary(channel: Any) -> list[Any]:
    once = _method(channel, "unary_unary", "Once")
    told = [await _end(once(b"hello", timeout=5, metadata=(("x", "y"),)))]
    told += [await _end(once(request, timeout=5)) for request in (b"refuse", b"bug")]
    told.append(await _end(once(b"late", timeout=0.3)))
    told.append((await _end(_method(channel, "unary_unary", "Never")(b"", timeout=5)))[0])
    call = once(b"late", timeout=5)
    asyncio.get_running_loop().call_later(0.05, call.cancel)
    return [*told, await _end(call), call.done()]


async def _streams(channel: Any) -> list[Any]:
    many, talk = _method(channel, "unary_stream", "Many"), _method(channel, "stream_stream", "Talk")
    told: list[Any] = [[message async for message in many(b"a", timeout=5)]]
    refused = many(b"refuse", timeout=5)
    told += [await _end(refused.read()) for _ in range(4)]
    call = talk()
    await call.wait_for_connection()
    for request in (b"b", b"c"):
        await call.write(request)
        told.append(await call.read())
    await call.done_writing()
    told.append(await call.read() is grpc.aio.EOF)
    call = talk(timeout=5)
    await call.write(b"leave")
    told += [await call.read(), await call.read() is grpc.aio.EOF]
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(b"more")
    return told


async def _refused(make: Callable[[str], Any]) -> list[Any]:
    channel = make("127.0.0.1:1")
    told = [(await _end(_method(channel, "unary_unary", "Once")(b"", timeout=5)))[0]]
    call = _method(channel, "stream_stream", "Talk")()
    told.append((await _end(call.wait_for_connection()))[0])
    await channel.close()
    return told


async def _all(listen: str) -> list[Any]:
    server = grpc.aio.server()
    Echo().register(server)
    port = server.add_insecure_port(listen)
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    told = [*await _unary(channel), *await _streams(channel), *await _refused(grpc.aio.insecure_channel)]
    await channel.close()
    await server.stop(None)
    return told


def _simulated(story: Callable[[Wires, VirtualLoop], Awaitable[Any]]) -> Any:
    with simulation(1) as loop:
        wires = Wires(loop, slow=0, cut=0, twice=0)
        with wired(wires):
            return loop.run_until_complete(loop.host("both").start(story(wires, loop)))  # type: ignore[arg-type]


def test_it_answers_as_grpc_does():
    async def story(wires: Wires, loop: VirtualLoop) -> list[Any]:
        return await _all("127.0.0.1:7")

    told = _simulated(story)
    assert told == asyncio.run(_all("127.0.0.1:0"))
    assert len(told) == 19


def _served(wires: Wires, loop: VirtualLoop) -> tuple[Any, Echo]:
    """A server on a host of its own."""
    echo, host = Echo(), loop.host("server")

    def make() -> Any:
        server = grpc.aio.server()
        echo.register(server)
        server.add_insecure_port("there:7")
        return server

    host.start(host.context.run(make).start())
    return host, echo


def test_a_server_that_stood_still_gives_an_old_call_all_its_time():
    async def story(wires: Wires, loop: VirtualLoop) -> list[Any]:
        host, echo = _served(wires, loop)
        await asyncio.sleep(0.1)
        once = _method(grpc.aio.insecure_channel("there:7"), "unary_unary", "Once")
        await once(b"first", timeout=1)
        host.pause()
        late = await asyncio.gather(*(_end(once(b"late", timeout=2)) for _ in range(20)))
        await asyncio.sleep(100)
        host.resume()
        await asyncio.sleep(1)
        return [{told[0] for told in late}, set(echo.seen), 1 < len(echo.seen) < 21]

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    assert _simulated(story) == [{code}, {(1.0, b"first"), (2.0, b"late")}, True]


def test_what_was_sent_may_happen_although_its_connection_broke():
    async def story(wires: Wires, loop: VirtualLoop) -> list[Any]:
        _, echo = _served(wires, loop)
        await asyncio.sleep(0.1)
        once = _method(grpc.aio.insecure_channel("there:7"), "unary_unary", "Once")
        told = []
        for number in range(20):
            await once(b"begin", timeout=1)
            wires.later(0.0005, wires.some()[0].reset)
            told.append(await _end(once(b"%d" % number, timeout=1)))
        lost = [answer for answer in told if isinstance(answer, tuple)]
        await asyncio.sleep(1)
        happened = {request for _, request in echo.seen}
        known = sum(b"%d" % number in happened for number in range(20))
        return [{answer[0] for answer in lost}, len(lost) > 0, 20 - len(lost) < known < 20]

    assert _simulated(story) == [{grpc.StatusCode.UNAVAILABLE}, True, True]


def test_what_is_on_its_way_when_a_connection_breaks_is_lost_or_arrives_as_a_whole():
    async def story(wires: Wires, loop: VirtualLoop) -> list[Any]:
        _served(wires, loop)
        await asyncio.sleep(0.1)
        once = _method(grpc.aio.insecure_channel("there:7"), "unary_unary", "Once")
        told = set()
        for number in range(200):
            await once(b"begin", timeout=1)
            connection = wires.some()[0]
            answer = asyncio.ensure_future(_end(once(b"next", timeout=1)))
            await asyncio.sleep(0.0004 * (number % 10))
            for at in range(40):  # as when several messages were each rolled to be the last
                wires.later(at * 0.0001, connection.reset)
            ended = await answer
            told.add(ended[0] if isinstance(ended, tuple) else ended)
            await asyncio.sleep(0.1)  # until the last of them has come
        return [told]

    assert _simulated(story) == [{grpc.StatusCode.UNAVAILABLE, b"nextNone"}]


def test_a_proxy_delivers_twice_and_tells_nobody():
    async def story(wires: Wires, loop: VirtualLoop) -> list[Any]:
        wires.twice = 1.0
        _, echo = _served(wires, loop)
        await asyncio.sleep(0.1)
        channel = grpc.aio.insecure_channel("there:7")
        told = [await _method(channel, "unary_unary", "Once")(b"a", timeout=1)]
        call = _method(channel, "stream_stream", "Talk")()
        await call.write(b"b")
        told.append(await call.read())
        await asyncio.sleep(60)
        return [*told, len(echo.seen), wires.counts["request delivered twice"]]

    assert _simulated(story) == [b"aNone", b"bb", 2, 2]
