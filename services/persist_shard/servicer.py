"""The handlers of PersistShard: decode, call one method, encode. No state but components.

Source: style.md rule 12; protos/persist/v1/shard.proto.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Final, TypeVar

from google.protobuf.message import Message

from persist.core.ids import ReaderId, ShardId
from persist.errors import Determinate
from persist.machine.shards import NotYet, Shards
from persist.runtime import Runtime
from persist.settings import Settings
from persist.v1 import shard_pb2 as pb
from persist.v1.shard_pb2_grpc import PersistShardServicer
from persist.wire.rpc import BY_REQUEST, response_of
from persist.wire.rpc_reads import CHUNK_BYTES, frontier_in
from persist_host import Frames, Strangers, Telemetry
from persist_host.calls import Context, Waiters, seconds_left, seconds_to_wait
from persist_host.guard.interceptor import shard_header
from persist_shard.lanes import Lanes
from persist_shard.session import ServerSession
from persist_shard.understood import understood
from persist_shard.watch import Pushes, change_pieces, info_of, made_aside, plan_pieces

R = TypeVar("R")

_LISTED_PER_MESSAGE: Final = 1000


def _json(shown: list[object]) -> bytes:
    """The text of what is in ``shown``, which is taken out: giving up all of it takes time, too, and not the loop's."""
    return "".join(_pieces(shown.pop(), 4)).encode()


def _pieces(value: object, levels: int) -> Iterator[str]:
    """The text of a value, the large ones of so many levels in pieces: one that is made at once lets no thread on."""
    if levels and isinstance(value, list) and value:
        between = "["
        for each in value:
            yield between
            yield from _pieces(each, levels - 1)
            between = ","
        yield "]"
    elif levels and isinstance(value, dict) and value:
        between = "{"
        for key, each in value.items():
            yield f"{between}{json.dumps(str(key))}:"
            yield from _pieces(each, levels - 1)
            between = ","
        yield "}"
    else:
        yield json.dumps(value)


