"""One server as a client sees it: a channel, its stub and the current session.

Belongs to the event loop and the process that made it. Raises PersistError only.
Source: reliability.md section 5.
"""

import os
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import grpc
import grpc.aio

from persist.client.session import ClientSession, SessionUnsupported
from persist.core.ids import ShardId
from persist.errors import PersistError, UsageError
from persist.runtime import Runtime
from persist.settings import Settings
from persist.wire.rpc import Method, outcome_of
from persist.wire.rpc_errors import DETAILS_KEY, bare, error_of_status

SHARD_HEADER: Final = "persist-shard-id"
SECONDS_MAX: Final = 30 * 86_400.0


# gRPC is one per process and does not survive a fork while a connection is open: the child would hang or crash. So the
# child finds here what it inherited, keeps it for ever (letting go of it hangs, too), and is told.
_OPEN: "Final[weakref.WeakSet[Peer]]" = weakref.WeakSet()
_INHERITED: "Final[list[Peer]]" = []


def _after_fork() -> None:
    _INHERITED.extend(_OPEN)
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def refuse_after_fork() -> None:
    """Raise UsageError in a process that was forked while a connection was open."""
    if _INHERITED:
        raise UsageError(
            "this process was forked while its parent had open connections",
            hint="close clients before forking, or start processes with spawn or forkserver",
            endpoint=_INHERITED[0].endpoint,
        )


def channel_options(settings: Settings) -> list[tuple[str, int]]:
    """Channel arguments of a client. Retries are ours: the library's would repeat calls without asking."""
    return [
        ("grpc.enable_retries", 0),
        ("grpc.max_receive_message_length", settings.max_message_bytes * 2),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Unlimited: otherwise a quiet watch pings once a minute only, whatever keepalive_time asks for.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Clients of one process do not share connections, so that closing one closes its own.
        ("grpc.use_local_subchannel_pool", 1),
    ]


class Peer:
    """Calls to one endpoint. ``down_until``: when to prefer it again, in monotonic seconds."""

    def __init__(
        self, endpoint: str, stub_of: Callable[[Any], Any], *, settings: Settings, runtime: Runtime, sessions: bool
    ) -> None:
        self.endpoint = endpoint
        self.down_until = 0.0
        self._runtime = runtime
        self._sessions = sessions
        self._channel = grpc.aio.insecure_channel(endpoint, options=channel_options(settings))
        self._stub = stub_of(self._channel)
        self._session: ClientSession | None = None
        self._retired: list[ClientSession] = []
        _OPEN.add(self)

    async def command(self, method: Method, request: Any, shard: ShardId, timeout: float) -> Any:
        """The outcome of one attempt at a command, over the session where the server has one."""
        if self._sessions:
            try:
                return await self._current().call(method, request, timeout)
            except SessionUnsupported:
                self._sessions = False
        response = await self.unary(method.rpc, request, shard, timeout, mutation=True)
        return outcome_of(method, response)

    async def unary(self, rpc: str, request: Any, shard: ShardId | None, timeout: float, *, mutation: bool) -> Any:
        """The response of one unary call."""
        try:
            return await getattr(self._stub, rpc)(request, timeout=min(timeout, SECONDS_MAX), metadata=_routed(shard))
        except grpc.RpcError as error:
            raise _error_of(error, mutation=mutation) from error

    async def stream(
        self, rpc: str, request: Any, shard: ShardId | None, timeout: float, *, quiet: bool = False
    ) -> AsyncGenerator[Any, None]:
        """The messages of a streaming read. ``quiet``: that its time is up is an ordinary end."""
        call = getattr(self._stub, rpc)(request, timeout=min(timeout, SECONDS_MAX), metadata=_routed(shard))
        try:
            async for message in call:
                yield message
        except grpc.RpcError as error:
            if quiet and _code(error) is grpc.StatusCode.DEADLINE_EXCEEDED:
                return
            raise _error_of(error, mutation=False) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """Cancel every call and close the channel."""
        for session in (*self._retired, *([self._session] if self._session else [])):
            await session.close()
        await self._channel.close()
        _OPEN.discard(self)

    def _current(self) -> ClientSession:
        session = self._session
        if session is None or session.over:
            if session is not None:
                self._retired = [old for old in (*self._retired, session) if not old.ended]
            self._session = session = ClientSession(
                self._stub.Session, runtime=self._runtime, error_of=lambda error: _error_of(error, mutation=True)
            )
        return session


def is_unimplemented(error: PersistError) -> bool:
    """The server does not know the method: it offers another service, or is of an older release."""
    cause = error.__cause__
    return isinstance(cause, grpc.RpcError) and _code(cause) is grpc.StatusCode.UNIMPLEMENTED


def _routed(shard: ShardId | None) -> tuple[tuple[str, str], ...]:
    return ((SHARD_HEADER, shard),) if shard is not None else ()


def _code(error: grpc.RpcError) -> grpc.StatusCode:
    code = getattr(error, "code", None)
    return code() if code is not None else grpc.StatusCode.UNKNOWN


def _error_of(error: grpc.RpcError, *, mutation: bool) -> PersistError:
    if not isinstance(error, grpc.aio.AioRpcError):
        return bare(f"the call failed: {type(error).__name__}", mutation=mutation)
    details = None
    for name, value in error.trailing_metadata() or ():
        if name == DETAILS_KEY and isinstance(value, bytes):
            details = value
    return error_of_status(error.code().value[0], error.details() or "", details, mutation=mutation)
