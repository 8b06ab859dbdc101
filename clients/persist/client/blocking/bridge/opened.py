"""Opened: a client and the place where its calls run, opened together, and anew in a forked child.

Source: architecture.md section 8; style.md rule 26.
"""

import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from persist.client import client as aio
from persist.client.blocking.bridge.held import H, Held
from persist.client.shard.loop_thread import LoopThread
from persist.threads import users

T = TypeVar("T")

Opener = Callable[[], Awaitable[aio.Client]]


class Opened(Held):
    """What a blocking client is beside its calls.

    After a fork the child's client opens its own connections; handles of the parent are refused there.
    """

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        super().__init__(None, *_opened(self, opener))

    @property
    def _inner(self) -> aio.Client:
        if self._loop.is_foreign:
            self._loop, self._held = _opened(self, self._opener)
        client: aio.Client = self._held
        return client

    def _stop(self) -> None:
        self._loop.stop()

    def _offloaded(self, kind: type[H], work: Callable[[H], T]) -> Callable[[Any], Awaitable[T]]:
        """``work`` as asyncio wants it. It runs in a thread of its own: its calls block there, not on the loop."""

        async def bridged(inner: object) -> T:
            return await users(self._inner.location.runtime, work, self._give(kind, inner))

        return bridged


def _opened(owner: Opened, opener: Opener) -> tuple[LoopThread, aio.Client]:
    loop = LoopThread()

    async def begin() -> aio.Client:
        return await opener()

    try:
        core = loop.run(begin())
    except BaseException:
        loop.stop()
        raise
    loop.at_stop(core.close)
    # Handles keep their client, so the loop has no users any more when the client is gone.
    weakref.finalize(owner, loop.stop).atexit = False
    return loop, core
