"""Data sources that fail at chosen moments. On the PYTHONPATH of Spark's workers: they are pickled by reference."""

from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from pyspark_persist import DefaultSource
from pyspark_persist.names import SINK, WRITE
from pyspark_persist.parsing import parse_write
from pyspark_persist.writing import BatchWriter, StreamWriter, Write


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


class StreamCommitFailsOnce(StreamWriter):
    def commit(self, messages: list[Any], batchId: int) -> None:
        super().commit(messages, batchId)
        if batchId == 0:
            raise Planned("after commit")


class _Faulty(DefaultSource):
    made: type[BatchWriter] = BatchWriter

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return self.made(Write.plan(parse_write(dict(self.options), WRITE), schema, overwrite=overwrite))

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        plan = Write.plan(parse_write(dict(self.options), SINK), schema, overwrite=overwrite)
        return StreamCommitFailsOnce(plan, self.options.get("checkpointLocation"))


class RetriedSource(_Faulty):
    made = TaskFailsAfterUpload

    @classmethod
    def name(cls) -> str:
        return "persist_task_fails"


class UncommittedSource(_Faulty):
    made = CommitFailsBefore

    @classmethod
    def name(cls) -> str:
        return "persist_commit_fails_before"


class UnsureSource(_Faulty):
    made = CommitFailsAfter

    @classmethod
    def name(cls) -> str:
        return "persist_commit_fails_after"


ALL = (RetriedSource, UncommittedSource, UnsureSource)
