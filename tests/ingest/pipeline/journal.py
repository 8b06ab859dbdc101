"""A source type over a list in memory: numbers that come and go, and truncations, read in other chunks each time."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import persist
from persist.sources import Lsn, Probe, SourceFrontier, SourceKind
from persist_ingest.sources.port import Beginning, Changes, Event, ReadTask, SourceReader, Truncated, UpstreamStatus

KIND = SourceKind.LSN
SCHEMA = persist.Schema(key={"number": pa.int64()}, val={})
EXPORTS = ("numbers", "others")


@dataclass
class Journal:
    """``entries``: an export and a number with its diff, or None for a truncation of it. ``reads``: of the range."""

    entries: list[tuple[str, tuple[int, int] | None]] = field(default_factory=list)
    reads: int = 0

    def holds(self, export: str) -> dict[int, int]:
        counts: dict[int, int] = {}
        for name, entry in self.entries:
            if name != export:
                continue
            if entry is None:
                counts.clear()
            else:
                counts[entry[0]] = counts.get(entry[0], 0) + entry[1]
        return {number: count for number, count in counts.items() if count}


JOURNAL = Journal()


@dataclass(frozen=True)
class Read:
    begin: int
    end: int
    ordered = True
    weight = 1

    def read(self) -> Iterator[Event]:
        JOURNAL.reads += 1
        size = JOURNAL.reads % 3 + 1
        pending: list[tuple[int, int, int]] = []
        # The exports one after another within a chunk, as readers may do.
        for export in EXPORTS:
            for offset in range(self.begin, self.end):
                name, entry = JOURNAL.entries[offset]
                if name != export:
                    continue
                if entry is None:
                    yield from _changes(export, pending, size)
                    pending = []
                    yield Truncated(export=export, offset=offset)
                else:
                    pending.append((offset, *entry))
            yield from _changes(export, pending, size)
            pending = []


def _changes(export: str, pending: list[tuple[int, int, int]], size: int) -> Iterator[Changes]:
    for begin in range(0, len(pending), size):
        offsets, numbers, diffs = zip(*pending[begin : begin + size], strict=True)
        yield Changes(
            export=export, rows=pa.record_batch({"number": pa.array(numbers, pa.int64())}),
            offsets=pa.array(offsets, pa.uint64()), diffs=pa.array(diffs, pa.int64()),
        )  # fmt: skip


class Reader:
    kind = KIND
    incarnation = "journal"

    def exports(self) -> Mapping[str, persist.Schema]:
        return dict.fromkeys(EXPORTS, SCHEMA)

    def probe(self) -> Probe:
        return Probe(kind=KIND, incarnation="journal", high=(Lsn(len(JOURNAL.entries)),))

    def plan(self, begin: SourceFrontier, end: SourceFrontier, tasks: int) -> Sequence[ReadTask]:
        return [Read(begin.bound(0) or 0, end.bound(0) or 0)]

    def status(self) -> UpstreamStatus:
        return UpstreamStatus()

    def adopt(self, export: str, schema: persist.Schema) -> None: ...
    def commit(self, frontier: SourceFrontier) -> None: ...
    def close(self) -> None: ...


class Type:
    @contextlib.contextmanager
    def create(self, options: Mapping[str, str], *, source: str) -> Iterator[Beginning]:
        yield Beginning(definition={}, reader=Reader(), bound=SourceFrontier.minimum(KIND))

    def open(self, definition: Mapping[str, Any], schemas: Mapping[str, persist.Schema]) -> SourceReader:
        return Reader()

    def drop(self, definition: Mapping[str, Any]) -> None: ...


TYPE = Type()


def noted(*entries: int | None, export: str = "numbers") -> None:
    """Note these: a number comes, a negative one goes, None truncates."""
    for entry in entries:
        JOURNAL.entries.append((export, None if entry is None else (abs(entry), 1 if entry > 0 else -1)))
