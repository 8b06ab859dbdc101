"""Writes: executors put parts into Blob, the driver makes one compare_and_append for all of them.

A task's parts become real only when its message reaches ``commit``: parts of failed, repeated or speculative attempts
stay unreferenced, and garbage collection removes them. Nothing here ever deletes: when the outcome of a commit is
unknown, its parts may be live. Source: architecture.md section 7; spark.md section 0 facts 5, 6; reliability.md I23.
"""

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from persist import (
    Antichain,
    Indeterminate,
    InvalidArgument,
    InvalidBounds,
    LeaseExpired,
    PreparedBatch,
    ShardClosed,
    Token,
    Transaction,
    UpperMismatch,
    WriterId,
)
from persist.runtime import system
from pyspark_persist.columns import Columns, columns_of, open_writer
from pyspark_persist.options import WriteOptions

_WRITER_MS: Final = 1_800_000
_HEARD_SECONDS: Final = 60.0
_HEARD_OF: Final[dict[tuple[object, ...], float]] = {}
"""When a shard was last told of a writer of this process, in monotonic seconds."""
_HEARD_OF_MAX: Final = 10_000

ATTEMPTS: Final = 100
"""How often a commit follows a moving upper before it gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What a write did. ``upper``: the shard's, after it. ``already_committed``: an earlier attempt had done it."""

    upper: Antichain
    rows: int
    bytes: int
    parts: int
    already_committed: bool = False


@dataclass
class TaskOutput(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """What one task attempt wrote: a prepared batch, by whom, and the streaming query it ran for."""

    prepared: Any
    writer_id: str
    query_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a commit lands: ``at_time`` None when the rows carry their own times.

    ``late``: there are rows below the shard's upper, so this write has happened before, or never will.
    """

    expected: int
    new_upper: int
    at_time: int | None
    late: bool = False


@dataclass(frozen=True, kw_only=True)
class Write:
    """One write as values: made on the driver, pickled to the tasks and the commit. ``token`` makes it happen once."""

    options: WriteOptions
    columns: Columns
    spec: Any
    writer_id: str
    token: str
    overwrite: bool

    @classmethod
    def plan(cls, options: WriteOptions, schema: st.StructType, *, overwrite: bool) -> "Write":
        """Check the DataFrame against the shard (initialising it when ``keyColumns`` says how) and fix the token.

        Raises SchemaMismatch, ShardNotFound, TypeNotSupported, InvalidArgument.
        """
        writer = _alive_writer(options, schema)
        columns = columns_of(schema, writer.schema)
        if columns.has_times and options.commit_time is not None:
            raise InvalidArgument(
                "commitTime and a _ts column exclude each other", hint="drop the column or the option"
            )
        if overwrite and columns.has_times:
            raise InvalidArgument(
                "an overwrite happens at one time: rows cannot carry _ts",
                hint="drop the column, or append with _diff = -1",
            )
        return cls(
            options=options,
            columns=columns,
            spec=writer.batch_spec(),
            writer_id=str(writer.writer_id),
            token=str(Token.of(system().random_bytes(16))),
            overwrite=overwrite,
        )

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskOutput:
        """On an executor: sort, encode and upload one task's rows. Holds a bounded number of rows."""
        builder = self.spec.open()
        for batch in batches:
            if batch.num_rows:
                builder.add(self.columns.shard_batch(batch))
        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        return TaskOutput(prepared=builder.finish(), writer_id=self.writer_id, query_id=query_id)

    def message(self, prepared: bytes) -> TaskOutput:
        """A task's output from the bytes of its prepared batch."""
        return TaskOutput(prepared=PreparedBatch.from_bytes(prepared), writer_id=self.writer_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], transaction: Transaction | None) -> CommitResult:
        """On the driver: make all the tasks' parts part of the shard, at once, or raise and change nothing.

        Raises InvalidBounds (the upper is not where the write was pinned to, or beyond rows with times), ShardClosed,
        Indeterminate.
        """
        outputs = [message for message in messages if isinstance(message, TaskOutput)]
        if len(outputs) != len(messages):
            raise InvalidArgument("a task's commit message is missing", hint="run the job again", tasks=len(messages))
        writer_id = outputs[0].writer_id if outputs else self.writer_id
        target = self.options.target
        writer = target.client().open_writer(
            target.shard_id, writer_id=WriterId.parse(writer_id), timeout=target.timeout
        )
        return _Commit(self, writer, [output.prepared for output in outputs], transaction).run()


