"""The table of a webhook as a server of it appends to it: once, beside any number of other servers.

Rows have no upstream to be read again, so they are appended as a table's are: at a time of the timeline's oracle, or
behind whatever has passed that, and that time is applied before the sender has its answer. So a strict read that begins
afterwards has them. Source: catalog-semantics.md section 4.2; docs/adr/0009-tables.md; docs/adr/0012-numbered-calls.md.
"""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import pyarrow as pa

from persist import (
    Antichain,
    Appended,
    Determinate,
    Indeterminate,
    LeaseExpired,
    LocationError,
    NotReadable,
    OutcomeForgotten,
    PersistError,
    ShardClosed,
    ShardId,
    UpperMismatch,
)
from persist.runtime import system
from persist.sources import EPOCH_MILLISECONDS, ClockAhead, check_clock, timeline_of
from persist_ingest.pipeline.records import Source
from persist_ingest.receiving.memory import COLUMNS, Memory

if TYPE_CHECKING:
    import persist

SINCE_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 0.1
RELEASE_SECONDS: Final = 0.5
"""What is not released in that time runs out by itself, and the sender has its answer."""
LATE_MS: Final = 3_600_000
"""How far behind the clocks of other servers may be: so much more is read of what is remembered."""
Wanted: TypeAlias = Callable[[], pa.RecordBatch]
"""The rows that are to be appended, in view of what the table's memory has."""

T = TypeVar("T")


