"""Held: an asyncio object for callers without an event loop. Every generated blocking class is one.

Source: architecture.md section 8; style.md rule 26.
"""

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from persist.client.shard.handles import Stays
from persist.client.shard.loop_thread import LoopThread
from persist.typed import Work

H = TypeVar("H", bound="Held")
P = ParamSpec("P")
T = TypeVar("T")


class Held(Stays):
    """An asyncio object, whose calls run on the loop of its client while the caller waits. Safe for many threads."""

    def __init__(self, owner: object, loop: LoopThread, inner: Any) -> None:
        # Handles keep their client: dropping that would end the place where their calls run.
        self._owner = owner
        self._loop = loop
        self._held = inner

    @property
    def _inner(self) -> Any:
        return self._held

    def _run(self, work: Work[T]) -> T:
        """What comes of a coroutine.

        SUBTLE: arguments are evaluated first, so ``_inner`` in them is reopened after a fork before the loop is chosen.
        """
        return self._loop.run(work)

    def _call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What a plain function returns, run where nothing else changes what it looks at."""

        async def call() -> T:
            return function(*args, **kwargs)

        return self._loop.run(call())

    def _end(self, work: Coroutine[object, object, None]) -> None:
        """Release something. After the client was closed this does nothing, as for asyncio."""
        if self._loop.alive or self._loop.is_foreign:
            self._loop.run(work)
        else:
            work.close()

    def _give(self, kind: type[H], inner: object) -> H:
        """An asyncio object that a call returned, held as this one is."""
        return kind(self, self._loop, inner)

    def __repr__(self) -> str:
        return repr(self._held)
