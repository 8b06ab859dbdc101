"""What ``persist shard list``, ``inspect``, ``snapshot`` and ``listen`` do, given a client."""

import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

import persist
from persist import Progress
from persist.client.collections.plain import rows_of
from persist.client.shard.read.listen import log as interruptions
from persist.core.frontier import TIME_MAX
from persist.dates import dated
from persist.runtime import system
from persist.typed import Fields, Json
from persist_cli.outcomes import Outcomes
from persist_cli.shard import rows_out as tables_out
from persist_cli.terminal import (
    counted,
    frontier,
    note,
    noted,
    print_json,
    print_json_line,
    print_list,
    print_table,
    progress,
    shown,
)
from persist_cli.times import dated_frontier


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """What to read and where to put it."""

    shard: str
    as_of: int | None
    where: str | None
    columns: tuple[str, ...]
    limit: int | None
    file_format: str | None
    output: Path | None


FRONTIERS_MAX: Final = 500
"""Of so many shards frontiers are shown without asking for them: each costs a read."""
READS_AT_ONCE: Final = 16


def list_shards(
    client: "persist.Client", place: Sequence[str], *, frontiers: bool | None, timeout: float, json: bool
) -> int:
    """Print every shard, with its frontiers unless there are many, ordered by id. The exit code."""
    outcomes = Outcomes()
    called = client.item_names(timeout=timeout)
    shards = sorted(client.list_shards(timeout=timeout))
    detailed = len(shards) <= FRONTIERS_MAX if frontiers is None else frontiers
    fields = ("shard", "seqno", "since", "upper") if detailed else ("shard",)
    with progress("reading", len(shards), unit="shards") as steps, ThreadPoolExecutor(READS_AT_ONCE) as pool:
        reads = [pool.submit(client.inspect, shard, timeout=timeout) for shard in shards] if detailed else None
        for number, shard in enumerate(shards):
            with outcomes.of(shard):
                found = {"shard": shard} if reads is None else reads[number].result()
                named = {"name": called.get(shard, "")} if called else {}
                outcomes.rows.append(named | {name: found.get(name) for name in fields})
            steps(1)
    if not detailed and frontiers is None:
        note(f"frontiers of more than {FRONTIERS_MAX} shards are shown with --frontiers")
    if json:
        print_json(outcomes.rows)
        return outcomes.code
    columns = (*(["name"] if called else []), *fields, *(["error"] if outcomes.failed else []))
    rows = [[_dated_cell(row.get(name)) for name in columns] for row in outcomes.rows]
    print_list(columns, rows, "shard", "persist shard append NAME FILE makes one")
    outcomes.say(place)
    return outcomes.code


def _dated_cell(value: object) -> object:
    """A frontier with its date below, to the second, so that columns stay narrow; anything else as it is."""
    if not isinstance(value, list):
        return value
    number, _, date = dated_frontier(value).partition(" (")
    return f"{number}\n{date.partition('.')[0]}Z" if date else number


def inspect(client: "persist.Client", shard: str, *, timeout: float, json: bool) -> None:
    """Print a shard's state: all of it as JSON, or its scalars, sizes, and who holds what."""
    state = client.inspect(shard, timeout=timeout)
    if json:
        print_json(state)
        return
    print_table(("what", "value"), [[name, value] for name, value in _summary(state)])
    holders = list(_holders(state, system().now_ms()))
    if holders:
        print_table(("who", "holds", "last seen", "lease", "purpose", "host"), holders)


def _holders(state: Fields, now_ms: int) -> Iterator[list[str]]:
    """All on whose account something is kept, and whatever is being worked on."""
    for name, reader in state["leased_readers"].items():
        holds = f"since {_frontier_text(reader['since'])}, seqno {reader['seqno']:,}"
        yield [name, holds, _ago(now_ms, reader["heartbeat_ms"]), _span(reader["lease_ms"]), reader["purpose"],
               reader["hostname"]]  # fmt: skip
    for name, critical in state["critical_readers"].items():
        yield [name, f"since {_frontier_text(critical['since'])}", "", "none", critical["purpose"], ""]
    for name, writer in state["writers"].items():
        yield [name, "its tokens", _ago(now_ms, writer["heartbeat_ms"]), _span(writer["lease_ms"]), "", ""]
    for each in state["spine"]:
        if each["claim"]:
            what = f"{len(each['batches'])} batches, to compact"
            yield [each["claim"]["owner"], what, _ago(now_ms, each["claim"]["start_ms"]), "", "compaction", ""]
    for name in ("active_rollup", "active_gc"):
        if state[name]:
            what = f"seqno {state[name]['seqno']:,}"
            yield [state[name]["owner"], what, _ago(now_ms, state[name]["start_ms"]), "", _WORK[name], ""]


