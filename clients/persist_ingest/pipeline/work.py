"""What one task does: read a range of the upstream, give every row its time, write parts. The same on the driver.

Nothing here decides anything: the range, the bindings and where each export stands came from the driver, so a task
that runs twice writes the same rows twice into parts of which at most one set is ever named.
Source: design 003; sources.md section 6; catalog-semantics.md section 4.2.
"""

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from persist import Antichain, BatchSpec, InvalidArgument, PreparedBatch, Schema, WriteHandle
from persist.runtime import system
from persist.sources import OFFSET_MAX, Reclocker
from persist.typed import Record
from persist_ingest.pipeline.newest.gathering import Gathered
from persist_ingest.pipeline.newest.hashes import key_hashes
from persist_ingest.pipeline.newest.key_ranges import WHOLE, KeyRange, cut, key_ranges
from persist_ingest.pipeline.newest.keyed import ByKey
from persist_ingest.pipeline.newest.runs import keys_of
from persist_ingest.pipeline.newest.upserts import PLACES, gather, upserted
from persist_ingest.pipeline.state import Contents
from persist_ingest.pipeline.truncations import Truncations
from persist_ingest.sources.foreseen import foreseen
from persist_ingest.sources.port import Changes, Divisible, Event, Keyed, ReadTask, Truncated, Upserts

A = TypeVar("A")
B = TypeVar("B")

TOGETHER: Final = 16
"""How many exports are written or appended to at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """Where an export stands: rows at times in ``[lower, upper)`` are wanted, earlier ones are durable already.

    ``ranges``: how many its keys are divided into, where its upserts are looked up. ``marks``: of what was appended of
    those, see ``upserts.appended``; a process that made it may not know yet.
    """

    spec: BatchSpec
    lower: int
    upper: int
    contents: Contents
    ranges: int = 1
    marks: frozenset[str] = frozenset()


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
    ``marks``: by export, what its upserts were made under, see ``upserts.appended``; ``of``: of which keys those are.
    """

    batches: dict[str, list[bytes]] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    reread: int = 0
    marks: dict[str, str] = field(default_factory=dict)
    of: KeyRange = WHOLE


