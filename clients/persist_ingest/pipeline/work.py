"""What one task does: read a range of the upstream, give every row its time, write parts. The same on the driver.

Nothing here decides anything: the range, the bindings and where each export stands came from the driver, so a task
that runs twice writes the same rows twice into parts of which at most one set is ever named.
Source: design 003; sources.md section 6; catalog-semantics.md section 4.2.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from persist import BatchSpec, InvalidArgument, PreparedBatch, Schema, WriteHandle
from persist.runtime import system
from persist.sources import Reclocker
from persist.typed import Record
from persist_ingest.pipeline.newest.gathering import Gathered
from persist_ingest.pipeline.newest.keyed import ByKey
from persist_ingest.pipeline.newest.upserts import PLACES, gather, upserted
from persist_ingest.pipeline.state import Contents
from persist_ingest.pipeline.truncations import Truncations
from persist_ingest.sources.port import Changes, Keyed, ReadTask, Truncated, Upserts

A = TypeVar("A")
B = TypeVar("B")

TOGETHER: Final = 16
"""How many exports are written or appended to at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """Where an export stands: rows at times in ``[lower, upper)`` are wanted, earlier ones are durable already."""

    spec: BatchSpec
    lower: int
    upper: int
    contents: Contents


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One task with all it needs. Picklable."""

    task: ReadTask
    reclocker: Reclocker
    exports: Mapping[str, ExportPlan]


@dataclass(slots=True, kw_only=True)
class Done:
    """What a task wrote: batches by export (as bytes), and what it read.

    ``reread``: rows that were read although they are durable, after a crash between the appends of two exports.
    ``marks``: by export, what its upserts were made under, see ``upserts.appended``.
    """

    batches: dict[str, list[bytes]] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    reread: int = 0
    marks: dict[str, str] = field(default_factory=dict)


def carry_out(work: Work, report: Callable[[int], None] = lambda rows: None) -> Done:
    """Read, reclock, sort, encode and upload. Bounded memory. Raises what the reader raises, LocationError.

    On any failure what was uploaded is deleted.
    """
    builders: Record = {}
    done = Done()
    try:
        for name, rows in timed_rows(work, done):
            builder = builders.get(name)
            if builder is None:
                builder = builders[name] = work.exports[name].spec.open()
            builder.add(rows)
            done.rows += rows.num_rows
            done.bytes += rows.nbytes
            report(rows.num_rows)
        finished = together(lambda name: builders[name].finish().to_bytes(), builders)
        done.batches = {name: [batch] for name, batch in zip(builders, finished, strict=True)}
    except BaseException:
        for builder in builders.values():
            builder.discard()
        raise
    return done


def timed_rows(work: Work, done: Done) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of a task that are not durable yet, with columns key…, val…, ts, diff, by export."""
    upserts: dict[str, tuple[pa.Schema, Gathered]] = {}
    by_key: dict[str, ByKey] = {}
    try:
        yield from _timed_rows(work, done, upserts, by_key)
    finally:
        for _, gathered in upserts.values():
            gathered.close()
        for each in by_key.values():
            each.close()