class _Commit:
    """One commit: place it, try, and follow the upper while the options leave it free."""

    def __init__(self, write: Write, writer: Any, prepared: list[Any], transaction: Transaction | None) -> None:
        self.write = write
        self.options = write.options
        self.writer = writer
        self.prepared = prepared
        self.transaction = transaction

    def run(self) -> CommitResult:
        upper = self._fetch_upper()
        for _ in range(ATTEMPTS):
            placement = self._place(upper)
            batches = [*self.prepared, *self._retractions(placement)]
            outcome = self.writer.compare_and_append_batches(
                batches,
                expected_upper=placement.expected,
                new_upper=placement.new_upper,
                token=self._token(),
                transaction=self.transaction,
                at_time=placement.at_time,
                timeout=self.options.target.timeout,
            )
            if not isinstance(outcome, UpperMismatch):
                return self._result(outcome, batches)
            self._check_free(placement, outcome.upper)
            upper = outcome.upper
        raise Indeterminate(
            "the shard's upper moved at every attempt to commit",
            hint="fewer writers, or a later run",
            attempts=ATTEMPTS,
        )

    def _token(self) -> Token:
        """The same at every attempt: a mismatch is certain not to have happened, so the token is still unused."""
        if self.transaction is None:
            return Token.parse(self.write.token)
        return Token.named("transaction", self.transaction.app_id, self.transaction.version)

    def _fetch_upper(self) -> Antichain:
        target = self.options.target
        upper: Antichain = target.client().recent_upper(target.shard_id, timeout=target.timeout)
        return upper

    def _place(self, upper: Antichain) -> Placement:
        options = self.options
        if upper.time is None and self.transaction is None:
            raise ShardClosed(
                "the shard is closed for writes", hint="write to another shard", shard=options.target.shard
            )
        expected = options.expected_upper if options.expected_upper is not None else (upper.time or 0)
        if self.write.columns.has_times:
            return self._place_rows(expected)
        if options.new_upper is not None:
            time = options.new_upper - 1
        elif options.commit_time is not None:
            time = options.commit_time
        else:
            time = max(expected, system().now_ms())
        if time < expected and self.transaction is None:
            raise InvalidBounds(
                "commitTime is complete already",
                hint="use a time at or beyond the upper",
                commit_time=time,
                upper=expected,
            )
        # With a transaction the shard itself must say whether this very write is what moved the upper.
        time = max(time, expected)
        return Placement(expected=expected, new_upper=time + 1, at_time=time)

    def _place_rows(self, expected: int) -> Placement:
        """Where the rows' own times say.

        SUBTLE: rows below the upper may be there because an earlier attempt at this very write brought it there. Only
        the shard knows: it is asked with an upper it no longer has, which no attempt can commit at anew.
        """
        earliest = [batch.min_ts for batch in self.prepared if batch.rows]
        lower = min([expected, *(int(time) for time in earliest)])
        return Placement(expected=lower, new_upper=self._upper_of_rows(expected), at_time=None, late=lower < expected)

    def _upper_of_rows(self, expected: int) -> int:
        if self.options.new_upper is not None:
            return self.options.new_upper
        latest = [batch.max_ts for batch in self.prepared if batch.rows]
        return max([expected, *(int(time) + 1 for time in latest)])

    def _check_free(self, placement: Placement, upper: Antichain) -> None:
        if placement.late:
            raise InvalidBounds(
                "the rows' times are complete already: nothing was written",
                hint="write rows at or beyond the upper, or without _ts",
                earliest=placement.expected,
                upper=upper,
            )
        pinned = self.options.expected_upper
        if pinned is not None:
            raise InvalidBounds(
                "the shard's upper is not the expected one: nothing was written",
                hint="read what was committed in between, then write again from the new upper",
                expected=pinned,
                upper=upper,
            )

    def _retractions(self, placement: Placement) -> list[Any]:
        """For an overwrite, everything that is there just before the commit time, taken back."""
        if not self.write.overwrite or placement.expected == 0:
            return []
        target = self.options.target
        reader = target.client().open_reader(target.shard_id, purpose="spark overwrite", timeout=target.timeout)
        try:
            snapshot = reader.snapshot(placement.expected - 1, timeout=target.timeout)
            # SUBTLE: not the write's own spec: a part must lie under the id of the writer that commits it.
            builder = self.writer.batch_spec().open()
            for split in snapshot.splits(max(1, snapshot.encoded_bytes >> 26)):
                for batch in split.read():
                    if batch.num_rows:
                        builder.add(_negated(batch))
            return [builder.finish()]
        finally:
            reader.expire(timeout=target.timeout)

    def _result(self, outcome: Any, batches: list[Any]) -> CommitResult:
        already = bool(outcome.already_committed)
        used = [] if already else batches
        return CommitResult(
            upper=outcome.upper,
            rows=sum(batch.rows for batch in used),
            bytes=sum(batch.encoded_bytes for batch in used),
            parts=sum(batch.parts for batch in used),
            already_committed=already,
        )


