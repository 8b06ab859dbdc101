"""One server as a client sees it: a channel, its stub, its sessions, and whether it answers.

Belongs to the event loop and the process that made it. Raises PersistError only.
Source: reliability.md section 5.
"""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Final, TypeAlias

import grpc
import grpc.aio

from persist.client.remote.addresses import is_listening
from persist.client.remote.pulse import Pulse
from persist.client.remote.session import ClientSession, SessionUnsupported
from persist.client.remote.sessions import Sessions, routed
from persist.core.ids import ShardId
from persist.errors import InvalidArgument, LocationError, PersistError, UsageError
from persist.forks import after_fork
from persist.retry.deadline import Deadline
from persist.retry.methods import NO_ANSWER, Repeat, repeat_of, unanswered
from persist.retry.tasks import Tasks
from persist.runtime import Runtime
from persist.settings import Settings
from persist.typed import AnyMessage, AnyStub
from persist.wire.rpc import Method, outcome_of
from persist.wire.rpc_errors import DETAILS_KEY, clean, error_of_status

SECONDS_MAX: Final = 30 * 86_400.0
WORDS_MAX: Final = 256
"""Letters kept of a message from gRPC or a proxy."""
DOWN_SECONDS: Final = 1.0
"""How long a failed server is left alone before it is asked whether it is well; twice as long each further time."""
DOWN_SECONDS_MAX: Final = 60.0
LISTEN_SECONDS: Final = 1.0
"""How long a first connection to a server may take, and a second look at whether anything listens."""

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
"""What goes beside a request: names and values."""


# gRPC is one per process, and a child has none of its threads: the child of a process that ever connected would wait
# for them, now and then for ever. So it gets an error, and keeps for ever what it inherited: releasing that hangs, too.
_OPEN: "Final[weakref.WeakSet[Channel]]" = weakref.WeakSet()
_INHERITED: "Final[list[Channel]]" = []
_connected: "Final[list[str]]" = []
"""The first server that this process made a channel to."""
_parents: Final[list[str]] = []
"""That of a process that this one was forked from."""


def _after_fork() -> None:
    _INHERITED.extend(_OPEN)
    _OPEN.clear()
    _parents.extend(_connected)
    _connected.clear()


after_fork(_after_fork)


def refuse_after_fork() -> None:
    """Raise UsageError in a process that was forked from one that had connected to servers."""
    if _parents:
        raise UsageError(
            "this process was forked from one that had connected to servers",
            hint="connect after forking, or start processes with spawn or forkserver",
            endpoint=_parents[0],
        )


