"""The client's end of numbered calls: the session of a handle, and which of its numbers are open.

A number is open from before its first attempt until its caller has a final answer, or has given up.
One that was given up is held until its outcome is asked for. The smallest that is open or held travels with every
call: below it the shard need not remember anything.
Source: core/shard/transitions/calls.py; docs/adr/0012-numbered-calls.md.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from persist.client.shard.location import Location
from persist.client.shard.same_history import same_history
from persist.core.ids import SessionId, ShardId
from persist.core.shard.commands import Call
from persist.core.shard.transitions.calls import WINDOW
from persist.machine.shards import ShardInfo
from persist.retry.deadline import Deadline

REFRESH_SECONDS: Final = 60.0
"""After this long in silence a handle asks where the shard is before it sends a call: so much may be forgotten."""


class CallNumbers:
    """One session: hands out numbers, at most ``WINDOW`` of them open at once."""

    def __init__(self, session: SessionId, *, known_seqno: int, incarnation: int, lease_ms: int) -> None:
        self._id = session
        self._known_seqno = known_seqno
        self._incarnation = incarnation
        self._lease_ms = lease_ms
        self._next = 0
        self._open: dict[int, None] = {}  # ascending
        self._held: set[int] = set()
        self._ended = asyncio.Event()

    @property
    def id(self) -> SessionId:
        """The session's name."""
        return self._id

    @asynccontextmanager
    async def number(self, deadline: Deadline) -> AsyncIterator[int]:
        """A number for one call. Waits while the oldest open one is too far behind; Determinate when that lasts."""
        await self.room(deadline)
        number = self._next
        self._next += 1
        self._open[number] = None
        try:
            yield number
        finally:
            del self._open[number]
            self._ended.set()

    async def room(self, deadline: Deadline) -> bool:
        """Wait until another number may be open; False: not before one that is held is released. Raises Determinate."""
        if self._next - self._first < WINDOW:
            return True
        async with deadline.within("too many calls of this handle were under way", hint="retry, or begin fewer"):
            while self._next - self._first >= WINDOW:
                if self._first in self._held:
                    return False
                self._ended.clear()
                await self._ended.wait()
        return True

    def hold(self, number: int) -> None:
        """Have the shard remember what became of an open number after that has ended."""
        self._held.add(number)

    def release(self, number: int) -> None:
        """The outcome of a held number is not asked for any more."""
        self._held.discard(number)
        self._ended.set()

    def call(self, number: int) -> Call:
        """The ``Call`` that every attempt of ``number`` carries."""
        return Call(
            session=self._id,
            number=number,
            first=self._first,
            known_seqno=self._known_seqno,
            incarnation=self._incarnation,
            lease_ms=self._lease_ms,
        )

    @property
    def _first(self) -> int:
        return min(next(iter(self._open), self._next), *self._held, self._next)


class Caller:
    """A handle as its shard sees it: its current session, and the newest seqno it has seen.

    ``incarnation``: the location's, as the server returned it.
    """

    def __init__(self, location: Location, shard: ShardId, *, seqno: int, incarnation: int) -> None:
        self.seqno = seqno
        self._location = location
        self._shard = shard
        self.incarnation = incarnation
        self._saw_at = self._clocks()
        self._session = self._new(seqno)

    def saw(self, seqno: int) -> None:
        """Record that the shard answered as of ``seqno``."""
        self.seqno, self._saw_at = max(self.seqno, seqno), self._clocks()

    async def session(self, deadline: Deadline) -> CallNumbers:
        """The session for a call that begins now. One RPC after a long silence. Raises LeaseExpired, LocationError."""
        idle = max(now - then for now, then in zip(self._clocks(), self._saw_at, strict=True))
        if idle >= REFRESH_SECONDS:
            location, forgotten = self._location, idle * 2000 >= self._location.settings.writer_lease_ms
            info: ShardInfo = await location.attempts.repeat(
                deadline, lambda seconds: location.shards.open(self._shard, create=False, timeout=seconds)
            )
            self.saw(same_history(self.incarnation, info).seqno)
            if forgotten:
                self._session = self._new(info.seqno)
        return self._session

    def leave(self, session: CallNumbers, seqno: int) -> None:
        """Go on with another session: the shard has forgotten this one. ``seqno``: as of its answer."""
        self.saw(seqno)
        if self._session is session:
            self._session = self._new(seqno)

    def doubt(self) -> None:
        """Note that the shard may have forgotten the session: the next call asks where it is and starts another one."""
        self._saw_at = (float("-inf"), float("-inf"))

    def _new(self, seqno: int) -> CallNumbers:
        location = self._location
        return CallNumbers(
            SessionId.of(location.runtime.random_bytes(16)),
            known_seqno=seqno,
            incarnation=self.incarnation,
            lease_ms=location.settings.writer_lease_ms,
        )

    def _clocks(self) -> tuple[float, float]:
        """Both clocks: one stops while a machine sleeps, the other can be set. They only decide when to ask."""
        runtime = self._location.runtime
        return runtime.monotonic(), runtime.now_ms() / 1000
