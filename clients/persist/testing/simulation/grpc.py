"""gRPC in a simulated world: channels, servers and calls as ``grpc.aio`` has them, over connections that break.

Production code notices nothing: within ``wired``, ``grpc.aio.insecure_channel`` and ``grpc.aio.server`` make simulated
ones. Messages travel serialized. As in gRPC, a timeout travels as a duration and begins anew where it arrives, calls
of one channel share a connection, a broken connection ends them all, and what was sent before may still happen.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import grpc.aio

from persist.testing.simulation.memory import swapped
from persist.testing.simulation.simulator import Host, here
from persist.testing.simulation.wires import Connection, Inbox, Wires
from persist.typed import AnyMessage, Record

Metadata = Sequence[tuple[str, str | bytes]]

_END = object()
"""The client has no more to say."""


@dataclass(frozen=True)
class Status:
    """How a call ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: Metadata = ()

    def error(self) -> grpc.aio.AioRpcError:
        """As a client raises it."""
        return grpc.aio.AioRpcError(
            self.code, grpc.aio.Metadata(), grpc.aio.Metadata(*self.trailing), details=self.details
        )


@dataclass(frozen=True)
class Details:
    """What an interceptor sees of a call."""

    method: str
    invocation_metadata: Metadata


@contextlib.contextmanager
def wired(wires: Wires) -> Iterator[None]:
    """Within this context every gRPC connection is one of these."""

    def channel(target: str, **_: object) -> SimulatedChannel:
        return SimulatedChannel(wires, target)

    def server(*, interceptors: Sequence[Any] = (), **_: object) -> SimulatedServer:
        return SimulatedServer(wires, interceptors)

    with swapped(grpc.aio, insecure_channel=channel, server=server):
        yield


