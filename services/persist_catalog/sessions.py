"""Sessions: who may write, under which token, and what came of what they asked last.

Source: protos/persist/v1/catalog.proto; catalog-semantics.md section 1.3 (idempotency).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from persist.core.catalog.objects import FenceToken
from persist.errors import InvalidArgument, LeaseExpired, LocationError, Overloaded, PersistError
from persist.runtime import Runtime
from persist.typed import AnyOutcome

LEASE_SECONDS: Final = 600.0
SESSIONS_MAX: Final = 10_000
SETTLED_SECONDS: Final = 60.0
"""A session that asked for something may have to make room after so long: what was asked is not repeated any more."""
OUTCOMES_MAX: Final = 64
"""Outcomes remembered for each session."""
UNSURE_MAX: Final = 256
"""Requests of a session that may have been committed, before it may ask for no more."""
REFUSAL_BYTES_MAX: Final = 4 << 10
"""A refusal with a longer text is found again when it is asked for again."""
REFUSALS_BYTES_MAX: Final = 4 << 20
"""Of all sessions. A refusal changed nothing, so it does no harm to forget the oldest."""
WORK_BYTES_MAX: Final = 64 << 20
"""Bytes of requests that are worked on: they are kept when their callers gave up waiting."""
_ENTRY_BYTES: Final = 512
_RETRY_MS: Final = 200


@dataclass(frozen=True, slots=True)
class RequestDone:
    """What a request came to."""

    value: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request was refused, as it is raised. Never the exception: its traceback holds the whole request."""

    kind: type[PersistError]
    message: str
    hint: str
    details: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, error: PersistError) -> "Refused":
        """What is to be kept of it."""
        return cls(type(error), error.message, error.hint, tuple(error.details.items()))

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        texts = (self.message, self.hint, *(text for pair in self.details for text in pair))
        return _ENTRY_BYTES + sum(len(text.encode(errors="replace")) for text in texts)

    def error(self) -> PersistError:
        """The refusal anew."""
        return self.kind(self.message, hint=self.hint, **dict(self.details))


@dataclass(slots=True)
class OpenSession:
    """An open session. ``unsure`` are requests that may have been committed, ``names`` stand for what was asked."""

    session_id: str
    token: FenceToken
    used: float
    running: dict[bytes, asyncio.Task[Any]] = field(default_factory=dict)
    outcomes: OrderedDict[bytes, RequestDone | Refused] = field(default_factory=OrderedDict)
    unsure: set[bytes] = field(default_factory=set)
    names: dict[bytes, bytes] = field(default_factory=dict)

    def is_idle(self, until: float) -> bool:
        """Whether it is not missed: it waits for nothing, and what it asked for was received, or never was anything."""
        return not self.running and not self.unsure and (not self.names or self.used < until)