class WebhookTable:
    """One export of one life of a source. One thread; blocking."""

    def __init__(
        self,
        the_client: "persist.Client",
        source: Source,
        export: str,
        memory: Memory | None,
        pause: Callable[[float], object],
    ) -> None:
        """``memory``: in which deliveries are looked up; an empty one. ``pause``: waits for seconds."""
        self.memory = memory
        self.shard: ShardId = source.shards[export]
        self._client = the_client
        self._timeline = timeline_of(source.timeline)
        self._pause = pause
        self._writer: persist.WriteHandle | None = None
        self._reader: persist.ReadHandle | None = None
        self._oracle: persist.Oracle | None = None
        self._known: int | None = None
        self._since_at = float("-inf")

    @property
    def upper(self) -> int | None:
        """How far the table was complete when it was last looked at."""
        return self._known

    def append(self, wanted: Wanted, until: float) -> int | None:
        """Append what ``wanted`` gives, which may be asked several times; the time of it, once that is applied.

        Tried until the monotonic clock is at ``until``. None: nothing was wanted. Raises Determinate (nothing of it is
        there, nor will be), Indeterminate (it may be), ShardClosed (the source was dropped), UsageError; ClockAhead
        (nothing of it is there: the table is complete up to a time that this clock has not come to).
        """
        at = self._appended(wanted, until)
        # Of what another server appended just now the time need not be applied yet.
        seen = at if at is not None else self._known - 1 if self.memory is not None and self._known else None
        if seen is None:
            return at
        try:
            self._repeat(lambda left: self._times(left).apply_write(seen, timeout=left), until)
        except PersistError as error:
            # SUBTLE: whatever the error says of itself, the rows are there.
            raise Indeterminate(
                "it was appended, and strict reads need not have it yet", hint="read the table", at=seen
            ) from error
        return at

    def beat(self, now_ms: int, seconds: float) -> None:
        """Say that nothing more comes at or before ``now_ms``. Raises LocationError, LeaseExpired, ShardClosed."""
        upper = self._caught_up(seconds)
        if upper > now_ms:
            return
        try:
            outcome = self._open(seconds).compare_and_append([], upper, now_ms + 1, timeout=seconds)
        except LeaseExpired:
            self._forget()
            raise
        self._passed(outcome, upper)

    def close(self) -> None:
        """Release what is held for reading, for as long as that does not keep a sender waiting. Raises nothing."""
        reader, self._reader = self._reader, None
        if reader is not None:
            with contextlib.suppress(PersistError):
                reader.expire(timeout=RELEASE_SECONDS)

    def _appended(self, wanted: Wanted, until: float) -> int | None:
        while True:
            upper = self._repeat(self._caught_up, until)
            rows = wanted()
            if not rows.num_rows:
                return None
            writer = self._repeat(self._open, until)
            at = self._repeat(self._time, until)
            self._check_ahead(max(at, upper), until)
            try:
                appended = self._attempt(writer, rows, at, upper, until)
            except LeaseExpired:
                # The shard forgot this writer, or was restored: nothing happened.
                self._forget()
            except Determinate:
                if _left(until) <= 0:
                    raise
                self._pause(PAUSE_SECONDS)
            else:
                if appended is not None:
                    return appended
            if _left(until) <= 0:
                raise Determinate("others append all the time", hint="fewer servers of one webhook")

    def _check_ahead(self, ts: int, until: float) -> None:
        """Raise ClockAhead for a time that could not be applied once rows are at it: strict reads would lack them.

        A server with another clock may have said that nothing more comes before such a time.
        """
        if self._timeline != EPOCH_MILLISECONDS:
            return
        try:
            check_clock(ts, system().now_ms())
        except ClockAhead:
            if self._repeat(lambda left: int(self._times(left).peek_write_ts(timeout=left)), until) < ts:
                raise

    def _attempt(
        self, writer: "persist.WriteHandle", rows: pa.RecordBatch, at: int, upper: int, until: float
    ) -> int | None:
        """The time at which the rows are; None: they are not there, nor will be, as others came first or otherwise.

        Raises Indeterminate, and what certainly did not happen.
        """
        # Half of it: then there is time to find out what came of it.
        left = max(_left(until) / 2, 0.05)
        at = at if self.memory is None else max(at, upper)
        try:
            outcome = self._sent(writer, _updates(rows, at), at, upper, left)
        except OutcomeForgotten as forgotten:
            if self.memory is None:
                raise
            # Nothing more comes of it, and the table says whether it is there.
            self._read_anew(until, forgotten)
            return None
        except Indeterminate as doubt:
            found = self._resolved(writer, str(doubt.details.get("call")), until)
            if found is None:
                return None
            outcome = found
        self._passed(outcome, upper, mine=rows)
        return None if isinstance(outcome, UpperMismatch) else _time(outcome.upper) - 1

    def _sent(
        self, writer: "persist.WriteHandle", updates: pa.Table, at: int, upper: int, left: float
    ) -> Appended | UpperMismatch:
        if self.memory is None:
            return writer.append_at_upper(updates, not_before=at, timeout=left)
        return writer.compare_and_append(updates, upper, at + 1, timeout=left)

    def _read_anew(self, until: float, forgotten: OutcomeForgotten) -> None:
        """Remember what the table has now. Raises Indeterminate: it cannot be read, so what came of an append is not
        known."""
        self._forget()
        try:
            self._repeat(self._caught_up, until)
        except PersistError as error:
            raise Indeterminate("it may have been appended", hint="read the table", **forgotten.details) from error

    def _resolved(self, writer: "persist.WriteHandle", call: str, until: float) -> Appended | None:
        """What came of an append that had no answer; None: nothing, and nothing will.

        Raises Indeterminate: that cannot be found out in time, or is forgotten.
        """
        while True:
            try:
                for each in writer.resolve(timeout=max(_left(until) / 2, 0.05)):
                    if each.call != call:
                        continue  # a beat
                    if each.forgotten:
                        raise OutcomeForgotten("whether it was appended is not known any more", hint="read the table")
                    return each.appended
                return None
            except OutcomeForgotten:
                raise
            except LocationError as error:
                if _left(until) <= 0:
                    raise Indeterminate("it may have been appended", hint="read the table") from error
                self._pause(PAUSE_SECONDS)

    def _repeat(self, ask: Callable[[float], T], until: float) -> T:
        """What changes no rows, until it is answered. Raises Determinate: it was not, in time."""
        while True:
            try:
                return ask(max(_left(until), 0.05))
            except LeaseExpired as error:
                self._forget()
                if _left(until) <= 0:
                    raise Determinate("the location was restored", hint="repeat it") from error
            except LocationError as error:
                if _left(until) <= 0:
                    raise Determinate("no answer in time", hint="repeat it") from error
                self._pause(PAUSE_SECONDS)

    def _time(self, left: float) -> int:
        given: int = self._times(left).write_ts(timeout=left)
        # Times of others than clocks: its oracle need not follow one.
        return given if self._timeline == EPOCH_MILLISECONDS else max(given, system().now_ms())

    def _caught_up(self, left: float) -> int:
        """An upper of the table, with everything before it remembered."""
        if self._known is not None:
            return self._known
        if self.memory is None:
            self._known = self._newest(left)
            return self._known
        if self._reader is None:
            self._reader = self._client.open_reader(
                self.shard, purpose="webhook", use_critical_since=True, timeout=left
            )
        upper = self._newest(left)
        if upper:
            earliest = pa.scalar(self.memory.earliest(system().now_ms() - LATE_MS), pa.timestamp("ms", tz="UTC"))
            there = self._reader.snapshot(upper - 1, timeout=left)
            where = [("received", ">=", earliest.as_py())]
            self.memory.read(there.to_batches([*COLUMNS], where, consolidated=False), timed=False)
        self._known = upper
        return upper

    def _newest(self, left: float) -> int:
        return _time(self._client.recent_upper(self.shard, timeout=left))

    def _passed(self, outcome: Appended | UpperMismatch, lower: int, mine: pa.RecordBatch | None = None) -> None:
        """Go on from where an append left the table, with what is between remembered."""
        upper = _time(outcome.upper)
        if self.memory is not None:
            if isinstance(outcome, UpperMismatch):
                self._read_between(lower, upper)
            elif mine is not None:
                times = pa.array([upper - 1] * mine.num_rows, pa.uint64())
                named = [mine.column(name) for name in COLUMNS]
                self.memory.read([pa.RecordBatch.from_arrays([*named, times], [*COLUMNS, "ts"])], timed=True)
        self._known = upper
        self._let_go(upper)

    def _read_between(self, lower: int, upper: int) -> None:
        """What others appended meanwhile: all of it, or nothing is remembered. Raises Determinate (it cannot be read
        now), LeaseExpired: this server stood still for long.
        """
        assert self.memory is not None
        assert self._reader is not None
        try:
            # SUBTLE: all of it first. A repetition that is recognised is answered once the times before ``_known`` are
            # applied, and what is remembered of a part would be of later ones.
            batches = list(self._reader.diffs(lower, upper).to_batches([*COLUMNS]))
        except NotReadable as error:
            raise LeaseExpired("what others appended is not known one by one any more", hint="look again") from error
        except LocationError as error:
            raise Determinate("what others appended cannot be read now", hint="repeat it") from error
        self.memory.read(batches, timed=True)

    def _let_go(self, upper: int) -> None:
        """Hold no more history than is needed to go on."""
        now = system().monotonic()
        if self._reader is None or now - self._since_at < SINCE_SECONDS or upper < 2:
            return
        self._since_at = now
        try:
            self._reader.downgrade_since([upper - 2], timeout=RELEASE_SECONDS)
        except LocationError:
            pass
        except PersistError:
            # What was appended is: this must not make it look otherwise.
            self._forget()

    def _forget(self) -> None:
        """Begin anew with what the table says.

        SUBTLE: after a restore deliveries are not there any more that were, and are to be taken again.
        """
        self.close()
        self._writer = self._oracle = self._known = None
        if self.memory is not None:
            self.memory.clear()

    def _open(self, left: float) -> "persist.WriteHandle":
        if self._writer is None:
            self._writer = self._client.open_writer(self.shard, timeout=left)
        return self._writer

    def _times(self, left: float) -> "persist.Oracle":
        if self._oracle is None or self._oracle.over:
            self._oracle = self._client.oracle(self._timeline, timeout=left)
        return self._oracle


def _left(until: float) -> float:
    return until - system().monotonic()


def _time(upper: Antichain) -> int:
    """Raises ShardClosed."""
    if upper.time is None:
        raise ShardClosed("the source was dropped", hint="create it again")
    return upper.time


def _updates(rows: pa.RecordBatch, at: int) -> pa.Table:
    columns = [*rows.columns, pa.array([at] * rows.num_rows, pa.uint64()), pa.array([1] * rows.num_rows, pa.int64())]
    return pa.table(columns, [*rows.schema.names, "ts", "diff"])
