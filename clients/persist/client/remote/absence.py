"""Whether a server listens at the endpoints: asked before a client sends anything for the first time.

With a mistyped address, or a server that was not started, the caller gets an error within seconds. It is found before
anything is sent, so that nothing may have been applied; and once a server was there, nothing is asked any more.
"""

from collections.abc import Sequence
from typing import Final

from persist.client.remote.channel import LISTEN_SECONDS, Channel
from persist.errors import Determinate, NoServer
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings

APART_SECONDS: Final = 2.0
"""Attempts further apart than this belong to different calls: the wait begins anew."""


class Absence:
    """The finding that no server is there. ``possible``: none was found before, and the client is hasty."""

    def __init__(self, endpoints: Sequence[str], *, settings: Settings, runtime: Runtime, hasty: bool) -> None:
        self.possible = hasty and settings.first_connection_ms > 0
        self._endpoints = endpoints
        self._seconds = settings.first_connection_ms / 1000
        self._runtime = runtime
        self._first = self._last = float("-inf")
        """When it was found that nothing listens, in monotonic seconds: first and last in a row."""

    async def check(self, channel: Channel, ends: Deadline) -> None:
        """Return when something listens there, or may. Raises Determinate, and NoServer when that lasts."""
        if await channel.listens(ends):
            self.possible = False
            return
        now = self._runtime.monotonic()
        if now - self._last > APART_SECONDS + 2 * LISTEN_SECONDS:
            self._first = now
        self._last = now
        lasts = now - self._first >= self._seconds
        if lasts:
            self._last = float("-inf")
        raise (NoServer if lasts else Determinate)(
            f"no server at {', '.join(self._endpoints)}", hint="`persist dev` starts one; is the address right?"
        )