class SimulatedServer:
    """A server on the host that made it."""

    def __init__(self, wires: Wires, interceptors: Sequence[Any] = ()) -> None:
        made_by = here()
        assert made_by is not None
        self.host: Host = made_by
        self._wires = wires
        self._interceptors = tuple(interceptors)
        self._handlers: Record = {}
        self._guarded: Record = {}
        self._addresses: list[str] = []
        self.calls: dict[ServerCall, None] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[object]) -> None:
        """Methods are found by their registered names."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, object]) -> None:
        """The methods of a service."""
        self._handlers.update({f"/{service}/{name}": handler for name, handler in handlers.items()})

    def add_insecure_port(self, address: str) -> int:
        """Listen at ``HOST:PORT`` once started."""
        self._addresses.append(address)
        return int(address.rsplit(":", 1)[1])

    async def start(self) -> None:
        """Accept connections."""
        for address in self._addresses:
            self._wires.listeners[address] = self

    async def stop(self, grace: float | None) -> None:
        """Accept no more, and cancel what is left after ``grace`` seconds."""
        for address in self._addresses:
            self._wires.listeners.pop(address, None)
        if self.calls and grace:
            await asyncio.wait([call.task for call in self.calls], timeout=grace)
        for call in tuple(self.calls):
            call.cancel()

    async def handler(self, method: str, metadata: Metadata) -> Any:
        """What answers a method, with its interceptors around it; None when there is none."""
        known = self._guarded.get(method)
        if known is None:

            async def innermost(details: Details) -> Any:
                return self._handlers.get(details.method)

            call: Callable[[Any], Awaitable[Any]] = innermost
            for interceptor in reversed(self._interceptors):
                call = partial(interceptor.intercept_service, call)
            known = self._guarded[method] = await call(Details(method, metadata))
        return known


class ServerCall:
    """One call where it is served; also the context its handler gets. ``reply`` sends a message or the Status."""

    def __init__(
        self,
        server: SimulatedServer,
        method: str,
        metadata: Metadata,
        timeout: float | None,
        reply: Callable[[AnyMessage], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._server = server
        self._method = method
        self._metadata = metadata
        self._reply = reply
        self._over = False
        self._serializer: Callable[[Any], bytes] = bytes
        # As in gRPC, the time runs from now on, however long the call was on its way.
        self._deadline = None if timeout is None else loop.time() + timeout
        self.inbox = Inbox()
        self.task = server.host.start(self._run())
        server.calls[self] = None
        self.task.add_done_callback(lambda _: server.calls.pop(self, None))
        timer = None if timeout is None else loop.call_later(timeout, self.cancel)
        if timer is not None:
            self.task.add_done_callback(lambda _: timer.cancel())

    def cancel(self) -> None:
        """The client went away, or the time is up."""
        self._finish(Status(grpc.StatusCode.CANCELLED))
        self.task.cancel()

    # ---- the context ---------------------------------------------------------------------------------------------

    def time_remaining(self) -> float | None:
        """Seconds left; None without a deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - asyncio.get_running_loop().time())

    def invocation_metadata(self) -> Metadata:
        """What came with the call."""
        return self._metadata

    def peer(self) -> str:
        """The caller's address."""
        return "sim:client"

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Nothing here waits for it alone."""

    async def write(self, message: AnyMessage) -> None:
        """Send an answer."""
        self._reply(self._serializer(message))
        await asyncio.sleep(0)

    async def read(self) -> AnyMessage:
        """The next request, or EOF."""
        data = await self.inbox.get()
        return grpc.aio.EOF if data is _END else data

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """End with an error."""
        self._finish(Status(code, details, trailing_metadata))
        raise grpc.aio.AbortError

    # ---- serving -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            handler = await self._server.handler(self._method, self._metadata)
            if handler is None:
                self._finish(Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
                return
            self._serializer = handler.response_serializer or bytes
            await self._answer(handler)
            self._finish(Status(grpc.StatusCode.OK))
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            self._finish(Status(grpc.StatusCode.CANCELLED))
            raise
        except Exception as error:
            self._finish(Status(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}"))
            raise

    async def _answer(self, handler: Any) -> None:
        read = handler.request_deserializer or bytes
        request = self._requests(read) if handler.request_streaming else read(await self.inbox.get())
        if not handler.response_streaming:
            await self.write(await handler.unary_unary(request, self))
            return
        answers = (handler.stream_stream if handler.request_streaming else handler.unary_stream)(request, self)
        if hasattr(answers, "__aiter__"):
            async for answer in answers:
                await self.write(answer)
        else:
            await answers

    async def _requests(self, read: Callable[[bytes], AnyMessage]) -> AsyncIterator[AnyMessage]:
        while (data := await self.inbox.get()) is not _END:
            yield read(data)

    def _finish(self, status: Status) -> None:
        if not self._over:
            self._over = True
            self._reply(status)


class SimulatedChannel:
    """Calls of one client to one address. Connects at the first call, and again after the connection broke."""

    def __init__(self, wires: Wires, address: str) -> None:
        self.wires = wires
        self.address = address.removeprefix("dns:///")
        self.calls: dict[ClientCall, None] = {}
        self._connection: Connection | None = None
        self._closed = False

    def unary_unary(self, method: str, **codec: AnyMessage) -> "Callable[..., ClientCall]":
        """A method with one request and one answer."""
        return self._method(method, unary=True, **codec)

    def unary_stream(self, method: str, **codec: AnyMessage) -> "Callable[..., ClientCall]":
        """A method with one request and any number of answers."""
        return self._method(method, unary=False, **codec)

    def stream_stream(self, method: str, **codec: AnyMessage) -> "Callable[..., ClientCall]":
        """A method with requests and answers in any order."""
        return self._method(method, unary=False, **codec)

    def connection(self) -> Connection:
        """The one there is, or a new one."""
        if self._connection is None or self._connection.broken:
            self._connection = self.wires.connect(self.address, _Link(self))
        return self._connection

    async def close(self, grace: float | None = None) -> None:
        """End every call and the connection."""
        self._closed = True
        for call in tuple(self.calls):
            call.cancel()
        if self._connection is not None:
            self._connection.leave()

    async def __aenter__(self) -> "SimulatedChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _method(
        self,
        method: str,
        *,
        unary: bool,
        request_serializer: Callable[[AnyMessage], bytes] = bytes,
        response_deserializer: Callable[[bytes], AnyMessage] = bytes,
        **_: object,
    ) -> "Callable[..., ClientCall]":
        def call(
            request: AnyMessage = None, *, timeout: float | None = None, metadata: Metadata | None = None, **_: object
        ) -> ClientCall:
            if self._closed:
                raise grpc.aio.UsageError("Channel is closed.")
            made = ClientCall(self, method, request_serializer, response_deserializer, timeout, tuple(metadata or ()))
            made.twice = unary or request is None
            if request is not None:
                made.send(request_serializer(request))
                made.send(_END)
            return made

        return call


class _Link:
    """The near end of a channel's connection: notifies the calls that are on it."""

    def __init__(self, channel: SimulatedChannel) -> None:
        self._channel = channel

    def connected(self) -> None:
        for call in tuple(self._channel.calls):
            if call.link is self:
                call.connected.set()

    def broke(self, why: str) -> None:
        for call in tuple(self._channel.calls):
            if call.link is self:
                call.over(Status(grpc.StatusCode.UNAVAILABLE, why))


