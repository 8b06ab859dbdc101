"""What a generator is: exports, and the messages of any range, computed in vectors.

Source: design 003.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from persist import Schema
from persist.arrow import ArrowArray, Numbers, array_of
from persist_ingest.sources.loadgen.hashing import Ints
from persist_ingest.sources.port import Changes

CHUNK_MESSAGES = 16_384
"""Messages computed at once: what bounds the memory of a task."""


class Generator(Protocol):
    """A picklable function from ranges of messages to changes."""

    def exports(self) -> Mapping[str, Schema]:
        """Its collections."""
        ...

    def changes(self, partition: int, begin: int, end: int) -> Iterator[Changes]:
        """Those of messages ``[begin, end)`` of a partition, in their order within each export."""
        ...


def chunks(begin: int, end: int) -> Iterator[Ints]:
    """The offsets of a range, in arrays of bounded length."""
    for start in range(begin, end, CHUNK_MESSAGES):
        yield np.arange(start, min(end, start + CHUNK_MESSAGES), dtype=np.int64)


def changes(
    export: str,
    schema: Schema,
    columns: Sequence[ArrowArray | Numbers],
    *,
    partition: int,
    offsets: Ints,
    diffs: Ints | None = None,
) -> Changes:
    """Changes with these columns (key, then val) as arrays of Arrow or numpy. No diffs: each row is added once."""
    fields = pa.schema([*schema.key, *schema.val])
    arrays = [_array(given, field.type) for given, field in zip(columns, fields, strict=True)]
    signs = np.ones(len(offsets), dtype=np.int64) if diffs is None else diffs
    return Changes(
        export=export,
        rows=pa.RecordBatch.from_arrays(arrays, schema=fields),
        offsets=pa.array(offsets.astype(np.uint64)),
        partitions=pa.array(np.full(len(offsets), partition, dtype=np.int64)),
        diffs=pa.array(signs),
    )


def words_of(vocabulary: Sequence[str], chosen: Ints) -> ArrowArray:
    """The word at each of the chosen places."""
    return array_of(vocabulary, pa.string()).take(array_of(chosen))


def _array(given: ArrowArray | Numbers, kind: pa.DataType) -> ArrowArray:
    return given if isinstance(given, pa.Array) else pa.array(given, kind)
