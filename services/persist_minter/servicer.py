"""The handlers of TimestampMinter: decode, call the minter, encode. No state but what counts calls.

Source: style.md rule 12; protos/persist/v1/minter.proto.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar, cast

from persist.client.binding.port import Minter, RemapSource
from persist.errors import RequestTooLarge
from persist.v1 import minter_pb2 as pb
from persist.v1.minter_pb2_grpc import TimestampMinterServicer
from persist.wire.rpc_bindings import trace_pieces
from persist.wire.rpc_minter import (
    bindings_message,
    exports_in,
    resumption_message,
    source_frontier_in,
    source_in,
    standing_message,
    times_in,
)
from persist.wire.rpc_reads import frontier_message
from persist.wire.shard.batch import required_antichain
from persist_host import Telemetry
from persist_host.calls import Context, Waiters, seconds_left

R = TypeVar("R")

ENVELOPE_BYTES: Final = 1 << 10


class MinterServicer(TimestampMinterServicer):
    """TimestampMinter over any minter. ``limit``: bytes of one message; ``counters``: those of the minter."""

    def __init__(
        self, minter: Minter, counters: Callable[[], Mapping[str, int]], *, limit: int, telemetry: Telemetry
    ) -> None:
        self._minter = minter
        self._counters = counters
        self._limit = limit - ENVELOPE_BYTES
        self._telemetry = telemetry
        self._counted: dict[str, int] = {}
        self._waiters = Waiters()

    def drain(self) -> None:
        """End calls that wait for news at once."""
        self._waiters.drain()

    async def GetBinding(self, request: pb.GetBindingRequest, context: Context) -> pb.GetBindingResponse:
        """The binding of each source time."""
        source = RemapSource(**source_in(request))
        times = times_in(source.kind, request.times)
        high = source_frontier_in(source.kind, request, "high")
        try:
            bindings = await self._minter.get_binding(source, times, high=high, timeout=seconds_left(context))
        finally:
            self._count()
        self._telemetry.count("persist_minter_times_total", by=len(times))
        return self._bounded(bindings_message(bindings))

    async def Mint(self, request: pb.MintRequest, context: Context) -> pb.MintResponse:
        """Bind everything before a frontier, or complete the tick."""
        source = RemapSource(**source_in(request))
        wanted = source_frontier_in(source.kind, request, "wanted")
        high = source_frontier_in(source.kind, request, "high")
        try:
            bound = await self._minter.mint(source, wanted, high=high, timeout=seconds_left(context))
        finally:
            self._count()
        return self._bounded(standing_message(bound.frontier, bound.upper, bound.since))

    async def ListBindings(
        self, request: pb.ListBindingsRequest, context: Context
    ) -> AsyncIterator[pb.ListBindingsResponse]:
        """All bindings."""
        trace = await self._minter.bindings(RemapSource(**source_in(request)), timeout=seconds_left(context))
        for piece in trace_pieces(None, trace):
            yield pb.ListBindingsResponse(piece=piece)

    async def WatchBindings(
        self, request: pb.WatchBindingsRequest, context: Context
    ) -> AsyncIterator[pb.WatchBindingsResponse]:
        """All bindings, and whatever changes."""
        source, sent = RemapSource(**source_in(request)), None
        # To the very end: a client takes an end before that for a server that stops.
        watch = self._minter.watch(source, timeout=context.time_remaining())
        async with aclosing(self._waiters.each(watch)) as traces:
            async for trace in traces:
                for piece in trace_pieces(sent, trace):
                    yield pb.WatchBindingsResponse(piece=piece)
                sent = trace
                self._telemetry.count("persist_minter_traces_total")

    async def GetResumption(self, request: pb.GetResumptionRequest, context: Context) -> pb.GetResumptionResponse:
        """Where a source and its exports go on."""
        source = RemapSource(**source_in(request))
        sent = await self._minter.resumption(source, exports_in(request), timeout=seconds_left(context))
        response = pb.GetResumptionResponse(source=resumption_message(sent.source.time, sent.source.offsets))
        for name, each in sent.exports.items():
            response.exports[name].CopyFrom(resumption_message(each.time, each.offsets))
        return self._bounded(response)

    async def CompactBindings(self, request: pb.CompactBindingsRequest, context: Context) -> pb.CompactBindingsResponse:
        """Forget bindings that are not needed any more."""
        source = RemapSource(**source_in(request))
        hold = required_antichain(request, "hold") if request.HasField("hold") else None
        since = await self._minter.compact(source, exports_in(request), hold=hold, timeout=seconds_left(context))
        return pb.CompactBindingsResponse(since=frontier_message(since))

    def _bounded(self, response: R) -> R:
        size = cast(Any, response).ByteSize()
        if size > self._limit:
            raise RequestTooLarge(
                "the answer does not fit one message", hint="ask for fewer times at once", bytes=size, limit=self._limit
            )
        return response

    def _count(self) -> None:
        """Add what the minter has counted since. It forgets what it counted for sources it released."""
        for name, value in self._counters().items():
            more = value - self._counted.get(name, 0)
            self._counted[name] = value
            if more > 0:
                self._telemetry.count(f"persist_minter_{name}_total", by=more)
