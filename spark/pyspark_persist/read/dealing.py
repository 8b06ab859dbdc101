"""What the driver's own jobs deal to their tasks, each of which unpacks its own alone.

A task's function is sent to every task, with all that it holds. Of a large shard the descriptions of all parts take
longer to unpack than a task takes to read its own, and there are as many tasks as parts.
"""

import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


class Dealt(Generic[T]):
    """Things by number: a task of its own for each. Where they were made they stay as they are."""

    def __init__(self, things: Iterable[T]) -> None:
        self._things: list[T] | None = list(things)
        self._packed: list[bytes] = []

    def __len__(self) -> int:
        return len(self._packed if self._things is None else self._things)

    def __iter__(self) -> Iterator[T]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> T:
        if self._things is not None:
            return self._things[number]
        thing: T = pickle.loads(self._packed[number])
        return thing

    def __getstate__(self) -> dict[str, object]:
        packed = self._packed if self._things is None else [pickle.dumps(each) for each in self._things]
        return {"_things": None, "_packed": packed}

    def numbers(self, spark: "SparkSession") -> "DataFrame":
        """Their numbers, in a partition each: what the tasks are given."""
        return spark.range(0, len(self), 1, numPartitions=len(self))

    def of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, T]]:
        """In a task: those whose numbers it was given."""
        for batch in batches:
            for number in batch.column(0).to_numpy():
                yield int(number), self[int(number)]
