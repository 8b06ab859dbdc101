"""Several endpoints of one service: which to ask, and asking again until it is answered or the time is up.

Connections belong to the event loop and the process that made them. After a fork, in another loop and after ``close``
the next call makes new ones.
Source: architecture.md section 5; reliability.md section 5.
"""

import asyncio
import dataclasses
import hashlib
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from persist.client.peer import Peer, refuse_after_fork
from persist.core.ids import ShardId
from persist.errors import Indeterminate, InvalidArgument, LocationError, Overloaded, StoreFull, StoreReadOnly
from persist.machine.attempts import certain
from persist.machine.patience import Backoff, Deadline
from persist.runtime import Runtime
from persist.settings import Settings

R = TypeVar("R")

PAUSE_MS_MAX: Final = 1_000
DOWN_SECONDS: Final = 1.0
ATTEMPT_SECONDS_MIN: Final = 0.5
LAST_ATTEMPT_SECONDS: Final = 0.05
"""An attempt that cannot be answered in time would only make a certain failure uncertain."""


class Peers:
    """The endpoints of one service. ``endpoints``: ``HOST:PORT``, comma separated; each shard has a preferred one.

    For calls that may be repeated. ``sessions`` False: unary calls only. ``retries`` False: one attempt per call.
    Raises InvalidArgument (no endpoint).
    """

    def __init__(
        self,
        endpoints: str,
        stub_of: Callable[[Any], Any],
        *,
        settings: Settings,
        runtime: Runtime,
        sessions: bool = False,
        retries: bool = True,
    ) -> None:
        self.endpoints = tuple(name.strip() for name in endpoints.split(",") if name.strip())
        if not self.endpoints:
            raise InvalidArgument("no endpoint", hint="write HOST:PORT, for example localhost:7100")
        self._stub_of = stub_of
        self._settings = settings
        self._patience = dataclasses.replace(settings, retry_max_ms=PAUSE_MS_MAX)
        self._runtime = runtime
        self._sessions = sessions
        self._retries = retries
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._connections: tuple[Peer, ...] = ()

    async def repeat(
        self,
        shard: ShardId | None,
        attempt: Callable[[Peer, float], Awaitable[R]],
        timeout: float,
        *,
        whole: bool = False,
    ) -> R:
        """Attempt until it is answered or the time is up. ``whole``: an attempt may use all the time there is.

        Raises what an attempt raises; a LocationError only when there is no time for another attempt.
        """
        deadline = Deadline(self._runtime, timeout)
        backoff = self.backoff(deadline)
        unsure: Indeterminate | None = None
        while True:
            peer = self.choose(shard)
            try:
                outcome = await attempt(peer, self._slice(deadline, whole=whole))
            except (StoreFull, StoreReadOnly) as error:
                # The server is well, and only a person can mend its store.
                if unsure is not None:
                    raise unsure from error
                raise
            except Overloaded as error:
                failure: LocationError = error
            except LocationError as error:
                failure = error
                unsure = error if isinstance(error, Indeterminate) else unsure
                self.down(peer)
            else:
                return certain(outcome, unsure)
            if not self._retries or not await self._pause(failure, backoff, deadline):
                # One attempt that may have happened makes the whole call so, whatever the later ones say.
                raise unsure or failure

    def backoff(self, deadline: Deadline) -> Backoff:
        """Pauses between attempts, short enough to find a server soon after it is back."""
        return Backoff(self._runtime, self._patience, deadline)

    def choose(self, shard: ShardId | None) -> Peer:
        """The shard's preferred endpoint among those not known to be down; the same for every client."""
        peers = self._connected()
        if len(peers) == 1:
            return peers[0]
        ranked = sorted(peers, key=lambda peer: _rank(peer.endpoint, shard))
        now = self._runtime.monotonic()
        return next((peer for peer in ranked if peer.down_until <= now), ranked[0])

    def down(self, peer: Peer) -> None:
        """Prefer others for a while."""
        peer.down_until = self._runtime.monotonic() + DOWN_SECONDS

    async def close(self) -> None:
        """Cancel what is under way and close the connections. A later call makes new ones."""
        peers, self._connections, owner, self._owner = self._connections, (), self._owner, None
        if owner == self._here():
            for peer in peers:
                await peer.close()

    def _slice(self, deadline: Deadline, *, whole: bool) -> float:
        left = deadline.remaining()
        if whole or len(self.endpoints) == 1:
            return left
        return min(left, max(ATTEMPT_SECONDS_MIN, left / 2))

    async def _pause(self, failure: LocationError, backoff: Backoff, deadline: Deadline) -> bool:
        """Wait before the next attempt; False when the time left is not enough for one."""
        after_ms = failure.details.get("retry_after_ms", "")
        if after_ms.isdigit():
            seconds = int(after_ms) / 1000 * (1.0 + self._runtime.random())
            if seconds >= deadline.remaining():
                return False
            await self._runtime.sleep(seconds)
        elif not await backoff.pause():
            return False
        return deadline.remaining() >= LAST_ATTEMPT_SECONDS

    @staticmethod
    def _here() -> tuple[int, asyncio.AbstractEventLoop]:
        return os.getpid(), asyncio.get_running_loop()

    def _connected(self) -> tuple[Peer, ...]:
        here = self._here()
        if self._owner != here:
            refuse_after_fork()
            self._owner = here
            self._connections = tuple(
                Peer(
                    endpoint,
                    self._stub_of,
                    settings=self._settings,
                    runtime=self._runtime,
                    sessions=self._sessions,
                )
                for endpoint in self.endpoints
            )
        return self._connections


def _rank(endpoint: str, shard: ShardId | None) -> bytes:
    return hashlib.sha256(f"{endpoint}\0{shard or ''}".encode()).digest()
