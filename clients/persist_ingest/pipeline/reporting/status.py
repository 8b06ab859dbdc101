"""How a source fares: what its shards say, what its ingesters said last, what its upstream says.

Source: sources.md; catalog-semantics.md section 4.1, lag stats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.compute as pc

import persist
from persist import PersistError
from persist.runtime import system
from persist.sources import SILENT_MS, UpstreamLost, UpstreamReplaced
from persist.typed import Fields
from persist_ingest.location import Location, client
from persist_ingest.pipeline.anew.progress import AnewProgress
from persist_ingest.pipeline.records import Records, Source
from persist_ingest.pipeline.reporting.figures import has_clock, miscounted, warnings
from persist_ingest.pipeline.reporting.recounting import Recounted, recounted
from persist_ingest.pipeline.state import Contents
from persist_ingest.pipeline.troubles import Trouble, running, troubles
from persist_ingest.sources.registry import source_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Rows of an export at its last complete time. ``negative``: different ones that are there less than no times.

    Something took those back that were never there: the export is not what its upstream holds.
    """

    rows: int
    negative: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotProgress:
    """How far the snapshot of an export is: so many of about so many rows (0: unknown), in so many pieces.

    ``complete``: all was read, and is being put into the export.
    """

    rows: int
    about: int
    pieces: int
    began_ms: int
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportStatus:
    """How one export fares. ``state``: running, stalled, snapshotting (again), or failed, as its source is.

    ``upper``: what it holds is right before this time, also while it does not run. ``since_ms``: when it stopped, with
    ``error`` why, and ``hint`` what to do. ``progress``: of one that is being snapshotted, once rows are read.
    ``lag_ms``: how long ago what it holds was all there was; None: its times are not of the clock.
    """

    state: str
    upper: int | None
    since_ms: int | None = None
    error: str = ""
    hint: str = ""
    progress: SnapshotProgress | None = None
    lag_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """``state``: running, stalled, failed, stopped or idle (nothing ingests it). Times are milliseconds since 1970.

    ``resume_time`` and ``resume_offsets``: where it goes on after a restart. ``uppers``: of each export;
    ``exports``: how each fares. ``counts``: of each export, when asked for; ``recounted``: what its pipelines
    counted last by themselves. ``warnings``: what is wrong, or about to be.
    """

    source: Source
    state: str
    error: str
    resume_time: int | None
    resume_offsets: str | None
    bound: str
    uppers: Mapping[str, int | None]
    lag_ms: int | None
    bytes_behind: int | None
    ingesters: Mapping[str, Fields] = field(default_factory=dict)
    upstream: Fields = field(default_factory=dict)
    upstream_error: str = ""
    counts: Mapping[str, Counted] = field(default_factory=dict)
    exports: Mapping[str, ExportStatus] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    recounted: Mapping[str, Recounted] = field(default_factory=dict)


def status(location: Location, name: str, *, ask_upstream: bool = True, count_rows: bool = False) -> SourceStatus:
    """The status of one source. Raises SourceNotFound, LocationError; an upstream that does not answer is reported.

    ``count_rows``: read all of its exports, in bounded memory, to count what they hold.
    """
    the_client = client(location.resolved())
    records = Records(the_client)
    source = records.source(name)
    ingesters = records.status(source)
    now = system().now_ms()
    uppers = {name: the_client.recent_upper(shard).time for name, shard in source.shards.items()}
    amid: tuple[str, ...] = ()
    try:
        least, offsets, bound = _resumption(the_client, source, uppers)
    except UpstreamReplaced:
        # Between two appends of an ingester that goes on with a later life of the upstream, or it died there.
        least, offsets, bound = min((at for at in uppers.values() if at is not None), default=None), None, ""
        amid = (f"{name} is being taken over to a later life of its upstream: persist source run goes on with it",)
    state, error = _state(ingesters, now)
    last = recounted(ingesters, source.exports)
    upstream, behind, unanswered = _upstream(the_client, source) if ask_upstream else ({}, None, None)
    upstream_error = "" if unanswered is None else f"{type(unanswered).__name__}: {unanswered}"
    if isinstance(unanswered, UpstreamLost | UpstreamReplaced):
        # What no try of an ingester passes, whether one has met it or not.
        state, error = "failed", upstream_error
    return SourceStatus(
        source=source,
        state=state,
        error=error,
        resume_time=least,
        resume_offsets=offsets,
        bound=bound,
        uppers=uppers,
        lag_ms=_lag(source, least, now),
        bytes_behind=behind,
        ingesters=ingesters,
        upstream=upstream,
        upstream_error=upstream_error,
        counts={name: _counted(location, source, name) for name in source.exports} if count_rows else {},
        exports=_exports(source, uppers, now, "failed" if state == "failed" else "running"),
        warnings=(*amid, *miscounted(source, last), *warnings(upstream, is_ingested=state in ("running", "stalled"))),
        recounted=last,
    )


