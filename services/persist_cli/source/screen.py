"""What a person sees of how sources fare: first what does not run, why and what to do, then how many run."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import persist_ingest as ingest
from persist.dates import dated
from persist.runtime import system
from persist.sources import SILENT_MS
from persist_cli.terminal import WIDE, counted, escaped, note, print_json, print_table, screen_width

RUNNING: Final = "running"
FAILED: Final = "failed"
NAMES_CHARS_MAX: Final = 40
FRONTIER_CHARS_MAX: Final = 2000
"""So much of what is bound is shown; --json has all of it."""


def shown(source: ingest.Source) -> dict[str, object]:
    """A source for programs: what it was decided to be. What it keeps of each table's form is its own."""
    record = dataclasses.asdict(source)
    record.pop("version")
    return {**record, "definition": {key: each for key, each in record["definition"].items() if _is_plain(each)}}


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return False
    return not isinstance(value, list | tuple) or not any(isinstance(each, Mapping | list | tuple) for each in value)


def is_wrong(told: ingest.SourceStatus) -> bool:
    """It failed, an export of it stalled, or it holds what cannot be."""
    negative = any(each.negative for each in told.counts.values())
    return negative or told.state == FAILED or any(each.state == "stalled" for each in told.exports.values())


def status_json(told: ingest.SourceStatus) -> dict[str, object]:
    """All of a status, for programs."""
    return {**dataclasses.asdict(told), "source": shown(told.source)}


def print_status(told: ingest.SourceStatus, *, every: bool) -> None:
    """One source. ``every``: also a row for each export that runs."""
    kept = {export: each for export, each in told.exports.items() if each.state not in (RUNNING, FAILED)}
    title = _title(told, kept)
    if kept:
        _print_kept(told, kept, title)
    print_table(("what", "value"), _told(told), title="" if kept else title)
    if every or told.counts:
        _print_exports(told)
    elif len(kept) < len(told.exports):
        note(f"each of them: persist source status {told.source.name} --all")
    for warning in told.warnings:
        note(f"warning: {warning}")
    if any(each.negative for each in told.counts.values()):
        note("rows that are there less than no times were taken back without having come: create the source again")
    columns, now = ("state", "host", "pid", "steps", "rows", "lag_ms", "committed"), system().now_ms()
    fares = [
        [who, heard(each, now), *(abridged(str(each.get(key, ""))) for key in columns[1:])]
        for who, each in told.ingesters.items()
    ]
    if fares:
        print_table(("ingester", *columns), fares)


def print_overview(all_told: Mapping[str, ingest.SourceStatus], *, json: bool) -> None:
    """All sources, one line each."""
    if json:
        print_json({"sources": {name: status_json(told) for name, told in all_told.items()}})
        return
    columns = ("source", "type", "state", "tables", "lag", "error")
    print_table(columns, [_line(told) for told in sorted(all_told.values(), key=lambda told: not is_wrong(told))])
    note(f"{counted(len(all_told), 'source')}; of one: persist source status NAME")


def print_exports(source: ingest.Source, names: Mapping[str, str]) -> None:
    """What a new source makes, as it can be typed. ``names``: in an environment, which count at every door.

    The others are those of shards, which Python, commands and Spark take, and SQL does not.
    """
    wide = screen_width() >= WIDE
    columns = ("export", *(["shard"] if wide else []), "name" if names else "name, but not in SQL")
    rows = [
        [export, *([shard] if wide else []), names.get(export, f"{source.name}.{export}")]
        for export, shard in source.exports.items()
    ]
    print_table(columns, rows, title=f"source {source.name} ({source.type})")


def some(names: Sequence[str]) -> str:
    """As many names as a line has room for, and how many more there are."""
    shown, length = list[str](), 0
    for name in names:
        length += len(name) + 2
        if shown and length > NAMES_CHARS_MAX:
            break
        shown.append(name)
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _line(told: ingest.SourceStatus) -> list[object]:
    kept = [each for each in told.exports.values() if each.state != RUNNING]
    error = told.error or next((each.error for each in kept if each.error), "")
    return [told.source.name, told.source.type, told.state, _fraction(told, len(kept)), _seconds(told.lag_ms), error]


def _fraction(told: ingest.SourceStatus, kept: int) -> str:
    return f"{kept} of {len(told.exports)} do not run" if kept else f"{len(told.exports)}"


