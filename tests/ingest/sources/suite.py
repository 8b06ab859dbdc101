"""What every reader of an upstream must keep, whatever it reads: the laws of the port, checked on what it gives out."""

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from forked import Fork
from sure import as_a, sure

from persist import Schema
from persist.sources import Lsn, Point, SourceFrontier, SourceKind
from persist_ingest.sources.port import Changes, Event, Keyed, ReadTask, SourceReader, Truncated, Upserts

Contents = dict[tuple[str, Any], list[tuple[Any, ...]]]

_CHILD = """
import pickle, sys
tasks = pickle.load(sys.stdin.buffer)
pickle.dump([list(task.read()) for task in tasks], sys.stdout.buffer)
"""


def check_laws(reader: SourceReader, frontiers: Sequence[SourceFrontier], *, elsewhere: bool = True) -> Contents:
    """All laws, for every two and three of these ascending frontiers. Gives what lies between the first and last."""
    whole = read(reader, frontiers[0], frontiers[-1])
    for middle in frontiers[1:-1]:
        parts = joined([read(reader, frontiers[0], middle), read(reader, middle, frontiers[-1])])
        assert parts == whole, f"reading up to {middle} and on from there is not reading all at once"
    for tasks in (1, 2, 3, 8):
        assert read(reader, frontiers[0], frontiers[-1], tasks) == whole, f"{tasks} tasks read something else"
    for frontier in frontiers:
        assert not contents(reader.plan(frontier, frontier, 2), reader.exports(), frontier, frontier)
    if elsewhere:
        plan = reader.plan(frontiers[0], frontiers[-1], 3)
        events = [event for each in in_another_process(plan) for event in each]
        assert listed(events) == whole, "another process reads something else"
    return whole


def check_probe(reader: SourceReader, times: int = 3) -> None:
    """Probes agree on kind and incarnation, and watermarks never fall."""
    before: dict[Any, int] = {}
    for _ in range(times):
        probe = reader.probe()
        assert probe.kind is reader.kind
        assert probe.incarnation == reader.incarnation
        now = dict(_place(time) for time in probe.high)
        assert all(now[key] >= bound for key, bound in before.items()), "a watermark fell, or is gone"
        before = now


def reached(reader: SourceReader) -> SourceFrontier:
    """The frontier at the high watermarks."""
    probe = reader.probe()
    return SourceFrontier.at(probe.kind, dict(_place(time) for time in probe.high))


def read(reader: SourceReader, begin: SourceFrontier, end: SourceFrontier, tasks: int = 2) -> Contents:
    """Everything between two frontiers, checked for form."""
    return contents(reader.plan(begin, end, tasks), reader.exports(), begin, end)


def contents(
    tasks: Iterable[ReadTask], exports: Any, begin: SourceFrontier | None = None, end: SourceFrontier | None = None
) -> Contents:
    """What tasks read, by export and partition, in order: (offset, sign or present, values of the row...)."""
    events = []
    for task in tasks:
        assert task.weight >= 0
        for event in task.read():
            _check_form(event, exports)
            if begin is not None and end is not None:
                _check_place(event, begin, end)
            events.append(event)
    return listed(events)


def listed(events: Iterable[Event]) -> Contents:
    """Events in rows."""
    found: Contents = {}
    for event in events:
        if isinstance(event, Truncated):
            found.setdefault((event.export, event.partition), []).append((event.offset, "truncated"))
            continue
        signs = event.diffs if isinstance(event, Changes) else event.present
        given = None if isinstance(event, Keyed) else event.partitions
        partitions = [None] * len(event.offsets) if given is None else given.to_pylist()
        rows = zip(*(column.to_pylist() for column in event.rows.columns), strict=True)
        for partition, offset, sign, row in zip(
            partitions, event.offsets.to_pylist(), signs.to_pylist(), rows, strict=True
        ):
            found.setdefault((event.export, partition), []).append((offset, sign, *row))
    return found


def joined(parts: Iterable[Contents]) -> Contents:
    """One after the other."""
    whole: Contents = {}
    for part in parts:
        for place, rows in part.items():
            whole.setdefault(place, []).extend(rows)
    return whole


def rows_of(found: Contents, export: str) -> list[tuple[Any, ...]]:
    """The rows of one export, by partition."""
    places = sorted((place for place in found if place[0] == export), key=lambda place: (str(place[1]), place))
    return [row for place in places for row in found[place]]


def in_another_process(tasks: Sequence[ReadTask]) -> list[list[Event]]:
    """What tasks read in a process that knows nothing but their pickles."""
    other = Fork("forked_program", _CHILD, heard=("input", "output"))
    assert other.input is not None
    assert other.output is not None
    with other.input:
        pickle.dump(list(tasks), other.input)
    read = other.output.read()
    assert other.join() == 0, "what it failed with is on standard error"
    other.close()
    return list(pickle.loads(read))


def _check_form(event: Event, exports: Any) -> None:
    if isinstance(event, Truncated):
        assert event.export in exports
        return
    schema: Schema = exports[event.export]
    assert event.rows.schema.equals(pa.schema([*schema.key, *schema.val])), event.rows.schema
    signs = event.present if isinstance(event, Upserts) else as_a(Changes, event).diffs
    assert signs.type == (pa.bool_() if isinstance(event, Upserts) else pa.int64())
    assert event.offsets.type == pa.uint64()
    given = None if isinstance(event, Keyed) else event.partitions
    columns: list[Any] = [event.offsets, signs, *([] if given is None else [given])]
    assert {len(column) for column in columns} == {event.rows.num_rows}
    assert not any(column.null_count for column in columns)
    event.rows.validate(full=True)


def _check_place(event: Event, begin: SourceFrontier, end: SourceFrontier) -> None:
    if isinstance(event, Truncated):
        return
    given = None if isinstance(event, Keyed) else event.partitions
    partitions: list[Any] = [0] * len(event.offsets) if given is None else given.to_pylist()
    for place in set(zip(partitions, event.offsets.to_pylist(), strict=True)):
        time = Lsn(sure(place[1])) if begin.kind is SourceKind.LSN else Point(sure(place[0]), sure(place[1]))
        assert begin.less_equal_time(time), f"{time} lies before {begin}"
        assert end.beyond(time), f"{time} does not lie before {end}"


def _place(time: Any) -> tuple[Any, int]:
    return (0, time.position) if isinstance(time, Lsn) else (time.partition, time.offset)
