"""Views and indexes that are brought forward by who reads them, where no process leads: at stores that machines share.

There servers lead, or a program does while it defines something. Where none does, who waits for a view computes it, as
processes with Spark do: each result is appended at exactly where the view stood, so of any number of readers one
appends it, and of one that was killed it is there or nothing is. Nothing here is fenced, and no history is given up.
Source: docs/adr/0027-readers-bring-views-forward.md; collections: the controller (views).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from persist.client.collections.access import Access
from persist.client.collections.reading.ticking import ATTENDED_SECONDS, Attended
from persist.client.collections.views.maintainer import PATIENCE_SECONDS, LateQueries, Maintainer, View
from persist.client.collections.views.materialized import Recomputing
from persist.core.catalog.values import Id
from persist.errors import PersistError
from persist.retry.tasks import Tasks

WANTED_SECONDS: Final = 3 * ATTENDED_SECONDS
"""How long what was waited for is kept up: who waits says so again before that."""
ALONE_SECONDS: Final = 30.0
"""How long who leads is not waited for again, once that was in vain."""
PAUSE_SECONDS: Final = 0.1
"""Between two passes."""

_log = logging.getLogger("persist.views")


class Bringing:
    """Of one environment in one process. ``attend``: see ``Leading``; ``view`` gives the catalog as it is known."""

    def __init__(self, access: Access, view: Callable[[], View], attend: Callable[[], Awaitable[Attended]]) -> None:
        self._access = access
        self._view = view
        self._attend = attend
        self._wanted: dict[Id, float] = {}
        self._alone = float("-inf")
        self._tasks = Tasks()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def want(self, ids: Collection[Id]) -> None:
        """These are read: where they are brought forward here, they are from now on, for a while."""
        until = self._access.client.location.runtime.monotonic() + WANTED_SECONDS
        self._wanted.update(dict.fromkeys(ids, until))

    async def attend(self) -> Attended:
        """Where the process that leads is, once none has to, or one does: HERE where this one does as much."""
        where = await self._attend()
        is_alone = self._access.client.location.runtime.monotonic() < self._alone
        return self._begun() if where is Attended.ENDED or (where is Attended.SILENT and is_alone) else where

    async def unattended(self) -> Attended:
        """As ``attend``, once who leads, if any does, was waited for in vain."""
        self._alone = self._access.client.location.runtime.monotonic() + ALONE_SECONDS
        return await self.attend()

    async def close(self) -> None:
        """End it, and release what it holds."""
        self._closed = True
        await self._tasks.close()

    def _begun(self) -> Attended:
        if self._access.queries is None or self._closed:
            return Attended.NOWHERE
        if self._task is not None and not self._task.done():
            return Attended.HERE
        self._task = self._tasks.start(self._run())
        return Attended.BEGUN

    async def _run(self) -> None:
        assert self._access.queries is not None
        runtime = self._access.client.location.runtime
        maintainer = Maintainer(
            self._access.client,
            self._view,
            Recomputing(LateQueries(self._access.queries)),
            now_ms=runtime.now_ms,
            patience=PATIENCE_SECONDS,
            wanted=self._left,
        )
        try:
            while self._left():
                try:
                    await maintainer.work()
                except PersistError as error:
                    _log.warning("views are not brought forward at present: %s", error)
                await runtime.sleep(PAUSE_SECONDS)
        finally:
            await maintainer.close()

    def _left(self) -> Collection[Id]:
        now = self._access.client.location.runtime.monotonic()
        self._wanted = {id: until for id, until in self._wanted.items() if until > now}
        return self._wanted.keys()