def _title(told: ingest.SourceStatus, kept: Mapping[str, ingest.ExportStatus]) -> str:
    """The line that is read first."""
    name, total = f"source {told.source.name} ({told.source.type})", len(told.exports)
    if told.state == FAILED:
        return f"{name} FAILED: {'it does not go on' if total == 1 else f'none of its {total} exports goes on'}"
    if not kept:
        return name
    states = [each.state for each in told.exports.values()]
    parts = [f"{states.count(state)} of {total} exports {state}" for state in dict.fromkeys(states) if state != RUNNING]
    return f"{name}: {', '.join(parts)}"


def _told(told: ingest.SourceStatus) -> Sequence[Sequence[object]]:
    lag = "" if told.lag_ms is None else f"{told.lag_ms / 1000:.1f} s behind now"
    behind = "" if told.bytes_behind is None else f", the upstream keeps {told.bytes_behind:,} bytes for it"
    return [
        ["state", told.state],
        *([["error", told.error]] if told.error else []),
        ["exports", _exports(told)],
        ["lag", f"{lag}{behind}"],
        ["bound", abridged(told.bound)],
        ["resume at", f"{abridged(told.resume_offsets or 'unknown')} (time {told.resume_time})"],
        ["progress shard", told.source.remap],
        *([f"upstream {key}", abridged(str(value))] for key, value in told.upstream.items()),
        *([["upstream error", told.upstream_error]] if told.upstream_error not in ("", told.error) else []),
    ]


def _exports(told: ingest.SourceStatus) -> str:
    """How many are in which state; of those that run, how far the last one is."""
    states = [each.state for each in told.exports.values()]
    lags = [each.lag_ms for each in told.exports.values() if each.state == RUNNING and each.lag_ms is not None]
    behind = f" (at most {_seconds(max(lags))} behind)" if lags else ""
    parts = [f"{states.count(state):,} {state}" for state in dict.fromkeys(states) if state != RUNNING]
    return ", ".join([*parts, *([f"{states.count(RUNNING):,} {RUNNING}{behind}"] if RUNNING in states else [])])


def _print_kept(told: ingest.SourceStatus, kept: Mapping[str, ingest.ExportStatus], title: str) -> None:
    """Exports that do not go on: since when, why, and what to do. In lines: a table's cells would break each reason."""
    print(escaped(title))
    for export, each in kept.items():
        print(escaped(f"\n{export}: {_state(each)} since {_dated(each.since_ms)}, right before {_dated(each.upper)}"))
        for label, text in (("why", each.error), ("what to do", each.hint)):
            if text:
                print(escaped(f"  {label}: {text}"))
    print()
    for export, each in kept.items():
        if each.state == "stalled":
            note(f"then: persist source resnapshot {told.source.name} {export}")


def _print_exports(told: ingest.SourceStatus) -> None:
    counts = {export: [each.rows, each.negative] for export, each in told.counts.items()}
    wide = screen_width() >= WIDE
    rows = [
        [
            export,
            _state(each),
            _dated(each.upper),
            _seconds(each.lag_ms),
            *([told.source.exports[export]] if wide else []),
            *counts.get(export, []),
        ]
        for export, each in sorted(told.exports.items(), key=lambda item: item[1].state == RUNNING)
    ]
    more = [*(["shard"] if wide else []), *(["rows", "negative"] if counts else [])]
    print_table(("export", "state", "right before", "lag", *more), rows)


def abridged(frontier: str) -> str:
    """A frontier for people to read; of one with very many parts how many, and the last of them."""
    parts = frontier.strip("{}").split(", ")
    return frontier if len(frontier) <= FRONTIER_CHARS_MAX else f"{len(parts):,} parts, the last {parts[-1][-200:]}"


def heard(ingester: Mapping[str, Any], now_ms: int) -> str:
    """What an ingester said last of its state; one that says nothing any more was killed, or hangs."""
    state, silent_ms = str(ingester["state"]), now_ms - int(ingester["at_ms"])
    if state in ("running", "stalled") and silent_ms > SILENT_MS:
        return f"silent for {silent_ms // 1000:,} s"
    return state


def _seconds(lag_ms: int | None) -> str:
    return "" if lag_ms is None else f"{lag_ms / 1000:.1f} s"


def _dated(time: int | None) -> str:
    return "" if time is None else dated(time)


def _state(each: ingest.ExportStatus) -> str:
    """What an export does, and how much of that is done."""
    done = each.progress
    if done is None:
        return each.state
    if done.complete:
        return f"{each.state}: all {done.rows:,} rows were read"
    share = f"{min(99, 100 * done.rows // done.about)} % of about {done.about:,}" if done.about else f"{done.rows:,}"
    return f"{each.state}: {share} rows"