@dataclass(frozen=True, slots=True)
class Sent:
    """Rows on their way to the task that has the range of their keys, as an Arrow stream. Picklable.

    ``is_keyed``: they are upserts, with the columns of ``PLACES``; else rows with their times. ``reread``: as in Done.
    """

    export: str
    data: bytes
    is_keyed: bool
    reread: int = 0

    @staticmethod
    def of(export: str, rows: pa.Table, *, is_keyed: bool, reread: int = 0) -> "Sent":
        """These."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        return Sent(export, sink.getvalue().to_pybytes(), is_keyed, reread)

    @property
    def rows(self) -> pa.Table:
        """As they were given."""
        return pa.ipc.open_stream(self.data).read_all()


@dataclass(frozen=True, slots=True)
class InOneTask:
    """A ReadTask of several, one after another. Picklable."""

    tasks: tuple[ReadTask, ...]

    @property
    def weight(self) -> int:
        return sum(task.weight for task in self.tasks)

    @property
    def ordered(self) -> bool:
        return True

    def read(self) -> Iterator[Event]:
        for task in self.tasks:
            yield from task.read()


def is_divisible(task: ReadTask) -> bool:
    """Whether it is one of several that may read upserts."""
    return isinstance(task, Divisible) and task.upserts


def joined(works: Sequence[Work]) -> list[Work]:
    """These for one process: of upserts there is one reader."""
    tasks = tuple(work.task for work in works if is_divisible(work.task))
    if len(tasks) < 2:
        return list(works)
    whole = next(work for work in works if is_divisible(work.task))
    others = [work for work in works if not is_divisible(work.task)]
    return [dataclasses.replace(whole, task=InOneTask(tasks)), *others]


def events(task: ReadTask) -> Iterator[Event]:
    """What a task reads. Raises no error but persist's, here and on executors: Unforeseen, for what is another's."""
    with foreseen():
        yield from task.read()


def carry_out(work: Work, report: Callable[[int], None] = lambda rows: None) -> Done:
    """Read, reclock, sort, encode and upload. Bounded memory. Raises what the reader raises, LocationError.

    On any failure what was uploaded is deleted.
    """
    done = Done()
    return _written(timed_rows(work, done), work.exports, done, report)


def sent(work: Work, first: int, ranges: int) -> Iterator[tuple[int, Sent]]:
    """What ``work``, which is divisible, reads, with the number of the range whose task is to have it.

    ``first``: where rows go that have no range, in turn. Raises what the reader raises.
    """
    for event in events(work.task):
        plan = _plan(work, event)
        if isinstance(event, Upserts):
            rows = _placed(event, work)
            hashes = key_hashes(keys_of(rows, _key_names(plan)))
            for number, part in cut(rows, hashes, ranges):
                yield number, Sent.of(event.export, part, is_keyed=True)
        elif isinstance(event, Changes):
            timed = _timed(event, work.reclocker)
            wanted = _from(timed, plan.lower)
            table, reread = pa.Table.from_batches([wanted]), timed.num_rows - wanted.num_rows
            yield first % ranges, Sent.of(event.export, table, is_keyed=False, reread=reread)
            first += 1
        else:
            raise InvalidArgument("a task of upserts gave what needs one reader", export=event.export)


def carry_out_range(exports: Mapping[str, ExportPlan], of: KeyRange, given: Iterable[Sent]) -> Done:
    """What was sent to a range, written; ``exports``: as in Work. Bounded memory. Raises LocationError, NotReadable.

    On any failure what was uploaded is deleted.
    """
    done = Done(of=of)
    return _written(_rows_of_range(exports, of, given, done), exports, done, lambda rows: None)


def _rows_of_range(
    exports: Mapping[str, ExportPlan], of: KeyRange, given: Iterable[Sent], done: Done
) -> Iterator[tuple[str, pa.RecordBatch]]:
    upserts: dict[str, tuple[pa.Schema, Gathered]] = {}
    with contextlib.ExitStack() as open_files:
        for each in given:
            plan, rows = exports[each.export], each.rows
            done.reread += each.reread
            if not each.is_keyed:
                for batch in rows.to_batches():
                    yield each.export, batch
                continue
            if each.export not in upserts:
                gathered = open_files.enter_context(contextlib.closing(gather(_key_names(plan))))
                upserts[each.export] = rows.drop_columns(list(PLACES)).schema, gathered
            upserts[each.export][1].add(rows)
        for export, (fields, gathered) in upserts.items():
            for batch in _upserted(exports[export], export, (of,), fields, gathered, done, keep=False):
                yield export, batch


def _written(
    rows: Iterable[tuple[str, pa.RecordBatch]],
    exports: Mapping[str, ExportPlan],
    done: Done,
    report: Callable[[int], None],
) -> Done:
    builders: Record = {}
    try:
        for name, batch in rows:
            builder = builders.get(name)
            if builder is None:
                builder = builders[name] = exports[name].spec.open()
            builder.add(batch)
            done.rows += batch.num_rows
            done.bytes += batch.nbytes
            report(batch.num_rows)
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
    for event in events(work.task):
        plan = _plan(work, event)
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
            upserts[event.export][1].add(_placed(event, work))
    for export, (fields, gathered) in upserts.items():
        plan = work.exports[export]
        for rows in _upserted(plan, export, key_ranges(plan.ranges), fields, gathered, done, keep=True):
            yield export, rows
    for export, each in by_key.items():
        done.marks[export] = each.finish(work.exports[export].upper)


def _upserted(
    plan: ExportPlan,
    export: str,
    of: Sequence[KeyRange],
    fields: pa.Schema,
    gathered: Gathered,
    done: Done,
    *,
    keep: bool,
) -> Iterator[pa.RecordBatch]:
    """The updates that the upserts of an export, or of ranges of its keys, come to."""
    if plan.lower < plan.upper:
        mark = done.marks[export] = system().random_bytes(16).hex()
        step = (gathered, plan.contents, plan.lower, plan.upper, fields, _key_names(plan), mark)
        yield from upserted(*step, of=of, marks=plan.marks, keep=keep)


def _plan(work: Work, event: Event) -> ExportPlan:
    plan = work.exports.get(event.export)
    if plan is None:
        raise InvalidArgument("the reader made rows of an unknown export", export=event.export)
    return plan


def _by_key(plan: ExportPlan) -> ByKey:
    schema = Schema.from_bytes(plan.spec.schema)
    return ByKey(plan.contents, plan.lower, pa.schema([*schema.key, *schema.val]), schema.key.names)


def _keyed(event: Keyed | Truncated, work: Work, by_key: ByKey) -> Iterator[pa.RecordBatch]:
    if isinstance(event, Truncated):
        return by_key.emptied(_time_of(work, event))
    return by_key.changed(event, work.reclocker.reclock_arrow(event.offsets, None))


def _key_names(plan: ExportPlan) -> list[str]:
    return list(Schema.from_bytes(plan.spec.schema).key.names)


def _placed(event: Upserts, work: Work) -> pa.Table:
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
    return table.filter(pc.greater_equal(table[PLACES[0]], pa.scalar(lower, pa.uint64())))


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
        for event in events(work.task):
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


def time_of(upper: Antichain) -> int:
    """The first time that lies at or beyond an upper, or the last one there is."""
    return OFFSET_MAX if upper.time is None else int(upper.time)
