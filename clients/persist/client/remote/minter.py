"""A minter behind gRPC: calls to TimestampMinter, repeated until they are answered or the time is up.

Every call may be repeated at any minter and gives the same, so a lost answer is asked for again like any other. Nothing
is shared with other processes: a pickled copy makes its own connections when first used.
Source: protos/persist/v1/minter.proto; catalog-semantics.md section 5.2.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Final

from google.protobuf.message import Message

from persist.client.binding.port import Bound, RemapSource, ResumptionOf, Resumptions
from persist.client.remote.channel import Channel, offering
from persist.client.remote.endpoints import Endpoints
from persist.client.shard.handles import Closes
from persist.core.binding.remap import Binding, RemapTrace
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import SourceTime
from persist.errors import Determinate, InvalidArgument, RequestTooLarge
from persist.retry.attempts import Attempts
from persist.retry.deadline import Deadline
from persist.retry.streams import watching
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist.typed import AnyMessage
from persist.v1 import minter_pb2 as pb
from persist.v1.minter_pb2_grpc import TimestampMinterStub
from persist.wire.rpc_bindings import TraceJoiner
from persist.wire.rpc_minter import (
    answers,
    bindings_of,
    exports_of,
    requests,
    resumption_of,
    source_frontier_message,
    source_message,
    standing_of,
    time_message,
)
from persist.wire.shard.batch import antichain_to_proto, required_antichain

ENVELOPE_BYTES: Final = 1 << 10
WATCH_SECONDS: Final = 600.0
"""A watch is renewed so often at least, which servers ask for now and then anyway."""


class RemoteMinter(Closes):
    """The Minter port over one or several TimestampMinter endpoints.

    ``endpoints``: ``HOST:PORT``, comma separated; a source has its preferred one, which serves it fastest, and moves on
    when that is down. Raises RequestTooLarge as well: ask for fewer times at once.
    """

    _noun = "minter"
    _again = "ask the client for another one"

    def __init__(self, endpoints: str, *, settings: Settings | None = None, runtime: Runtime | None = None) -> None:
        self._settings = settings or Settings()
        self._runtime = runtime or system()
        self._attempts = Attempts(settings=self._settings, runtime=self._runtime)
        self._endpoints = Endpoints(endpoints, TimestampMinterStub, settings=self._settings, runtime=self._runtime)

    def __repr__(self) -> str:
        return f"<Minter at {', '.join(self._endpoints.endpoints)}>"

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        return _rebuild, (",".join(self._endpoints.endpoints), self._settings)

    async def get_binding(
        self,
        source: RemapSource,
        times: Sequence[SourceTime],
        *,
        high: SourceFrontier | None = None,
        timeout: float | None = None,
    ) -> list[Binding]:
        """See Minter.get_binding. One unary call, for at most 10,000 times."""
        with requests():
            request = pb.GetBindingRequest(
                shard_id=source.remap,
                source=_source(source),
                times=[time_message(time) for time in times],
                high=_optional(high),
            )
        response = await self._ask("GetBinding", request, source, timeout)
        with answers():
            bindings = bindings_of(source.kind, response)
            if len(bindings) != len(times):
                raise InvalidArgument("the answer is about other times", asked=len(times), told=len(bindings))
        return bindings

    async def mint(
        self,
        source: RemapSource,
        wanted: SourceFrontier | None = None,
        *,
        high: SourceFrontier | None = None,
        timeout: float | None = None,
    ) -> Bound:
        """See Minter.mint. One unary call."""
        with requests():
            request = pb.MintRequest(
                shard_id=source.remap, source=_source(source), wanted=_optional(wanted), high=_optional(high)
            )
        response = await self._ask("Mint", request, source, timeout)
        with answers():
            return Bound(**standing_of(source.kind, response))

    async def bindings(self, source: RemapSource, *, timeout: float | None = None) -> RemapTrace:
        """See Minter.bindings. One server stream."""
        with requests():
            request = pb.ListBindingsRequest(shard_id=source.remap, source=_source(source))
        self._check_size(request)

        async def attempt(channel: Channel, seconds: float) -> RemapTrace:
            joiner = TraceJoiner(source.kind)
            with _offered(channel.endpoint):
                async with aclosing(channel.stream("ListBindings", request, source.remap, seconds)) as messages:
                    async for message in messages:
                        if (trace := joiner.add(message.piece)) is not None:
                            return trace
            raise Determinate("the answer's stream was too short", hint="retry")

        seconds = self._attempts.deadline(timeout).remaining()
        return await self._endpoints.repeat("ListBindings", source.remap, attempt, seconds)

    async def watch(self, source: RemapSource, *, timeout: float | None = None) -> AsyncGenerator[RemapTrace, None]:
        """See Minter.watch. One server stream at a time; when it breaks off, another one, at another minter if any."""
        with requests():
            request = pb.WatchBindingsRequest(shard_id=source.remap, source=_source(source))
        self._check_size(request)
        ends = None if timeout is None else self._attempts.deadline(timeout)

        def turn() -> Deadline:
            return Deadline(self._runtime, WATCH_SECONDS if ends is None else min(WATCH_SECONDS, ends.remaining()))

        def opened(seconds: float) -> AsyncGenerator[RemapTrace, None]:
            return self._watched(request, source, seconds)

        told: RemapTrace | None = None
        async with aclosing(watching(self._attempts, opened, ends=ends, turn=turn)) as traces:
            async for trace in traces:
                if trace != told:
                    told = trace
                    yield trace

    async def resumption(
        self, source: RemapSource, exports: Mapping[str, ShardId], *, timeout: float | None = None
    ) -> Resumptions:
        """See Minter.resumption. One unary call, for at most 1,000 exports."""
        with requests():
            request = pb.GetResumptionRequest(shard_id=source.remap, source=_source(source), exports=exports)
        response = await self._ask("GetResumption", request, source, timeout)
        with answers():
            found = exports_of(source.kind, exports, response.exports)
            return Resumptions(
                source=ResumptionOf(**resumption_of(source.kind, response.source)),
                exports={name: ResumptionOf(**fields) for name, fields in found.items()},
            )

    async def compact(
        self,
        source: RemapSource,
        exports: Mapping[str, ShardId],
        *,
        hold: Antichain | None = None,
        timeout: float | None = None,
    ) -> Antichain:
        """See Minter.compact. One unary call, for at most 1,000 exports."""
        with requests():
            request = pb.CompactBindingsRequest(shard_id=source.remap, source=_source(source), exports=exports)
            if hold is not None:
                request.hold.CopyFrom(antichain_to_proto(hold))
        response = await self._ask("CompactBindings", request, source, timeout)
        with answers():
            return required_antichain(response, "since")

    async def close(self) -> None:
        """Cancel what is under way and close the connections. A later call makes new ones."""
        await self._endpoints.close()

    async def _watched(
        self, request: AnyMessage, source: RemapSource, seconds: float
    ) -> AsyncGenerator[RemapTrace, None]:
        """One server stream, at a server that is left when it breaks off."""
        joiner = TraceJoiner(source.kind)
        opened = self._endpoints.stream("WatchBindings", request, source.remap, seconds, quiet=True, endless=True)
        with _offered(",".join(self._endpoints.endpoints)):
            async with aclosing(opened) as messages:
                async for message in messages:
                    if (trace := joiner.add(message.piece)) is not None:
                        yield trace

    async def _ask(self, rpc: str, request: AnyMessage, source: RemapSource, timeout: float | None) -> AnyMessage:
        self._check_size(request)

        async def attempt(channel: Channel, seconds: float) -> AnyMessage:
            with _offered(channel.endpoint):
                return await channel.unary(rpc, request, source.remap, seconds)

        seconds = self._attempts.deadline(timeout).remaining()
        return await self._endpoints.repeat(rpc, source.remap, attempt, seconds)

    def _check_size(self, request: Message) -> None:
        size, limit = request.ByteSize(), self._settings.max_message_bytes - ENVELOPE_BYTES
        if size > limit:
            raise RequestTooLarge("the request does not fit one message", hint="ask for less", bytes=size, limit=limit)


def _offered(endpoint: str) -> AbstractContextManager[None]:
    return offering("TimestampMinter", "minter", endpoint)


def _source(source: RemapSource) -> pb.RemapSource:
    return source_message(source.kind, source.incarnation, source.rules)


def _optional(frontier: SourceFrontier | None) -> pb.SourceFrontier | None:
    return None if frontier is None else source_frontier_message(frontier)


def _rebuild(endpoints: str, settings: Settings) -> RemoteMinter:
    return RemoteMinter(endpoints, settings=settings)
