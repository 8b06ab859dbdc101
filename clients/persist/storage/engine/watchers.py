"""Listeners by key: hints fan out to them, each keeping only the newest, so memory stays bounded.

``Watchers.notify`` may be called from any thread. While there are listeners, ``source`` runs: an adapter's own way to
receive commits by others. ``Announcer`` is the other end, for stores that are notified of a commit by a call of its
own.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping

from persist.errors import LocationError
from persist.runtime import Runtime

_LAST_SECONDS = 1.0
"""How long closing waits for the last hints to go out."""
_RETRY_SECONDS_MAX = 1.0


class Watchers:
    """The listeners of one store.

    ``source``: runs (on the loop of the first listener) from the first listener to the last. ``added``: awaited for
    every new listener's key; it should cause a hint with the key's head, so that no listener waits for news it missed.
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
        """Every key with a listener."""
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
            # The loop may be gone already; then there is no listener.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._set, seqno)

    async def next(self) -> int | None:
        await self._event.wait()
        self._event.clear()
        return self._seqno

    def _set(self, seqno: int | None) -> None:
        # The same commit may be announced in several ways: one that comes late must not hide a newer one.
        if seqno is None or not self._event.is_set():
            self._seqno = seqno
        elif self._seqno is not None:
            self._seqno = max(self._seqno, seqno)
        self._event.set()


class Announcer:
    """Announces commits to others, beside the commits: nothing waits for it, and many commits go out as one call.

    The first commit after a quiet time goes out at once, later ones ``pause`` seconds after the call before. Hints
    that could not be sent are kept, the newest of each key, and sent later; those lost with this process cost others
    the wait for their next poll. One event loop.
    """

    def __init__(
        self, send: Callable[[Mapping[str, int]], Awaitable[None]], runtime: Runtime, *, pause: float = 0.005
    ) -> None:
        """``send`` gets the newest seqno by key; raises LocationError when it did not get through."""
        self._send = send
        self._runtime = runtime
        self._pause = pause
        self._pending: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def announce(self, key: str, seqno: int) -> None:
        """Announce a commit soon. Never waits, never raises."""
        self._pending[key] = max(seqno, self._pending.get(key, seqno))
        if self._task is None and not self._closing:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Send what is pending, within a moment."""
        self._closing = True
        task = self._task
        if task is not None:
            await asyncio.wait({task}, timeout=_LAST_SECONDS)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        pause = self._pause
        try:
            while self._pending:
                sending, self._pending = self._pending, {}
                try:
                    await self._send(sending)
                    pause = self._pause
                except LocationError:
                    if self._closing:
                        return
                    self._pending = {**sending, **self._pending}
                    pause = min(pause * 2, _RETRY_SECONDS_MAX)
                if not self._closing:
                    await self._runtime.sleep(pause)
        finally:
            self._task = None
