"""What a pipeline does beside its steps, in a thread: it goes on with snapshots that were abandoned.

Source: catalog-semantics.md section 4.2.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from persist import PersistError
from persist.runtime import system
from persist_ingest.location import Location
from persist_ingest.pipeline.anew.again import read_anew
from persist_ingest.pipeline.anew.attempt import Pace, SnapshotLost
from persist_ingest.pipeline.anew.joining import join_new
from persist_ingest.pipeline.records import SILENT_MS, Source
from persist_ingest.pipeline.troubles import snapshotted

_log = logging.getLogger(__name__)

JOIN_SECONDS: Final = 10.0
"""Between two looks at what came upstream, of sources that are of everything there."""


class Watch:
    """That of one pipeline. One thing at a time, so that whatever a source has it is read by one session more."""

    def __init__(self, location: Location, name: str, *, minter: str, pace: Pace) -> None:
        self._location = location
        self._name = name
        self._minter = minter
        self._pace = pace
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._tried: dict[str, float] = {}
        self._joined_at = float("-inf")
        self.failed = 0
        """What it could not do; it is tried again."""

    def look(self, source: Source) -> None:
        """Begin with what there is to be done, unless something is under way."""
        if self._stopped.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        oldest, now = system().now_ms() - SILENT_MS, system().monotonic()
        abandoned = [export for export, each in snapshotted(source).items() if each.beat_ms < oldest]
        if abandoned:
            export = min(abandoned, key=lambda each: self._tried.get(each, float("-inf")))
            self._tried[export] = now
            self._begin(lambda: self._go_on(export))
        elif now - self._joined_at >= JOIN_SECONDS:
            self._joined_at = now
            self._begin(lambda: join_new(self._location, self._name))

    def wait(self) -> None:
        """Until what is under way is done."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Stop where another may go on."""
        self._stopped.set()
        self.wait()

    def _go_on(self, export: str) -> None:
        read_anew(
            self._location,
            self._name,
            export,
            minter=self._minter,
            pace=self._pace,
            stopped=self._stopped,
            goes_on=True,
        )

    def _begin(self, action: Callable[[], object]) -> None:
        def run() -> None:
            try:
                action()
            except SnapshotLost:
                _log.info("another process goes on with a snapshot of source %s", self._name)
            except PersistError as error:
                self.failed += 1
                _log.warning("source %s: %s", self._name, error)

        self._thread = threading.Thread(target=run, name=f"beside {self._name}", daemon=True)
        self._thread.start()