def _alive_writer(options: WriteOptions, schema: st.StructType) -> Any:
    """A writer that the shard will not refuse for its age: one that it has known for a minute at most, or a new one.

    SUBTLE: a sweep fences off writers that the shard does not know, such as one that wrote only to other shards, or has
    been idle for a lease. Its parts could not be committed under another id, so it must be found out before the tasks.
    """
    target, at = options.target, system().monotonic()
    fresh = _writer_id.cache_info().misses
    writer_id = _writer_id(os.getpid(), system().now_ms() // _WRITER_MS)
    writer = open_writer(options, schema, writer_id)
    key = (target.location, target.shard, str(writer_id))
    is_new = _writer_id.cache_info().misses > fresh
    if is_new or at - _HEARD_OF.get(key, float("-inf")) < _HEARD_SECONDS:
        _HEARD_OF.setdefault(key, at)
        return writer
    try:
        # Closed shards refuse heartbeats: what that means to the write is told by its commit.
        with contextlib.suppress(ShardClosed):
            writer.append([], writer.upper, timeout=target.timeout)
    except LeaseExpired:
        _writer_id.cache_clear()
        return _alive_writer(options, schema)
    if len(_HEARD_OF) >= _HEARD_OF_MAX:
        _HEARD_OF.clear()
    _HEARD_OF[key] = at
    return writer


@functools.lru_cache(maxsize=2)
def _writer_id(pid: int, period: int) -> WriterId:
    """One writer for the writes this process plans in half an hour: the shard remembers each until its lease ends.

    A new one each period, as a shard may refuse old ones that it does not know.
    """
    return WriterId.born(system().now_ms(), system().random_bytes(16))


def _negated(batch: pa.RecordBatch) -> pa.RecordBatch:
    index = batch.schema.get_field_index("diff")
    return batch.set_column(index, batch.schema.field(index), pc.negate_checked(batch.column(index)))


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """``df.write.format("persist")``."""

    def __init__(self, write: Write) -> None:
        self.plan = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows to Blob."""
        return self.plan.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all tasks at once."""
        options = self.plan.options
        transaction = None
        if options.txn_app_id is not None and options.txn_version is not None:
            transaction = Transaction(app_id=options.txn_app_id, version=options.txn_version)
        self.plan.commit(messages, transaction)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave everything as it is: Spark also calls this when a commit failed whose outcome is unknown."""


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """``df.writeStream.format("persist")``: a micro-batch happens once, however often Spark replays it."""

    def __init__(self, write: Write, checkpoint: str | None) -> None:
        self.plan = write
        self.checkpoint = checkpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows to Blob."""
        return self.plan.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the micro-batch under (query, batch)."""
        if not messages and not self.plan.overwrite:
            return
        self.plan.commit(messages, Transaction(app_id=self._app_id(messages), version=batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave everything as it is: Spark also calls this when a commit failed whose outcome is unknown."""

    def _app_id(self, messages: Sequence[WriterCommitMessage | None]) -> str:
        if self.plan.options.txn_app_id is not None:
            return self.plan.options.txn_app_id
        for message in messages:
            if isinstance(message, TaskOutput) and message.query_id:
                return f"spark:{message.query_id}"
        if self.checkpoint:
            return f"spark:{self.checkpoint}"
        raise InvalidArgument("Spark did not tell the query's id", hint="set option txnAppId")
