"""The handlers of PersistShard: decode, call one method, encode. No state but components.

Source: style.md rule 12; protos/persist/v1/shard.proto.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import contextmanager
from collections.abc import Iterator
from typing import Any, Final

import grpc.aio

from persist.core.ids import ReaderId, ShardId
from persist.errors import Determinate
from persist.machine.port import NotYet, Shards
from persist.v1 import shard_pb2 as pb
from persist.v1.shard_pb2_grpc import PersistShardServicer
from persist.wire.rpc import BY_RPC, Method, command_of, response_of
from persist.wire.rpc_reads import CHUNK_BYTES, frontier_in
from persist_host import Telemetry
from persist_host.guard import shard_header
from persist_shard.lanes import Lanes
from persist_shard.session import ServerSession
from persist_shard.watch import Pushes, change_pieces, info_of, plan_pieces

_LISTED_PER_MESSAGE: Final = 1000


class ShardServicer(PersistShardServicer):
    """PersistShard over a Shards port for reads and lanes for commands."""

    def __init__(self, shards: Shards, lanes: Lanes, *, telemetry: Telemetry) -> None:
        self._shards = shards
        self._lanes = lanes
        self._telemetry = telemetry
        self._pushes = Pushes()
        self._sessions: set[ServerSession] = set()
        self._watchers: set[asyncio.Task[Any]] = set()
        self._draining = False

    def drain(self) -> None:
        """End sessions once they are answered, and watches at once."""
        self._draining = True
        for session in self._sessions:
            session.drain()
        for watcher in self._watchers:
            watcher.cancel()

    # ---- reads ---------------------------------------------------------------------------------------------------

    async def GetLocation(self, request: pb.GetLocationRequest, context: Any) -> pb.GetLocationResponse:
        """Where the data is."""
        return pb.GetLocationResponse(blob_uri=self._shards.blob_uri)

    async def Open(self, request: pb.OpenRequest, context: Any) -> pb.OpenResponse:
        """The newest state."""
        shard = ShardId.parse(request.shard_id)
        info = await self._shards.open(shard, create=request.create, timeout=_left(context))
        return pb.OpenResponse(info=info_of(info), blob_uri=self._shards.blob_uri)

    async def Snapshot(self, request: pb.SnapshotRequest, context: Any) -> AsyncIterator[pb.SnapshotResponse]:
        """What to read at one time."""
        shard = ShardId.parse(request.shard_id)
        as_of = frontier_in(request, "as_of")
        reader = ReaderId.parse(request.reader_id) if request.reader_id else None
        found = await self._shards.snapshot(shard, as_of, reader_id=reader, timeout=_left(context))
        if isinstance(found, NotYet):
            yield pb.SnapshotResponse(not_yet=pb.SnapshotNotYet(info=info_of(found.info)))
            return
        for piece in plan_pieces(found):
            yield piece

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> AsyncIterator[pb.FetchResponse]:
        """What lies beyond a frontier."""
        shard = ShardId.parse(request.shard_id)
        change = await self._shards.fetch(shard, frontier_in(request, "frontier"), timeout=_left(context))
        for piece in change_pieces(change):
            yield pb.FetchResponse(change=piece)

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.WatchResponse]:
        """Every change as it commits."""
        shard = ShardId.parse(request.shard_id)
        frontier = frontier_in(request, "frontier")
        schemas = None
        with self._watching():
            async for change in self._shards.watch(shard, frontier, timeout=_left(context)):
                for piece in self._pushes.pieces(change, schemas):
                    yield piece
                schemas = change.info.schemas
                self._telemetry.count("persist_watch_changes_total")

    async def Inspect(self, request: pb.InspectRequest, context: Any) -> AsyncIterator[pb.InspectResponse]:
        """The whole state as JSON."""
        state = await self._shards.inspect(ShardId.parse(request.shard_id), timeout=_left(context))
        text = json.dumps(state).encode()
        for start in range(0, len(text), CHUNK_BYTES):
            yield pb.InspectResponse(json=text[start : start + CHUNK_BYTES])

    async def ListShards(self, request: pb.ListShardsRequest, context: Any) -> AsyncIterator[pb.ListShardsResponse]:
        """Every shard."""
        some: list[str] = []
        async for shard in self._shards.list(timeout=_left(context)):
            some.append(shard)
            if len(some) == _LISTED_PER_MESSAGE:
                yield pb.ListShardsResponse(shard_ids=some)
                some = []
        yield pb.ListShardsResponse(shard_ids=some)

    # ---- commands ------------------------------------------------------------------------------------------------

    async def command(self, method: Method, request: Any, context: Any) -> Any:
        """Any command over its unary method."""
        shard, command = command_of(request)
        left = context.time_remaining()
        return response_of(method, await self._lanes.submit(shard, command, timeout=left, weight=request.ByteSize()))

    async def Session(self, frames: AsyncIterator[pb.SessionRequest], context: Any) -> None:
        """Any commands over one stream."""
        if self._draining:
            raise Determinate("the server is draining", hint="connect again")
        session = ServerSession(self._lanes, frames, context, shard_header(context))
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._watchers.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._draining:
                raise
            task.uncancel()
            raise Determinate("the server is draining", hint="watch again from the frontier reached") from None
        finally:
            self._watchers.discard(task)


def _left(context: Any) -> float:
    """Seconds a read may wait: the caller's deadline, less what the answer needs to arrive in time."""
    left: float = context.time_remaining()
    return left - min(0.1, left * 0.2)


def _unary(method: Method) -> Any:
    async def handler(self: ShardServicer, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        return await self.command(method, request, context)

    handler.__name__ = method.rpc
    handler.__doc__ = f"{method.rpc} through the shard's lane."
    return handler


for _method in BY_RPC.values():
    setattr(ShardServicer, _method.rpc, _unary(_method))