class ShardServicer(PersistShardServicer):
    """PersistShard over a Shards port for reads and lanes for commands."""

    def __init__(
        self, shards: Shards, lanes: Lanes, *, settings: Settings, runtime: Runtime, telemetry: Telemetry
    ) -> None:
        self._shards = shards
        self._lanes = lanes
        self._idle_seconds = settings.session_idle_ms / 1000
        self._runtime = runtime
        self._telemetry = telemetry
        self._strangers = Strangers(runtime)
        self._pushes = Pushes()
        self._sessions: set[ServerSession] = set()
        self._waiters = Waiters()

    def drain(self) -> None:
        """End sessions once they are answered, and calls that wait for news at once."""
        for session in self._sessions:
            session.drain()
        self._waiters.drain()

    # ---- reads ---------------------------------------------------------------------------------------------------

    async def GetLocation(self, request: pb.GetLocationRequest, context: Context) -> pb.GetLocationResponse:
        """Where the data is."""
        return pb.GetLocationResponse(blob_uri=self._shards.blob_uri)

    async def Open(self, request: pb.OpenRequest, context: Context) -> pb.OpenResponse:
        """The newest state."""
        shard = ShardId.parse(request.shard_id)
        info = await self._shards.open(shard, create=request.create, timeout=seconds_left(context))
        return pb.OpenResponse(info=info_of(info), blob_uri=self._shards.blob_uri)

    async def Snapshot(self, request: pb.SnapshotRequest, context: Context) -> AsyncIterator[pb.SnapshotResponse]:
        """What to read at one time."""
        shard = ShardId.parse(request.shard_id)
        as_of = frontier_in(request, "as_of")
        reader = ReaderId.parse(request.reader_id) if request.reader_id else None
        seconds = seconds_to_wait(context, request.wait_ms)
        with self._waiters.waiting():
            found = await self._shards.snapshot(shard, as_of, reader_id=reader, timeout=seconds)
        if isinstance(found, NotYet):
            yield pb.SnapshotResponse(not_yet=pb.SnapshotNotYet(info=info_of(found.info)))
            return
        async for piece in made_aside(plan_pieces(found), found.batches, self._runtime):
            yield piece

    async def Fetch(self, request: pb.FetchRequest, context: Context) -> AsyncIterator[pb.FetchResponse]:
        """What lies beyond a frontier."""
        shard = ShardId.parse(request.shard_id)
        seconds = seconds_to_wait(context, request.wait_ms)
        with self._waiters.waiting():
            change = await self._shards.fetch(shard, frontier_in(request, "frontier"), timeout=seconds)
        async for piece in made_aside(change_pieces(change), change.batches, self._runtime):
            yield pb.FetchResponse(change=piece)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.WatchResponse]:
        """Every change as it commits."""
        shard = ShardId.parse(request.shard_id)
        frontier = frontier_in(request, "frontier")
        schemas = None
        changes = self._shards.watch(shard, frontier, timeout=seconds_left(context))
        async for change in self._waiters.each(changes):
            async for piece in made_aside(self._pushes.pieces(change, schemas), change.batches, self._runtime):
                yield piece
            schemas = change.info.schemas
            self._telemetry.count("persist_watch_changes_total")

    async def Inspect(self, request: pb.InspectRequest, context: Context) -> AsyncIterator[pb.InspectResponse]:
        """The whole state as JSON."""
        shown = [await self._shards.inspect(ShardId.parse(request.shard_id), timeout=seconds_left(context))]
        text = await self._runtime.offload(_json, shown)
        for start in range(0, len(text), CHUNK_BYTES):
            yield pb.InspectResponse(json=text[start : start + CHUNK_BYTES])

    async def ListShards(self, request: pb.ListShardsRequest, context: Context) -> AsyncIterator[pb.ListShardsResponse]:
        """Every shard."""
        some: list[str] = []
        async for shard in self._shards.list(timeout=seconds_left(context)):
            some.append(shard)
            if len(some) == _LISTED_PER_MESSAGE:
                yield pb.ListShardsResponse(shard_ids=some)
                some = []
        yield pb.ListShardsResponse(shard_ids=some)

    async def WatchWork(self, request: pb.WatchWorkRequest, context: Context) -> AsyncIterator[pb.WatchWorkResponse]:
        """Shards with something to compact."""
        yield pb.WatchWorkResponse()
        async for shard in self._waiters.each(self._shards.work(timeout=seconds_left(context))):
            yield pb.WatchWorkResponse(shard_ids=[shard])

    # ---- commands ------------------------------------------------------------------------------------------------

    async def CompareAndAppend(
        self, request: pb.CompareAndAppendRequest, context: Context
    ) -> pb.CompareAndAppendResponse:
        """Append a batch iff the shard's upper equals its lower."""
        return await self._command(pb.CompareAndAppendResponse, request, context)

    async def CloseCall(self, request: pb.CloseCallRequest, context: Context) -> pb.CloseCallResponse:
        """Make sure that nothing more comes of a numbered call."""
        return await self._command(pb.CloseCallResponse, request, context)

    async def RegisterLeasedReader(
        self, request: pb.RegisterLeasedReaderRequest, context: Context
    ) -> pb.RegisterLeasedReaderResponse:
        """Hold the shard's since (or the critical since, if asked and any) under a lease."""
        return await self._command(pb.RegisterLeasedReaderResponse, request, context)

    async def DowngradeSince(self, request: pb.DowngradeSinceRequest, context: Context) -> pb.DowngradeSinceResponse:
        """Give up reading below ``since``; also a heartbeat."""
        return await self._command(pb.DowngradeSinceResponse, request, context)

    async def HeartbeatReader(self, request: pb.HeartbeatReaderRequest, context: Context) -> pb.HeartbeatReaderResponse:
        """Extend a reader's lease."""
        return await self._command(pb.HeartbeatReaderResponse, request, context)

    async def ExpireReader(self, request: pb.ExpireReaderRequest, context: Context) -> pb.ExpireReaderResponse:
        """Release everything a leased reader holds."""
        return await self._command(pb.ExpireReaderResponse, request, context)

    async def RegisterCriticalReader(
        self, request: pb.RegisterCriticalReaderRequest, context: Context
    ) -> pb.RegisterCriticalReaderResponse:
        """Hold the shard's since without a lease, guarded by an opaque token."""
        return await self._command(pb.RegisterCriticalReaderResponse, request, context)

    async def CompareAndDowngradeSince(
        self, request: pb.CompareAndDowngradeSinceRequest, context: Context
    ) -> pb.CompareAndDowngradeSinceResponse:
        """Move a critical since and its token iff the token is ``expected``."""
        return await self._command(pb.CompareAndDowngradeSinceResponse, request, context)

    async def ExpireCriticalReader(
        self, request: pb.ExpireCriticalReaderRequest, context: Context
    ) -> pb.ExpireCriticalReaderResponse:
        """Remove a critical hold."""
        return await self._command(pb.ExpireCriticalReaderResponse, request, context)

    async def ExpireWriter(self, request: pb.ExpireWriterRequest, context: Context) -> pb.ExpireWriterResponse:
        """Forget a writer."""
        return await self._command(pb.ExpireWriterResponse, request, context)

    async def RegisterSchema(self, request: pb.RegisterSchemaRequest, context: Context) -> pb.RegisterSchemaResponse:
        """Register the first schema, or find an equal one."""
        return await self._command(pb.RegisterSchemaResponse, request, context)

    async def EvolveSchema(self, request: pb.EvolveSchemaRequest, context: Context) -> pb.EvolveSchemaResponse:
        """Register a schema that only adds nullable val columns to the newest, whose id must be ``expected_id``."""
        return await self._command(pb.EvolveSchemaResponse, request, context)

    async def ClaimCompaction(self, request: pb.ClaimCompactionRequest, context: Context) -> pb.ClaimCompactionResponse:
        """Take on the compaction that is most worth it, or the one this owner has claimed already."""
        return await self._command(pb.ClaimCompactionResponse, request, context)

    async def ReleaseCompaction(
        self, request: pb.ReleaseCompactionRequest, context: Context
    ) -> pb.ReleaseCompactionResponse:
        """Give up what the owner has claimed."""
        return await self._command(pb.ReleaseCompactionResponse, request, context)

    async def ApplyMerge(self, request: pb.ApplyMergeRequest, context: Context) -> pb.ApplyMergeResponse:
        """Replace adjacent batches, named by their fingerprints, by one that holds the same updates."""
        return await self._command(pb.ApplyMergeResponse, request, context)

    async def FenceWriters(self, request: pb.FenceWritersRequest, context: Context) -> pb.FenceWritersResponse:
        """Refuse writers born before a time that are not known."""
        return await self._command(pb.FenceWritersResponse, request, context)

    async def Finalize(self, request: pb.FinalizeRequest, context: Context) -> pb.FinalizeResponse:
        """Take away what a closed shard still holds, one small step per call."""
        return await self._command(pb.FinalizeResponse, request, context)

    async def Session(  # type: ignore[override]  # writes for itself: frames leave as soon as they are ready
        self, frames: Frames, context: Context
    ) -> None:
        """Any commands over one stream."""
        if self._waiters.draining:
            raise Determinate("the server is draining", hint="connect again")
        session = ServerSession(
            self._lanes,
            frames,
            context,
            shard=shard_header(context),
            idle_seconds=self._idle_seconds,
            runtime=self._runtime,
            telemetry=self._telemetry,
            strangers=self._strangers,
        )
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)

    async def _command(self, kind: type[R], request: Message, context: Context) -> R:
        """Any command through its shard's lane; its response, which is of the given kind."""
        shard, command = await understood(request, self._runtime)
        left = context.time_remaining()
        outcome = await self._lanes.submit(shard, command, timeout=left, weight=request.ByteSize())
        response: R = response_of(BY_REQUEST[type(request)], outcome)
        return response
