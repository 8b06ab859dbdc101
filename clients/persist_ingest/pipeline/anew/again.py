"""Snapshotting one export again, in place, while the others go on.

What the export held is taken back, and what its upstream holds put there, at one time. Until then the record says that
the export is being snapshotted and how far that is, so pipelines release nothing that it is going to read, and the
next one to find it abandoned goes on with it.
Source: sources.md section 1; catalog-semantics.md section 4.2.
"""

import contextlib
import difflib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from persist import InvalidArgument, PersistError, UsageError
from persist.runtime import system
from persist.sources import SILENT_MS, RemapTrace, UpstreamReplaced
from persist_ingest.location import Location, client
from persist_ingest.pipeline.anew.attempt import Attempt, Pace, SnapshotLost, discard, leave
from persist_ingest.pipeline.records import Records, Source, is_silent
from persist_ingest.pipeline.troubles import SNAPSHOTTING, Trouble, amend, stopped, troubles, with_trouble
from persist_ingest.sources.port import ReadsApart, is_apart
from persist_ingest.sources.registry import source_type

BEAT_SECONDS: Final = SILENT_MS / 1000 / 3
"""How often an attempt says that it is at work: several times until it is taken for gone."""


def resnapshot(
    location: Location,
    name: str,
    export: str,
    *,
    minter: str = "",
    pace: Pace | None = None,
    report: Callable[[int], None] = lambda rows: None,
) -> Source:
    """Have one export hold what its upstream holds now, and go on from there; whether it runs or is stalled.

    Each time before stays what it was. One that was broken off goes on where it was. On a definite failure the export
    is stalled, or goes on if nothing was read yet. ``report`` gets how many rows were read. Raises SourceNotFound,
    InvalidArgument (no such export, or it cannot), SnapshotLost, SourceFailure (what to correct upstream first),
    LocationError (a pipeline, or another call, goes on with it).
    """
    done = read_anew(location, name, export, minter=minter, pace=pace, report=report, decided=True)
    assert done is not None
    return done


def read_anew(
    location: Location,
    name: str,
    export: str,
    *,
    minter: str = "",
    pace: Pace | None = None,
    report: Callable[[int], None] = lambda rows: None,
    stopped: threading.Event | None = None,
    goes_on: bool = False,
    attempt: str = "",
    decided: bool = False,
) -> Source | None:
    """``resnapshot`` until it is done, or ``stopped``: then None. ``goes_on``: only with one that was begun.

    ``attempt``: the name under which the record says already that this one is at work. ``decided``: a person has it
    read from the server that answers, whatever others had.
    """
    here = location.resolved()
    records = Records(client(here))
    source = records.source(name)
    kind = source_type(source.type)
    check_export(source, export)
    if is_apart(kind, source.definition) and not isinstance(kind, ReadsApart):
        return arrived(here, source, export, minter=minter, attempt=attempt or new_attempt())
    if not isinstance(kind, ReadsApart):
        raise InvalidArgument("this type of source has no snapshots", hint="create it again", type=source.type)
    before = troubles(source).get(export)
    source, mine = _claimed(records, source, export, goes_on, attempt or new_attempt())
    the_minter = client(here).minter(minter)
    work = Attempt(
        here,
        source,
        export,
        mine,
        kind,
        the_minter,
        pace=pace or Pace(),
        report=report,
        stopped=stopped or threading.Event(),
        decided=decided,
    )
    try:
        with _beating(records, source, export, mine):
            done = work.run()
        if done is None:
            leave(records, source, export, mine, _left)
        return done
    except SnapshotLost:
        raise
    except UsageError as error:
        with contextlib.suppress(PersistError):
            _given_back(records, source, export, mine, before, work, error)
        raise
    except BaseException:
        leave(records, source, export, mine, _left)
        raise
    finally:
        the_minter.close()


