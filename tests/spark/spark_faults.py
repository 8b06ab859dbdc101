"""Data sources that fail at chosen moments. On the PYTHONPATH of Spark's workers: they are pickled by reference."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from pyspark_persist import DefaultSource
from pyspark_persist.options.names import SINK, WRITE
from pyspark_persist.options.parsing import parse_write
from pyspark_persist.write.writing import BatchWriter, StreamWriter, Write


class Planned(RuntimeError):
    """The failure a test asked for."""


class TaskFailsAfterUpload(BatchWriter):
    def write(self, iterator: Iterator[Any]) -> Any:
        output = super().write(iterator)
        if TaskContext.get().attemptNumber() == 0:
            raise Planned("after upload")
        return output


class CommitFailsBefore(BatchWriter):
    def commit(self, messages: list[Any]) -> None:
        raise Planned("before commit")


class CommitFailsAfter(BatchWriter):
    def commit(self, messages: list[Any]) -> None:
        super().commit(messages)
        raise Planned("after commit")


def until(happened: Callable[[], bool]) -> None:
    """Wait for what another process does, as long as there is one: a killed test leaves no process waiting."""
    parent = os.getppid()
    while not happened():
        if os.getppid() != parent:
            raise Planned("no process is left that could do it")
        time.sleep(0.05)


def marker(write: Write, what: str = "") -> Path:
    """A file beside the shards' directory by which attempts of one write pass on something."""
    directory = write.options.target.location.directory
    assert directory is not None
    return Path(directory).parent / f"marker-{write.options.target.shard}{what}"


def first_has_uploaded(write: Write) -> Path:
    """What the first attempt of partition 0 says to the others, which wait for it: Spark may begin them at once."""
    return marker(write, "-first")


class WorkerDies(BatchWriter):
    """Two tasks' Python processes are killed: one has read some of its rows, one has uploaded all of them."""

    def write(self, iterator: Iterator[Any]) -> Any:
        context = TaskContext.get()
        first = context.attemptNumber() == 0
        if first and context.partitionId() == 0:
            next(iterator)
            os.kill(os.getpid(), signal.SIGKILL)
        output = super().write(iterator)
        if first and context.partitionId() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return output


class ExecutorDies(BatchWriter):
    """One task's executor is killed when the task has uploaded its rows: the JVM that started the Python daemon."""

    def write(self, iterator: Iterator[Any]) -> Any:
        context = TaskContext.get()
        first, chosen = context.attemptNumber() == 0, context.partitionId() == 0
        if chosen and not first:
            until(first_has_uploaded(self.plan).exists)
        output = super().write(iterator)
        if chosen and first:
            executor = int(os.environ["PERSIST_TEST_SPARK_JVM"])  # of the daemon's shadow (preload/spark_forks.py)
            assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
            first_has_uploaded(self.plan).touch()
            os.kill(executor, signal.SIGKILL)
            until(lambda: False)
        return output


class FirstAttemptIsSlow(BatchWriter):
    """One task's first attempt uploads its rows and waits until a second attempt has done so, too, however long."""

    def write(self, iterator: Iterator[Any]) -> Any:
        context = TaskContext.get()
        if context.partitionId() != 0:
            return super().write(iterator)
        first = context.attemptNumber() == 0
        if not first:
            until(first_has_uploaded(self.plan).exists)
        output = super().write(iterator)
        if first:
            first_has_uploaded(self.plan).touch()
            until(marker(self.plan).exists)
        else:
            marker(self.plan).touch()
        return output


class StreamStops(StreamWriter):
    """The third micro-batch goes no further than its tasks' uploads, and says so."""

    def write(self, iterator: Iterator[Any]) -> Any:
        output = super().write(iterator)
        if TaskContext.get().getLocalProperty("streaming.sql.batchId") == "2":
            marker(self.plan).touch()
            until(lambda: False)
        return output


class StreamCommitStops(StreamWriter):
    """The third micro-batch is committed, says so, and Spark never sees it."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        super().commit(messages, batchId)
        if batchId == 2:
            marker(self.plan).touch()
            until(lambda: False)


class StreamCommitFailsOnce(StreamWriter):
    def commit(self, messages: list[Any], batchId: int) -> None:
        super().commit(messages, batchId)
        if batchId == 0:
            raise Planned("after commit")


class _Faulty(DefaultSource):
    made: type[BatchWriter] = BatchWriter
    streams: type[StreamWriter] = StreamCommitFailsOnce
    called: str

    @classmethod
    def name(cls) -> str:
        return cls.called

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return self.made(Write.plan(parse_write(dict(self.options), WRITE), schema, overwrite=overwrite))

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        plan = Write.plan(parse_write(dict(self.options), SINK), schema, overwrite=overwrite)
        return self.streams(plan, self.options.get("checkpointLocation"))


class RetriedSource(_Faulty):
    made = TaskFailsAfterUpload
    called = "persist_task_fails"


class UncommittedSource(_Faulty):
    made = CommitFailsBefore
    called = "persist_commit_fails_before"


class UnsureSource(_Faulty):
    made = CommitFailsAfter
    called = "persist_commit_fails_after"


class WorkerDiesSource(_Faulty):
    made = WorkerDies
    called = "persist_worker_dies"


class ExecutorDiesSource(_Faulty):
    made = ExecutorDies
    called = "persist_executor_dies"


class SlowSource(_Faulty):
    made = FirstAttemptIsSlow
    called = "persist_first_attempt_is_slow"


class StreamStopsSource(_Faulty):
    streams = StreamStops
    called = "persist_stream_stops"


class StreamCommitStopsSource(_Faulty):
    streams = StreamCommitStops
    called = "persist_stream_commit_stops"


ALL = (
    RetriedSource,
    UncommittedSource,
    UnsureSource,
    WorkerDiesSource,
    ExecutorDiesSource,
    SlowSource,
    StreamStopsSource,
    StreamCommitStopsSource,
)
