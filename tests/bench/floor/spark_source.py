"""Trivial Spark sources and sinks over Arrow: blobs of Parquet in and out, one-row micro-batches in and nowhere out."""

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from bench.floor.parts import Obstore, encode

COLUMNS = "k binary, v binary"
READ_ROWS = 65_536
ONE_ROW = pa.RecordBatch.from_pydict({"k": [b"k" * 20], "v": [b"v" * 60]})


class FloorSource(DataSource):
    """``format("floor")``: options ``endpoint``, and ``keys`` (comma separated objects) to read."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: Any) -> DataSourceReader:
        return BlobReader(self.options["endpoint"], self.options["keys"].split(","), int(self.options["partitions"]))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return BlobWriter(self.options["endpoint"])

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return TickReader()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        return Nowhere()


@dataclass
class Blobs(InputPartition):
    keys: list[str]


class BlobReader(DataSourceReader):
    def __init__(self, endpoint: str, keys: list[str], partitions: int) -> None:
        self._endpoint, self._keys, self._partitions = endpoint, keys, partitions

    def partitions(self) -> list[InputPartition]:
        return [Blobs(self._keys[index :: self._partitions]) for index in range(self._partitions)]

    def read(self, partition: Blobs) -> Iterator[pa.RecordBatch]:
        store = Obstore(self._endpoint)
        for key in partition.keys:
            file = pq.ParquetFile(pa.BufferReader(store.get(key)))
            yield from file.iter_batches(READ_ROWS, columns=["k", "v"], use_threads=False)


class BlobWriter(DataSourceArrowWriter):
    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        table = pa.Table.from_batches(list(iterator))
        Obstore(self._endpoint).put(f"floor/spark/{os.getpid()}-{uuid.uuid4().hex}", encode(table))
        return WriterCommitMessage()


@dataclass
class Tick(InputPartition):
    number: int


class TickReader(DataSourceStreamReader):
    """One more row at every look."""

    def __init__(self) -> None:
        self._at = 0

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:
        self._at += 1
        return {"at": self._at}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Tick(end["at"])]

    def read(self, partition: Tick) -> Iterator[pa.RecordBatch]:
        yield ONE_ROW

    def commit(self, end: dict[str, int]) -> None:
        return


class Nowhere(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        return

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        return
