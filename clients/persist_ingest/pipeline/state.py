"""What an export holds, for changes that refer to it: truncations and upserts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from persist_ingest.location import Location, client

if TYPE_CHECKING:
    import persist


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The durable contents of one data shard. Picklable: opens this process's own client."""

    location: Location
    shard: str

    def batches(self, upper: int) -> Iterator[pa.RecordBatch]:
        """Everything the shard holds just before ``upper``: columns key…, val…, diff. Raises NotReadable."""
        if not upper:
            return
        with self._reader() as reader:
            yield from _rows(reader.snapshot(upper - 1))

    def newest(self) -> Iterator[pa.RecordBatch]:
        """The same at the last complete time, which is asked for under the reader's hold."""
        with self._reader() as reader:
            upper = client(self.location).recent_upper(self.shard).time
            if upper:
                yield from _rows(reader.snapshot(upper - 1))

    def _reader(self) -> "persist.ReadHandle":
        return client(self.location).open_reader(self.shard, purpose="ingest", use_critical_since=True)


def _rows(snapshot: "persist.Snapshot") -> Iterator[pa.RecordBatch]:
    for split in snapshot.splits(max(1, snapshot.encoded_bytes >> 26)):
        for batch in split.read():
            if batch.num_rows:
                yield batch
