"""Shards over gRPC: commands on sessions, reads on streams, every attempt within the caller's timeout.

Commands are safe to repeat, so what may have happened is repeated until it is known or the time is up. Nothing is
shared with other processes: a pickled copy, or one forked before its first use or after ``close``, makes its own
connections when first used.
Source: architecture.md sections 5 and 6; reliability.md section 5; performance.md A3.
"""

import asyncio
import dataclasses
import hashlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from persist.client.peer import Peer, refuse_after_fork
from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, ShardId
from persist.core.shard.commands import Command, SchemaEntry
from persist.errors import (
    Determinate,
    Indeterminate,
    InvalidArgument,
    LocationError,
    Overloaded,
    RequestTooLarge,
    StoreFull,
    StoreReadOnly,
)
from persist.machine.attempts import certain
from persist.machine.patience import Backoff, Deadline
from persist.machine.port import Change, NotYet, Plan, ShardInfo, Shards
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist.v1 import shard_pb2 as pb
from persist.v1.shard_pb2_grpc import PersistShardStub
from persist.wire.rpc import method_of, request_of
from persist.wire.rpc_reads import Joiner, frontier_message, standing_of

R = TypeVar("R")

PAUSE_MS_MAX: Final = 1_000
DOWN_SECONDS: Final = 1.0
ENVELOPE_BYTES: Final = 1 << 10
ATTEMPT_SECONDS_MIN: Final = 0.5
LAST_ATTEMPT_SECONDS: Final = 0.05
"""An attempt that cannot be answered in time would only make a certain failure uncertain."""


