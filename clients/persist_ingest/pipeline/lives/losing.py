"""What a source keeps in mind of an upstream that lost a part of the history that was read of it.

Files of a server that were put back show that only until it has logged as much again. Where others go on with a server
that has everything, it is the process that is led elsewhere; where none does, every export stands aside, until it is
read anew, or until a process is at a server that is certainly not the one that was seen.
Source: sources.md section 1, semantics seen; catalog-semantics.md section 4.2, restart checks;
docs/adr/0031-lost-histories-by-runs.md.
"""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import persist
from persist import Determinate, LocationError, PersistError, UsageError
from persist.runtime import system
from persist.sources import BindingLog, UpstreamRegressed, UpstreamReplaced
from persist_ingest.pipeline.lives.admitting import (
    Admission,
    admitted,
    binds_elsewhere,
    check_admitted,
    declared,
    set_aside,
    taken_back,
    waiting,
)
from persist_ingest.pipeline.lives.succeeding import succeed
from persist_ingest.pipeline.records import Records, Source
from persist_ingest.pipeline.troubles import Trouble, amend, running, snapshotted, with_trouble
from persist_ingest.sources.lives import HistoryLost, Lags, OnServer, ServerRun
from persist_ingest.sources.port import Remembers, SourceType, is_apart

if TYPE_CHECKING:
    from persist.sources import Minter

_log = logging.getLogger(__name__)

LOST: Final = (UpstreamRegressed, HistoryLost)
"""What proves that an upstream lost a part of the history that was read, and cannot be seen any more once it grew."""
Ended = Callable[[Trouble], None]
"""Takes a snapshot that ended, with how far it was."""
_AGAIN: Final = (
    "if this is another server than the one that was read: have the connection lead back there (dsn, PGHOST, DNS), and "
    "tables go on by themselves; if its files were put back: once its log has grown beyond what was read, snapshot it "
    "again (persist source resnapshot)"
)
_LOOK_SECONDS: Final = 1.0


class Losses:
    """What a process does of one source when its upstream has less than was bound, and when it has all of it again."""

    def __init__(self, client: "persist.Client", records: Records) -> None:
        self._client = client
        self._records = records
        self._looked_at = float("-inf")
        self.admission = Admission(client, records)

    def keep_in_mind(self, source: Source, kind: object, reader: object, error: PersistError, end: Ended) -> None:
        """After one of ``LOST``: no export goes on by itself, as what it holds may be of the history that is lost.

        Each is right at the times it has, and stands aside until it is snapshotted again, which succeeds once the
        upstream has more than was bound. Raises, and has nothing stand aside, Determinate (it is a standby that lags),
        UpstreamReplaced (others go on with another server). ``end`` gets each snapshot that ends so.
        """
        if isinstance(reader, Lags) and reader.lags():
            raise Determinate(
                "the server does not have all of the log yet that another one had",
                hint="it is tried again once it has; or name the primary (target_session_attrs=read-write)",
            ) from error
        trouble = replace(Trouble.of(error), hint=_AGAIN)
        if not isinstance(reader, OnServer):
            _stalled(self._records, source, kind, trouble, end)
            return
        # First: from then on none begins to bind from that one.
        was_read = isinstance(error, UpstreamRegressed) and declared(self._records, source, reader.run())
        self._stand_aside(source, kind, None if was_read else reader.run(), trouble, error, end)

    def succeed(
        self, source: Source, kind: object, error: PersistError, end: Ended, *, decided: bool = False
    ) -> Source:
        """As ``succeeding.succeed``, of which a run that may have had less is none: then nothing goes on by itself."""

        def admit(run: ServerRun) -> None:
            if decided and not running(source):
                return
            try:
                check_admitted(self._records, source, run)
            except HistoryLost as lost:
                self._stand_aside(source, kind, run, replace(Trouble.of(lost), hint=_AGAIN), lost, end)
                raise

        return succeed(self._client, self._records, source, kind, error, admit, decided=decided)

    def _stand_aside(
        self,
        source: Source,
        kind: object,
        run: ServerRun | None,
        trouble: Trouble,
        error: PersistError,
        end: Ended,
    ) -> None:
        """``run``: of the server that this one is led to; None: it is the one that was read."""
        if run is not None:
            if binds_elsewhere(self._client, self._records, source, run):
                raise UpstreamReplaced(
                    "this server has less than was bound, and other ingesters go on with one that has all of it: this "
                    "is a copy of its files, or a standby that was promoted aside",
                    hint="have the connection of this one lead where theirs do (dsn, PGHOST, DNS)",
                    **error.details,
                ) from error
            set_aside(self._records, source, trouble.since_ms)
        _stalled(self._records, source, kind, trouble, end)

    def mended(self, source: Source, kind: SourceType, minter: "Minter") -> Source:
        """A source of which no export runs; or all do again that stood aside for a server that this one is not.

        Raises LocationError.
        """
        if system().monotonic() - self._looked_at < _LOOK_SECONDS:
            return source
        self._looked_at = system().monotonic()
        exports = waiting(self._records, source)
        if not exports:
            return source
        try:
            trace = minter.bindings(source.remap_source)
            reader = kind.open(source.definition, {})
            try:
                if isinstance(reader, Remembers):
                    reader.remember(trace.frontier)
                reader.probe().wanted(BindingLog(trace=trace, incarnation=source.incarnation))
                assert isinstance(reader, OnServer)
                admitted(self._records, source, reader.run())
            finally:
                reader.close()
        except HistoryLost as error:
            _log.info("exports of source %s stand aside still: %s", source.name, error)
            return source
        except UpstreamReplaced as error:
            return self._succeeded(source, kind, error)
        except UsageError as error:
            _log.info("exports of source %s stand aside still: %s", source.name, error)
            return source
        _log.warning(
            "source %s goes on with the server that it was read from: what had less is another one", source.name
        )
        return taken_back(self._records, source, exports)

    def _succeeded(self, source: Source, kind: SourceType, error: UpstreamReplaced) -> Source:
        """The source on a later life of its upstream, which is looked at next: what stands aside does so still."""
        try:
            after = succeed(
                self._client, self._records, source, kind, error, lambda run: check_admitted(self._records, source, run)
            )
        except UsageError as refused:
            _log.info("exports of source %s stand aside still: %s", source.name, refused)
            return source
        self._looked_at = float("-inf")
        return after


def _stalled(records: Records, source: Source, kind: object, trouble: Trouble, end: Ended) -> None:
    """Have every export stand aside."""
    ended: list[Trouble] = []

    def place(now: Source) -> Source:
        after = now
        ended.clear()
        # One that another process put right meanwhile is of a later turn.
        if now.turn == source.turn and is_apart(kind, now.definition):
            # What a snapshot has read so far may be of the lost history, too: it ends, and another one begins anew.
            ended.extend(snapshotted(now).values())
            for export in running(now):
                after = with_trouble(after, export, trouble)
            for export, each in snapshotted(now).items():
                # SUBTLE: it stopped at another time: those of this one go on where they were.
                after = with_trouble(after, export, replace(trouble, since_ms=each.since_ms))
        return after

    amend(records, source, place)
    for each in ended:
        # What was lost is the error to be raised, and what stays costs no more than room.
        with contextlib.suppress(LocationError):
            end(each)
