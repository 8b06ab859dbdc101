"""What a pipeline counts: of itself, of each export, and what its upstream keeps for it.

Read by another thread at any time, so that a pipeline that stands still is seen to fall behind.
Source: reliability.md section 5; catalog-semantics.md section 4.1, lag stats.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from persist import Antichain, LeaseExpired, LocationError, PersistError, PreparedBatch
from persist.runtime import system
from persist.sources import EPOCH_MILLISECONDS, STALLED, SourceFrontier
from persist_ingest.pipeline.anew.progress import AnewProgress
from persist_ingest.pipeline.records import Source, Told
from persist_ingest.pipeline.reporting.recounting import Recount, Recounted
from persist_ingest.pipeline.running import Step
from persist_ingest.pipeline.troubles import SNAPSHOTTING, troubles
from persist_ingest.sources.port import Unforeseen, UpstreamStatus

Labels: TypeAlias = tuple[tuple[str, str], ...]
Figure: TypeAlias = tuple[str, Labels, float]
"""A name, labels and a value, as Prometheus has them."""

NEAR_LIMIT: Final = 0.2
"""With less of its allowance of WAL left than this share, a slot is about to be lost."""

PARTS_MAX: Final = 50
"""So many parts of a frontier are written out one by one."""

HELP: Final = {
    "persist_source_steps_total": "steps that were carried out",
    "persist_source_step_seconds_total": "seconds spent in steps",
    "persist_source_bytes_total": "bytes that were written",
    "persist_source_reread_rows_total": "rows that were read although they were durable",
    "persist_source_failures_total": "what a pipeline waited for or was ended by, by the reason of the error",
    "persist_source_untold_total": "words to the source's status that did not get there",
    "persist_source_export_rows_total": "updates that this process made durable, by export",
    "persist_source_export_appends_total": "appends to an export, by who was first: this process, or another",
    "persist_source_export_state": "1 for the state of an export: running, stalled or snapshotting",
    "persist_source_export_lag_seconds": "how long ago what an export holds was all there was",
    "persist_source_export_stalled_seconds": "for how long an export has not gone on",
    "persist_source_export_negative_rows": "rows that an export held less than no times when it was counted last",
    "persist_source_export_counted_seconds": "how long ago that was",
    "persist_source_export_snapshot_rows": "rows read so far by the snapshot of an export that is under way",
    "persist_source_export_snapshot_expected_rows": "about how many rows that snapshot is going to have; 0: unknown",
    "persist_source_upstream_bytes_behind": "bytes of the upstream's log that are not durable here yet",
    "persist_source_upstream_messages_behind": "messages of the upstream that are not durable here yet",
    "persist_source_upstream_retained_bytes": "bytes that the upstream keeps for this source",
    "persist_source_upstream_safe_bytes": "bytes that the upstream can log before it gives up what it keeps",
    "persist_source_upstream_lost": "1 when the upstream gave up what it kept for this source",
}
"""What each of them is."""


@dataclass(slots=True)
class ExportFigures:
    """Of one export: updates that were written, appends, and how far it is."""

    rows: int = 0
    first: int = 0
    overtaken: int = 0
    upper: int | None = None


@dataclass(slots=True)
class Figures:
    """Those of one pipeline. ``source``: as it is known now; ``upstream``: what it said last."""

    source: Source
    rows: int = 0
    bytes: int = 0
    reread: int = 0
    steps: int = 0
    seconds: float = 0.0
    untold: int = 0
    known: SourceFrontier | None = None
    committed: SourceFrontier | None = None
    failures: Counter[str] = field(default_factory=Counter)
    exports: dict[str, ExportFigures] = field(default_factory=dict)
    upstream: UpstreamStatus | None = None
    recount: Recount | None = None

    def stepped(self, step: Step, uppers: Mapping[str, Antichain]) -> None:
        """A step was carried out; exports are that far."""
        self.steps += 1
        self.rows += step.rows
        self.bytes += step.bytes
        self.reread += step.reread
        self.seconds += step.seconds
        for name, upper in uppers.items():
            self._export(name).upper = upper.time

    def appended(self, name: str, batches: Sequence[PreparedBatch], *, was_first: bool) -> None:
        """An export was appended to, by this process or, before it, by another."""
        export = self._export(name)
        if was_first:
            export.first += 1
            export.rows += sum(batch.rows for batch in batches)
        else:
            export.overtaken += 1

    def failed(self, error: PersistError) -> None:
        """Something has to be waited for, or ended the pipeline or one of its exports."""
        self.failures[error.reason] += 1

    def told(self, state: str, step: Step | None, error: PersistError | None) -> Told:
        """A word for the source's status."""
        now = system().now_ms()
        upper = step.upper.time if step is not None else None
        behind = self.upstream.bytes_behind if step is not None and self.upstream is not None else None
        return Told(
            state=state,
            at_ms=now,
            host=system().hostname,
            pid=os.getpid(),
            known=_brief(self.known),
            committed=_brief(self.committed),
            upper_ms=upper,
            lag_ms=max(0, now - upper) if upper is not None and has_clock(self.source) else None,
            bytes_behind=behind,
            rows=self.rows,
            bytes=self.bytes,
            reread=self.reread,
            steps=self.steps,
            untold=self.untold,
            error="" if error is None else f"{type(error).__name__}: {error}",
            definite=error is not None and not isinstance(error, LocationError | LeaseExpired | Unforeseen),
            details={} if self.recount is None else self.recount.details(),
        )

    def counted(self) -> Iterator[Figure]:
        """All of them as they are now. From any thread."""
        named = (("source", self.source.name),)
        yield "persist_source_steps_total", named, self.steps
        yield "persist_source_step_seconds_total", named, self.seconds
        yield "persist_source_bytes_total", named, self.bytes
        yield "persist_source_reread_rows_total", named, self.reread
        yield "persist_source_untold_total", named, self.untold
        for reason, count in list(self.failures.items()):
            yield "persist_source_failures_total", (*named, ("reason", reason)), count
        yield from self._of_exports(named)
        if self.upstream is not None:
            yield from ((name, named, value) for name, value in upstream_figures(self.upstream))

    def _of_exports(self, named: Labels) -> Iterator[Figure]:
        kept, now = troubles(self.source), system().now_ms()
        for name in self.source.exports:
            labels, trouble = (*named, ("export", name)), kept.get(name)
            state = "running" if trouble is None else trouble.state
            for each in ("running", STALLED, SNAPSHOTTING):
                yield "persist_source_export_state", (*labels, ("state", each)), float(each == state)
            if trouble is not None:
                yield "persist_source_export_stalled_seconds", labels, max(0, now - trouble.since_ms) / 1000
                progress = AnewProgress.of(trouble)
                if progress is not None:
                    yield "persist_source_export_snapshot_rows", labels, progress.reached.rows
                    yield "persist_source_export_snapshot_expected_rows", labels, progress.about
            if self.recount is not None and (last := self.recount.found.get(name)) is not None:
                yield "persist_source_export_negative_rows", labels, last.negative
                yield "persist_source_export_counted_seconds", labels, max(0, now - last.at_ms) / 1000
            export = self.exports.get(name)
            if export is None:
                continue
            yield "persist_source_export_rows_total", labels, export.rows
            yield "persist_source_export_appends_total", (*labels, ("first", "this")), export.first
            yield "persist_source_export_appends_total", (*labels, ("first", "another")), export.overtaken
            if export.upper is not None and has_clock(self.source):
                yield "persist_source_export_lag_seconds", labels, max(0, now - export.upper) / 1000

    def _export(self, name: str) -> ExportFigures:
        return self.exports.setdefault(name, ExportFigures())