class ServedSessions:
    """All sessions of a server. They end when they are closed, or were not used for ``lease`` seconds.

    Where there are too many, the one that was idle for longest makes room for another one. What is remembered for them
    is bounded by its bytes, of whichever sessions.
    """

    def __init__(self, *, runtime: Runtime, lease: float = LEASE_SECONDS) -> None:
        self.lease = lease
        self._runtime = runtime
        self._open: OrderedDict[str, OpenSession] = OrderedDict()
        self._working: dict[asyncio.Task[Any], int] = {}
        self._refusals: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        self._refusals_bytes = 0

    def __len__(self) -> int:
        self._sweep()
        return len(self._open)

    @property
    def refusals_bytes(self) -> int:
        """What all refusals take that are remembered."""
        return self._refusals_bytes

    def open(self, token: FenceToken) -> OpenSession:
        """A new session under this token. Raises Overloaded."""
        self._sweep()
        # Those of earlier tokens cannot do anything any more.
        for session_id in [each.session_id for each in self._open.values() if each.token != token]:
            self.close(session_id)
        if len(self._open) >= SESSIONS_MAX:
            self._make_room()
        session = OpenSession(self._runtime.random_bytes(16).hex(), token, self._runtime.monotonic())
        self._open[session.session_id] = session
        return session

    def find(self, session_id: str) -> OpenSession | None:
        """The session with this id, which is used now."""
        self._sweep()
        session = self._open.get(session_id)
        if session is not None:
            session.used = self._runtime.monotonic()
            self._open.move_to_end(session_id)
        return session

    def get(self, session_id: str) -> OpenSession:
        """The session with this id. Raises LeaseExpired."""
        session = self.find(session_id)
        if session is None:
            raise LeaseExpired("no such session", hint="open another one for the same token", session=session_id)
        return session

    def close(self, session_id: str) -> None:
        """End a session, if it is there. What it asked for goes on."""
        session = self._open.pop(session_id, None)
        if session is not None:
            for request_id in session.outcomes:
                self._no_refusal(session, request_id)

    async def once(
        self,
        session: OpenSession,
        request_id: bytes,
        name: bytes,
        work: Callable[[], Awaitable[AnyOutcome]],
        *,
        size: int = 0,
    ) -> AnyOutcome:
        """The outcome of ``work``, which is done once for each request, also when its caller gives up waiting.

        What failed with a LocationError is done again when it is asked for again, and so is a refusal that was
        forgotten. ``name`` stands for the request: raises InvalidArgument for another one under the same id. ``size``
        is that of the request in bytes: raises Overloaded when too many are worked on.
        """
        if session.names.get(request_id, name) != name:
            raise InvalidArgument("another request had this id", hint="give each request 16 random bytes of its own")
        known = session.outcomes.get(request_id)
        if isinstance(known, Refused):
            raise known.error()
        if known is not None:
            return known.value
        task = session.running.get(request_id)
        if task is None:
            self._check_room(session, request_id, size)
            session.names[request_id] = name
            task = session.running[request_id] = asyncio.ensure_future(work())
            self._working[task] = size
            task.add_done_callback(lambda done: self._settle(session, request_id, done))
            while len(session.names) > 2 * OUTCOMES_MAX:
                del session.names[next(iter(session.names))]
        return await asyncio.shield(task)

    async def end(self) -> None:
        """End all sessions, and wait for what they asked for."""
        for session_id in list(self._open):
            self.close(session_id)
        await asyncio.gather(*self._working, return_exceptions=True)

    def _check_room(self, session: OpenSession, request_id: bytes, size: int) -> None:
        if self._working and sum(self._working.values()) + size > WORK_BYTES_MAX:
            raise Overloaded("too many requests are worked on", hint="ask later", retry_after_ms=_RETRY_MS)
        if len(session.unsure) >= UNSURE_MAX and request_id not in session.unsure:
            raise Overloaded(
                "too many requests of this session have an unknown outcome",
                hint="repeat those, or open another session",
                retry_after_ms=_RETRY_MS,
            )

    def _make_room(self) -> None:
        until = self._runtime.monotonic() - SETTLED_SECONDS
        idle = next((each.session_id for each in self._open.values() if each.is_idle(until)), None)
        if idle is None:
            raise Overloaded("too many sessions", hint="close those that are not used", retry_after_ms=1000)
        self.close(idle)

    def _sweep(self) -> None:
        until = self._runtime.monotonic() - self.lease
        while self._open and (session := next(iter(self._open.values()))).used < until:
            self.close(session.session_id)

    def _settle(self, session: OpenSession, request_id: bytes, task: "asyncio.Task[Any]") -> None:
        del self._working[task], session.running[request_id]
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or not (error is None or (isinstance(error, PersistError) and _is_final(error))):
            if not (isinstance(error, LeaseExpired) or (isinstance(error, LocationError) and error.determinate)):
                session.unsure.add(request_id)
            return
        session.unsure.discard(request_id)
        outcome = Refused.of(error) if isinstance(error, PersistError) else RequestDone(task.result())
        if isinstance(outcome, Refused) and not self._keep(session, request_id, outcome):
            return
        session.outcomes[request_id] = outcome
        while len(session.outcomes) > OUTCOMES_MAX:
            self._no_refusal(session, session.outcomes.popitem(last=False)[0])

    def _keep(self, session: OpenSession, request_id: bytes, refused: Refused) -> bool:
        """Whether there is room to remember a refusal, which is made."""
        if refused.size > REFUSAL_BYTES_MAX or session.session_id not in self._open:
            return False
        self._refusals[session.session_id, request_id] = refused.size
        self._refusals_bytes += refused.size
        while self._refusals_bytes > REFUSALS_BYTES_MAX:
            (session_id, oldest), size = self._refusals.popitem(last=False)
            self._refusals_bytes -= size
            self._open[session_id].outcomes.pop(oldest, None)
        return True

    def _no_refusal(self, session: OpenSession, request_id: bytes) -> None:
        self._refusals_bytes -= self._refusals.pop((session.session_id, request_id), 0)


def _is_final(error: PersistError) -> bool:
    # What was staged may have been forgotten: then it is sent again, and so is the request.
    return not isinstance(error, (LocationError, LeaseExpired))
