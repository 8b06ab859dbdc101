"""What a pipeline does beside its steps, in a thread: it goes on with abandoned snapshots, and counts rows.

While no export runs there are no steps that would have the upstream forget anything: that is done here then.

Source: catalog-semantics.md section 4.2.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from persist import PersistError
from persist.runtime import system
from persist.sources import SILENT_MS, SourceFrontier, SourceKind
from persist_ingest.location import Location, client
from persist_ingest.pipeline.anew.again import read_anew
from persist_ingest.pipeline.anew.attempt import Pace, SnapshotLost, discard_ended
from persist_ingest.pipeline.anew.joining import join_new
from persist_ingest.pipeline.lives.admitting import is_read
from persist_ingest.pipeline.records import Records, Source, is_silent
from persist_ingest.pipeline.troubles import Trouble, held, running, snapshotted
from persist_ingest.sources.foreseen import foreseen
from persist_ingest.sources.lives import OnServer
from persist_ingest.sources.port import SourceReader
from persist_ingest.sources.registry import source_type
from persist_ingest.sources.tables.silence import ended_by

_log = logging.getLogger(__name__)

LOST_MAX: Final = 3
"""How often the silence is doubled after which a snapshot is taken over that others took over of this one."""

JOIN_SECONDS: Final = 10.0
"""Between two looks at what came upstream, of sources that are of everything there."""


class Watch:
    """That of one pipeline. One thing at a time, so that whatever a source has it is read by one session more."""

    def __init__(
        self,
        location: Location,
        name: str,
        *,
        minter: str,
        pace: Pace,
        beside: Callable[[Source], Callable[[], None] | None] = lambda source: None,
    ) -> None:
        """``beside``: gives what else is to be done, when nothing of that is."""
        self._location = location
        self._name = name
        self._minter = minter
        self._pace = pace
        self._beside = beside
        self._stopped = threading.Event()
        self._reader: SourceReader | None = None
        self._opened: Mapping[str, object] = {}
        self._records = Records(client(location))
        self._thread: threading.Thread | None = None
        self._tried: dict[str, float] = {}
        self._lost: Counter[str] = Counter()
        self._joined_at = float("-inf")
        self.failed = 0
        """What it could not do; it is tried again."""
        self.report: Callable[[int], None] = lambda rows: None
        """Gets how many rows were read."""
        self.errors: dict[str, PersistError] = {}
        """By export, what its snapshot ended with last."""

    def look(self, source: Source) -> None:
        """Begin with what there is to be done, unless something is under way. Raises as a reader's ``commit``."""
        if not running(source):
            self._release(source)
        if self._stopped.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        now_ms, now = system().now_ms(), system().monotonic()
        abandoned = [
            export
            for export, each in snapshotted(source).items()
            if is_silent(each.beat_ms, now_ms, self.silent_ms(export))
        ]
        if abandoned:
            export = min(abandoned, key=lambda each: self._tried.get(each, float("-inf")))
            self._tried[export] = now
            self._begin(lambda: self._go_on(export), export)
        elif now - self._joined_at >= JOIN_SECONDS:
            self._joined_at = now
            self._begin(lambda: join_new(self._location, self._name))
        elif (more := self._beside(source)) is not None:
            self._begin(more)

    def silent_ms(self, export: str) -> int:
        """How long an attempt is silent that this one takes over.

        SUBTLE: each takeover breaks off the piece that is under way. Where all are slow, two that took over of each
        other after a fixed time could do that for ever, and none would finish a piece.
        """
        return int(SILENT_MS * 2 ** min(self._lost[export], LOST_MAX))

    def wait(self, seconds: float | None = None) -> None:
        """Until what is under way is done, or for so long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def discard(self, ended: Trouble) -> None:
        """What a snapshot read goes, which ended for good. Raises LocationError."""
        discard_ended(self._location, ended, self._pace.state_dir)

    def close(self) -> None:
        """Stop where another may go on."""
        self._stopped.set()
        self.wait()
        self._close_reader()

    def _release(self, source: Source) -> None:
        """Have the upstream forget what every export that is read anew has taken into account.

        SUBTLE: each of them needs the log from its own hold on, which only rises; and one that begins later than this
        record was read begins beyond all that was held then. So nothing that is needed lies before the least of them.
        """
        hold = held(source, system().now_ms() - SILENT_MS)
        if hold is None:
            return
        if self._opened != source.definition:
            # It is somewhere else by now, or another life of it.
            self._close_reader()
        if self._reader is None:
            self._reader = source_type(source.type).open(source.definition, {})
            self._opened = source.definition
        try:
            self._reader.probe()
            # Who reads it has admitted it.
            run = self._reader.run() if isinstance(self._reader, OnServer) else None
            if hold and is_read(self._records, source, run):
                self._reader.commit(SourceFrontier.at(SourceKind(source.kind), {0: hold}))
        except PersistError:
            self._close_reader()
            raise

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader, self._opened = None, {}

    def _go_on(self, export: str) -> None:
        read_anew(
            self._location,
            self._name,
            export,
            minter=self._minter,
            pace=self._pace,
            report=self.report,
            stopped=self._stopped,
            goes_on=True,
        )

    def _begin(self, action: Callable[[], object], export: str = "") -> None:
        def run() -> None:
            try:
                with ended_by(self._stopped), foreseen():
                    action()
                self.errors.pop(export, None)
                self._lost.pop(export, None)
            except SnapshotLost:
                self._lost[export] += 1
                _log.info("another process goes on with a snapshot of source %s", self._name)
            except PersistError as error:
                self.failed += 1
                self.errors[export] = error
                _log.warning("source %s: %s", self._name, error)

        self._thread = threading.Thread(target=run, name=f"beside {self._name}", daemon=True)
        self._thread.start()