def _timed_rows(
    work: Work, done: Done, upserts: dict[str, tuple[pa.Schema, Gathered]], by_key: dict[str, ByKey]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    truncations = {export: _truncations(work, export) for export in work.exports}
    for event in work.task.read():
        plan = work.exports.get(event.export)
        if plan is None:
            raise InvalidArgument("the reader made rows of an unknown export", export=event.export)
        if isinstance(event, Keyed) or (isinstance(event, Truncated) and event.keyed):
            if plan.lower < plan.upper:
                if event.export not in by_key:
                    by_key[event.export] = _by_key(plan)
                for rows in _keyed(event, work, by_key[event.export]):
                    yield event.export, rows
        elif isinstance(event, Changes):
            rows = _timed(event, work.reclocker)
            wanted = _from(rows, plan.lower)
            done.reread += rows.num_rows - wanted.num_rows
            truncations[event.export].gave(rows)
            if wanted.num_rows:
                yield event.export, wanted
        elif isinstance(event, Truncated):
            for rows in truncations[event.export].truncated(_time_of(work, event), plan.lower):
                yield event.export, rows
        else:
            if event.export not in upserts:
                upserts[event.export] = event.rows.schema, gather(_key_names(plan))
            _gathered(event, work, upserts[event.export][1])
    for export, (fields, gathered) in upserts.items():
        plan = work.exports[export]
        if plan.lower < plan.upper:
            mark = done.marks[export] = system().random_bytes(16).hex()
            for rows in upserted(gathered, plan.contents, plan.lower, plan.upper, fields, _key_names(plan), mark):
                yield export, rows
    for export, each in by_key.items():
        done.marks[export] = each.finish(work.exports[export].upper)


def _by_key(plan: ExportPlan) -> ByKey:
    schema = Schema.from_bytes(plan.spec.schema)
    return ByKey(plan.contents, plan.lower, pa.schema([*schema.key, *schema.val]), schema.key.names)


def _keyed(event: Keyed | Truncated, work: Work, by_key: ByKey) -> Iterator[pa.RecordBatch]:
    if isinstance(event, Truncated):
        return by_key.emptied(_time_of(work, event))
    return by_key.changed(event, work.reclocker.reclock_arrow(event.offsets, None))


def _key_names(plan: ExportPlan) -> list[str]:
    return list(Schema.from_bytes(plan.spec.schema).key.names)


def _gathered(event: Upserts, work: Work, to: Gathered) -> None:
    """Those upserts of an event that are wanted, with when and in what order they count.

    SUBTLE: they count in order of (time, partition, offset), so that a key that occurs in several partitions has the
    same values however its messages fell into steps. That order needs all of the step, which may be on disk.
    """
    times = work.reclocker.reclock_arrow(event.offsets, event.partitions)
    place = pa.nulls(len(times), pa.int64()) if event.partitions is None else event.partitions
    if pa.types.is_dictionary(place.type):
        place = place.dictionary_decode()  # type: ignore[union-attr]  # its type says what it is
    columns = [*event.rows.columns, times, place, event.offsets, event.present]
    table = pa.Table.from_arrays(columns, names=[*event.rows.schema.names, *PLACES])
    lower = work.exports[event.export].lower
    to.add(table.filter(pc.greater_equal(table[PLACES[0]], pa.scalar(lower, pa.uint64()))))


def _timed(event: Changes, reclocker: Reclocker) -> pa.RecordBatch:
    ts = reclocker.reclock_arrow(event.offsets, event.partitions)
    rows = event.rows
    fields = [*rows.schema, pa.field("ts", pa.uint64()), pa.field("diff", pa.int64())]
    return pa.RecordBatch.from_arrays([*rows.columns, ts, event.diffs], schema=pa.schema(fields))


def _from(rows: pa.RecordBatch, lower: int) -> pa.RecordBatch:
    times = rows.column("ts")
    # Most of the time everything is wanted.
    if not rows.num_rows or pc.min(times).as_py() >= lower:
        return rows
    return rows.filter(pc.greater_equal(times, pa.scalar(lower, pa.uint64())))


def _truncations(work: Work, export: str) -> Truncations:
    plan = work.exports[export]

    def again() -> Iterator[pa.RecordBatch]:
        for event in work.task.read():
            if isinstance(event, Changes) and event.export == export:
                yield _timed(event, work.reclocker)

    return Truncations(durable=lambda: plan.contents.batches(plan.lower), again=again)


def _time_of(work: Work, event: Truncated) -> int:
    code = None if event.partition is None else pa.array([event.partition])  # type: ignore[list-item]  # no nulls here
    return int(work.reclocker.reclock_arrow(pa.array([event.offset], pa.uint64()), code)[0].as_py())


def together(action: Callable[[A], B], of: Iterable[A]) -> list[B]:
    """What it gives for each, side by side: most of it waits for stores. Raises the first error once all are done."""
    items = list(of)
    if len(items) < 2:
        return [action(each) for each in items]
    futures = [_threads.pool().submit(action, each) for each in items]
    try:
        return [future.result() for future in futures]
    finally:
        wait(futures)


class _Threads(threading.local):
    """The threads beside one thread, kept from one step to the next. They end when that one does.

    Of each thread its own, so that none waits for what another has in work. A forked child has none of its parent's.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    def pool(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pid != os.getpid():
            self._pool, self._pid = ThreadPoolExecutor(TOGETHER, thread_name_prefix="persist-ingest"), os.getpid()
        return self._pool


_threads: Final = _Threads()


class Specs:
    """What each export's parts are written by: the same for as long as its writer is."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[WriteHandle, BatchSpec]] = {}

    def of(self, export: str, writer: WriteHandle) -> BatchSpec:
        """That of a writer. Raises UsageError once its client is closed."""
        known = self._known.get(export)
        if known is None or known[0] is not writer:
            known = self._known[export] = writer, writer.batch_spec()
        return known[1]


def prepared(done: Sequence[Done], export: str) -> list[PreparedBatch]:
    """The batches of an export from all tasks."""
    return [PreparedBatch.from_bytes(data) for each in done for data in each.batches.get(export, ())]
