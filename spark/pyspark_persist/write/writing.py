"""Writes: executors put parts into Blob, the driver makes one compare_and_append for all of them.

A task's parts become real only when its message reaches ``commit``: parts of failed, repeated or speculative attempts
stay unreferenced, and garbage collection removes them. Nothing here ever deletes: when the outcome of a commit is
unknown, its parts may be live. Source: architecture.md section 7; spark.md section 0 facts 5, 6; reliability.md I23.
"""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from persist import InvalidArgument, PreparedBatch, Token, Transaction
from persist.runtime import system
from pyspark_persist.application import QUERY_ID, query_name
from pyspark_persist.audit.entry import Author, Entry
from pyspark_persist.audit.recording import is_audited
from pyspark_persist.finding import found, stored_schema
from pyspark_persist.options.options import WriteOptions
from pyspark_persist.workers import settle
from pyspark_persist.write.columns import columns_of, schema_for
from pyspark_persist.write.commit import CommitResult, WriteCommit
from pyspark_persist.write.planned import PlannedWrite
from pyspark_persist.write.writers import WRITERS

_log = logging.getLogger("persist.spark")


@dataclass
class TaskOutput(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """What one task attempt wrote: a prepared batch, by whom, and the streaming query it ran for.

    ``updates``: how many it was given, each as often as its diff says, added or taken away.
    """

    prepared: Any
    writer_id: str
    query_id: str | None = None
    updates: int = 0


@dataclass(frozen=True, kw_only=True)
class Write(PlannedWrite):
    """One write: made on the driver, pickled to the tasks and the commit."""

    @classmethod
    def plan(
        cls,
        options: WriteOptions,
        schema: st.StructType,
        *,
        overwrite: bool,
        author: Author | None = None,
        operation: str = "",
    ) -> "Write":
        """Check the DataFrame against the shard, or against the one it would make, and fix the token.

        Makes and changes no shard: a write that is refused, or fails in its tasks, leaves nothing. ``author``: who
        writes; None: the user of this process.
        Raises SchemaMismatch, ShardNotFound, TypeNotSupported, InvalidArgument.
        """
        options = found(options, create=True)
        target = options.target
        stored = stored_schema(target)
        wanted = schema_for(options, schema, stored)
        columns = columns_of(schema, wanted)
        if columns.times is not None and options.commit_time is not None:
            raise InvalidArgument(
                "commitTime and a _ts column exclude each other", hint="drop the column or the option"
            )
        if overwrite and columns.times is not None:
            raise InvalidArgument(
                "an overwrite happens at one time: rows cannot carry _ts",
                hint="drop the column, or append with _diff = -1",
            )
        if options.user_metadata is not None and not is_audited(target):
            raise InvalidArgument(
                "nothing keeps userMetadata: the table has no audit",
                hint="PersistTable.startAudit() begins one, or drop the option",
                **target.described,
            )
        is_new = stored is None
        writer_id = WRITERS.alive(target, exists=not is_new)
        client = target.client(create=is_new)
        return cls(
            options=options,
            columns=columns,
            schema=wanted,
            is_new=is_new,
            spec=client.batch_spec(target.shard_id, wanted, writer_id=writer_id, timeout=target.timeout),
            writer_id=str(writer_id),
            token=str(Token.of(system().random_bytes(16))),
            overwrite=overwrite,
            entry=Entry(
                operation=operation or ("overwrite" if overwrite else "append"),
                author=author or Author.of_process(),
                user_metadata=options.user_metadata,
            ),
        )

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskOutput:
        """On an executor: sort, encode and upload one task's rows. Holds a bounded number of rows."""
        settle()
        builder, updates = self.spec.open(), 0
        for batch in batches:
            if batch.num_rows:
                given = self.columns.shard_batch(batch)
                updates += given.num_rows if self.columns.diffs is None else _often(given)
                builder.add(given)
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
        return TaskOutput(prepared=builder.finish(), writer_id=self.writer_id, query_id=query_id, updates=updates)

    def message(self, prepared: bytes) -> TaskOutput:
        """A task's output from the bytes of its prepared batch."""
        return TaskOutput(prepared=PreparedBatch.from_bytes(prepared), writer_id=self.writer_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], transaction: Transaction | None) -> CommitResult:
        """On the driver: make all the tasks' parts part of the shard, at once, or raise and change nothing.

        Raises InvalidBounds (the upper is not where the write was pinned to, or beyond rows with times), ShardClosed,
        SchemaMismatch (another process changed the columns meanwhile), Determinate (the upper moved at every attempt),
        Indeterminate.
        """
        outputs = [message for message in messages if isinstance(message, TaskOutput)]
        if len(outputs) != len(messages):
            raise InvalidArgument("a task's commit message is missing", hint="run the job again", tasks=len(messages))
        writer_id = outputs[0].writer_id if outputs else self.writer_id
        return WriteCommit(self, writer_id, [output.prepared for output in outputs], transaction).run()

    def happened(self, transaction: Transaction) -> CommitResult | None:
        """What an earlier write under this transaction came to; None: there was none. Raises as ``commit``."""
        return WriteCommit(self, self.writer_id, [], transaction).happened()


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """``df.write.format("persist")``."""

    def __init__(self, write: Write) -> None:
        self.plan = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows to Blob."""
        return self.plan.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all tasks at once."""
        result = self.plan.commit(messages, transaction_of(self.plan.options, messages))
        if result.already_committed:
            _log.warning("%s was committed before: nothing was written now", self.plan.options.txn_app_id)

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
        query = self._query(messages)
        app_id, new_since = self.plan.options.txn_app_id or query, self.plan.options.txn_new_since
        owner = Transaction.owner_of(query, _body(messages))
        transaction = Transaction(app_id=app_id, version=batchId, owner=owner, new_since=new_since)
        entry = self.plan.entry.told({"query": query, "batch": batchId})
        dataclasses.replace(self.plan, entry=entry).commit(messages, transaction)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave everything as it is: Spark also calls this when a commit failed whose outcome is unknown."""

    def _query(self, messages: Sequence[WriterCommitMessage | None]) -> str:
        """Identifies this query among others, for as long as its checkpoint lives."""
        if query := _query_of(messages):
            return query
        if self.checkpoint:
            return query_name(self.checkpoint)
        raise InvalidArgument("Spark did not pass the query's id", hint="set option checkpointLocation")


def transaction_of(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> Transaction | None:
    """The transaction that a batch write's options name, with how much it writes: another write under it is refused.

    So is that of another streaming query, whose ``foreachBatch`` counts its own batches.
    """
    if options.txn_app_id is None or options.txn_version is None:
        return None
    return Transaction(
        app_id=options.txn_app_id, version=options.txn_version, new_since=options.txn_new_since,
        owner=Transaction.owner_of(_query_of(messages), _body(messages)),
    )  # fmt: skip


def _query_of(messages: Sequence[WriterCommitMessage | None]) -> str:
    """The streaming query that tasks ran for; empty of none."""
    known = (message.query_id for message in messages if isinstance(message, TaskOutput))
    return next((query_name(query) for query in known if query), "")


def _body(messages: Sequence[WriterCommitMessage | None]) -> str:
    """How much was written, the same however rows fall to tasks, which changes what is consolidated.

    SUBTLE: the sum of diffs and, where rows were taken away, how many updates there were: a batch that holds more than
    the one that was committed under its number, as under an older checkpoint that was put back or beside another
    process with a copy of it, may come to the same sum.
    """
    outputs = [message for message in messages if isinstance(message, TaskOutput)]
    diffs, updates = sum(each.prepared.diffs_sum for each in outputs), sum(each.updates for each in outputs)
    return str(diffs) if diffs == updates else f"{diffs} by {updates}"


def _often(batch: pa.RecordBatch) -> int:
    return int(np.abs(batch.column("diff").to_numpy()).sum())
