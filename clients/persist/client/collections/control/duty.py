"""Duty: something that a leader does again and again, each time from where things are, so that any of it may fail.

Source: collections: the controller; reliability.md I25.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from persist.core.catalog.errors import Fenced, OutOfSync
from persist.errors import Determinate, LocationError
from persist.retry.counts import UNCOUNTED, Labels
from persist.retry.tasks import failed
from persist.runtime import Runtime

FAILED: Final = "persist_control_failures_total"
PASSES: Final = "persist_control_passes_total"
BEHIND: Final = "persist_control_behind_seconds"
PAUSE_SECONDS_MAX: Final = 30.0
AGAIN_SECONDS: Final = 0.01
"""After a commit that lost; then twice as long each time."""

_log = logging.getLogger("persist.control")


class Gauges(Protocol):
    """Where values are reported beside counters: a service's telemetry."""

    def count(self, name: str, labels: Labels = (), by: float = 1) -> None:
        """Add to a counter."""
        ...

    def gauge(self, name: str, labels: Labels, value: float) -> None:
        """Set a gauge."""
        ...


class Unwatched:
    """A library without telemetry."""

    def count(self, name: str, labels: Labels = (), by: float = 1) -> None:
        """Do nothing."""

    def gauge(self, name: str, labels: Labels, value: float) -> None:
        """Do nothing."""


class Duty:
    """One of what a controller does: ``work`` is called every ``period`` seconds, and at once when it is woken.

    ``work`` is repeatable at any point. What it raises is counted and logged, and it is called again, later each time
    that it fails: but Fenced ends it, as it ends all others.
    """

    def __init__(
        self,
        name: str,
        period: float,
        work: Callable[[], Awaitable[object]],
        *,
        runtime: Runtime,
        gauges: Gauges,
        check: Callable[[], None],
        fenced: Callable[[Fenced], None],
    ) -> None:
        self.name = name
        self.passes = 0
        self.failures = 0
        self._period = period
        self._work = work
        self._runtime = runtime
        self._gauges = gauges
        self._check = check
        self._fenced = fenced
        self._woken = asyncio.Event()
        self._done = asyncio.Event()
        self._is_over = False

    def wake(self) -> None:
        """There is something to do."""
        self._woken.set()

    async def once(self) -> None:
        """Do it now. Raises what it raises, and what ``check`` does: nothing else has met a later leader."""
        self._check()
        await self._work()
        self.passes += 1

    async def passed(self) -> None:
        """Return when all of what there is now was looked at, and done, once. Raises Fenced, Determinate (it ended)."""
        wanted = self.passes + 2
        while self.passes < wanted:
            self._check()
            if self._is_over:
                raise Determinate("what leads was closed", hint="ask the present leader", duty=self.name)
            self.wake()
            done = self._done
            await done.wait()

    async def run(self) -> None:
        """Until cancelled, or fenced."""
        try:
            await self._again_and_again()
        except Fenced as error:
            self._fenced(error)
        finally:
            self._is_over = True
            self._done.set()

    async def _again_and_again(self) -> None:
        labels, pause = (("duty", self.name),), 0.0
        while True:
            began, self._woken = self._runtime.monotonic(), asyncio.Event()
            try:
                await self.once()
            except Fenced:
                raise
            except OutOfSync:
                # Another session defined something meanwhile: from there, soon. What stays out of sync must not spin.
                pause = min(2 * pause or AGAIN_SECONDS, PAUSE_SECONDS_MAX)
            except Exception as error:
                self.failures += 1
                self._gauges.count(FAILED, labels)
                pause = min(max(2 * pause, self._period), PAUSE_SECONDS_MAX)
                if isinstance(error, LocationError):
                    _log.warning("%s: the location did not answer, going on in %.1f s: %s", self.name, pause, error)
                else:
                    failed(f"controlling collections: {self.name}", error, UNCOUNTED)
            else:
                pause = 0.0
                self._gauges.count(PASSES, labels)
            took = self._runtime.monotonic() - began
            self._gauges.gauge(BEHIND, labels, max(0.0, took + pause - self._period))
            done, self._done = self._done, asyncio.Event()
            done.set()
            await self._wait(pause or max(0.0, self._period - took), also_woken=not pause)

    async def _wait(self, seconds: float, *, also_woken: bool) -> None:
        if not also_woken:
            await self._runtime.sleep(seconds)
            return
        waiting = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            waiting.cancel()