def _lag(source: Source, upper: int | None, now_ms: int) -> int | None:
    return max(0, now_ms - upper) if upper and has_clock(source) else None


def _exports(source: Source, uppers: Mapping[str, int | None], now_ms: int, others: str) -> dict[str, ExportStatus]:
    """``others``: the state of those that nothing keeps aside."""
    kept = troubles(source)
    return {
        name: ExportStatus(state=others, upper=upper, lag_ms=_lag(source, upper, now_ms))
        if name not in kept
        else ExportStatus(
            state=kept[name].state,
            upper=upper,
            since_ms=kept[name].since_ms,
            error=kept[name].error,
            hint=kept[name].hint,
            progress=_progress(kept[name]),
            lag_ms=_lag(source, upper, now_ms),
        )
        for name, upper in uppers.items()
    }


def _progress(trouble: Trouble) -> SnapshotProgress | None:
    known = AnewProgress.of(trouble)
    if known is None:
        return None
    # What was announced last has happened, or is under way.
    reached = known.announced or known.reached
    return SnapshotProgress(
        rows=reached.rows,
        about=known.about,
        pieces=reached.pieces,
        began_ms=known.began_ms,
        complete=reached.complete,
    )


def _resumption(
    the_client: "persist.Client", source: Source, uppers: Mapping[str, int | None]
) -> tuple[int | None, str | None, str]:
    """The time at which the source goes on after a restart, the offsets there, and what is bound."""
    if source.brings_times:
        return next(iter(uppers.values()), None), None, ""
    minter = the_client.minter()
    try:
        shards = {name: source.shards[name] for name in running(source)}
        resumption = minter.resumption(source.remap_source, shards)
        trace = minter.bindings(source.remap_source)
    finally:
        minter.close()
    offsets = resumption.source.offsets
    return resumption.source.time.time, None if offsets is None else str(offsets), str(trace.frontier)


def _counted(location: Location, source: Source, export: str) -> Counted:
    rows = negative = 0
    for batch in Contents(location=location.resolved(), shard=source.exports[export]).newest():
        diffs = batch.column("diff")
        rows += pc.sum(diffs).as_py()
        negative += pc.sum(pc.less(diffs, 0)).as_py()
    return Counted(rows=rows, negative=negative)


def _state(ingesters: Mapping[str, Fields], now_ms: int) -> tuple[str, str]:
    """The best state of those that reported lately; the newest failure if there is none."""
    lately = [each for each in ingesters.values() if now_ms - int(each["at_ms"]) <= SILENT_MS]
    for state in ("running", "stalled"):
        for each in lately:
            if each["state"] == state:
                return state, str(each.get("error", ""))
    told = max(ingesters.values(), key=lambda each: int(each["at_ms"]), default=None)
    if told is None:
        return "idle", ""
    state = str(told["state"])
    return (state, str(told.get("error", ""))) if state in {"failed", "stopped"} else ("idle", "")


def _upstream(the_client: "persist.Client", source: Source) -> tuple[Fields, int | None, PersistError | None]:
    schemas = {name: the_client.schema(source.shards[name]) for name in running(source)}
    try:
        reader = source_type(source.type).open(source.definition, schemas)
        try:
            told = reader.status()
        finally:
            reader.close()
    except PersistError as error:
        return {}, None, error
    committed = {} if told.committed is None else {"committed": str(told.committed)}
    return {**committed, **told.details}, told.bytes_behind, None
