"""The driver of one source: probe, bind, plan, have it carried out, append, commit upstream, forget.

A step may be broken off anywhere and begun again anywhere: the bindings say which message has which time, the uppers
of the data shards say which times are durable, and each append succeeds only where no other was first. So any number
of ingesters of one source write the same data once, and there is no other checkpoint.
Source: design 003; sources.md section 6; catalog-semantics.md sections 4.2 and 5; reliability.md I18-I20.
"""

import contextlib
import dataclasses
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import persist
from persist import (
    Antichain,
    LeaseExpired,
    LocationError,
    NotReadable,
    Overloaded,
    PersistError,
    ShardClosed,
    ShardId,
    UpperMismatch,
)
from persist.runtime import system
from persist.sources import (
    SILENT_MS,
    BindingLog,
    ExportUpper,
    Probe,
    Reclocker,
    RemapTrace,
    SourceFrontier,
    SourceQuarantined,
    UpstreamLost,
    UpstreamReplaced,
    check_available,
    offset_resumption,
    source_upper_at_frontier,
)
from persist.typed import Record
from persist_ingest.location import Location, client
from persist_ingest.pipeline.anew.watching import Watch
from persist_ingest.pipeline.following import Follower, follower
from persist_ingest.pipeline.lives.admitting import log_bound
from persist_ingest.pipeline.lives.losing import LOST, Losses
from persist_ingest.pipeline.named import Following
from persist_ingest.pipeline.newest.key_ranges import KeyRange
from persist_ingest.pipeline.newest.upserts import appended, let_go
from persist_ingest.pipeline.records import Records, Source
from persist_ingest.pipeline.reporting.figures import Figures
from persist_ingest.pipeline.reporting.recounting import Recount
from persist_ingest.pipeline.running import PipelineOptions, Runner, Step
from persist_ingest.pipeline.state import Contents, History, contents_of
from persist_ingest.pipeline.timelines import Decided, check_timeline
from persist_ingest.pipeline.troubles import Held, check_same_life, running, stall
from persist_ingest.pipeline.work import Done, ExportPlan, Specs, Work, prepared, time_of, together
from persist_ingest.sources.foreseen import foreseen
from persist_ingest.sources.port import (
    BringsTimes,
    HeldUp,
    ReadsApart,
    ReadTask,
    Remembers,
    Revised,
    SchemaGrew,
    SourceFailure,
    SourceReader,
    is_apart,
)
from persist_ingest.sources.registry import pulled_type
from persist_ingest.sources.tables.silence import ended_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

STEP_BYTES: Final = 128 << 20
"""Upstream bytes that one step reads, about; a single binding is never divided."""
PATIENCE_SECONDS: Final = 300.0
"""How long the upstream or the stores may be away before a pipeline gives up."""
LOOK_SECONDS: Final = 1.0
"""Between two looks at what is recorded of the source's exports, before each of which nothing is released."""