_WORK = {"active_rollup": "rollup", "active_gc": "garbage collection"}


def _frontier_text(elements: list[int]) -> str:
    """A frontier as people write it."""
    return "[]" if not elements else dated(elements[0])


def _ago(now_ms: int, then_ms: int) -> str:
    return f"{_span(max(0, now_ms - then_ms))} ago"


def _span(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _summary(state: Fields) -> Iterator[tuple[str, str]]:
    """Scalars as they are, collections by their size."""
    for name, value in state.items():
        if isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(item, Mapping) for item in value)):
            yield name, f"{len(value):,} (--json shows them)" if value else "none"
        else:
            yield name, _value(name, value)


def _value(name: str, value: Json) -> str:
    if value is None:
        return "none"
    if name in ("since", "upper"):
        return dated_frontier(value)
    return dated(value) if isinstance(value, int) and name.endswith("_ms") else shown(value)


def snapshot(client: "persist.Client", request: SnapshotFile, *, timeout: float, json: bool) -> None:
    """Print or write the rows a shard holds at a time, in bounded memory."""
    file_format = tables_out.format_of(request.file_format, request.output, json=json)
    with client.open_reader(request.shard, purpose="persist shard snapshot", timeout=timeout) as reader:
        found = reader.snapshot(request.as_of, timeout=timeout)
        as_of = found.as_of
        columns = list(request.columns) or None
        schema = _output_schema(found.schema.rows, columns)
        batches: Iterator[pa.RecordBatch] = found.to_batches(columns, request.where)
        # Rows that stream over a terminal are their own progress.
        if request.output is not None or file_format == "table" or not sys.stdout.isatty():
            batches = _followed(batches, f"reading as of {dated(as_of)}", found.rows_estimate)
        title = f"{request.shard} as of {dated(as_of)}"
        rows = tables_out.write(
            tables_out.limited(batches, request.limit), schema, file_format, request.output, title=title
        )
    if request.output is not None:
        note(f"{counted(rows, 'row')} as of {dated(as_of)} written to {request.output}")


def _output_schema(rows: pa.Schema, columns: list[str] | None) -> pa.Schema:
    if columns is None:
        return rows
    return pa.schema(
        [rows.field(name) for name in columns if name in rows.names and name != "diff"] + [rows.field("diff")]
    )


def _followed(batches: Iterator[pa.RecordBatch], what: str, total: int) -> Generator[pa.RecordBatch, None, None]:
    """The batches, under a bar that is gone once the last of them was taken, or this is closed."""
    with progress(what, total) as done:
        for batch in batches:
            done(batch.num_rows)
            yield batch


def listen(
    client: "persist.Client",
    shard: str,
    *,
    start: int | None,
    snapshot: bool,
    until: int | None,
    idle: float | None,
    timeout: float,
    json: bool,
) -> None:
    """Print changes as they commit: JSON lines, or a line each. Ctrl-C is the ordinary end."""
    with client.open_reader(shard, purpose="persist shard listen", timeout=timeout) as reader:
        upper = reader.upper.time
        first = start if start is not None else TIME_MAX if upper is None else max(upper, 1) - 1
        with noted(interruptions):
            try:
                follow = reader.subscribe if snapshot else reader.listen
                for event in follow(as_of=first, timeout=idle):
                    _tell(event, json=json)
                    if until is not None and isinstance(event, Progress) and event.upper.beyond(until - 1):
                        return
            except KeyboardInterrupt:
                note("")


def _tell(event: "persist.Updates | persist.Progress", *, json: bool) -> None:
    if isinstance(event, Progress):
        if json:
            print_json_line({"_progress": frontier(event.upper)})
        else:
            print(f"-- complete before {dated_frontier(frontier(event.upper))}", flush=True)
        return
    for row in rows_of(event.table):
        if json:
            print_json_line(row)
            continue
        ts, diff = row.pop("ts"), row.pop("diff")
        values = "  ".join(f"{name}={shown(value)}" for name, value in row.items())
        print(f"{dated(ts):>20}  {diff:>+4}  {values}", flush=True)
