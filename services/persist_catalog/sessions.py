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

LEASE_SECONDS: Final = 600.0
SESSIONS_MAX: Final = 10_000
OUTCOMES_MAX: Final = 64
"""Outcomes remembered for each session."""


@dataclass(slots=True)
class Open:
    """An open session. ``unsure`` are requests that may have been committed, ``names`` stand for what was asked."""

    session_id: str
    token: FenceToken
    used: float
    outcomes: "OrderedDict[bytes, asyncio.Task[Any]]" = field(default_factory=OrderedDict)
    unsure: set[bytes] = field(default_factory=set)
    names: dict[bytes, bytes] = field(default_factory=dict)


class Sessions:
    """All sessions of a server. They end when they are closed, or were not used for ``lease`` seconds."""

    def __init__(self, *, runtime: Runtime, lease: float = LEASE_SECONDS) -> None:
        self.lease = lease
        self._runtime = runtime
        self._open: OrderedDict[str, Open] = OrderedDict()

    def __len__(self) -> int:
        self._sweep()
        return len(self._open)

    def open(self, token: FenceToken) -> Open:
        """A new session under this token. Raises Overloaded."""
        self._sweep()
        # Those of earlier tokens cannot do anything any more.
        for session_id in [each.session_id for each in self._open.values() if each.token != token]:
            del self._open[session_id]
        if len(self._open) >= SESSIONS_MAX:
            raise Overloaded("too many sessions", hint="close those that are not used", retry_after_ms=1000)
        session = Open(self._runtime.random_bytes(16).hex(), token, self._runtime.monotonic())
        self._open[session.session_id] = session
        return session

    def find(self, session_id: str) -> Open | None:
        """The session with this id, which is used now."""
        self._sweep()
        session = self._open.get(session_id)
        if session is not None:
            session.used = self._runtime.monotonic()
            self._open.move_to_end(session_id)
        return session

    def get(self, session_id: str) -> Open:
        """The session with this id. Raises LeaseExpired."""
        session = self.find(session_id)
        if session is None:
            raise LeaseExpired("no such session", hint="open another one for the same token", session=session_id)
        return session

    def close(self, session_id: str) -> None:
        """End a session, if it is there. What it asked for goes on."""
        self._open.pop(session_id, None)

    async def once(self, session: Open, request_id: bytes, name: bytes, work: Callable[[], Awaitable[Any]]) -> Any:
        """The outcome of ``work``, which is done once for each request, whoever gives up waiting for it.

        What failed with a LocationError is done again when it is asked for again. ``name`` stands for the request:
        raises InvalidArgument for another one under the same id.
        """
        if session.names.setdefault(request_id, name) != name:
            raise InvalidArgument("another request had this id", hint="give each request 16 random bytes of its own")
        task = session.outcomes.get(request_id)
        if task is None:
            task = session.outcomes[request_id] = asyncio.ensure_future(work())
            task.add_done_callback(lambda done: _settle(session, request_id, done))
            while len(session.outcomes) > OUTCOMES_MAX:
                session.outcomes.popitem(last=False)
            while len(session.names) > 2 * OUTCOMES_MAX:
                del session.names[next(iter(session.names))]
        return await asyncio.shield(task)

    async def end(self) -> None:
        """End all sessions, and wait for what they asked for."""
        tasks = [task for session in self._open.values() for task in session.outcomes.values()]
        self._open.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _sweep(self) -> None:
        until = self._runtime.monotonic() - self.lease
        while self._open and next(iter(self._open.values())).used < until:
            self._open.popitem(last=False)


def _settle(session: Open, request_id: bytes, task: "asyncio.Task[Any]") -> None:
    error = None if task.cancelled() else task.exception()
    definite = not task.cancelled() and (error is None or (isinstance(error, PersistError) and _is_final(error)))
    if definite:
        session.unsure.discard(request_id)
        return
    session.outcomes.pop(request_id, None)
    if not (isinstance(error, LocationError) and error.determinate):
        session.unsure.add(request_id)


def _is_final(error: PersistError) -> bool:
    return not isinstance(error, LocationError)
