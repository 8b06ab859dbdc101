"""What an export holds, for changes that refer to it: truncations and upserts."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pyspark_persist.location import Location, client


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The durable contents of one data shard. Picklable: opens this process's own client."""

    location: Location
    shard: str

    def batches(self, upper: int) -> Iterator[pa.RecordBatch]:
        """Everything the shard holds just before ``upper``: columns key…, val…, diff. Raises NotReadable."""
        if not upper:
            return
        with client(self.location).open_reader(self.shard, purpose="ingest", use_critical_since=True) as reader:
            snapshot = reader.snapshot(upper - 1)
            for split in snapshot.splits(max(1, snapshot.encoded_bytes >> 26)):
                for batch in split.read():
                    if batch.num_rows:
                        yield batch