class RemoteShards(Shards):
    """Any number of shards behind one or several PersistShard endpoints.

    ``endpoints``: ``HOST:PORT``, comma separated; a shard has its preferred one and moves on when that is down.
    ``sessions`` False: unary calls only. ``retries`` False: one attempt per call, for callers with a fallback.
    """

    def __init__(
        self,
        endpoints: str,
        *,
        settings: Settings | None = None,
        runtime: Runtime | None = None,
        sessions: bool = True,
        retries: bool = True,
    ) -> None:
        self._endpoints = tuple(name.strip() for name in endpoints.split(",") if name.strip())
        if not self._endpoints:
            raise InvalidArgument("no endpoint", hint="write HOST:PORT, for example localhost:7100")
        self._settings = settings or Settings()
        self._patience = dataclasses.replace(self._settings, retry_max_ms=PAUSE_MS_MAX)
        self._runtime = runtime or system()
        self._sessions = sessions
        self._retries = retries
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._peers: tuple[Peer, ...] = ()
        self._blob_uri = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (",".join(self._endpoints), self._settings, self._sessions, self._retries, self._blob_uri)

    @property
    def blob_uri(self) -> str:
        """Where parts are. Known after the first ``open`` or ``locate``; Determinate before."""
        if not self._blob_uri:
            raise Determinate("the server has not been asked yet where the data is", hint="call open or locate first")
        return self._blob_uri

    async def locate(self, *, timeout: float) -> str:
        """Where parts are, asking the server the first time."""
        if not self._blob_uri:
            response = await self._ask("GetLocation", pb.GetLocationRequest(), None, timeout, mutation=False)
            self._blob_uri = response.blob_uri
        return self._blob_uri

    async def open(self, shard: ShardId, *, create: bool = True, timeout: float) -> ShardInfo:
        """See Shards.open. One unary call."""
        request = pb.OpenRequest(shard_id=shard, create=create)
        response = await self._ask("Open", request, shard, timeout, mutation=create)
        self._blob_uri = response.blob_uri
        return ShardInfo(**standing_of(response.info))

    async def apply(self, shard: ShardId, command: Command[R], *, timeout: float) -> R:
        """See Shards.apply. One message on the session, or one unary call. Raises RequestTooLarge before sending."""
        method, request = method_of(command), request_of(shard, command)
        size, limit = request.ByteSize(), self._settings.max_message_bytes - ENVELOPE_BYTES
        if size > limit:
            raise RequestTooLarge(
                "the command does not fit one message", hint="append less at once", bytes=size, limit=limit
            )

        async def attempt(peer: Peer, seconds: float) -> Any:
            return await peer.command(method, request, shard, seconds)

        outcome: R = await self._repeat(shard, attempt, timeout)
        return outcome

    async def snapshot(
        self, shard: ShardId, as_of: Antichain, *, reader_id: ReaderId | None = None, timeout: float
    ) -> Plan | NotYet:
        """See Shards.snapshot. One server stream."""
        request = pb.SnapshotRequest(shard_id=shard, as_of=frontier_message(as_of), reader_id=reader_id or "")

        async def attempt(peer: Peer, seconds: float) -> Plan | NotYet:
            joiner, info = Joiner(), None
            async for message in peer.stream("Snapshot", request, shard, seconds):
                if message.WhichOneof("outcome") == "not_yet":
                    return NotYet(info=ShardInfo(**standing_of(message.not_yet.info)))
                if message.plan.HasField("info"):
                    info = ShardInfo(**standing_of(message.plan.info))
                joiner.add(message.plan.chunk)
            if info is None:
                raise Determinate("the snapshot's stream was empty", hint="retry")
            return Plan(info=info, as_of=as_of, batches=joiner.batches())

        return await self._repeat(shard, attempt, timeout, whole=True)

    async def fetch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> Change:
        """See Shards.fetch. One server stream."""
        request = pb.FetchRequest(shard_id=shard, frontier=frontier_message(frontier))

        async def attempt(peer: Peer, seconds: float) -> Change:
            changes = _changes(peer.stream("Fetch", request, shard, seconds))
            async for change in changes:
                return change
            raise Determinate("the answer's stream was empty", hint="retry")

        return await self._repeat(shard, attempt, timeout, whole=True)

    async def watch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> AsyncIterator[Change]:
        """See Shards.watch. One server stream; never resumed here."""
        request = pb.WatchRequest(shard_id=shard, frontier=frontier_message(frontier))
        peer = self._choose(shard)
        try:
            async for change in _changes(peer.stream("Watch", request, shard, timeout, quiet=True)):
                yield change
        except LocationError:
            self._down(peer)
            raise

    async def inspect(self, shard: ShardId, *, timeout: float) -> Mapping[str, Any]:
        """See Shards.inspect. One server stream."""
        request = pb.InspectRequest(shard_id=shard)

        async def attempt(peer: Peer, seconds: float) -> Any:
            pieces = [message.json async for message in peer.stream("Inspect", request, shard, seconds)]
            return json.loads(b"".join(pieces))

        state: Mapping[str, Any] = await self._repeat(shard, attempt, timeout)
        return state

    async def list(self, *, timeout: float) -> AsyncIterator[ShardId]:
        """See Shards.list. One server stream; never resumed here."""
        peer = self._choose(None)
        async for message in peer.stream("ListShards", pb.ListShardsRequest(), None, timeout):
            for text in message.shard_ids:
                yield ShardId.parse(text)

    async def work(self, *, timeout: float) -> AsyncIterator[ShardId]:
        """See Shards.work. One server stream; never resumed here."""
        peer = self._choose(None)
        try:
            async for message in peer.stream("WatchWork", pb.WatchWorkRequest(), None, timeout, quiet=True):
                for text in message.shard_ids:
                    yield ShardId.parse(text)
        except LocationError:
            self._down(peer)
            raise

    async def close(self) -> None:
        """Cancel what is under way and close the connections. A later call makes new ones."""
        peers, self._peers, owner, self._owner = self._peers, (), self._owner, None
        if owner == self._here():
            for peer in peers:
                await peer.close()

    # ---- attempts ------------------------------------------------------------------------------------------------

    async def _ask(self, rpc: str, request: Any, shard: ShardId | None, timeout: float, *, mutation: bool) -> Any:
        async def attempt(peer: Peer, seconds: float) -> Any:
            return await peer.unary(rpc, request, shard, seconds, mutation=mutation)

        return await self._repeat(shard, attempt, timeout)

    async def _repeat(
        self,
        shard: ShardId | None,
        attempt: Callable[[Peer, float], Awaitable[R]],
        timeout: float,
        *,
        whole: bool = False,
    ) -> R:
        """Attempt until it is answered or the time is up. ``whole``: an attempt may use all the time there is."""
        deadline = Deadline(self._runtime, timeout)
        backoff = Backoff(self._runtime, self._patience, deadline)
        unsure: Indeterminate | None = None
        while True:
            peer = self._choose(shard)
            try:
                outcome = await attempt(peer, self._slice(deadline, whole=whole))
            except (StoreFull, StoreReadOnly) as error:
                # The server is well, and only a person can mend its store.
                if unsure is not None:
                    raise unsure from error
                raise
            except Overloaded as error:
                failure: LocationError = error
            except LocationError as error:
                failure = error
                unsure = error if isinstance(error, Indeterminate) else unsure
                self._down(peer)
            else:
                return certain(outcome, unsure)
            if not self._retries or not await self._pause(failure, backoff, deadline):
                # One attempt that may have happened makes the whole call so, whatever the later ones say.
                raise unsure or failure

    def _slice(self, deadline: Deadline, *, whole: bool) -> float:
        left = deadline.remaining()
        if whole or len(self._endpoints) == 1:
            return left
        return min(left, max(ATTEMPT_SECONDS_MIN, left / 2))

    async def _pause(self, failure: LocationError, backoff: Backoff, deadline: Deadline) -> bool:
        """Wait before the next attempt; False when the time left is not enough for one."""
        after_ms = failure.details.get("retry_after_ms", "")
        if after_ms.isdigit():
            seconds = int(after_ms) / 1000 * (1.0 + self._runtime.random())
            if seconds >= deadline.remaining():
                return False
            await self._runtime.sleep(seconds)
        elif not await backoff.pause():
            return False
        return deadline.remaining() >= LAST_ATTEMPT_SECONDS

    # ---- peers ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _here() -> tuple[int, asyncio.AbstractEventLoop]:
        return os.getpid(), asyncio.get_running_loop()

    def _connected(self) -> tuple[Peer, ...]:
        here = self._here()
        if self._owner != here:
            refuse_after_fork()
            self._owner = here
            self._peers = tuple(
                Peer(
                    endpoint,
                    PersistShardStub,
                    settings=self._settings,
                    runtime=self._runtime,
                    sessions=self._sessions,
                )
                for endpoint in self._endpoints
            )
        return self._peers

    def _choose(self, shard: ShardId | None) -> Peer:
        """The shard's preferred endpoint among those not known to be down; the same for every client."""
        peers = self._connected()
        if len(peers) == 1:
            return peers[0]
        ranked = sorted(peers, key=lambda peer: _rank(peer.endpoint, shard))
        now = self._runtime.monotonic()
        return next((peer for peer in ranked if peer.down_until <= now), ranked[0])

    def _down(self, peer: Peer) -> None:
        peer.down_until = self._runtime.monotonic() + DOWN_SECONDS


async def _changes(messages: AsyncIterator[Any]) -> AsyncIterator[Change]:
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
            yield Change(info=info, batches=joiner.batches())
            joiner = Joiner()


def _rank(endpoint: str, shard: ShardId | None) -> bytes:
    return hashlib.sha256(f"{endpoint}\0{shard or ''}".encode()).digest()


def _rebuild(endpoints: str, settings: Settings, sessions: bool, retries: bool, blob_uri: str) -> RemoteShards:
    shards = RemoteShards(endpoints, settings=settings, sessions=sessions, retries=retries)
    shards._blob_uri = blob_uri
    return shards
