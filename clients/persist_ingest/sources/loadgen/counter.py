"""Generator ``counter``: one export that gains a row with each message, and may keep only the newest ones.

Source: design 003.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from persist import Schema
from persist_ingest.sources.loadgen.generator import changes, chunks
from persist_ingest.sources.loadgen.hashing import words
from persist_ingest.sources.port import Changes

_SCHEMA = Schema(key={"counter": pa.int64()}, val={"value": pa.int64()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """Message n of partition p adds ``counter`` n * partitions + p with a random ``value``.

    With ``cardinality`` c, it also removes the row of message n - c: a partition never holds more than c rows.
    """

    seed: int
    partitions: int
    cardinality: int | None = None

    def exports(self) -> Mapping[str, Schema]:
        return {"counter": _SCHEMA}

    def changes(self, partition: int, begin: int, end: int) -> Iterator[Changes]:
        for offsets in chunks(begin, end):
            numbers, stems, diffs = offsets, offsets, np.ones(len(offsets), dtype=np.int64)
            if self.cardinality is not None:
                numbers = np.stack([offsets - self.cardinality, offsets], axis=1).ravel()
                stems = np.repeat(offsets, 2)
                diffs = np.tile(np.array([-1, 1], dtype=np.int64), len(offsets))
                kept = numbers >= 0
                numbers, stems, diffs = numbers[kept], stems[kept], diffs[kept]
            ids = numbers * self.partitions + partition
            values = words(ids, self.seed).view(np.int64)
            yield changes("counter", _SCHEMA, (ids, values), partition=partition, offsets=stems, diffs=diffs)
