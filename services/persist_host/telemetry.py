"""Counters every process keeps, as Prometheus text, and OpenTelemetry spans where a collector is named.

Without a collector nothing of OpenTelemetry is imported. No shard id is ever a label. Source: reliability.md section 5.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from persist.extras import extra

Labels = tuple[tuple[str, str], ...]

_HELP: Final = {
    "persist_rpc_total": "calls answered, by method and status",
    "persist_rpc_seconds_total": "seconds spent in calls, by method",
    "persist_refused_total": "calls refused at the door, by the limit that was reached: calls, streams, memory",
    "persist_request_memory_bytes": "memory that requests under way may take, as estimated before they were parsed",
    "persist_streams": "streams under way, by method",
    "persist_lane_commits_total": "folds given to the machine",
    "persist_lane_commands_total": "commands in those folds",
    "persist_lane_expired_total": "commands dropped because their deadline had passed",
    "persist_lane_stale_total": "commands refused because the process stood still for longer than they may take",
    "persist_lane_overloaded_total": "commands refused because a queue was full",
    "persist_appends_refused_total": "appends of rows to shards that compaction is too far behind with, by the limit",
    "persist_appends_limit": "what a shard may have before its appends of rows are refused, by the limit",
    "persist_unmerged_batches": "batches that wait to be merged, of all shards that this process keeps in memory",
    "persist_unmerged_batches_most": "the same of the shard that has the most of them",
    "persist_parts": "parts of all shards that this process keeps in memory",
    "persist_parts_most": "the same of the shard that has the most of them",
    "persist_outcomes_total": "outcomes of commands, by kind",
    "persist_session_calls_total": "commands that came over sessions",
    "persist_background_failures_total": "work in the background that failed, by what it was",
    "persist_store_requests_total": "requests to an S3 Blob, by kind",
    "persist_store_up": "1 while a store answers, by store: consensus, blob",
    "persist_store_silent_seconds": "seconds since a store last answered; 0 while it does",
    "persist_watch_changes_total": "changes pushed to watchers",
    "persist_compactions_started_total": "compactions that claimed something",
    "persist_compactions_finished_total": "compactions whose result was put in place",
    "persist_compactions_lost_total": "compactions that another process took over or was faster with",
    "persist_compactions_failed_total": "compactions that failed",
    "persist_compactions_cancelled_total": "compactions stopped by their caller or by draining",
    "persist_compaction_seconds_total": "seconds spent in compactions",
    "persist_compaction_rows_total": "rows merged",
    "persist_compaction_bytes_total": "encoded bytes merged",
    "persist_compaction_set_aside_total": "batches that could not be merged and were set aside",
    "persist_compaction_negative_rows_total": "different rows that a merge found there less than no times, each time",
    "persist_compaction_overloaded_total": "requests for compactions refused because too many waited",
    "persist_minter_times_total": "source times whose binding was returned",
    "persist_minter_minted_total": "appends that bound something",
    "persist_minter_mismatches_total": "appends that another minter was faster than",
    "persist_minter_traces_total": "traces and their changes sent to watchers",
    "persist_catalog_commits_total": "transactions committed for sessions",
    "persist_catalog_statements_total": "statements that define, executed",
    "persist_catalog_conflicts_total": "transactions refused because something they depend on had changed",
    "persist_catalog_changes_total": "changes of rows sent to followers",
    "persist_control_failures_total": "passes of what a leader does for collections that failed, by duty",
    "persist_control_passes_total": "passes that were done, by duty",
    "persist_control_behind_seconds": "how far behind its period a duty is, by duty",
    "persist_control_sinces_total": "handles of shards that were moved",
    "persist_control_completed_total": "tables that were completed",
    "persist_control_holds_overdue_total": "holds that fell too far behind, by what they became",
    "persist_control_quarantined": "sources whose claim of milliseconds is not believed",
    "persist_control_views_stalled": "materialized views and indexes that do not go on, each with a reason in the log",
    "persist_control_finalized_total": "dropped shards that were emptied",
    "persist_catalog_leads": "1 while this process leads its catalog",
    "persist_consensus_unsafe": "1 for each unsafe setting that was accepted by name",
}


class Telemetry:
    """Counts and traces. Cheap enough for every call: one dict update."""

    def __init__(self, *, service: str, otlp_endpoint: str = "", help: Mapping[str, str] = _HELP) -> None:
        """``help``: what each name means."""
        self._help = help
        self._counts: dict[tuple[str, Labels], float] = defaultdict(float)
        self._gauges: dict[tuple[str, Labels], float] = {}
        self._sources: list[Callable[[], None]] = []
        self._provider: Any = None
        self._tracer: Any = None
        if otlp_endpoint:
            self._provider, self._tracer = _tracing(service, otlp_endpoint)

    def count(self, name: str, labels: Labels = (), by: float = 1) -> None:
        """Add to a counter."""
        self._counts[name, labels] += by

    def gauge(self, name: str, labels: Labels, value: float) -> None:
        """Set a gauge."""
        self._gauges[name, labels] = value

    def ask(self, source: Callable[[], None]) -> None:
        """Have ``source`` set its gauges whenever all values are read."""
        self._sources.append(source)

    def value(self, name: str, labels: Labels = ()) -> float:
        """A counter's or gauge's value; 0 when it was never touched."""
        return self._gauges.get((name, labels), self._counts.get((name, labels), 0.0))

    def span(self, name: str, **attributes: str) -> AbstractContextManager[Any]:
        """A span around a call, when traces are wanted."""
        if self._tracer is None:
            return nullcontext()
        span: AbstractContextManager[Any] = self._tracer.start_as_current_span(name, attributes=attributes)
        return span

    def prometheus(self) -> str:
        """All values in the Prometheus text format."""
        for source in self._sources:
            source()
        return "".join(f"{line}\n" for line in self._lines())

    def close(self) -> None:
        """Send what is still to be sent."""
        if self._provider is not None:
            self._provider.shutdown()

    def _lines(self) -> Iterator[str]:
        kinds = ((self._counts, "counter"), (self._gauges, "gauge"))
        for values, kind in kinds:
            described: set[str] = set()
            for (name, labels), value in sorted(values.items()):
                if name not in described:
                    described.add(name)
                    yield f"# HELP {name} {self._help.get(name, name)}"
                    yield f"# TYPE {name} {kind}"
                inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
                yield f"{name}{{{inside}}} {value:g}" if inside else f"{name} {value:g}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _tracing(service: str, endpoint: str) -> tuple[Any, Any]:
    with extra("otlp"):
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=True)))
    return provider, provider.get_tracer("persist")
