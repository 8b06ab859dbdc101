"""Snapshotting one export again, in place, while the others go on.

What the export held is taken back, and what its upstream holds put there, at one time: that of a position of the log,
to which changes up to the end of its binding belong, too. Until that is durable the record says that the export is
being snapshotted, so pipelines let nothing go that it is going to read; whoever says so and dies is taken for gone.
Source: sources.md section 1, consistent snapshot; catalog-semantics.md section 4.2.
"""

import contextlib
import difflib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from persist import InvalidArgument, PersistError, UpperMismatch, UsageError
from persist.runtime import system
from persist.sources import Reclocker, RemapTrace, SourceFrontier
from persist_ingest.location import Location, client
from persist_ingest.pipeline.records import SILENT_MS, Records, Source
from persist_ingest.pipeline.state import Contents
from persist_ingest.pipeline.troubles import SNAPSHOTTING, STALLED, Trouble, amend, troubles, with_trouble
from persist_ingest.pipeline.work import ExportPlan, Work, carry_out, prepared
from persist_ingest.sources.port import BegunAgain, ReadsApart, SchemaGrew, TableAltered
from persist_ingest.sources.registry import source_type

if TYPE_CHECKING:
    from persist.sources import Minter

TRIES: Final = 5
"""How often it begins anew where pipelines that did not hear of it yet, or changes of the table, were faster."""
BEATS: Final = 3
PAUSE_SECONDS: Final = 1.0


class SnapshotLost(UsageError):
    """Another attempt to snapshot this export took over, or it fell silent for long. Look at its status, and repeat."""

    reason = "SNAPSHOT_LOST"


def resnapshot(
    location: Location,
    name: str,
    export: str,
    *,
    minter: str = "",
    report: Callable[[int], None] = lambda rows: None,
) -> Source:
    """Have one export hold what its upstream holds now, and go on from there; whether it runs or is stalled.

    Each time before stays what it was. On a failure the export is what it was, and stalled if it was. ``report`` hears
    how many rows were written. Raises SourceNotFound, InvalidArgument (no such export, or it cannot), SnapshotLost,
    SourceFailure (what to correct upstream first), LocationError.
    """
    here = location.resolved()
    records = Records(client(here))
    source = records.source(name)
    kind = source_type(source.type)
    _check_export(source, export)
    if not isinstance(kind, ReadsApart):
        raise InvalidArgument("this type of source has no snapshots", hint="create it again", type=source.type)
    before = troubles(source).get(export)
    source, mine = _claimed(records, source, export)
    try:
        with _beating(records, source, export, mine):
            return _tried(here, records, source, export, mine, kind, minter, report)
    except BaseException as error:
        with contextlib.suppress(PersistError):
            _given_back(records, source, export, mine, before, error)
        raise


def _tried(
    here: Location,
    records: Records,
    source: Source,
    export: str,
    mine: Trouble,
    kind: ReadsApart,
    endpoints: str,
    report: Callable[[int], None],
) -> Source:
    the_client = client(here)
    minter = the_client.minter(endpoints)

    def still_mine() -> None:
        _check_mine(records.source(source.name), export, mine)

    try:
        for left in reversed(range(TRIES)):
            try:
                schema = the_client.schema(source.exports[export])
                with kind.snapshot_again(source.definition, export, schema) as begun:
                    if _is_written(here, source, export, begun, minter, report, still_mine):
                        return _finished(records, source, export, mine, begun)
            except (SchemaGrew, TableAltered):
                # The table was altered between its snapshot and the end of what was read.
                if not left:
                    raise
            threading.Event().wait(PAUSE_SECONDS)
        raise SnapshotLost(
            "others appended to this export all the time", hint="again later", source=source.name, export=export
        )
    finally:
        minter.close()


def _is_written(
    here: Location,
    source: Source,
    export: str,
    begun: BegunAgain,
    minter: "Minter",
    report: Callable[[int], None],
    still_mine: Callable[[], None],
) -> bool:
    """Whether all of it is durable; if not, somebody else appended to the export meanwhile."""
    the_client, shard = client(here), source.shards[export]
    if the_client.schema(shard) != begun.schema:
        the_client.evolve_schema(shard, begun.schema)
    writer = the_client.open_writer(shard)
    trace = _bound(source, begun.bound, minter)
    reclocker = Reclocker.of(trace)
    at, end = _end_of(trace, reclocker, begun.bound)
    lower = the_client.recent_upper(shard)
    if lower.time is None or lower.time > at:
        return False
    plan = ExportPlan(
        spec=writer.batch_spec(),
        lower=lower.time,
        upper=at + 1,
        contents=Contents(location=here, shard=str(shard)),
    )
    done = carry_out(Work(task=begun.read(end), reclocker=reclocker, exports={export: plan}), report)
    # An attempt that was given up while it read may have read less: what it needed upstream was let go.
    still_mine()
    outcome = writer.compare_and_append_batches(prepared([done], export), lower, [at + 1])
    return not isinstance(outcome, UpperMismatch)


