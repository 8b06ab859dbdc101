"""What all handles of one client share: the way to its shards, its blobs, its settings and its background work."""

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from persist.client.shard.stalls import Stalls
from persist.core.ids import ShardId
from persist.errors import UsageError
from persist.machine.shards import Shards
from persist.retry.attempts import Attempts
from persist.retry.tasks import Tasks
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.open import open_blob
from persist.storage.ports import Blob

if TYPE_CHECKING:
    from persist.client.shard.claims import NameClaims


class Closable(Protocol):
    """Something with an asynchronous end."""

    async def aclose(self) -> None:
        """End it."""
        ...


@runtime_checkable
class Locating(Protocol):
    """A way to shards that has to ask where their data is."""

    async def locate(self, *, timeout: float) -> str:
        """Where parts are."""
        ...


class Location:
    """A persist location as one client sees it. Owns ``shards`` and any blob store it opens."""

    def __init__(
        self,
        shards: Shards,
        *,
        blob: Blob | None,
        settings: Settings,
        runtime: Runtime,
        owns_blob: bool = False,
        home: str = "",
    ) -> None:
        """``home``: the directory where all processes of the location meet, see ``storage.open.home_of``."""
        self.shards = shards
        self.home = home
        self.claims: NameClaims | None = None
        """Who says what names are before it follows from anything else."""
        self.settings = settings
        self.runtime = runtime
        self.attempts = Attempts(settings=settings, runtime=runtime)
        self.tasks = Tasks()
        self.stalls = Stalls(self)
        """Why reads wait in vain."""
        self.closing = False
        self.callers: dict[ShardId, Any] = {}
        """This client's sessions on shards where it has critical holds."""
        self.listens: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._closed = False
        self._blob = blob
        self._owned = blob if owns_blob else None

    def __str__(self) -> str:
        """The data's URI, and whether the client is closed."""
        where = "a place its servers name" if self._blob is None else self._blob.uri
        return f"{where}{' closed' if self.closing else ''}"

    @property
    def blob(self) -> Blob:
        """Where parts are written and read; opened at first use when the server says where it is."""
        if self._blob is None:
            self._blob = self._owned = open_blob(self.shards.blob_uri, settings=self.settings, runtime=self.runtime)
        return self._blob

    async def locate(self, *, timeout: float | None) -> None:
        """Find out where parts are, before any shard was opened. One RPC to servers, the first time."""
        shards = self.shards
        if self._blob is None and isinstance(shards, Locating):
            await self.attempts.repeat(self.attempts.deadline(timeout), lambda seconds: shards.locate(timeout=seconds))

    def check_open(self) -> None:
        """Raises UsageError once the client is closed."""
        if self.closing:
            raise UsageError("the client is closed", hint="open another client")

    async def end_listens(self) -> None:
        """Close every listen that no caller is waiting for at this moment."""
        for listen in list(self.listens):
            with contextlib.suppress(RuntimeError):  # a task waits: cancelling that task ends it
                await listen.aclose()

    async def close(self) -> None:
        """Stop background work and release connections. Closing again does nothing."""
        if self._closed:
            return
        self.closing = self._closed = True
        self.attempts.end()
        await self.tasks.close()
        await self.shards.close()
        if self._owned is not None:
            await self._owned.close()
