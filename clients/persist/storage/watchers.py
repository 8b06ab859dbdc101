"""Who listens to which key: hints fan out to them, each keeping only the newest, so memory stays bounded.

``notify`` may be called from any thread. While anyone listens, ``source`` runs: an adapter's own way to hear of
commits by others.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine


class Watchers:
    """The listeners of one store.

    ``source``: runs (on the loop of the first listener) from the first listener to the last. ``added``: awaited for
    every new listener's key; it should cause a hint with the key's head, so that nobody waits for news it missed.
    """

    def __init__(
        self,
        source: Callable[[], Coroutine[object, object, None]] | None = None,
        added: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._source = source
        self._added = added
        self._lock = threading.Lock()
        self._listeners: dict[str, set[_Listener]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key someone listens to."""
        with self._lock:
            return tuple(self._listeners)

    def notify(self, key: str, seqno: int) -> None:
        """Hint all listeners of ``key``."""
        if not self._listeners:
            return
        with self._lock:
            listeners = tuple(self._listeners.get(key, ()))
        for listener in listeners:
            listener.push(seqno)

    async def changes(self, key: str) -> AsyncIterator[int]:
        """Hints for ``key`` until the caller stops or the store is closed."""
        listener = _Listener(asyncio.get_running_loop())
        self._add(key, listener)
        try:
            if self._added is not None:
                await self._added(key)
            while (seqno := await listener.next()) is not None:
                yield seqno
        finally:
            self._remove(key, listener)

    async def close(self) -> None:
        """End every ``changes``."""
        with self._lock:
            listeners = [listener for group in self._listeners.values() for listener in group]
            task, self._task = self._task, None
        for listener in listeners:
            listener.push(None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _add(self, key: str, listener: "_Listener") -> None:
        with self._lock:
            self._listeners.setdefault(key, set()).add(listener)
            if self._source is not None and (self._task is None or self._task.done()):
                self._task = asyncio.get_running_loop().create_task(self._source())

    def _remove(self, key: str, listener: "_Listener") -> None:
        with self._lock:
            group = self._listeners.get(key, set())
            group.discard(listener)
            if not group:
                self._listeners.pop(key, None)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None


class _Listener:
    """The newest hint not taken yet; None means closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self._seqno: int | None = None

    def push(self, seqno: int | None) -> None:
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._set(seqno)
        else:
            # The loop may be gone already; then nobody listens.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._set, seqno)

    async def next(self) -> int | None:
        await self._event.wait()
        self._event.clear()
        return self._seqno

    def _set(self, seqno: int | None) -> None:
        self._seqno = seqno
        self._event.set()
