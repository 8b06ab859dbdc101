"""What all handles of one client share: the way to its shards, its blobs, its settings and its background work."""

import contextlib
import weakref
from typing import Protocol

from persist.errors import UsageError
from persist.machine.attempts import Attempts
from persist.machine.port import Shards
from persist.machine.tasks import Tasks
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.open import open_blob
from persist.storage.ports import Blob


class Closable(Protocol):
    """Something with an asynchronous end."""

    async def aclose(self) -> None:
        """End it."""
        ...


class Location:
    """A persist location as one client sees it. Owns ``shards`` and any blob store it opens."""

    def __init__(
        self, shards: Shards, *, blob: Blob | None, settings: Settings, runtime: Runtime, owns_blob: bool = False
    ) -> None:
        self.shards = shards
        self.settings = settings
        self.runtime = runtime
        self.attempts = Attempts(settings=settings, runtime=runtime)
        self.tasks = Tasks()
        self.closing = False
        self.listens: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._closed = False
        self._blob = blob
        self._owned = blob if owns_blob else None

    @property
    def blob(self) -> Blob:
        """Where parts are written and read; opened at first use when the server says where it is."""
        if self._blob is None:
            self._blob = self._owned = open_blob(self.shards.blob_uri, settings=self.settings, runtime=self.runtime)
        return self._blob

    def check_open(self) -> None:
        """Raises UsageError once the client is closed."""
        if self.closing:
            raise UsageError("the client is closed", hint="open another client")

    async def end_listens(self) -> None:
        """Close every listen that nobody is waiting for at this moment."""
        for listen in list(self.listens):
            with contextlib.suppress(RuntimeError):  # somebody is: cancelling that somebody ends it
                await listen.aclose()

    async def close(self) -> None:
        """Stop background work and release connections. Closing again does nothing."""
        if self._closed:
            return
        self.closing = self._closed = True
        await self.tasks.close()
        await self.shards.close()
        if self._owned is not None:
            await self._owned.close()
