"""Streams without Spark: the calls that Spark makes of a stream reader, and the rows that its tasks would read."""

import pickle
from typing import Any

from pyspark.sql.types import StructType

from pyspark_persist.finding import current_schema
from pyspark_persist.options.parsing import parse_stream
from pyspark_persist.read.streaming import StreamReader
from pyspark_persist.read.view import schema_of


def stream_reader(*, schema: StructType | None = None, **options: object) -> StreamReader:
    """A reader of the stream that these options ask for; with a schema as a user may give one."""
    parsed = parse_stream({name: str(value) for name, value in options.items()})
    return StreamReader(parsed, schema_of(parsed, current_schema(parsed.target)) if schema is None else schema)


def next_batch(reader: StreamReader, start: dict[str, object]) -> tuple[list[tuple[Any, ...]], dict[str, object]]:
    """The rows of the micro-batch that begins there, and where it ends."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return rows_between(reader, start, end), end


def rows_between(reader: StreamReader, start: dict[str, object], end: dict[str, object]) -> list[tuple[Any, ...]]:
    """The rows of an interval."""
    copy = pickle.loads(pickle.dumps(reader))
    batches = [batch for partition in reader.partitions(start, end) for batch in copy.read(partition)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def micro_batches(reader: StreamReader) -> list[list[tuple[Any, ...]]]:
    """The rows of each micro-batch up to what there is now."""
    found: list[Any] = []
    start = reader.initialOffset()
    while True:
        rows, end = next_batch(reader, start)
        if end == start:
            return found
        reader.commit(end)
        found.append(rows)
        start = end