class ClientCall:
    """One call where it is made. ``twice``: its requests are ones that a proxy may repeat."""

    def __init__(
        self,
        channel: SimulatedChannel,
        method: str,
        serializer: Callable[[AnyMessage], bytes],
        deserializer: Callable[[bytes], AnyMessage],
        timeout: float | None,
        metadata: Metadata,
    ) -> None:
        self.twice = False
        self.connected = asyncio.Event()
        self._channel = channel
        self._method = method
        self._serializer = serializer
        self._deserializer = deserializer
        self._timeout = timeout
        self._metadata = metadata
        self._connection = channel.connection()
        self.link = self._connection.client
        if self._connection.there is not None:
            self.connected.set()
        self._inbox = Inbox()
        self._status: Status | None = None
        self._cancelled = False
        self._said_all = False
        self._served: ServerCall | None = None
        channel.calls[self] = None
        self._connection.up(self._begin)
        self._connection.on_end(self, self._orphaned)
        self._timer = None
        if timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(timeout, self._late)

    # ---- what callers use ----------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, Any]:
        return self._only().__await__()

    async def __aiter__(self) -> AsyncIterator[AnyMessage]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def wait_for_connection(self) -> None:
        """Return once there is one. Raises the status when there never is."""
        await self.connected.wait()
        if self._status is not None and self._status.code is not grpc.StatusCode.OK:
            self._raise(self._status)

    async def read(self) -> AnyMessage:
        """The next answer, or EOF. Raises the status unless that is OK."""
        item = await self._inbox.get()
        if not isinstance(item, Status):
            return self._deserializer(item)
        self._inbox.put(item)
        if item.code is grpc.StatusCode.OK:
            return grpc.aio.EOF
        self._raise(item)

    async def write(self, message: AnyMessage) -> None:
        """Send a request."""
        if self.done() or self._said_all:
            raise asyncio.InvalidStateError("RPC already finished.")
        self.send(self._serializer(message))
        await asyncio.sleep(0)

    async def done_writing(self) -> None:
        """Say that there are no more requests."""
        if not self.done() and not self._said_all:
            self.send(_END)

    def done(self) -> bool:
        """Nothing more will come."""
        return self._status is not None

    def cancel(self) -> bool:
        """Give up, and notify the server."""
        if self._status is not None:
            return False
        self._cancelled = True
        self._leave(Status(grpc.StatusCode.CANCELLED, "Locally cancelled by application!"))
        return True

    # ---- what happens to it --------------------------------------------------------------------------------------

    def send(self, data: object) -> None:
        """Put a request, or the end of them, on its way."""
        self._said_all = self._said_all or data is _END
        self._connection.up(partial(self._put, data))
        wires = self._channel.wires
        if self.twice and data is not _END and wires.enabled and wires.rolls.random() < wires.twice:
            seconds = wires.rolls.choice([0.001, 0.1, 3.0, 30.0]) * wires.rolls.random()
            wires.later(seconds, self._again, data)

    def over(self, status: Status) -> None:
        """Its last message."""
        if self._status is not None:
            return
        self._status = status
        self._channel.calls.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        self.connected.set()
        self._inbox.put(status)
        if status.code is grpc.StatusCode.OK:
            self._connection.on_end(self, None)

    async def _only(self) -> AnyMessage:
        try:
            item = await self._inbox.get()
            status = item if isinstance(item, Status) else await self._inbox.get()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if status.code is not grpc.StatusCode.OK:
            self._raise(status)
        return self._deserializer(item)

    def _raise(self, status: Status) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
        raise status.error()

    def _late(self) -> None:
        self._leave(Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def _leave(self, status: Status) -> None:
        if self._status is None:
            self._connection.up(self._orphaned)
            self.over(status)

    # ---- on the server's host ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        server = self._connection.listener
        assert isinstance(server, SimulatedServer)
        self._served = ServerCall(server, self._method, self._metadata, self._timeout, self._reply)

    def _put(self, data: object) -> None:
        if self._served is not None:
            self._served.inbox.put(data)

    def _orphaned(self) -> None:
        # A handler may have begun before the server looks at what came next.
        served, wires = self._served, self._channel.wires
        if served is None or served.task.done():
            return
        if wires.enabled and wires.rolls.random() < 0.5:
            asyncio.get_running_loop().call_later(0.001, served.cancel)
        else:
            served.cancel()

    def _reply(self, item: AnyMessage) -> None:
        deliver = partial(self.over, item) if isinstance(item, Status) else partial(self._inbox.put, item)
        self._connection.down(deliver)

    def _again(self, data: bytes) -> None:
        """A proxy delivers a request once more, to any server, and throws the answer away."""
        wires = self._channel.wires
        servers = [one for one in wires.listeners.values() if isinstance(one, SimulatedServer) and one.host.alive]
        if not servers:
            return
        wires.counts["request delivered twice"] += 1
        server = wires.rolls.choice(servers)

        def begin() -> None:
            again = ServerCall(server, self._method, self._metadata, self._timeout, lambda _: None)
            again.inbox.put(data)
            again.inbox.put(_END)

        wires.loop.call_soon(begin, context=server.host.context)