def channel_options(settings: Settings) -> list[tuple[str, int]]:
    """Channel arguments of a client. Retries are ours: the library's would repeat calls without asking."""
    return [
        ("grpc.enable_retries", 0),
        ("grpc.max_receive_message_length", settings.connection_message_bytes * 2),
        ("grpc.max_send_message_length", settings.connection_message_bytes),
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


class Channel:
    """Calls to one endpoint. ``watched``: another server can be asked, so that a silent server is left.

    While ``down`` others are preferred. That ends when the server says that it is well, or answers a call all the same.
    """

    def __init__(
        self,
        endpoint: str,
        stub_of: Callable[[grpc.aio.Channel], AnyStub],
        *,
        settings: Settings,
        runtime: Runtime,
        sessions: bool,
        watched: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.down = False
        self.vetted = False
        """Whether it is known to be a server of the right location."""
        self.left_at = 0.0
        """When it failed last, in monotonic seconds."""
        self._failures = 0
        self._runtime = runtime
        self._sessions = Sessions() if sessions else None
        self._watched = watched
        self._channel = grpc.aio.insecure_channel(endpoint, options=channel_options(settings))
        self._stub = stub_of(self._channel)
        self._unary = False
        """Whether the server, or a proxy before it, is known to have no sessions."""
        self._pulse = Pulse(self._channel, runtime=runtime, watched=watched, on_silence=self.leave)
        self._tasks = Tasks()
        self._returning: asyncio.Task[None] | None = None
        _OPEN.add(self)
        if not _connected:
            _connected.append(endpoint)

    async def listens(self, ends: Deadline) -> bool:
        """Whether anything listens there, or may: False is certain. Sends nothing but what opens a connection."""
        try:
            async with asyncio.timeout(min(ends.remaining(), LISTEN_SECONDS)):
                while (state := self._channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        break
                    await self._channel.wait_for_state_change(state)
                else:
                    return True
        except TimeoutError:
            # A packet filter that is silent, or a server that stands still: the two are distinguished below.
            pass
        # One that takes connections and does not speak is there, and is waited for like others.
        left = min(ends.remaining(), LISTEN_SECONDS)
        return left <= 0 or await is_listening(self.endpoint, left)

    @property
    def well(self) -> bool:
        """Whether there is no reason not to ask it."""
        return not self.down and not self.late

    @property
    def late(self) -> bool:
        """Whether it does not answer, or not at once."""
        return self._pulse.late

    async def command(self, method: Method, request: AnyMessage, shard: ShardId, timeout: float) -> AnyMessage:
        """The outcome of one attempt at a command, over the session where the server has one."""
        streams = None if self._unary else self._sessions
        session = None if streams is None else streams.of(shard, self._session)
        if session is not None:
            try:
                with self._pulse.open(session.leave):
                    return await session.call(method, request, timeout)
            except SessionUnsupported:
                self._unary = True
            except LocationError:
                # A repetition of this call is unary.
                self._unary = session.unsupported
                raise
        response = await self.unary(method.rpc, request, shard, timeout)
        return outcome_of(method, response)

    async def unary(
        self,
        rpc: str,
        request: AnyMessage,
        shard: ShardId | None,
        timeout: float,
        *,
        reads: bool = True,
        metadata: Metadata = (),
    ) -> AnyMessage:
        """The response of one unary call. ``reads`` False: this call of a method that may read does more.

        ``metadata`` goes beside the request.
        """
        repeat = repeat_of(rpc, reads=reads)
        told = (*routed(shard), *metadata)
        call = getattr(self._stub, rpc)(request, timeout=min(timeout, SECONDS_MAX), metadata=told)
        with self._pulse.open(call.cancel) as one:
            try:
                response = await call
            except grpc.RpcError as error:
                raise self._failure(error, repeat) from error
            except asyncio.CancelledError:
                if one.left():
                    raise unanswered(repeat, f"{NO_ANSWER} {self.endpoint}") from None
                raise
        self._pulse.sign_of_life()
        return response

    async def stream(
        self, rpc: str, request: AnyMessage, shard: ShardId | None, timeout: float, *, quiet: bool = False
    ) -> AsyncGenerator[AnyMessage, None]:
        """The messages of a streaming read. ``quiet``: running out of time is an ordinary end."""
        call = getattr(self._stub, rpc)(request, timeout=min(timeout, SECONDS_MAX), metadata=routed(shard))
        with self._pulse.open(call.cancel) as one:
            try:
                async for message in call:
                    self._pulse.sign_of_life()
                    yield message
            except grpc.RpcError as error:
                if quiet and _code(error) is grpc.StatusCode.DEADLINE_EXCEEDED:
                    return
                raise self._failure(error, Repeat.READ) from error
            except asyncio.CancelledError:
                if one.left():
                    raise unanswered(Repeat.READ, f"{NO_ANSWER} {self.endpoint}") from None
                raise
            finally:
                call.cancel()

    def leave(self) -> None:
        """Prefer others from now on, until the server says that it is well. Twice as long for each failure."""
        self.left_at = self._runtime.monotonic()
        if not self.down:
            self.down = True
            self._failures += 1
            if self._watched and (self._returning is None or self._returning.done()):
                pause = min(DOWN_SECONDS * 2 ** min(self._failures - 1, 16), DOWN_SECONDS_MAX)
                self._returning = self._tasks.start(self._return(pause))

    def answered(self) -> None:
        """Note that it answered a call, and is well."""
        self.down = False
        self._failures = 0

    async def close(self) -> None:
        """Cancel every call and close the channel."""
        await self._tasks.close()
        await self._pulse.close()
        if self._sessions is not None:
            await self._sessions.close()
        await self._channel.close()
        _OPEN.discard(self)

    async def _return(self, pause: float) -> None:
        """Ask its health, not with a user's call, until it is well."""
        while self.down:
            await self._runtime.sleep(pause)
            pause = min(2 * pause, DOWN_SECONDS_MAX)
            if await self._pulse.lives():
                self.down = False

    def _failure(self, error: grpc.RpcError, repeat: Repeat) -> PersistError:
        if _code(error) is grpc.StatusCode.UNIMPLEMENTED:
            return InvalidArgument(
                "this is no persist server, or one of an older release", hint=_WHERE, endpoint=self.endpoint
            )
        sent = _error_sent(error)
        return sent if sent is not None else _unanswered(error, repeat, self.endpoint)

    def _session(self, shard: ShardId) -> ClientSession:
        return ClientSession(
            lambda: self._stub.Session(metadata=routed(shard, exact=False)),
            endpoint=self.endpoint,
            runtime=self._runtime,
            error_of=lambda error: self._failure(error, Repeat.UNNUMBERED),
            on_frame=self._pulse.sign_of_life,
        )


_WHERE: Final = "is the address right? Shards are served by `persist serve shard` and `persist dev`"


def is_unimplemented(error: PersistError) -> bool:
    """The server does not know the method: it offers another service, or is of an older release."""
    cause: BaseException | None = error
    while isinstance(cause, PersistError):
        cause = cause.__cause__
    return isinstance(cause, grpc.RpcError) and _code(cause) is grpc.StatusCode.UNIMPLEMENTED


@contextlib.contextmanager
def offering(service: str, command: str, endpoint: str) -> Iterator[None]:
    """A block that asks a service. Raises InvalidArgument when the server offers another one."""
    try:
        yield
    except PersistError as error:
        if is_unimplemented(error):
            raise InvalidArgument(
                f"this server does not offer {service}",
                hint=f"name one that `persist serve {command}` started",
                endpoint=endpoint,
            ) from error
        raise


def _code(error: grpc.RpcError) -> grpc.StatusCode:
    code = getattr(error, "code", None)
    return code() if code is not None else grpc.StatusCode.UNKNOWN


def _error_sent(error: grpc.RpcError) -> PersistError | None:
    """The error that a persist server sent; None: the call ended without one."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return None
    details = None
    for name, value in error.trailing_metadata() or ():
        if name == DETAILS_KEY and isinstance(value, bytes):
            details = value
    return error_of_status(error.code().value[0], details)


def _unanswered(error: grpc.RpcError, repeat: Repeat, endpoint: str) -> LocationError:
    """The error of a call without an answer of persist: timeout, broken connection, or a proxy's message."""
    code = _code(error)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return unanswered(repeat, f"{NO_ANSWER} {endpoint} in time")
    words = error.details() if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__
    return unanswered(repeat, f"{NO_ANSWER} {endpoint}", status=code.name, grpc=clean(words or "", WORDS_MAX))