class Pipeline:
    """Ingests one source until it is stopped. One thread; blocking."""

    def __init__(
        self,
        location: Location,
        name: str,
        *,
        options: PipelineOptions | None = None,
        session: "Callable[[], SparkSession] | None" = None,
        spark_bytes_min: int | None = None,
        report: Callable[[int], None] = lambda rows: None,
        complain: Callable[[PersistError], None] = lambda error: None,
    ) -> None:
        """``session``: gives the Spark session for steps worth one; without, everything runs here.

        ``report`` gets how many rows were written, ``complain`` what ``run`` waits for to pass.
        Raises SourceNotFound, and what opening the upstream raises.
        """
        self._location = location.resolved()
        self._client = client(self._location, patient=True)
        self._records = Records(self._client)
        self._losses = Losses(self._client, self._records)
        self.source: Source = self._records.source(name)
        self.options = (options or PipelineOptions()).checked()
        self._runner = Runner(session)
        if spark_bytes_min is not None:
            self._runner.spark_bytes_min = spark_bytes_min
        self._report = report
        self._complain = complain
        self._runtime = system()
        self._ingester = f"{self._runtime.hostname}-{os.getpid()}-{self._runtime.random_bytes(3).hex()}"
        self.recount = Recount(self._location, self.options.recount_ms)
        self.figures = Figures(self.source, recount=self.recount)
        self._minter = self._client.minter(self.options.minter)
        self.names = Following(self._location)
        self._type = pulled_type(self.source.type, name)
        self.watch = Watch(
            self._location, name, minter=self.options.minter, pace=self.options.paced, beside=self.recount.due
        )
        self._held = Held()
        self._shards: dict[str, ShardId] = {name: self.source.shards[name] for name in running(self.source)}
        self._writers: Record = {}
        self._uppers: dict[str, Antichain] = {}
        self._marks: dict[str, dict[KeyRange, str]] = {}
        self._history = History(self._client, self.options.retain_ms)
        self._reader: SourceReader | None = None
        self._follower: Follower | None = None
        self._recorded = self.source.definition
        self._stop, self._specs = threading.Event(), Specs()
        self._late: deque[SourceFrontier] = deque()
        self._checked = self._has_failed = False
        self._told_at = self._forgot_at = self._looked_at = float("-inf")

    def run(self, *, steps: int | None = None, until: Callable[[Step], bool] = lambda step: False) -> Step | None:
        """Step after step, each ``tick_ms`` after the one before; the last step, if any.

        Waits while upstream or stores are away, up to five minutes, and for locks of others as long as it takes. Raises
        SourceFailure and other usage errors (definite; ``status`` shows them), LocationError.
        """
        with ended_by(self._stop):
            return self._run(steps, until)

    def _run(self, steps: int | None, until: Callable[[Step], bool]) -> Step | None:
        patience = self._runtime.monotonic() + PATIENCE_SECONDS
        number, step = 0, None
        self._tell("running", None, force=True)  # The word of one that failed is not the last one any more.
        while not self._stop.is_set():
            begun = self._runtime.monotonic()
            try:
                step = self.step()
                patience = self._runtime.monotonic() + PATIENCE_SECONDS
                number += 1
                if until(step) or (steps is not None and number >= steps):
                    self._tell("stopped", step, force=True)
                    return step
            except HeldUp as error:
                patience = self._runtime.monotonic() + PATIENCE_SECONDS
                self._again(error)
            except SourceQuarantined as error:
                # Until its times are right again: what was read stays known.
                patience = self._runtime.monotonic() + PATIENCE_SECONDS
                self.figures.failed(error)
                self._complain(error)
                self._tell("stalled", None, error, force=True)
            except (LocationError, LeaseExpired) as error:
                if self._stop.is_set():
                    # Broken off, maybe: nothing more is asked of what does not answer.
                    self._close_reader()
                    break
                if self._runtime.monotonic() > patience:
                    self._failed(error)
                    raise
                self._again(error)
            except PersistError as error:
                self._failed(error)
                raise
            self._stop.wait(max(0.0, begun + self.options.tick_ms / 1000 - self._runtime.monotonic()))
        self._tell("stopped", step, force=True)
        return step

    def stop(self) -> None:
        """Have ``run`` return after its step, or amid it if its upstream says nothing. From any thread or handler."""
        self._stop.set()

    def step(self) -> Step:
        """One round: whatever the upstream has now is durable afterwards, with times. Safe to repeat after any error.

        An export that cannot go on stands aside, and the others do. Raises SourceFailure (of all exports, or of the one
        that is left), UpstreamLost, UpstreamRegressed, UpstreamReplaced (definite), LocationError (again).
        """
        while True:
            try:
                return self._stepped()
            except SourceFailure as error:
                if not self._set_aside(error):
                    raise
            except LOST as error:
                self._losses.keep_in_mind(self.source, self._type, self._reader, error, self.watch.discard)
                raise
            except UpstreamReplaced as error:
                self._take_over(self._losses.succeed(self.source, self._type, error, self.watch.discard))
            except (UpstreamLost, ShardClosed) as error:
                # Others may have released what only exports need that stand aside by now, or that left.
                if not self._caught_up() and not self._set_aside(error):
                    raise

    @foreseen()
    def _stepped(self) -> Step:
        begun = self._runtime.monotonic()
        if not self._shards:
            found = self._records.source(self.source.name)
            self.watch.look(found)
            self._take_over(self._losses.mended(found, self._type, self._minter))
        reader = self._open()
        if self._follower is not None:
            trace, step = None, self._followed(self._follower)
        else:
            trace = self._bind(reader)
            step = self._carried(reader, trace)
        self._record(reader)
        self.names.look(self.source, {name: writer.schema for name, writer in self._writers.items()})
        self._let_go(reader, trace)
        step = dataclasses.replace(step, seconds=self._runtime.monotonic() - begun)
        self.figures.stepped(step, self._uppers)
        self._tell("running", step)
        return step

    def close(self) -> None:
        """Release the upstream and the bindings. What was appended stays, and so does the word of a failure."""
        if not self._has_failed:
            try:
                self._records.tell(self.source, self._ingester, None)
            except Exception as untold:
                _log.warning("source %s keeps the status of an ingester that ended: %s", self.source.name, untold)
        self.watch.close()
        self.names.close()
        for shard in self.source.exports.values():
            let_go(contents_of(self._location, self.source, shard))
        if self._reader is not None:
            self._reader.close()
        self._minter.close()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> SourceReader:
        if self._reader is None:
            if not self._shards:
                raise HeldUp("no export of this source runs", hint="persist source status says what each waits for")
            writers = together(self._client.open_writer, self._shards.values())
            self._writers.update(zip(self._shards, writers, strict=True))
            self._ask_uppers()
            schemas = {name: writer.schema for name, writer in self._writers.items()}
            self._reader = self._type.open(self.source.definition, schemas)
            recorded = Decided(self.source.timeline, self.source.claims_epoch)
            check_timeline(recorded, self._reader, id=self.source.remap, name=self.source.name)
            if isinstance(self._reader, BringsTimes):
                known = (self.source, self._writers, self._uppers)
                self._follower = follower(self._reader, *known, self._runtime.now_ms)
        return self._reader

    def _followed(self, follower: Follower) -> Step:
        done = follower.step()
        self._uppers = dict.fromkeys(self._uppers, follower.upper)
        frontier = SourceFrontier.minimum(self.source.remap_source.kind)
        return Step(upper=follower.upper, frontier=frontier, **dataclasses.asdict(done))

    def _bind(self, reader: SourceReader) -> RemapTrace:
        """Ask the upstream what it has and have that bound; the bindings afterwards."""
        remap = self.source.remap_source
        # The upstream is asked after the bindings were read: it may not have less than those say.
        before = self._minter.bindings(remap)
        if isinstance(reader, Remembers):
            reader.remember(before.frontier)
        bound = log_bound(reader, before.frontier)
        probe = self._losses.admission.probed(self.source, reader, bound)
        wanted = probe.wanted(BindingLog(trace=before, incarnation=self.source.incarnation))
        self.figures.known = wanted
        self._losses.admission.admit(self.source, reader, bound)
        self._check_resumable(probe, before)
        is_news = not wanted.less_equal(before.frontier) or not before.is_initialized
        try:
            self._minter.mint(remap, wanted if is_news else None, high=wanted)
        except Overloaded:
            self._let_go(reader, before)  # Some may be forgotten by now, and then it is tried again.
            raise
        after: RemapTrace = self._minter.bindings(remap)
        return after

    def _check_resumable(self, probe: Probe, trace: RemapTrace) -> None:
        """At every start: the upstream still has what is not durable yet."""
        if self._checked or not trace.is_initialized:
            return
        _, begin = self._begin(trace)
        try:
            check_available(probe.kind, probe.low, begin)
        except UpstreamLost:
            # Another ingester made it durable, and had it thrown away, since the uppers were asked for.
            self._ask_uppers()
            check_available(probe.kind, probe.low, self._begin(trace)[1])
        self._checked = True

    def _least(self, trace: RemapTrace) -> Antichain:
        upper = trace.upper
        for each in self._uppers.values():
            upper = upper.meet(each)
        return upper

    def _ask_uppers(self) -> None:
        """What is durable now, of this ingester and others."""
        self._uppers = dict(zip(self._shards, together(self._client.recent_upper, self._shards.values()), strict=True))

    def _begin(self, trace: RemapTrace) -> tuple[Antichain, SourceFrontier]:
        """From which time on something is missing in some export, and from where on to read for that.

        SUBTLE: bindings are forgotten up to one before what is durable everywhere. So an export whose upper lies at
        since or before is one that another ingester has moved meanwhile; unless it is not, and its data are lost.
        """
        least = self._least(trace)
        if trace.since.time and least.less_equal(trace.since):
            self._ask_uppers()
            least = self._least(trace)
            if least.less_equal(trace.since):
                behind = [name for name, upper in self._uppers.items() if upper.less_equal(trace.since)]
                raise SourceFailure(
                    "the bindings of data that are not durable yet were forgotten",
                    hint="the since of the progress shard was moved: snapshot it again, or create the source anew",
                    **({"export": behind[0]} if len(behind) < len(self._uppers) else {}),
                    since=trace.since,
                    durable=least,
                )
        return least, source_upper_at_frontier(trace, least)

    def _carried(self, reader: SourceReader, trace: RemapTrace) -> Step:
        """``_carry``, begun again for as long as columns come that are new, or others turn out to be further on.

        Each round knows more columns, or begins later, than the one before: so they end.
        """
        while True:
            try:
                return self._carry(reader, trace)
            except SchemaGrew as grown:
                self._evolve(reader, grown)
            except (UpstreamLost, NotReadable):
                # Others may have made it durable while this one rested, and had thrown away what it would read:
                # upstream, or of what an export held, which upserts and truncations refer to.
                begun = self._least(trace)
                self._ask_uppers()
                if not begun.less_than(self._least(trace)):
                    raise

    def _carry(self, reader: SourceReader, trace: RemapTrace) -> Step:
        """Make what is bound durable in every export: all of it, or a good piece when there is very much."""
        least, begin = self._begin(trace)
        if not least.less_than(trace.upper):
            return Step(upper=trace.upper, frontier=trace.frontier)
        upper, end, tasks = self._reach(reader, trace, least, begin)
        done = self._read(Reclocker.between(trace, begin, end), upper, tasks) if tasks else []
        appended = overtaken = 0
        behind = [name for name, durable in self._uppers.items() if durable.less_than(upper)]
        for was_first in together(lambda name: self._append(name, done, upper), behind):
            if was_first:
                appended += 1
            else:
                overtaken += 1
        return Step(
            upper=self._least(trace),
            frontier=end,
            rows=sum(each.rows for each in done),
            bytes=sum(each.bytes for each in done),
            reread=sum(each.reread for each in done),
            appended=appended,
            overtaken=overtaken,
        )

    def _reach(
        self, reader: SourceReader, trace: RemapTrace, least: Antichain, begin: SourceFrontier
    ) -> tuple[Antichain, SourceFrontier, Sequence[ReadTask]]:
        """How far this step goes, and what it reads: through as many bindings as make a step of bearable size."""
        upper, end = trace.upper, trace.frontier
        bindings = [binding for binding in trace.bindings if least.less_equal_time(binding.ts)]
        while True:
            tasks = [] if end.releases_within(begin) else reader.plan(begin, end, 1)
            weight = sum(task.weight for task in tasks)
            if weight <= STEP_BYTES or len(bindings) < 2:
                break
            bindings = bindings[: len(bindings) // 2]
            upper, end = Antichain.of(bindings[-1].ts + 1), bindings[-1].frontier
        if self._runner.wants(weight):
            tasks = reader.plan(begin, end, self._runner.tasks)
        return upper, end, tasks

    def _read(self, reclocker: Reclocker, upper: Antichain, tasks: Sequence[ReadTask]) -> list[Done]:
        exports = {
            name: ExportPlan(
                spec=self._specs.of(name, writer),
                lower=time_of(self._uppers[name]),
                upper=time_of(upper),
                contents=self._contents(name),
                ranges=self._runner.ranges(self.options.key_ranges),
                marks=frozenset(self._marks.get(name, {}).values()),
            )
            for name, writer in self._writers.items()
        }
        return self._runner.run([Work(task=task, reclocker=reclocker, exports=exports) for task in tasks], self._report)

    def _append(self, name: str, done: Sequence[Done], upper: Antichain) -> bool:
        """Whether this ingester was the one that made everything before ``upper`` durable."""
        batches = prepared(done, name)
        try:
            outcome = self._writers[name].compare_and_append_batches(batches, self._uppers[name], upper)
        except LeaseExpired:
            # The shard forgot this writer, which was silent for long: nothing happened.
            self._writers[name] = self._client.open_writer(self._shards[name])
            raise
        # After a mismatch another ingester was faster. What was written here stays unnamed, for the sweeper.
        self._uppers[name], was_first = outcome.upper, not isinstance(outcome, UpperMismatch)
        # SUBTLE: of a compacted log another ingester may have read, and appended, other rows at the same offsets. So
        # what was committed already, as the upper says, is not known to be this.
        marks = [(each.of, each.marks[name]) for each in done if name in each.marks]
        # Of each range it is one task's: what was made beside another's is not all there is.
        is_whole = len(dict(marks)) == len(marks)
        if is_whole and not isinstance(outcome, UpperMismatch) and not outcome.already_committed:
            self._marks.setdefault(name, {}).update(marks)
            appended(self._contents(name), *dict(marks).values())
        self.figures.appended(name, batches, was_first=was_first)
        return was_first

    def _contents(self, name: str) -> Contents:
        return contents_of(self._location, self.source, self._shards[name], self.options.state_dir)

    def _evolve(self, reader: SourceReader, grown: SchemaGrew) -> None:
        """Read and write an export under the columns it has now, or that another ingester gave it already."""
        shard, known = self._shards[grown.export], reader.exports()[grown.export]
        if self._client.schema(shard) == known:
            with contextlib.suppress(persist.SchemaMismatch):  # another one was faster: see what it has now
                self._client.evolve_schema(shard, grown.schema)
        writer = self._client.open_writer(shard)
        if writer.schema == known:
            raise grown
        self._writers[grown.export] = writer
        reader.adopt(grown.export, writer.schema)

    def _record(self, reader: SourceReader) -> None:
        """Have the reader opened with what it learned from now on, here and elsewhere."""
        definition = reader.revised() if isinstance(reader, Revised) else None
        if definition is None or definition == self._recorded:
            return
        self.source = dataclasses.replace(self.source, definition=definition)
        try:
            self._records.revise(self.source)
            self._recorded = definition
        except PersistError as error:
            _log.warning("source %s could not record what it learned, and tries again: %s", self.source.name, error)

    def _let_go(self, reader: SourceReader, trace: RemapTrace | None) -> None:
        """Confirm upstream, some steps late, what is durable, and release bindings and history."""
        if trace is None:
            self._forget(lambda: next(iter(self._uppers.values())))
            return
        durable = offset_resumption(trace, [ExportUpper(*each) for each in self._uppers.items()])
        # SUBTLE: as it is before the look: what is bound for exports that this pipeline does not know lies behind it.
        least = self._least(trace)
        if is_apart(self._type, self.source.definition) and not self._may_let_go():
            return
        if self._held.log != 0:
            if durable is not None:
                self._late.append(durable)
            while len(self._late) > self.options.commit_steps_late:
                frontier = self._held.bounded(self._late.popleft(), self.source.remap_source.kind)
                if frontier != self.figures.committed:
                    reader.commit(frontier)
                    self.figures.committed = frontier

        def forgotten() -> Antichain:
            if not self._held.bindings:
                bound = None if least.time is None else Antichain.of(max(least.time - 1, 0))
                self._minter.compact(self.source.remap_source, self._shards, hold=bound)
            return least

        self._forget(forgotten)

    def _set_aside(self, error: PersistError) -> bool:
        """Go on without the export that this is about, or with what others know of it; False: there is no such way."""
        export = error.details.get("export")
        if export not in self._shards or not is_apart(self._type, self.source.definition):
            return False
        now = stall(self._records, self.source, str(export), error, self._type)
        if now.turn == self.source.turn and str(export) not in now.troubles:
            return False
        self.figures.failed(error)
        self._complain(error)
        _log.warning("source %s goes on without %s: %s", self.source.name, export, error)
        self._take_over(now)
        return True

    def _take_over(self, now: Source) -> None:
        """Go on with the exports that run as it is recorded, under the definition that is recorded."""
        check_same_life(self.source, now)
        self._close_reader()
        self.source, self._recorded, self.figures.source = now, now.definition, now
        self._shards = {name: shard for name, shard in now.shards.items() if name not in now.troubles}
        self._uppers.clear()
        # An export that joins may need what the others were done with.
        self._late.clear()
        self._checked = False

    def _may_let_go(self) -> bool:
        """Whether what was durable before this call may be released, up to what an export needs that is read anew.

        SUBTLE: an attempt says so in the record before it has a position to begin at. So what was durable before that
        was looked up lies before all that the attempt needs.
        """
        if (now := self._runtime.monotonic()) - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = now
        found = self._records.source(self.source.name)
        if found.generation != self.source.generation:
            return False
        self.figures.source = found
        self._losses.admission.look(found)
        self.watch.look(found)
        is_same, silent_ms = self._knows(found), self._runtime.now_ms() - SILENT_MS
        if not is_same:
            self._take_over(found)
        self._held = Held.by(found, silent_ms, has_snapshots=isinstance(self._type, ReadsApart))
        return is_same

    def _caught_up(self) -> bool:
        """Whether others know more of the source: it is gone on with as they do."""
        found = self._records.source(self.source.name)
        is_news = not self._knows(found)
        if is_news:
            self._take_over(found)
        return is_news

    def _knows(self, found: Source) -> bool:
        """Which exports run, and under what definition, is what this pipeline goes by."""
        return found.turn == self.source.turn and found.troubles.keys() == self.source.troubles.keys()

    def _forget(self, upper: Callable[[], Antichain]) -> None:
        now = self._runtime.monotonic()
        if now - self._forgot_at >= self.options.forget_ms / 1000:
            self._forgot_at = now
            together(self._history.keeper(upper()), self._shards.values())

    def _again(self, error: PersistError) -> None:
        """After a failure that may pass: say so, and begin with what the shards say."""
        self.figures.failed(error)
        self._complain(error)
        self._tell("stalled", None, error, force=True)
        self._close_reader()
        with contextlib.suppress(PersistError):
            # It may have been decided meanwhile where the upstream is.
            self._caught_up()

    def _close_reader(self) -> None:
        if self._reader is not None:
            with contextlib.suppress(PersistError):
                self._reader.close()
        self._reader = self._follower = self.figures.committed = None
        self._writers.clear()

    def _failed(self, error: PersistError) -> None:
        self._has_failed = True
        self.figures.failed(error)
        self._tell("failed", None, error, force=True)

    def _tell(self, state: str, step: Step | None, error: PersistError | None = None, *, force: bool = False) -> None:
        now = self._runtime.monotonic()
        if not force and now - self._told_at < self.options.told_ms / 1000:
            return
        is_first, self._told_at = self._told_at == float("-inf"), now
        try:
            if is_first:
                self._records.forget_silent(self.source, self._ingester)
            if step is not None and self._reader is not None:
                self.figures.upstream = self._reader.status()
            told = self.figures.told(state, step, error)
            self._records.tell(self.source, self._ingester, dataclasses.asdict(told))
        except Exception as untold:
            # What only reports how ingestion fares never ends it; what ends it is found by reading and writing.
            self.figures.untold += 1
            _log.warning("status of source %s not reported: %s: %s", self.source.name, type(untold).__name__, untold)
