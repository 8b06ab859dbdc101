"""Calls to CatalogService: reads at any server, writes at the one that leads, repeated until answered or time is up.

Source: protos/persist/v1/catalog.proto; reliability.md section 5.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final, TypeVar

from persist.client.peer import Peer, is_unimplemented
from persist.client.peers import Peers
from persist.core.catalog.refusals import Fenced, NotWritable
from persist.errors import Determinate, Indeterminate, InvalidArgument, LocationError, PersistError, RequestTooLarge
from persist.machine.attempts import Attempts
from persist.machine.patience import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.v1 import catalog_pb2 as pb
from persist.v1.catalog_pb2_grpc import CatalogServiceStub
from persist.wire.catalog.rpc import optional_token

R = TypeVar("R")

ENVELOPE_BYTES: Final = 1 << 10
STATUS_SECONDS: Final = 2.0
"""How long a server may take to say whether it leads."""


class CatalogCalls:
    """The servers of one catalog. ``endpoints``: HOST:PORT, comma separated. Raises InvalidArgument (no endpoint)."""

    def __init__(self, endpoints: str, *, settings: Settings, runtime: Runtime) -> None:
        self.settings = settings
        self.runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)
        self._any = Peers(endpoints, CatalogServiceStub, settings=settings, runtime=runtime)
        self._each = {
            endpoint: Peers(endpoint, CatalogServiceStub, settings=settings, runtime=runtime, retries=False)
            for endpoint in self._any.endpoints
        }
        self._leader = self._any.endpoints[0]

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Of all servers."""
        return self._any.endpoints

    def deadline(self, timeout: float | None) -> Deadline:
        """The deadline of a call; None means ``settings.timeout_ms``."""
        return self._attempts.deadline(timeout)

    async def read(self, rpc: str, request: Any, *, timeout: float | None = None) -> Any:
        """The answer of any server."""
        self._check_size(request)
        attempt = _unary(rpc, request, mutation=False)
        return await self._any.repeat(None, attempt, self.deadline(timeout).remaining())

    async def gather(self, rpc: str, request: Any, *, timeout: float | None = None) -> list[Any]:
        """All messages of a stream up to one that is ``last``, of one server. Raises what reading raises."""
        self._check_size(request)

        async def attempt(peer: Peer, seconds: float) -> list[Any]:
            messages = []
            async with aclosing(_stream(peer, rpc, request, seconds)) as stream:
                async for message in stream:
                    messages.append(message)
                    if message.last:
                        return messages
            raise Determinate("the answer's stream was too short", hint="retry")

        return await self._any.repeat(None, attempt, self.deadline(timeout).remaining(), whole=True)

    async def watch(self, request: pb.WatchChangesRequest, seconds: float) -> AsyncGenerator[Any, None]:
        """The changes as one server tells them, until ``seconds`` have passed. Raises LocationError when it breaks."""
        peer = self._any.choose(None)
        try:
            async with aclosing(_stream(peer, "WatchChanges", request, seconds, quiet=True)) as stream:
                async for message in stream:
                    yield message
        except LocationError:
            self._any.down(peer)
            raise

    def pauses(self, timeout: float | None) -> Callable[[], Awaitable[bool]]:
        """Pauses between attempts; False when the time left is not enough for one."""
        return self._any.backoff(self.deadline(timeout)).pause

    async def write(self, rpc: str, request: Any, *, settled: bool = False, timeout: float | None = None) -> Any:
        """The answer of the server that leads.

        ``settled``: who leads later tells the outcome of an earlier leader's call. Otherwise a fence leaves a lost call
        in doubt. Raises Indeterminate then, and what the server refuses.
        """
        self._check_size(request)
        deadline = self.deadline(timeout)
        backoff = self._any.backoff(deadline)
        attempt = _unary(rpc, request, mutation=True)
        asked, unsure = self._leader, None
        while True:
            try:
                return await self._each[asked].repeat(None, attempt, self._slice(deadline))
            except (Fenced, NotWritable) as error:
                # Another one may lead by now. It knows what became of this call, or refuses it, too.
                leader = await self._find()
                if (
                    leader not in (None, asked)
                    and (settled or isinstance(error, NotWritable))
                    and await backoff.pause()
                ):
                    asked = self._leader
                    continue
                if unsure is not None and not settled:
                    raise unsure from error
                raise
            except LocationError as error:
                unsure = error if isinstance(error, Indeterminate) else unsure
                if not await backoff.pause():
                    raise unsure or error from error
                asked = await self._find() or asked

    async def lead(self, request: pb.OpenSessionRequest, *, timeout: float | None = None) -> Any:
        """A session of whoever leads; with a generation of whoever can. Raises NotWritable, Fenced."""
        deadline = self.deadline(timeout)
        backoff = self._any.backoff(deadline)
        attempt = _unary("OpenSession", request, mutation=True)
        while True:
            failure: PersistError | None = None
            first = await self._find() or self._leader
            for endpoint in dict.fromkeys((first, *self.endpoints)):
                try:
                    response = await self._each[endpoint].repeat(None, attempt, self._slice(deadline))
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
        await self._any.close()
        for peers in self._each.values():
            await peers.close()

    async def _find(self) -> str | None:
        """Where the leader is, asking all: the one with the highest token, if any says that it leads."""
        told = await asyncio.gather(*map(self._status, self.endpoints))
        leading = [
            (token, endpoint)
            for endpoint, status in zip(self.endpoints, told, strict=True)
            if status is not None and status.role == pb.CATALOG_ROLE_LEADER
            if (token := optional_token(status, "own")) is not None
        ]
        if not leading:
            return None
        self._leader = max(leading)[1]
        return self._leader

    async def _status(self, endpoint: str) -> Any:
        attempt = _unary("GetStatus", pb.GetStatusRequest(), mutation=False)
        with contextlib.suppress(LocationError):
            return await self._each[endpoint].repeat(None, attempt, STATUS_SECONDS)
        return None

    def _slice(self, deadline: Deadline) -> float:
        left = deadline.remaining()
        return left if len(self.endpoints) == 1 else min(left, max(0.5, left / 2))

    def _check_size(self, request: Any) -> None:
        size, limit = request.ByteSize(), self.settings.max_message_bytes - ENVELOPE_BYTES
        if size > limit:
            raise RequestTooLarge(
                "the request does not fit one message", hint="commit less at once", bytes=size, limit=limit
            )


def _unary(rpc: str, request: Any, *, mutation: bool) -> Callable[[Peer, float], Awaitable[Any]]:
    async def attempt(peer: Peer, seconds: float) -> Any:
        with _offered(peer):
            return await peer.unary(rpc, request, None, seconds, mutation=mutation)

    return attempt


async def _stream(
    peer: Peer, rpc: str, request: Any, seconds: float, *, quiet: bool = False
) -> AsyncGenerator[Any, None]:
    with _offered(peer):
        async with aclosing(peer.stream(rpc, request, None, seconds, quiet=quiet)) as messages:
            async for message in messages:
                yield message


@contextlib.contextmanager
def _offered(peer: Peer) -> Iterator[None]:
    """A block that asks a catalog. Raises InvalidArgument when it is none."""
    try:
        yield
    except LocationError as error:
        if is_unimplemented(error):
            raise InvalidArgument(
                "this server does not offer CatalogService",
                hint="name one that `persist serve catalog` started",
                endpoint=peer.endpoint,
            ) from error
        raise
