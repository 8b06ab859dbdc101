"""Shards over gRPC: commands on sessions, reads on streams, every attempt within the caller's timeout.

A call here is one attempt, at a server that is not known to be down, and says truthfully how it ended: what was sent
and got no answer is Indeterminate. Its caller repeats it, and comes to another server then. Nothing is shared
with other processes: a pickled copy, or one forked before its first use or after ``close``, makes its own
connections when first used.
Source: architecture.md sections 5 and 6; reliability.md section 5; performance.md A3.
"""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final, TypeVar

from persist.client.remote.channel import SECONDS_MAX, Channel
from persist.client.remote.endpoints import Endpoints
from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, ShardId
from persist.core.shard.commands import ApplyMerge, Command, SchemaEntry
from persist.errors import Determinate, RequestTooLarge
from persist.machine.shards import NotYet, ShardInfo, ShardMoved, Shards, SnapshotPlan
from persist.redaction import without_password
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist.storage.open import blob_identity, check_safe
from persist.storage.ports import Finding
from persist.typed import AnyMessage, Fields
from persist.v1 import shard_pb2 as pb
from persist.v1.shard_pb2_grpc import PersistShardStub
from persist.wire.rpc import method_of, request_of
from persist.wire.rpc_reads import Joiner, frontier_message, standing_of

R = TypeVar("R")

ENVELOPE_BYTES: Final = 1 << 10
ANSWER_SECONDS: Final = 2.0
"""How long the answer "not yet" may take to arrive after a wait, however busy both ends are."""


