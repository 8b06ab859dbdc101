"""The floor of Spark reads from Python: Arrow batches that lie in memory already, given to Spark as they are."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

READ_ROWS = 65_536
"""As many rows a batch as persist gives."""
PARTITIONS = 2


def keep(path: Path, table: pa.Table) -> None:
    """Write a file that is memory where it is mapped: nothing in it needs to be decoded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=READ_ROWS)


class MemorySource(DataSource):
    """``format("memory")``: options ``path``, and ``columns``, comma separated."""

    @classmethod
    def name(cls) -> str:
        return "memory"

    @property
    def columns(self) -> list[str] | None:
        asked = self.options.get("columns")
        return None if asked is None else asked.split(",")

    def schema(self) -> Any:
        with pa.memory_map(self.options["path"]) as file:
            known = pa.ipc.open_file(file).schema
        return from_arrow_schema(known if self.columns is None else pa.schema([known.field(n) for n in self.columns]))

    def reader(self, schema: Any) -> DataSourceReader:
        return MappedReader(self.options["path"], self.columns)


@dataclass
class Share(InputPartition):
    """Every so many batches."""

    number: int


class MappedReader(DataSourceReader):
    def __init__(self, path: str, columns: list[str] | None) -> None:
        self._path, self._columns = path, columns

    def partitions(self) -> list[InputPartition]:
        return [Share(number) for number in range(PARTITIONS)]

    def read(self, partition: Share) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(self._path) as file:
            reader = pa.ipc.open_file(file)
            for number in range(partition.number, reader.num_record_batches, PARTITIONS):
                batch = reader.get_batch(number)
                yield batch if self._columns is None else batch.select(self._columns)
