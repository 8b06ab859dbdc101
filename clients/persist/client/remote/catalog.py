"""Calls to CatalogService: reads at any server, writes at the one that leads, repeated until answered or time is up.

Source: protos/persist/v1/catalog.proto; reliability.md section 5.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from persist.client.remote.catalog_status import STATUS_SECONDS, ask_all, leader_of
from persist.client.remote.channel import Channel, Metadata, offering
from persist.client.remote.endpoints import Endpoints
from persist.core.catalog.errors import Fenced, NotWritable
from persist.core.ids import ShardId
from persist.errors import (
    Determinate,
    Indeterminate,
    LeaseExpired,
    LocationError,
    NoServer,
    PersistError,
    RequestTooLarge,
)
from persist.retry.attempts import Attempts
from persist.retry.deadline import Deadline
from persist.retry.streams import watching
from persist.runtime import Runtime
from persist.settings import Settings
from persist.typed import AnyMessage
from persist.v1 import catalog_pb2 as pb
from persist.v1.catalog_pb2_grpc import CatalogServiceStub
from persist.wire.catalog.rpc import leads

R = TypeVar("R")

ENVELOPE_BYTES: Final = 1 << 10
SILENT_SECONDS: Final = 5.0
"""How long a server without a known status may take to lead, when all others refuse."""
FEED_SECONDS: Final = 600.0
"""A feed is renewed so often at least."""


class CatalogCalls:
    """The servers of one catalog. ``endpoints``: HOST:PORT, comma separated. Raises InvalidArgument (no endpoint)."""

    def __init__(self, endpoints: str, *, settings: Settings, runtime: Runtime) -> None:
        self.settings = settings
        self.runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)
        # One idea of each server, whatever it is asked for: who reads there finds out for who writes.
        self._endpoints = Endpoints(endpoints, CatalogServiceStub, settings=settings, runtime=runtime, hasty=True)
        self._leader = self._endpoints.endpoints[0]
        self._answering = self._endpoints.endpoints
        # Each client reads at a server of its own choice: together they read at all.
        self._spread = ShardId.of(runtime.random_bytes(16))

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints of all servers."""
        return self._endpoints.endpoints

    def deadline(self, timeout: float | None) -> Deadline:
        """The deadline of a call; None means ``settings.timeout_ms``."""
        return self._attempts.deadline(timeout)

    async def status(self, *, timeout: float | None = None) -> AnyMessage:
        """The status of the server that answers first."""
        deadline = self.deadline(timeout)
        backoff = self._endpoints.backoff(deadline)
        while True:
            found, failure = await ask_all(
                self._status, self.endpoints, lambda status: True, self.runtime, seconds=deadline.remaining()
            )
            if found:
                return next(iter(found.values()))
            if isinstance(failure, NoServer) or not await backoff.pause():
                raise failure or Determinate("no server answers", hint="retry", endpoints=", ".join(self.endpoints))

    async def read(self, rpc: str, request: AnyMessage, *, timeout: float | None = None) -> AnyMessage:
        """The answer of any server."""
        self._check_size(request)
        return await self._endpoints.repeat(rpc, self._spread, _unary(rpc, request), self.deadline(timeout).remaining())

    async def gather(self, rpc: str, request: AnyMessage, *, timeout: float | None = None) -> list[AnyMessage]:
        """All messages of a stream up to one that is ``last``, of one server. Raises what reading raises."""
        self._check_size(request)

        async def attempt(channel: Channel, seconds: float) -> list[AnyMessage]:
            messages = list[Any]()
            with _offered(channel.endpoint):
                async with aclosing(channel.stream(rpc, request, None, seconds)) as stream:
                    async for message in stream:
                        messages.append(message)
                        if message.last:
                            return messages
            raise Determinate("the answer's stream was too short", hint="retry")

        return await self._endpoints.repeat(rpc, self._spread, attempt, self.deadline(timeout).remaining())

    async def watch(self, request: pb.WatchChangesRequest, seconds: float) -> AsyncGenerator[AnyMessage, None]:
        """The changes as one server sends them, until ``seconds`` have passed. Raises LocationError when it breaks."""
        opened = self._endpoints.stream(
            "WatchChanges", request, self._spread, seconds, quiet=True, endless=not request.HasField("until")
        )
        with _offered(",".join(self.endpoints)):
            async with aclosing(opened) as stream:
                async for message in stream:
                    yield message

    async def watching(
        self, opened: Callable[[float], AsyncIterator[R]], *, timeout: float | None
    ) -> AsyncGenerator[R, None]:
        """What feeds yield, one after the other, until the time is up; None: for ever. See retry/streams."""
        ends = None if timeout is None else self.deadline(timeout)

        def turn() -> Deadline:
            return Deadline(self.runtime, FEED_SECONDS if ends is None else min(FEED_SECONDS, ends.remaining()))

        async with aclosing(watching(self._attempts, opened, ends=ends, turn=turn)) as feed:
            async for each in feed:
                yield each

    def pauses(self, timeout: float | None) -> Callable[[], Awaitable[bool]]:
        """Pauses between attempts; False when the time left is not enough for one."""
        return self._endpoints.backoff(self.deadline(timeout)).pause

    async def write(
        self,
        rpc: str,
        request: AnyMessage,
        *,
        settled: bool = False,
        once: bool = False,
        timeout: float | None = None,
        metadata: Metadata = (),
        again: AnyMessage | None = None,
    ) -> AnyMessage:
        """The answer of the server that leads.

        ``settled``: a later leader knows the outcome of an earlier leader's call. Where there is none to ask, a lost
        call may have applied, whatever refuses it now. ``once``: repeated it returns something else, so what may have
        happened is not, and it gets more time. Raises Indeterminate then, and what the server refuses.
        ``again``: the request from the second attempt on, which says that it is one: what a leader refuses then is
        final, but for that it does not lead.
        """
        self._check_size(request)
        deadline = self.deadline(timeout)
        backoff = self._endpoints.backoff(deadline)
        attempt = _unary(rpc, request, metadata)
        repeated = attempt if again is None else _unary(rpc, again, metadata)
        asked, unsure = self._leader, None
        wait = self.settings.timeout_ms / 1000 if once or len(self.endpoints) == 1 else STATUS_SECONDS
        while True:
            try:
                return await self._endpoints.at(asked, attempt, min(wait, self._slice(deadline)))
            except (Fenced, NotWritable) as error:
                # Another one may lead by now. It knows what became of this call, or refuses it, too.
                leader = await self._find(deadline)
                if (
                    leader not in (None, asked)
                    and (settled or isinstance(error, NotWritable))
                    and await backoff.pause()
                ):
                    asked, attempt = self._leader, repeated
                    continue
                # SUBTLE: only who leads knows that a lost call did not happen; who was fenced itself does not. And
                # none knows that it will not.
                if unsure is not None and (again is not None or not (settled and leader == asked)):
                    raise unsure from error
                raise
            except LeaseExpired as error:
                # In another session this call is not known but by its token.
                if unsure is not None and not settled:
                    raise unsure from error
                raise
            except LocationError as error:
                unsure = error if isinstance(error, Indeterminate) else unsure
                if (once and unsure is not None) or not await backoff.pause():
                    raise unsure or error from error
                # It may be slow, or another one may lead by now. What was asked goes on, and its result is returned
                # when asked again.
                attempt = repeated
                wait *= 2
                asked = await self._find(deadline) or asked

    async def lead(self, request: pb.OpenSessionRequest, *, timeout: float | None = None) -> AnyMessage:
        """A session of the leader; with a generation, of any server that can lead. Raises NotWritable, Fenced."""
        deadline = self.deadline(timeout)
        backoff = self._endpoints.backoff(deadline)
        attempt = _unary("OpenSession", request)
        while True:
            failure: PersistError | None = None
            await self._find(deadline)
            for endpoint in self._in_order():
                if isinstance(failure, NotWritable) and self._is_silent(endpoint):
                    continue
                seconds = self._slice(deadline)
                if self._answering and endpoint not in self._answering:
                    seconds = min(seconds, SILENT_SECONDS)
                try:
                    response = await self._endpoints.at(endpoint, attempt, seconds)
                except NotWritable as error:
                    failure = error
                except LocationError as error:
                    failure = failure or error
                else:
                    self._leader = endpoint
                    return response
            assert failure is not None
            if isinstance(failure, NotWritable) or not await backoff.pause():
                raise failure

    async def close(self) -> None:
        """Cancel what is under way and close the connections. A later call makes new ones."""
        await self._endpoints.close()

    async def _find(self, deadline: Deadline) -> str | None:
        """Where the leader is, asking all, and which of them answer. None: no server says that it leads."""
        found, _ = await ask_all(
            self._status,
            self.endpoints,
            leads,
            self.runtime,
            seconds=deadline.remaining(),
            silent=self._is_down,
        )
        self._answering = tuple(found)
        leader = leader_of(found)
        self._leader = leader or self._leader
        return leader

    def _in_order(self) -> Sequence[str]:
        """The endpoints, the likely ones first: the leader, if it answered."""
        first = [self._leader] if self._leader in self._answering or not self._answering else []
        return tuple(dict.fromkeys((*first, *self._answering, *self.endpoints)))

    async def _status(self, endpoint: str) -> AnyMessage:
        return await self._endpoints.at(endpoint, _unary("GetStatus", pb.GetStatusRequest()), STATUS_SECONDS)

    def _is_down(self, endpoint: str) -> bool:
        return self._endpoints.channel(endpoint).down

    def _is_silent(self, endpoint: str) -> bool:
        return endpoint not in self._answering and self._is_down(endpoint)

    def _slice(self, deadline: Deadline) -> float:
        left = deadline.slice()
        return left if len(self.endpoints) == 1 else min(left, max(0.5, left / 2))

    def _check_size(self, request: Message) -> None:
        size, limit = request.ByteSize(), self.settings.max_message_bytes - ENVELOPE_BYTES
        if size > limit:
            raise RequestTooLarge(
                "the request does not fit one message", hint="commit less at once", bytes=size, limit=limit
            )


def _unary(rpc: str, request: AnyMessage, metadata: Metadata = ()) -> Callable[[Channel, float], Awaitable[AnyMessage]]:
    async def attempt(channel: Channel, seconds: float) -> AnyMessage:
        with _offered(channel.endpoint):
            return await channel.unary(rpc, request, None, seconds, metadata=metadata)

    return attempt


def _offered(endpoint: str) -> contextlib.AbstractContextManager[None]:
    return offering("CatalogService", "catalog", endpoint)
