"""Following a shard that others move: while a caller waits, keep the cached state fresh.

Commits of this process wake waiters at once. Commits of other processes arrive by the store's own notifications, and
by a slow poll where those fail. Source: performance.md A6; persist-semantics.md feature rows 43, 44.
"""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator

from persist.core.shard.state import State
from persist.errors import Determinate, LocationError, PersistError
from persist.machine.applier import Applier
from persist.retry.counts import UNCOUNTED, Counts
from persist.retry.deadline import Deadline
from persist.retry.tasks import Tasks, failed
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Consensus


class Follower:
    """Wakes callers that wait for a shard to move. Runs only while there are any.

    A store that does not answer is asked again, without an error for ``settings.store_timeout_ms``. After that every
    waiting call fails, and so does every call whose time ends meanwhile: no answer from the store is no news of the
    shard. Any other failure is logged and counted, and raised at once. Following goes on, so that callers that wait
    then, or again, are woken as soon as all is well.
    """

    def __init__(
        self,
        applier: Applier,
        consensus: Consensus,
        tasks: Tasks,
        *,
        settings: Settings,
        runtime: Runtime,
        counts: Counts = UNCOUNTED,
    ) -> None:
        self._applier = applier
        self._consensus = consensus
        self._tasks = tasks
        self._settings = settings
        self._runtime = runtime
        self._counts = counts
        self._waiting = 0
        self._work: list[asyncio.Task[None]] = []
        self._scopes: set[asyncio.Timeout] = set()
        self._failures = 0
        self._failure: Exception | None = None
        self._missed: LocationError | None = None
        """Why the last look at the store saw nothing; None: it saw the newest state."""
        self._missed_at = 0.0

    @property
    def idle(self) -> bool:
        """No caller waits."""
        return self._waiting == 0

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Within this context, which begins with a state just read, the applier's state follows the store."""
        self._waiting += 1
        self._missed = None
        if self._waiting == 1:
            what = "following a shard"
            self._work = [self._tasks.spawn(self._listen(), what), self._tasks.spawn(self._poll(), what)]
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                for task in self._work:
                    task.cancel()
                self._work = []
                self._failure = None

    async def moved_past(self, state: State, deadline: Deadline) -> bool:
        """Wait for a newer state, or another history; False when the deadline passes first. Use within ``following``.

        Raises what the state could not be read for: CorruptData, HistoryRewound, VersionMismatch; Determinate when
        that was unexpected; LocationError while the store does not answer, instead of False. Ask again: the next wait
        returns what has happened by then.
        """
        failures = self._failures
        try:
            async with asyncio.timeout(deadline.remaining()) as scope:
                self._scopes.add(scope)
                try:
                    await self._applier.moved_past(state)
                finally:
                    self._scopes.discard(scope)
        except TimeoutError:
            if self._failures != failures and self._failure is not None:
                raise _own_error(self._failure) from self._failure
            if self._missed is not None:
                raise _own_error(self._missed) from self._missed
            return False
        return True

    async def _listen(self) -> None:
        pause_ms = self._settings.poll_first_ms
        while True:
            try:
                async for seqno in self._consensus.changes(self._applier.shard):
                    known = self._applier.cached
                    if known is None or seqno > known.seqno:
                        await self._refresh()
            except LocationError:
                pass
            except Exception as error:
                self._fail(error)
            # The stream ended or broke: the poll carries on while this one comes back.
            await self._runtime.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, self._settings.poll_max_ms)

    async def _poll(self) -> None:
        pause_ms = self._settings.poll_first_ms
        while True:
            await self._runtime.sleep(pause_ms / 1000)
            before = self._applier.cached
            await self._refresh()
            quiet = self._applier.cached is before
            # A store that fails is looked at again soon: callers wait for it to come back.
            most_ms = self._settings.poll_max_ms if self._missed is None else self._settings.retry_max_ms
            pause_ms = min(pause_ms * 2, most_ms) if quiet else self._settings.poll_first_ms

    async def _refresh(self) -> None:
        try:
            # One attempt, so that the first miss is known: the poll comes again.
            await self._applier.refresh(Deadline(self._runtime, self._settings.store_timeout_ms / 1000, once=True))
        except LocationError as error:
            self._miss(error)
        except Exception as error:
            self._fail(error)
        else:
            self._missed = None

    def _miss(self, error: LocationError) -> None:
        now = self._runtime.monotonic()
        if self._missed is None:
            self._missed_at = now
        self._missed = error
        if now - self._missed_at >= self._settings.store_timeout_ms / 1000:
            self._fail_waiters(error)

    def _fail(self, error: Exception) -> None:
        """Fail every waiting call; later ones ask the store first."""
        failed("following a shard", error, self._counts, shard=self._applier.shard)
        self._fail_waiters(error)

    def _fail_waiters(self, error: Exception) -> None:
        self._failures += 1
        self._failure = error
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)


def _own_error(failure: Exception) -> PersistError:
    """An error of its own for each waiting call: raising an error adds to it."""
    if isinstance(failure, PersistError):
        return copy.copy(failure)
    return Determinate("the shard could not be followed", hint="retry", kind=type(failure).__name__)