def _brief(frontier: SourceFrontier | None) -> str:
    """A frontier for people to read, which ingesters store every few seconds; of very many parts how many, and one."""
    if frontier is None:
        return ""
    count = len(frontier.keys)
    return str(frontier) if count <= PARTS_MAX else f"{count:,} parts, the last {frontier.keys[-1]}"


def has_clock(source: Source) -> bool:
    """Whether its times are those of the clock, so that lags mean something."""
    return source.timeline == str(EPOCH_MILLISECONDS)


def upstream_figures(upstream: UpstreamStatus) -> Iterator[tuple[str, float]]:
    """What an upstream says of what it keeps, where it says so."""
    if upstream.bytes_behind is not None:
        yield "persist_source_upstream_bytes_behind", upstream.bytes_behind
    for detail, name in (
        ("messages_behind", "persist_source_upstream_messages_behind"),
        ("retained_bytes", "persist_source_upstream_retained_bytes"),
        ("safe_wal_size", "persist_source_upstream_safe_bytes"),
    ):
        value = upstream.details.get(detail)
        if value is not None:
            yield name, value
    if "wal_status" in upstream.details:
        yield "persist_source_upstream_lost", float(upstream.details["wal_status"] == "lost")


def miscounted(source: Source, recounted: Mapping[str, Recounted]) -> Iterable[str]:
    """What is wrong by what pipelines counted last, and what to do."""
    for export, each in recounted.items():
        if each.negative:
            yield (
                f"{export} held {each.negative:,} rows less than no times when it was counted last: "
                f"they were taken back without having come. Then: persist source resnapshot {source.name} {export}"
            )


def warnings(upstream: Mapping[str, object], *, is_ingested: bool) -> Iterable[str]:
    """What is about to go wrong upstream, and what to do, by the details of its status."""
    retained, safe = upstream.get("retained_bytes"), upstream.get("safe_wal_size")
    status = upstream.get("wal_status")
    if status == "lost":
        yield (
            "the server gave up the log that this source needs: make its slot again and snapshot its tables, as the "
            "error of persist source run says"
        )
    elif isinstance(retained, int) and isinstance(safe, int) and safe < NEAR_LIMIT * (retained + safe):
        yield (
            f"the server gives up this source's log after {max(0, safe):,} more bytes (it keeps {retained:,}): "
            "run a pipeline, or raise max_slot_wal_keep_size"
        )
    elif status == "unreserved":
        yield "the server is about to give up the log that this source needs: run a pipeline"
    if not is_ingested and isinstance(retained, int) and retained:
        yield f"nothing ingests this source, and the server keeps {retained:,} bytes of log for it: run a pipeline"
