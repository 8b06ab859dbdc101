"""The one interceptor: no deadline, no call; header and body name the same shard; every error has its status.

Handlers are wrapped once per method, not once per call. Source: reliability.md section 5; style.md rule 19.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from persist.errors import Determinate, Indeterminate, InvalidArgument, MissingDeadline, PersistError
from persist.runtime import Runtime
from persist.wire.rpc_errors import DETAILS_KEY, status_of
from persist_host.telemetry import Labels, Telemetry

SHARD_HEADER: Final = "persist-shard-id"
GUARDED: Final = "/persist.v1."
TOO_LATE_SECONDS: Final = 0.005
FOREVER_SECONDS: Final = 10 * 365 * 86_400.0
"""gRPC tells a call without a deadline as one that ends in the far future."""

_log = logging.getLogger("persist.host")
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class Guard(grpc.aio.ServerInterceptor):
    """Admits calls to our services and translates what they raise. Others (health, reflection) pass untouched."""

    def __init__(self, *, runtime: Runtime, telemetry: Telemetry, undated: frozenset[str] = frozenset()) -> None:
        """``undated``: full method names that need no deadline of their own."""
        self._runtime = runtime
        self._telemetry = telemetry
        self._undated = undated
        self._wrapped: dict[str, Any] = {}

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
        call = _Call(name, self._runtime, self._telemetry, dated=name not in self._undated)
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(call.unary(handler.unary_unary), **codec)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(call.streaming(handler.unary_stream), **codec)
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(call.unary(handler.stream_stream), **codec)
        raise AssertionError(f"{name}: client streaming is not used here")


class _Call:
    """Guards the calls of one method."""

    def __init__(self, name: str, runtime: Runtime, telemetry: Telemetry, *, dated: bool) -> None:
        self._name = name
        self._runtime = runtime
        self._telemetry = telemetry
        self._dated = dated
        self._seconds = (("method", name),)
        self._fine = (("method", name), ("code", "OK"))

    def unary(self, behavior: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        """One coroutine per call: unary methods, and streams that write for themselves."""

        async def guarded(request: Any, context: Any) -> Any:
            began = self._runtime.monotonic()
            try:
                self._admit(request, context)
                with self._telemetry.span(self._name):
                    response = await behavior(request, context)
                self._count(self._fine, began)
                return response
            except Exception as error:
                await self._fail(error, context, began)

        return guarded

    def streaming(self, behavior: Callable[[Any, Any], AsyncIterator[Any]]) -> Callable[[Any, Any], AsyncIterator[Any]]:
        """One generator per call."""

        async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
            began = self._runtime.monotonic()
            try:
                self._admit(request, context)
                with self._telemetry.span(self._name):
                    async for response in behavior(request, context):
                        yield response
                self._count(self._fine, began)
            except Exception as error:
                await self._fail(error, context, began)

        return guarded

    def _admit(self, request: Any, context: Any) -> None:
        if self._dated:
            left = context.time_remaining()
            if left is None or left > FOREVER_SECONDS:
                raise MissingDeadline(
                    "the call has no deadline", hint="set one: every call must end", method=self._name
                )
            if left < TOO_LATE_SECONDS:
                raise Determinate("the deadline had all but passed on arrival", hint="retry with a longer timeout")
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

    async def _fail(self, error: Exception, context: Any, began: float) -> None:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if not isinstance(error, PersistError):
            # What failed may have come after a commit, so nobody may take it for a refusal.
            _log.error("unexpected failure in %s", self._name, exc_info=error)
            error = Indeterminate("internal error", hint="see the server's log", kind=type(error).__name__)
        status = status_of(error)
        code = _CODES[status.code]
        self._count((("method", self._name), ("code", code.name)), began)
        await context.abort(code, status.message, ((DETAILS_KEY, status.details),))


def shard_header(context: Any) -> str | None:
    """The shard a call was routed by, if any."""
    for name, value in context.invocation_metadata() or ():
        if name == SHARD_HEADER:
            return value if isinstance(value, str) else value.decode("ascii", "replace")
    return None