def _bound(source: Source, bound: SourceFrontier, minter: "Minter") -> RemapTrace:
    trace: RemapTrace = minter.bindings(source.remap_source)
    if not bound.less_equal(trace.frontier):
        minter.mint(source.remap_source, bound, high=bound)
        trace = minter.bindings(source.remap_source)
    return trace


def _end_of(trace: RemapTrace, reclocker: Reclocker, bound: SourceFrontier) -> tuple[int, SourceFrontier]:
    """The time of what lies right before this position, and how far what has that time goes."""
    last = (bound.bound(0) or 1) - 1
    at = int(reclocker.reclock_arrow(pa.array([last], pa.uint64()), None)[0].as_py())
    return at, trace.at(at)


def _check_export(source: Source, export: str) -> None:
    if export not in source.exports:
        near = difflib.get_close_matches(export, source.exports, 3, 0.5)
        raise InvalidArgument(
            "the source has no such export",
            hint=f"did you mean {' or '.join(near)}?" if near else "persist source status shows them",
            source=source.name,
            export=export,
        )


def _claimed(records: Records, source: Source, export: str) -> tuple[Source, Trouble]:
    """The record says that this attempt snapshots the export. Raises InvalidArgument while another one does."""
    now = system().now_ms()
    attempt = system().random_bytes(8).hex()

    def place(found: Source) -> Source:
        known = troubles(found).get(export)
        if known is not None and known.state == SNAPSHOTTING and known.beat_ms >= now - SILENT_MS:
            raise InvalidArgument(
                "this export is being snapshotted already", hint="wait for that", source=source.name, export=export
            )
        trouble = known or Trouble(state=SNAPSHOTTING, since_ms=now)
        return with_trouble(found, export, replace(trouble, state=SNAPSHOTTING, attempt=attempt, beat_ms=now))

    found = amend(records, source, place)
    return found, troubles(found)[export]


def _finished(records: Records, source: Source, export: str, mine: Trouble, begun: BegunAgain) -> Source:
    def place(found: Source) -> Source:
        _check_mine(found, export, mine)
        after = replace(found, definition=begun.renewed(found.definition), turn=found.turn + 1)
        return with_trouble(after, export, None)

    return amend(records, source, place)


def _given_back(
    records: Records, source: Source, export: str, mine: Trouble, before: Trouble | None, error: BaseException
) -> None:
    """The export is what it was. Why it could not be mended says more than why it stopped."""
    if before is not None and isinstance(error, UsageError):
        told = Trouble.of(error)
        before = replace(before, error=told.error, hint=told.hint)
    after = None if before is None else replace(before, state=STALLED, attempt="")

    def place(found: Source) -> Source:
        known = troubles(found).get(export)
        is_mine = known is not None and known.attempt == mine.attempt
        return with_trouble(found, export, after) if is_mine else found

    amend(records, source, place)


def _check_mine(found: Source, export: str, mine: Trouble) -> None:
    known = troubles(found).get(export)
    if known is None or known.attempt != mine.attempt:
        raise SnapshotLost(
            "this attempt was given up, as it was silent for long",
            hint="see the status of the source, and repeat it",
            source=found.name,
            export=export,
        )


@contextlib.contextmanager
def _beating(records: Records, source: Source, export: str, mine: Trouble) -> Iterator[None]:
    """Say now and then that the attempt is at work."""
    stopped = threading.Event()

    def place(found: Source) -> Source:
        known = troubles(found).get(export)
        if known is None or known.attempt != mine.attempt:
            return found
        return with_trouble(found, export, replace(known, beat_ms=system().now_ms()))

    def beat() -> None:
        while not stopped.wait(SILENT_MS / 1000 / BEATS):
            with contextlib.suppress(PersistError):
                amend(records, source, place)

    thread = threading.Thread(target=beat, name=f"snapshotting {export}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