class RemoteShards(Shards):
    """Any number of shards behind one or several PersistShard endpoints.

    ``endpoints``: ``HOST:PORT``, comma separated; a shard has its preferred one and moves on when that is down.
    ``sessions`` False: unary calls only. ``watched``: a silent server is left within two seconds even when it is the
    only one, for callers who have another way. ``hasty``: see Endpoints.
    """

    def __init__(
        self,
        endpoints: str,
        *,
        settings: Settings | None = None,
        runtime: Runtime | None = None,
        sessions: bool = True,
        watched: bool = False,
        hasty: bool = False,
        blob: str | None = None,
    ) -> None:
        """``blob``: the URI of the Blob that the servers must be of, where the caller has it from elsewhere.

        With it, or with several endpoints, each server is asked for its Blob before anything else.
        """
        self._settings = settings or Settings()
        self._sessions = sessions
        self._watched = watched
        self._endpoints = Endpoints(
            endpoints,
            PersistShardStub,
            settings=self._settings,
            runtime=runtime or system(),
            sessions=sessions,
            watched=watched,
            hasty=hasty,
            vet=self._vet if blob is not None or "," in endpoints else None,
        )
        self._blob_uri = ""
        self._blob = blob
        self._meant = (blob, "blob=") if blob is not None else None

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (
            ",".join(self._endpoints.endpoints),
            self._settings,
            self._sessions,
            self._watched,
            self._blob_uri,
            self._blob,
        )

    @property
    def away(self) -> bool:
        """None of the servers is known to be well."""
        return self._endpoints.away

    @property
    def blob_uri(self) -> str:
        """Where parts are. Known after the first ``open`` or ``locate``; Determinate before."""
        if not self._blob_uri:
            raise Determinate("the server has not been asked yet where the data is", hint="call open or locate first")
        return self._blob_uri

    async def locate(self, *, timeout: float) -> str:
        """Where parts are, asking the server the first time."""
        if not self._blob_uri:
            request = pb.GetLocationRequest()

            async def attempt(channel: Channel, seconds: float) -> AnyMessage:
                return await channel.unary("GetLocation", request, None, seconds)

            self._blob_uri = (await self._endpoints.repeat("GetLocation", None, attempt, timeout)).blob_uri
        return self._blob_uri

    async def _vet(self, channel: Channel, seconds: float) -> None:
        """Raise UnsafeConfiguration unless the server's Blob is the one the caller, or the first server, named.

        Parts that are written to one Blob and named in the Consensus of another location are lost to all readers.
        """
        found = (await channel.unary("GetLocation", pb.GetLocationRequest(), None, seconds)).blob_uri
        if self._meant is None:
            self._meant = (found, channel.endpoint)
        uri, where = self._meant
        if blob_identity(uri) != blob_identity(found):
            check_safe(
                [
                    Finding(
                        name="blob-of-another-location",
                        setting=f"the Blob of {channel.endpoint}",
                        found=without_password(found),
                        required=f"that of {where}, {without_password(uri)}",
                        consequence="what is written here cannot be read there: give servers of one location, and"
                        " leave blob= out unless they see their Blob under another name",
                    )
                ],
                self._settings.allow_unsafe,
            )

    async def open(self, shard: ShardId, *, create: bool = True, timeout: float) -> ShardInfo:
        """See Shards.open. One unary call."""
        request = pb.OpenRequest(shard_id=shard, create=create)

        async def attempt(channel: Channel, seconds: float) -> AnyMessage:
            return await channel.unary("Open", request, shard, seconds, reads=not create)

        response = await self._endpoints.once("Open", shard, attempt, timeout, reads=not create)
        self._blob_uri = response.blob_uri
        return ShardInfo(**standing_of(response.info))

    async def apply(self, shard: ShardId, command: Command[R], *, timeout: float) -> R:
        """See Shards.apply. One message on the session, or one unary call. Raises RequestTooLarge before sending."""
        method, request = method_of(command), request_of(shard, command)
        merges, settings = isinstance(command, ApplyMerge), self._settings
        most = settings.connection_message_bytes if merges else settings.max_message_bytes
        size, limit = request.ByteSize(), most - ENVELOPE_BYTES
        if size > limit:
            raise RequestTooLarge(
                "the command does not fit one message", hint="append less at once", bytes=size, limit=limit
            )

        async def attempt(channel: Channel, seconds: float) -> AnyMessage:
            return await channel.command(method, request, shard, seconds)

        outcome: R = await self._endpoints.once(method.rpc, shard, attempt, timeout)
        return outcome

    async def snapshot(
        self, shard: ShardId, as_of: Antichain, *, reader_id: ReaderId | None = None, timeout: float
    ) -> SnapshotPlan | NotYet:
        """See Shards.snapshot. One server stream."""

        async def attempt(channel: Channel, seconds: float) -> SnapshotPlan | NotYet:
            wait_ms, seconds = self._waits(seconds)
            request = pb.SnapshotRequest(
                shard_id=shard, as_of=frontier_message(as_of), reader_id=reader_id or "", wait_ms=wait_ms
            )
            joiner, info = Joiner(), None
            async for message in channel.stream("Snapshot", request, shard, seconds):
                if message.WhichOneof("outcome") == "not_yet":
                    return NotYet(info=ShardInfo(**standing_of(message.not_yet.info)))
                if message.plan.HasField("info"):
                    info = ShardInfo(**standing_of(message.plan.info))
                joiner.add(message.plan.chunk)
            if info is None:
                raise Determinate("the snapshot's stream was empty", hint="retry")
            return SnapshotPlan(info=info, as_of=as_of, batches=joiner.batches())

        return await self._endpoints.once("Snapshot", shard, attempt, timeout)

    async def fetch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> ShardMoved:
        """See Shards.fetch. One server stream."""

        async def attempt(channel: Channel, seconds: float) -> ShardMoved:
            wait_ms, seconds = self._waits(seconds)
            request = pb.FetchRequest(shard_id=shard, frontier=frontier_message(frontier), wait_ms=wait_ms)
            changes = _changes(channel.stream("Fetch", request, shard, seconds))
            async for change in changes:
                return change
            raise Determinate("the answer's stream was empty", hint="retry")

        return await self._endpoints.once("Fetch", shard, attempt, timeout)

    async def watch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> AsyncIterator[ShardMoved]:
        """See Shards.watch. One server stream; the listener opens the next one."""
        request = pb.WatchRequest(shard_id=shard, frontier=frontier_message(frontier))
        async with aclosing(self._endpoints.stream("Watch", request, shard, timeout, quiet=True)) as messages:
            async for change in _changes(messages):
                yield change

    async def inspect(self, shard: ShardId, *, timeout: float) -> Fields:
        """See Shards.inspect. One server stream."""
        request = pb.InspectRequest(shard_id=shard)

        async def attempt(channel: Channel, seconds: float) -> AnyMessage:
            pieces = [message.json async for message in channel.stream("Inspect", request, shard, seconds)]
            return json.loads(b"".join(pieces))

        state: Fields = await self._endpoints.once("Inspect", shard, attempt, timeout)
        return state

    async def list(self, *, timeout: float) -> AsyncIterator[ShardId]:
        """See Shards.list. One server stream; another one begins from the start."""
        async with aclosing(self._endpoints.stream("ListShards", pb.ListShardsRequest(), None, timeout)) as messages:
            async for message in messages:
                for text in message.shard_ids:
                    yield ShardId.parse(text)

    async def work(self, *, timeout: float) -> AsyncIterator[ShardId]:
        """See Shards.work. One server stream."""
        async with aclosing(
            self._endpoints.stream("WatchWork", pb.WatchWorkRequest(), None, timeout, quiet=True)
        ) as messages:
            async for message in messages:
                for text in message.shard_ids:
                    yield ShardId.parse(text)

    def _waits(self, seconds: float) -> tuple[int, float]:
        """Milliseconds for which the server is to wait, and seconds in which its answer has to be here.

        Callers who have another way need what is left of their time for that, and ask again while there is some.
        """
        wait = seconds - min(ANSWER_SECONDS, seconds / 2) if self._watched else seconds
        ends = seconds if self._watched else seconds + ANSWER_SECONDS
        # 0 would say nothing.
        return max(1, int(min(wait, SECONDS_MAX) * 1000)), ends

    async def close(self) -> None:
        """Cancel what is under way and close the connections. A later call makes new ones."""
        await self._endpoints.close()


async def _changes(messages: AsyncIterator[AnyMessage]) -> AsyncIterator[ShardMoved]:
    """The changes in a stream of pieces."""
    joiner, info = Joiner(), None
    schemas: tuple[SchemaEntry, ...] = ()
    async for message in messages:
        piece = message.change
        if piece.HasField("info"):
            info = ShardInfo(**standing_of(piece.info, schemas))
            schemas = info.schemas
        joiner.add(piece.chunk)
        if joiner.complete:
            if info is None:
                raise Determinate("a change came without its shard's standing", hint="retry")
            yield ShardMoved(info=info, batches=joiner.batches())
            joiner = Joiner()


def _rebuild(
    endpoints: str, settings: Settings, sessions: bool, watched: bool, blob_uri: str, blob: str | None
) -> RemoteShards:
    shards = RemoteShards(endpoints, settings=settings, sessions=sessions, watched=watched, blob=blob)
    shards._blob_uri = blob_uri
    return shards
