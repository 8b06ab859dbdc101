"""The one interceptor: no deadline, no call; what comes in is bounded; header and body name the same shard; every error
has its status.

Handlers are wrapped once per method, not once per call. Source: reliability.md section 5; style.md rule 19.
"""

import asyncio
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import grpc
import grpc.aio

from persist.errors import Determinate, Indeterminate, InvalidArgument, MissingDeadline, PersistError
from persist.runtime import Runtime
from persist.settings import Settings
from persist.typed import AnyMessage, Record
from persist.wire.rpc_errors import DETAILS_KEY, status_of
from persist_host.calls import Context
from persist_host.guard.admission import Admission
from persist_host.guard.door import Door, Frames
from persist_host.guard.outlet import Outlet, hold_answer
from persist_host.guard.strangers import Strangers
from persist_host.telemetry import Labels, Telemetry

SHARD_HEADER: Final = "persist-shard-id"
GUARDED: Final = "/persist.v1."
TOO_LATE_SECONDS: Final = 0.005
FOREVER_SECONDS: Final = 10 * 365 * 86_400.0
"""gRPC shows a call without a deadline as one that ends in the far future."""

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class CallGuard(grpc.aio.ServerInterceptor):
    """Admits calls to our services and translates what they raise. Others (health, reflection) pass untouched."""

    def __init__(
        self,
        *,
        settings: Settings,
        runtime: Runtime,
        telemetry: Telemetry,
        undated: frozenset[str] = frozenset(),
    ) -> None:
        """``undated``: full method names that need no deadline of their own."""
        self._settings = settings
        self._runtime = runtime
        self._telemetry = telemetry
        self._undated = undated
        self._admission = Admission(settings, telemetry)
        self._strangers = Strangers(runtime)
        self._wrapped: Record = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The guarded handler of a method."""
        name: str = handler_call_details.method
        wrapped = self._wrapped.get(name)
        if wrapped is not None:
            return wrapped
        handler = await continuation(handler_call_details)
        if handler is None or not name.startswith(GUARDED):
            return handler
        self._wrapped[name] = wrapped = self._wrap(name, handler)
        return wrapped

    def _wrap(self, name: str, handler: Any) -> Any:
        """The handler of a method behind its door: it is given the bytes of requests, and parses them itself."""
        door = Door(name, self._admission, settings=self._settings, runtime=self._runtime)
        call = _Call(name, door, self)
        codec = {"request_deserializer": None, "response_serializer": handler.response_serializer}
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(call.unary(handler.unary_unary), **codec)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(call.streaming(handler.unary_stream), **codec)
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(call.session(handler.stream_stream), **codec)
        raise AssertionError(f"{name}: client streaming is not used here")


class _Call:
    """Guards the calls of one method."""

    def __init__(self, name: str, door: Door, guard: CallGuard) -> None:
        self._name = name
        self._door = door
        self._runtime = guard._runtime
        self._telemetry = guard._telemetry
        self._admission = guard._admission
        self._strangers = guard._strangers
        self._dated = name not in guard._undated
        self._stall_seconds = guard._settings.stream_stall_ms / 1000
        self._seconds_max = guard._settings.watch_ms_max / 1000
        self._seconds = (("method", name),)
        self._fine = (("method", name), ("code", "OK"))

    def unary(self, behavior: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[bytes, Any], Awaitable[Any]]:
        """One coroutine per call."""

        async def guarded(data: bytes, context: Context) -> AnyMessage:
            began, memory = self._runtime.monotonic(), 0
            try:
                self._check_deadline(context)
                with self._admission.call(context.peer()):
                    request, memory = await self._door.enter(data)
                    self._check_route(request, context)
                    with self._telemetry.span(self._name):
                        response = await behavior(request, context)
                    await hold_answer(response, context.peer(), self._admission)
                self._count(self._fine, began)
                return response
            except Exception as error:
                await self._fail(error, context, began)
            finally:
                self._door.leave(memory)

        return guarded

    def streaming(
        self, behavior: Callable[[Any, Any], AsyncGenerator[Any, None]]
    ) -> Callable[[bytes, Any], Awaitable[None]]:
        """One coroutine per stream, which writes what the behavior yields."""

        async def serve(data: bytes, context: Context, outlet: Outlet) -> None:
            self._check_deadline(context)
            with self._admission.stream(self._name, context.peer()):
                request, memory = await self._door.enter(data)
                # The requests of streams are small, and the streams are counted.
                self._door.leave(memory)
                self._check_route(request, context)
                with self._telemetry.span(self._name):
                    async with aclosing(behavior(request, Capped(context, self._seconds_max))) as responses:
                        async for response in responses:
                            await outlet.write(response)

        async def guarded(data: bytes, context: Context) -> None:
            await self._lasting(context, lambda outlet: serve(data, context, outlet))

        return guarded

    def session(self, behavior: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[None]]:
        """One coroutine per stream, which reads frames with the memory taken for them, and writes for itself."""

        async def serve(context: Context, outlet: Outlet) -> None:
            with self._admission.stream(self._name, context.peer()), self._telemetry.span(self._name):
                await behavior(Frames(context, self._door), outlet)

        async def guarded(_: Any, context: Context) -> None:
            await self._lasting(context, lambda outlet: serve(context, outlet))

        return guarded

    async def _lasting(self, context: Context, serve: Callable[[Outlet], Awaitable[None]]) -> None:
        """A stream to its end, that of its status included: until then gRPC may hold what was written."""
        began = self._runtime.monotonic()
        outlet = Outlet(context, self._admission, self._stall_seconds)
        try:
            await serve(outlet)
            self._count(self._fine, began)
        except Exception as error:
            # What was to be written is in the frames that were left: nothing of it is held while the status waits.
            traceback.clear_frames(error.__traceback__)
            await self._fail(error, context, began)
        finally:
            outlet.close()

    def _check_deadline(self, context: Context) -> None:
        if not self._dated:
            return
        left = context.time_remaining()
        if left is None or left > FOREVER_SECONDS:  # type: ignore[redundant-expr]  # None without a deadline
            raise MissingDeadline("the call has no deadline", hint="set one: every call must end", method=self._name)
        if left < TOO_LATE_SECONDS:
            raise Determinate("the deadline had all but passed on arrival", hint="retry with a longer timeout")

    def _check_route(self, request: object, context: Context) -> None:
        shard = getattr(request, "shard_id", None)
        if shard is None:
            return
        routed = shard_header(context)
        if routed is not None and routed != shard:
            raise InvalidArgument(
                f"metadata {SHARD_HEADER} and shard_id differ", hint="route by the shard the request is about"
            )

    def _count(self, labels: Labels, began: float) -> None:
        self._telemetry.count("persist_rpc_total", labels)
        self._telemetry.count("persist_rpc_seconds_total", self._seconds, self._runtime.monotonic() - began)

    async def _fail(self, error: Exception, context: Context, began: float) -> None:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if isinstance(error, grpc.aio.InternalError):
            # What was written did not arrive: the caller left, or its connection broke.
            self._count((("method", self._name), ("code", "CANCELLED")), began)
            raise asyncio.CancelledError from None
        if not isinstance(error, PersistError):
            # What failed may have come after a commit, so it must not be taken for a refusal.
            id_ = self._strangers.unexpected(error, self._name)
            error = Indeterminate("internal error", hint="see the server's log", error_id=id_)
        else:
            error = self._strangers.shown(error, self._name)
        status = status_of(error)
        code = _CODES[status.code]
        self._count((("method", self._name), ("code", code.name)), began)
        try:
            await context.abort(code, status.message, ((DETAILS_KEY, status.details),))
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None
        except grpc.aio.AbortError as aborted:
            _let_go(aborted)
            raise


def _let_go(aborted: BaseException) -> None:
    """Forget, once a call has ended, where it was refused.

    SUBTLE: gRPC keeps what ended a call with its context, which the frames that were left hold, and they the bytes of
    the request: a circle that only the collector of cycles opens, and servers let that run rarely.
    """

    def forget(_: object) -> None:
        aborted.__traceback__ = aborted.__context__ = None

    task = asyncio.current_task()
    assert task is not None
    # Not the context's own callbacks: they hold the context, which holds them.
    task.add_done_callback(forget)


class Capped:
    """A call's context that shows no more time than a stream may take."""

    __slots__ = ("_context", "_ends_at", "_loop")

    def __init__(self, context: Context, seconds_max: float) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + seconds_max

    def time_remaining(self) -> float:
        """Seconds left, of the caller's deadline or of what a stream may take."""
        left: float = self._context.time_remaining()
        return min(left, self._ends_at - self._loop.time())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def shard_header(context: Context) -> str | None:
    """The shard a call was routed by, if any."""
    for name, value in context.invocation_metadata() or ():
        if name == SHARD_HEADER:
            return value if isinstance(value, str) else value.decode("ascii", "replace")
    return None
