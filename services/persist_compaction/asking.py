"""Asking a PersistCompaction to compact a shard, and what it reports meanwhile.

The request has an id, and its work goes on whatever becomes of the connection: who is cut off joins it again.
Source: protos/persist/v1/compaction.proto; architecture.md section 8.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from persist.client.remote.catalog_status import STATUS_SECONDS, ask_all
from persist.client.remote.channel import Channel, offering
from persist.client.remote.endpoints import Endpoints
from persist.core.ids import ShardId
from persist.errors import Determinate, LocationError, PersistError
from persist.machine.compaction.compactor import Compacted
from persist.retry.attempts import Attempts
from persist.runtime import Runtime
from persist.settings import Settings
from persist.typed import AnyMessage
from persist.v1 import compaction_pb2 as pb
from persist.v1.compaction_pb2_grpc import PersistCompactionStub
from persist.wire.shard.batch import description_from_proto
from persist_compaction.servicer import FAILED, REQUEST

REQUEST_SECONDS: Final = 86_400.0
"""The longest one call listens."""
AGAIN_SECONDS: Final = 0.1
"""Pause before rejoining work that was reported and then fell silent."""

CANCEL_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """What a server has to do: the shards it compacts now, and how many requests and shards wait."""

    shards: tuple[str, ...]
    requests_waiting: int
    shards_waiting: int


class AskedServer:
    """PersistCompaction at one or several ``endpoints`` (HOST:PORT, comma separated), of which any does the work.

    One server carries out a request; when it does not answer any more, another one begins it anew, and what was put in
    place stays there. Close it, or use it as a context. Raises InvalidArgument (no endpoint).
    """

    def __init__(self, endpoints: str, *, settings: Settings, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)
        self._endpoints = Endpoints(endpoints, PersistCompactionStub, settings=settings, runtime=runtime)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. A later call makes new ones."""
        await self._endpoints.close()

    async def compact(
        self,
        shard: ShardId,
        *,
        whole: bool,
        report: Callable[[int], None] = lambda rows: None,
        waits: Callable[[int], None] = lambda ahead: None,
    ) -> list[Compacted]:
        """Have a shard compacted until nothing is left to do, however many connections it takes. Cancelling stops it.

        ``report`` is called with the rows that the compaction under way has written, ``waits`` how many requests go
        first. Raises InvalidArgument (no such service there), ShardNotFound, Overloaded, LeaseExpired, LocationError
        (also when no server answers for ``settings.timeout_ms``).
        """
        # Results arrive once from each server: after a cut the same one begins again, and another knows none of it.
        done: dict[tuple[bytes, int], Compacted] = {}
        request = pb.CompactRequest(shard_id=shard, whole=whole, request_id=self._runtime.random_bytes(16).hex())
        asked: list[Channel] = []
        try:
            while not await self._listen(request, asked, done, report, waits):
                await self._runtime.sleep(AGAIN_SECONDS)
        except asyncio.CancelledError:
            await self._cancel(request.request_id, asked)
            raise
        return list(done.values())

    async def _listen(
        self,
        request: pb.CompactRequest,
        asked: list[Channel],
        done: dict[tuple[bytes, int], Compacted],
        report: Callable[[int], None],
        waits: Callable[[int], None],
    ) -> bool:
        """Join the work and follow it; whether it is over. Raises what it failed with, LocationError (no answer)."""
        joined = await self._attempts.repeat(
            self._attempts.deadline(None), lambda left: self._join(request, asked, left)
        )
        if isinstance(joined, LocationError):
            raise joined
        news, stream = joined
        alike = Counter[bytes]()
        async with contextlib.aclosing(stream):
            while news is not None:
                match news.WhichOneof("news"):
                    case "queued":
                        waits(news.queued.ahead)
                    case "progress":
                        report(news.progress.rows_written)
                    case "result":
                        # Two steps may come to the same: each server says it once for each of them.
                        said = news.result.SerializeToString(deterministic=True)
                        done[said, alike[said]] = _compacted(news.result)
                        alike[said] += 1
                    case "done":
                        return True
                try:
                    news = await anext(stream, None)
                except LocationError as error:
                    if _is_final(error):
                        raise
                    return False
        return False

    async def _join(self, request: pb.CompactRequest, asked: list[Channel], seconds: float) -> "_News | LocationError":
        """The first news of a request and the rest, from where it was made while that server is well."""
        if not asked or not asked[-1].well:
            asked.append(self._endpoints.choose(ShardId(request.shard_id), besides=asked[-1] if asked else None))
        here = asked[-1].endpoint
        with offering("PersistCompaction", "compaction", here):
            return await self._endpoints.at(here, lambda channel, _: _joined(channel, request), seconds)

    async def _cancel(self, name: str, asked: Sequence[Channel]) -> None:
        """Stop the work as far as servers answer at once; it ends by itself otherwise."""
        request = pb.CancelCompactionRequest(request_id=name)

        async def cancel(channel: Channel) -> None:
            with contextlib.suppress(PersistError):
                await channel.unary("CancelCompaction", request, None, CANCEL_SECONDS)

        await asyncio.gather(*map(cancel, dict.fromkeys(asked)))

    async def busy(self) -> Busy:
        """What the servers that answer do at the moment. Raises InvalidArgument (no such service), LocationError.

        Asked again for two seconds where none answers: one that has just come back refuses connections for a moment.
        """
        return await self._attempts.read(self._attempts.deadline(STATUS_SECONDS), self._busy_now)

    async def _busy_now(self, seconds: float) -> Busy:
        async def attempt(channel: Channel, seconds: float) -> AnyMessage:
            with offering("PersistCompaction", "compaction", channel.endpoint):
                return await channel.unary("ListCompactions", pb.ListCompactionsRequest(), None, seconds)

        found, failure = await ask_all(
            lambda endpoint: self._endpoints.at(endpoint, attempt, seconds),
            self._endpoints.endpoints,
            lambda _: False,
            self._runtime,
            seconds=seconds,
            silent=lambda endpoint: not self._endpoints.channel(endpoint).well,
        )
        if not found:
            raise failure or Determinate(
                "no server answers", hint="retry", endpoints=",".join(self._endpoints.endpoints)
            )
        return Busy(
            shards=tuple(each.shard_id for answer in found.values() for each in answer.compactions),
            requests_waiting=sum(answer.requests_waiting for answer in found.values()),
            shards_waiting=sum(answer.shards_waiting for answer in found.values()),
        )


_News = tuple[Any, AsyncGenerator[Any, None]]


async def _joined(channel: Channel, request: pb.CompactRequest) -> _News | LocationError:
    """The first event of a request, and the rest; or the error that asking again would return, too."""
    stream = channel.stream("Compact", request, ShardId(request.shard_id), REQUEST_SECONDS)
    try:
        return await anext(stream, None), stream
    except LocationError as error:
        if _is_final(error):
            return error
        raise


def _is_final(error: LocationError) -> bool:
    """Whether the work failed: then asking again would return the same."""
    return error.details.get(REQUEST) == FAILED


def _compacted(result: pb.CompactResult) -> Compacted:
    named = {each.name: getattr(result, each.name) for each in fields(Compacted) if each.name != "desc"}
    return Compacted(desc=description_from_proto(result.desc), **named)
