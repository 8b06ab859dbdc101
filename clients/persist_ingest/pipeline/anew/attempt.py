"""One process that reads an export anew: piece by piece into a shard of its own, and from there at one time.

It may die anywhere. What was appended stays, the record says how far that is, and what goes on reads at most the
piece again that was under way. Until the export has all of it, pipelines release the upstream no further than that.
Source: sources.md section 1; DBLog (Andreakis, Papapanagiotou 2020); catalog-semantics.md section 4.2.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

import persist
from persist import (
    LeaseExpired,
    LocationError,
    PersistError,
    PreparedBatch,
    SchemaMismatch,
    ShardClosed,
    ShardId,
    ShardNotFound,
    UpperMismatch,
    UsageError,
)
from persist.runtime import system
from persist.sources import (
    Reclocker,
    RemapTrace,
    SourceFrontier,
    SourceKind,
    UpstreamLost,
    UpstreamReplaced,
)
from persist_ingest.location import Location, client
from persist_ingest.pipeline.anew.progress import FENCE, STEP, AnewProgress, Reached
from persist_ingest.pipeline.anew.staging import Staging
from persist_ingest.pipeline.lives.losing import LOST, Losses
from persist_ingest.pipeline.newest.kept import forget
from persist_ingest.pipeline.newest.upserts import appended, let_go
from persist_ingest.pipeline.records import DATA_SINCE, Records, Source
from persist_ingest.pipeline.state import Contents
from persist_ingest.pipeline.troubles import Trouble, amend, troubles, with_trouble
from persist_ingest.pipeline.work import ExportPlan, Work, carry_out, prepared
from persist_ingest.sources.lives import OnServer
from persist_ingest.sources.port import (
    Anew,
    Changes,
    ExportEmptied,
    HeldUp,
    ReadsApart,
    SchemaGrew,
    TableAltered,
    Truncated,
)

if TYPE_CHECKING:
    from persist.sources import Minter

_log = logging.getLogger(__name__)

TRIES: Final = 5
"""How often it begins anew because the table was altered meanwhile."""
PAUSE_SECONDS: Final = 1.0
TICK_SECONDS: Final = 0.05
"""Between two looks whether there is a later time than the export has."""
PATIENCE_SECONDS: Final = 300.0
"""How long the upstream or the stores may be away before it is left to the next one."""


class SnapshotLost(UsageError):
    """Another attempt to snapshot this export took over, or it is over. Look at its status, and repeat."""

    reason = "SNAPSHOT_LOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """``rows``: of a piece, at most; ``rows_per_second``: of all of them, over time (0: as fast as it can be).

    ``state_dir``: where this machine keeps what keys hold meanwhile, as PipelineOptions has it.
    """

    rows: int = 50_000
    rows_per_second: int = 0
    state_dir: str = ""


class Attempt:
    """One attempt, which the record says is at work."""

    def __init__(
        self,
        here: Location,
        source: Source,
        export: str,
        mine: Trouble,
        kind: ReadsApart,
        minter: "Minter",
        *,
        pace: Pace,
        report: Callable[[int], None],
        stopped: threading.Event,
        decided: bool = False,
    ) -> None:
        """``report`` gets how many rows were read since. ``decided``: a person has it read anew, see Admission."""
        self.here = here
        self._client = client(here)
        self._records = Records(self._client)
        self._name = source.name
        self._source = source
        self._export = export
        self._mine = mine
        self.kind = kind
        self._minter = minter
        self.pace = pace
        self._report = report
        self._stopped = stopped
        self._decided = decided
        self._writer: persist.WriteHandle | None = None
        self._losses = Losses(self._client, self._records)
        self.progress = AnewProgress.of(mine)

    def run(self) -> Source | None:
        """The source once the export has all of it, and goes on; None: it was stopped, and another may go on.

        Raises SnapshotLost, SourceFailure and other usage errors (definite), LocationError (another may go on).
        """
        left, patience = TRIES, system().monotonic() + PATIENCE_SECONDS
        while not self._stopped.is_set():
            before = self.progress
            try:
                return self._gone_on()
            except ExportEmptied:
                self._over()
            except (TableAltered, SchemaGrew, UpstreamLost, SchemaMismatch):
                # The table was altered under it, or what it needs of the log is gone.
                left -= 1
                if not left:
                    raise
                self._over()
            except UpstreamReplaced as error:
                self._losses.succeed(self._source, self.kind, error, self._discard, decided=self._decided)
            except HeldUp as error:
                patience = system().monotonic() + PATIENCE_SECONDS
                self._say(error)
            except (LocationError, LeaseExpired) as error:
                if self.progress is not before:
                    patience = system().monotonic() + PATIENCE_SECONDS
                if system().monotonic() > patience:
                    raise
                self._say(error)
            self._writer = None
            self._stopped.wait(PAUSE_SECONDS)
        return None

    def _gone_on(self) -> Source | None:
        self._source = self._records.source(self._name)
        known = self._recovered()
        shard = self._source.exports[self._export] if known is None or known.moved else known.staging
        schema = self._client.schema(shard)
        begun = None if known is None else known.begun
        with self.kind.snapshot_again(self._source.definition, self._export, schema, begun) as anew:
            self._admit(anew)
            progress = known or self._begun(anew)
            self._writer = None if progress.moved else self._client.open_writer(progress.staging)
            while not self._stopped.is_set():
                progress = self._progressed()
                if progress.moved or (progress.reached.complete and self._is_moved(anew)):
                    return self._finished(anew)
                if not progress.reached.complete:
                    self._read(anew)
            self._save(self._progressed())
        return None

    def _admit(self, anew: Anew) -> None:
        """Its server has what was bound, or a person decides, and no export runs that this could make wrong.

        By itself it goes on only where all that was bound is. Raises as keep_in_mind, LOST.
        """
        if not isinstance(anew, OnServer):
            return
        try:
            bound = self._bound_now()
            self._losses.admission.admit(self._source, anew, bound, anew=True, decided=self._decided)
        except LOST as error:
            self._losses.keep_in_mind(self._source, self.kind, anew, error, self._discard)
            raise

    def _bound_now(self) -> int:
        # SUBTLE: by a minter of its own, which ends with the look: from its first look on one keeps all bindings.
        with contextlib.closing(self._client.minter("")) as looking:
            return looking.bindings(self._source.remap_source).frontier.bound(0) or 0

    def _discard(self, ended: Trouble) -> None:
        discard_ended(self.here, ended, self.pace.state_dir)

    def _begun(self, anew: Anew) -> AnewProgress:
        """An empty shard, and where in the log it begins."""
        hold = anew.begin()
        self._save(
            AnewProgress(
                staging=str(ShardId.new()),
                begun=anew.begun,
                reached=Reached(hold=hold.bound(0) or 0),
                about=anew.about(),
                began_ms=system().now_ms(),
            )
        )
        # After the record, which is all that will be known of it.
        self._client.open_writer(self._progressed().staging, schema=anew.schema)
        return self._progressed()

    def _recovered(self) -> AnewProgress | None:
        """How far it is, once nothing that was announced can happen any more; None: it begins anew."""
        known = self.progress
        if known is None or known.moved:
            return known
        try:
            upper = self._client.recent_upper(known.staging).time
            if known.announced is not None and upper == known.upper:
                writer = self._client.open_writer(known.staging)
                outcome = writer.compare_and_append_batches([], [upper], [upper + FENCE])
                upper = outcome.upper.time
        except (ShardNotFound, ShardClosed):
            upper = None
        found = known.found(upper)
        if found is None:
            self._over()
        else:
            self._save(found)
        return self.progress

    def _read(self, anew: Anew) -> None:
        """The next piece, and what the log has since the one before."""
        begun, before = system().monotonic(), self._progressed()
        reached, kind = before.reached, SourceKind(self._source.kind)

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal reached
            rows = 0
            with anew.piece(reached.after, self.pace.rows) as piece:
                for batch in piece.rows():
                    rows += batch.num_rows
                    yield from staging.there(batch)
            end = self._high(anew, reached.hold)
            for changes in piece.changes(SourceFrontier.at(kind, {0: reached.hold}), end):
                yield from staging.changed(changes)
            reached = Reached(
                hold=end.bound(0) or 0,
                after=reached.after if piece.last is None else piece.last,
                complete=piece.last is None,
                rows=reached.rows + rows,
                pieces=reached.pieces + 1,
            )

        with self._staging(anew) as staging:
            batch = self._prepared(batches())
            mark = staging.finish()
        self._append(batch, reached, mark)
        self._report(reached.rows - before.reached.rows)
        self._rest(begun, reached.rows - before.reached.rows)

    def _high(self, anew: Anew, hold: int) -> SourceFrontier:
        """How far the log is now. Raises UpstreamLost where that is less than was read: then that was another one."""
        end = anew.high()
        if (end.bound(0) or 0) < hold:
            message = "the log ends before where this snapshot was: the server lost its end, or was put back"
            raise UpstreamLost(message, hint="it begins anew", export=self._export)
        return end

    def _rest(self, begun: float, rows: int) -> None:
        if self.pace.rows_per_second:
            seconds = rows / self.pace.rows_per_second - (system().monotonic() - begun)
            if seconds > PAUSE_SECONDS:
                self._save(self._progressed())
            self._stopped.wait(max(0.0, seconds))

    def _prepared(self, batches: Iterable[pa.RecordBatch]) -> PreparedBatch:
        assert self._writer is not None
        builder = self._writer.batch_spec().open()
        try:
            for batch in batches:
                if batch.num_rows:
                    builder.add(batch)
            return builder.finish()
        except BaseException:
            builder.discard()
            raise

    def _staging(self, anew: Anew) -> Staging:
        before = self._progressed()
        return Staging(self._contents(before), anew.schema, before.upper, keyed=anew.keyed)

    def _contents(self, progress: AnewProgress) -> Contents:
        return Contents(location=self.here, shard=progress.staging, state_dir=self.pace.state_dir)

    def _append(self, batch: PreparedBatch, reached: Reached, mark: str) -> None:
        assert self._writer is not None
        before = self._progressed()
        self._save(replace(before, announced=reached))
        outcome = self._writer.compare_and_append_batches([batch], [before.upper], [before.upper + STEP])
        if isinstance(outcome, UpperMismatch):
            raise self._lost()
        if mark and not outcome.already_committed:
            appended(self._contents(before), mark)
        # Recorded with what is announced next: until then it is what the shard's upper says.
        self.progress = replace(before, reached=reached, upper=before.upper + STEP)

    def _is_moved(self, anew: Anew) -> bool:
        """Whether the export has all of it now; if not, another process appended to it meanwhile."""
        before, kind = self._progressed(), SourceKind(self._source.kind)
        trace = self._bound(self._high(anew, before.reached.hold))
        # The last time there is, which need not be one at which something was bound: the log may have nothing new.
        begin, end, at = SourceFrontier.at(kind, {0: before.reached.hold}), trace.frontier, (trace.upper.time or 1) - 1
        with self._staging(anew) as staging:
            batches = (rows for changes in anew.changes(begin, end) for rows in staging.changed(changes))
            batch = self._prepared(batches)
            mark = staging.finish()
        self._append(batch, replace(before.reached, hold=end.bound(0) or 0), mark)
        shard = self._source.shards[self._export]
        if self._client.schema(shard) != anew.schema:
            self._client.evolve_schema(shard, anew.schema)
        writer = self._client.open_writer(shard)
        lower = self._client.recent_upper(shard)
        if lower.time is None or lower.time > at:
            self._stopped.wait(TICK_SECONDS)
            return False
        if not lower.time:
            # An export that never held anything has no history: to read it as it was earlier is an error, not empty.
            since = self._client.open_since(DATA_SINCE, shard, purpose="history of a source")
            since.compare_and_downgrade(since.opaque, [at])
        plan = ExportPlan(
            spec=writer.batch_spec(),
            lower=lower.time,
            upper=at + 1,
            contents=Contents(location=self.here, shard=str(shard)),
        )
        staged = Contents(location=self.here, shard=before.staging)
        task = _Moving(self._export, (end.bound(0) or 1) - 1, staged, self._progressed().upper)
        times, bounds = np.array([0, at], np.uint64), np.array([0, end.bound(0) or 1], np.uint64)
        reclocker = Reclocker(kind, times, {0: bounds}, None)
        done = carry_out(Work(task=task, reclocker=reclocker, exports={self._export: plan}))
        # After an attempt that was given up, what the export reads next may have been released.
        check_mine(self._records.source(self._name), self._export, self._mine)
        outcome = writer.compare_and_append_batches(prepared([done], self._export), lower, [at + 1])
        return not isinstance(outcome, UpperMismatch)

    def _bound(self, high: SourceFrontier) -> RemapTrace:
        remap = self._source.remap_source
        if high.less_equal(self._minter.bindings(remap).frontier):
            self._minter.mint(remap)
        else:
            self._minter.mint(remap, high, high=high)
        trace: RemapTrace = self._minter.bindings(remap)
        return trace

    def _finished(self, anew: Anew) -> Source:
        """What was read is where it belongs: its shard goes, then the export runs."""
        progress = self._progressed()
        self._save(replace(progress, moved=True))
        discard(self.here, progress, self.pace.state_dir)
        through = SourceFrontier.at(SourceKind(self._source.kind), {0: progress.reached.hold})

        def place(found: Source) -> Source:
            check_mine(found, self._export, self._mine)
            after = replace(found, definition=anew.renewed(found.definition, through), turn=found.turn + 1)
            return with_trouble(after, self._export, None)

        return amend(self._records, self._source, place)

    def _over(self) -> None:
        """Begin anew. The shard of what was read goes first: until then the record says that it is there."""
        if self.progress is not None:
            discard(self.here, self.progress, self.pace.state_dir)
            self._save(None)

    def _save(self, progress: AnewProgress | None) -> None:
        def place(found: Source) -> Source:
            known = check_mine(found, self._export, self._mine)
            told = None if progress is None else progress.to_json()
            told_again = replace(known, error=self._mine.error, hint=self._mine.hint)
            return with_trouble(found, self._export, replace(told_again, beat_ms=system().now_ms(), progress=told))

        amend(self._records, self._source, place)
        self.progress = progress

    def _say(self, error: PersistError) -> None:
        """What it waits for, until it gets on."""
        _log.warning("the snapshot of %s goes on once it can: %s", self._export, error)
        told = Trouble.of(error)
        leave(
            self._records,
            self._source,
            self._export,
            self._mine,
            lambda known: replace(known, error=told.error, hint=told.hint),
        )

    def _progressed(self) -> AnewProgress:
        assert self.progress is not None
        return self.progress

    def _lost(self) -> SnapshotLost:
        return SnapshotLost(
            "another attempt goes on with this snapshot", hint="see the status of the source", export=self._export
        )


def check_mine(found: Source, export: str, mine: Trouble) -> Trouble:
    """What is recorded of the export, if this attempt is at work on it. Raises SnapshotLost."""
    known = troubles(found).get(export)
    if known is None or known.attempt != mine.attempt:
        raise SnapshotLost(
            "this attempt was given up, as it was silent for long",
            hint="see the status of the source, and repeat it",
            source=found.name,
            export=export,
        )
    return known


def discard(here: Location, progress: AnewProgress, state_dir: str = "") -> None:
    """What was read so far goes, for good. Doing it again does nothing."""
    with contextlib.suppress(ShardNotFound):
        client(here).finalize(progress.staging, force=True)
    contents = Contents(location=here, shard=progress.staging, state_dir=state_dir)
    let_go(contents)
    forget(contents)


def discard_ended(here: Location, ended: Trouble, state_dir: str) -> None:
    """What a snapshot read goes, which ended for good. Raises LocationError."""
    if (progress := AnewProgress.of(ended)) is not None:
        discard(here, progress, state_dir)


@dataclass(frozen=True, slots=True)
class _Moving:
    """Implements the ReadTask port: everything that was there is taken back, then what was read is put there."""

    export: str
    offset: int
    staged: Contents
    upper: int
    ordered = True
    weight = 0

    def read(self) -> Iterator[Truncated | Changes]:
        yield Truncated(export=self.export, offset=self.offset)
        for batch in self.staged.batches(self.upper):
            names = [name for name in batch.schema.names if name != "diff"]
            yield Changes(
                export=self.export,
                rows=batch.select(names),
                offsets=pa.array(np.full(batch.num_rows, self.offset, np.uint64)),
                diffs=batch.column("diff"),
            )


def leave(records: Records, source: Source, export: str, mine: Trouble, after: Callable[[Trouble], Trouble]) -> None:
    """Change what is recorded of the export, if this attempt is at work on it still."""

    def place(found: Source) -> Source:
        known = troubles(found).get(export)
        if known is None or known.attempt != mine.attempt:
            return found
        return with_trouble(found, export, after(known))

    with contextlib.suppress(PersistError):
        amend(records, source, place)
