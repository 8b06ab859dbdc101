"""Asking a PersistCompaction to compact a shard, and what it tells meanwhile.

Source: protos/persist/v1/compaction.proto; architecture.md section 8.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from persist.client.peer import Peer
from persist.core.ids import ShardId
from persist.errors import InvalidArgument, PersistError
from persist.runtime import Runtime
from persist.settings import Settings
from persist.v1 import compaction_pb2 as pb
from persist.v1.compaction_pb2_grpc import PersistCompactionStub

REQUEST_SECONDS: Final = 86_400.0
"""A request is given up after a day; what it has merged by then stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """One compaction that a server carried out; the fields are those of CompactResult."""

    batches: int
    runs: int
    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int
    parts_reused: int
    applied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """What a server has to do: the shards it compacts now, and how many requests and shards wait."""

    shards: tuple[str, ...]
    requests_waiting: int
    shards_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A PersistCompaction at one endpoint."""

    endpoint: str
    settings: Settings
    runtime: Runtime

    async def compact(
        self,
        shard: ShardId,
        *,
        whole: bool,
        report: Callable[[int], None] = lambda rows: None,
        waits: Callable[[int], None] = lambda ahead: None,
    ) -> list[Merged]:
        """Have a shard compacted, until nothing is left to do. Cancelling stops it.

        ``report`` hears the rows that the compaction under way has written, ``waits`` how many requests go first.
        Raises InvalidArgument (no such service there), ShardNotFound, Overloaded, LeaseExpired, LocationError.
        """
        done: list[Merged] = []
        async with self._peer() as peer:
            request = pb.CompactRequest(shard_id=shard, whole=whole)
            async for news in peer.stream("Compact", request, shard, REQUEST_SECONDS):
                match news.WhichOneof("news"):
                    case "queued":
                        waits(news.queued.ahead)
                    case "progress":
                        report(news.progress.rows_written)
                    case "result":
                        done.append(_merged(news.result))
        return done

    async def busy(self) -> Busy:
        """What the server does at the moment. Raises InvalidArgument (no such service there), LocationError."""
        async with self._peer() as peer:
            timeout = self.settings.timeout_ms / 1000
            told = await peer.unary("ListCompactions", pb.ListCompactionsRequest(), None, timeout, mutation=False)
        return Busy(
            shards=tuple(each.shard_id for each in told.compactions),
            requests_waiting=told.requests_waiting,
            shards_waiting=told.shards_waiting,
        )

    @contextlib.asynccontextmanager
    async def _peer(self) -> AsyncIterator[Peer]:
        peer = Peer(self.endpoint, PersistCompactionStub, settings=self.settings, runtime=self.runtime, sessions=False)
        try:
            yield peer
        except PersistError as error:
            cause = error.__cause__
            if isinstance(cause, grpc.aio.AioRpcError) and cause.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise InvalidArgument(
                    "this server does not offer PersistCompaction",
                    hint="name one that `persist serve compaction` started, or give the stores instead",
                    endpoint=self.endpoint,
                ) from error
            raise
        finally:
            await peer.close()


def _merged(result: Any) -> Merged:
    return Merged(**{name: getattr(result, name) for name in Merged.__dataclass_fields__})