def arrived(here: Location, source: Source, export: str, *, minter: str, attempt: str) -> Source:
    """Have an export run that joined, of a type without snapshots: it holds nothing of all times until now.

    SUBTLE: while the record says that it is being snapshotted, pipelines forget no bindings and bind nothing of it. So
    what is complete then is a time before which none of it is bound, and after which no binding is missing.
    Raises InvalidArgument for one that runs or is stalled, SnapshotLost, LocationError.
    """
    known = troubles(source).get(export)
    if known is None or known.state != SNAPSHOTTING:
        raise InvalidArgument(
            "this type of source has no snapshots",
            hint="persist source drop-table ends the table, and add-table makes it anew, from where its topic begins",
            source=source.name,
            export=export,
        )
    the_client, records = client(here), Records(client(here))
    source, mine = _claimed(records, source, export, True, attempt)
    the_minter = the_client.minter(minter)
    try:
        trace: RemapTrace = the_minter.bindings(source.remap_source)
        writer = the_client.open_writer(source.exports[export])
        upper = the_client.recent_upper(source.exports[export])
        if upper.less_than(trace.upper):
            # Another one may have been faster, to a time of its own.
            writer.compare_and_append_batches([], upper, trace.upper)
    finally:
        the_minter.close()

    def place(found: Source) -> Source:
        told = troubles(found).get(export)
        return with_trouble(found, export, None) if told is not None and told.attempt == mine.attempt else found

    return amend(records, source, place)


def _left(known: Trouble) -> Trouble:
    """To the next that goes on with it, at once."""
    return replace(known, beat_ms=0)


def check_export(source: Source, export: str) -> None:
    """Raise InvalidArgument, with what was meant, where the source has no such export."""
    if export not in source.exports:
        near = difflib.get_close_matches(export, source.exports, 3, 0.5)
        raise InvalidArgument(
            "the source has no such export",
            hint=f"did you mean {' or '.join(near)}?" if near else "persist source status shows them",
            source=source.name,
            export=export,
        )


def new_attempt() -> str:
    """A name for an attempt, which no other has."""
    return system().random_bytes(8).hex()


def _claimed(records: Records, source: Source, export: str, goes_on: bool, attempt: str) -> tuple[Source, Trouble]:
    """The record says that this attempt snapshots the export. Raises InvalidArgument while another one does."""
    now = system().now_ms()

    def place(found: Source) -> Source:
        known = troubles(found).get(export)
        is_mine = known is not None and known.attempt == attempt
        is_beating = known is not None and known.attempt and not is_silent(known.beat_ms, now, SILENT_MS)
        if known is not None and known.state == SNAPSHOTTING and is_beating and not is_mine:
            raise InvalidArgument(
                "this export is being snapshotted already", hint="wait for that", source=source.name, export=export
            )
        if goes_on and (known is None or known.state != SNAPSHOTTING):
            raise SnapshotLost("this snapshot is over", hint="see the status of the source", export=export)
        trouble = known or Trouble(state=SNAPSHOTTING, since_ms=now)
        return with_trouble(found, export, replace(trouble, state=SNAPSHOTTING, attempt=attempt, beat_ms=now))

    found = amend(records, source, place)
    return found, troubles(found)[export]


def _given_back(
    records: Records,
    source: Source,
    export: str,
    mine: Trouble,
    before: Trouble | None,
    work: Attempt,
    error: UsageError,
) -> None:
    """The export is what it was. Why it could not be mended says more than why it stopped.

    One that ran, and whose snapshot had begun, has nothing in the log to go on from any more.
    """
    if isinstance(error, UpstreamReplaced) and (before is not None or work.progress is not None):
        # It says nothing of the export: a process that reaches the right server goes on.
        leave(records, source, export, mine, _left)
        return
    if work.progress is not None:
        discard(work.here, work.progress, work.pace.state_dir)
    runs = before is None and work.progress is None
    told = Trouble.of(error)
    if before is not None:
        told = replace(told, since_ms=before.since_ms)

    def place(found: Source) -> Source:
        known = troubles(found).get(export)
        if known is None or known.attempt != mine.attempt:
            return found
        return with_trouble(found, export, None) if runs else stopped(found, export, told, error, work.kind)

    amend(records, source, place)


@contextlib.contextmanager
def _beating(records: Records, source: Source, export: str, mine: Trouble) -> Iterator[None]:
    """Say now and then that the attempt is at work."""
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(BEAT_SECONDS):
            leave(records, source, export, mine, lambda known: replace(known, beat_ms=system().now_ms()))

    thread = threading.Thread(target=beat, name=f"snapshotting {export}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
