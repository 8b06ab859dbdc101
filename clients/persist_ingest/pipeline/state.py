"""What an export holds, for changes that refer to it (truncations and upserts), and how far back it can be read."""

import bisect
import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from persist import Antichain, ShardId
from persist.typed import Record
from persist_ingest.location import Location, client
from persist_ingest.pipeline.records import DATA_SINCE, Source

if TYPE_CHECKING:
    import persist

Key: TypeAlias = tuple[object, ...]
"""Values of the key columns, as Arrow's scalars: nothing of them is lost."""


@dataclass(frozen=True, slots=True)
class Portion:
    """Rows that were counted, those that are there less than no times, and the key that comes next; None: no more."""

    rows: int
    negative: int
    behind: Key | None


class TooMany(Exception):
    """More than was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The durable contents of one data shard. Picklable: opens this process's own client."""

    location: Location
    shard: str
    created_ms: int = 0
    """When the shard's source was: shards of one name in two locations have one id."""
    state_dir: str = ""
    """Where files about it are kept on a machine; empty: in the user's folder of temporary files."""

    @property
    def key(self) -> str:
        """What files about it are called: no other shard's, in this location or in what had its place before."""
        named = [*dataclasses.astuple(self.location), self.shard, self.created_ms]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:32]

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

    def counted(self, after: Key | None, most: int) -> "Portion":
        """What lies at a key or behind it, at the last complete time: about ``most`` rows, those of one key together.

        None: from the first one on. Nothing but keys and diffs is held of it. Raises NotReadable, LocationError.
        """
        rows = negative = 0
        with self._reader() as reader:
            upper = client(self.location).recent_upper(self.shard).time
            if not upper:
                return Portion(rows=0, negative=0, behind=None)
            names = reader.schema.key.names
            read = reader.snapshot(upper - 1).to_batches(names, keys=(after, None))
            with contextlib.closing(read):
                for batch in read:
                    cut = batch.num_rows
                    if rows + cut >= most:
                        # The last key's rows are left to the next portion, as more of them may follow.
                        head = batch.slice(0, max(1, most - rows))
                        cut = _first_of_last(head, names) or _first_of_last(batch, names) or cut
                    diffs = batch.column("diff").slice(0, cut)
                    rows += cut
                    negative += pc.sum(pc.less(diffs, 0)).as_py() or 0
                    if cut < batch.num_rows:
                        return Portion(rows=rows, negative=negative, behind=_key(batch, names, cut))
        return Portion(rows=rows, negative=negative, behind=None)

    def changes(self, lower: int, upper: int, most: int) -> Iterator[pa.RecordBatch]:
        """Updates in ``[lower, upper)``: columns key…, val…, ts, diff. Raises TooMany, NotReadable."""
        with self._reader() as reader:
            diffs = reader.diffs([lower], [upper])
            if diffs.rows > most:
                raise TooMany
            yield from _rows(diffs)

    def incarnation(self) -> str:
        """Which history of which place the shard is of: a restore begins another one. One call, and no lease."""
        return client(self.location).place(self.shard)

    def _reader(self) -> "persist.ReadHandle":
        return client(self.location).open_reader(self.shard, purpose="ingest", use_critical_since=True)


def contents_of(location: Location, source: Source, shard: ShardId | str, state_dir: str = "") -> Contents:
    """Those of one of a source's data shards."""
    return Contents(location=location, shard=str(shard), created_ms=source.created_ms, state_dir=state_dir)


class History:
    """Data shards are readable ``retain_ms`` back, at least at the last complete time."""

    def __init__(self, the_client: "persist.Client", retain_ms: int) -> None:
        self._client = the_client
        self._retain_ms = retain_ms
        self._sinces: Record = {}

    def keeper(self, upper: Antichain) -> Callable[[ShardId], None]:
        """What releases history of a shard when everything before ``upper`` is complete."""
        since = [max(0, (upper.time or 0) - 1 - self._retain_ms)]

        def keep(shard: ShardId) -> None:
            if not upper.time:
                return
            handle = self._sinces.get(str(shard))
            if handle is None:
                handle = self._client.open_since(DATA_SINCE, shard, purpose="history of a source")
                self._sinces[str(shard)] = handle
            if handle.since.less_than(Antichain(tuple(since))):
                handle.compare_and_downgrade(handle.opaque, since)

        return keep


def _rows(read: "persist.Snapshot | persist.Diffs") -> Iterator[pa.RecordBatch]:
    for split in read.splits(max(1, read.encoded_bytes >> 26)):
        for batch in split.read():
            if batch.num_rows:
                yield batch


def _key(batch: pa.RecordBatch, names: Sequence[str], row: int) -> Key:
    return tuple(batch.column(name)[row] for name in names)


def _first_of_last(batch: pa.RecordBatch, names: Sequence[str]) -> int:
    """Where the rows of the last key begin: rows of one key lie together, at the end."""
    last = repr(_key(batch, names, batch.num_rows - 1)) if batch.num_rows else ""
    return bisect.bisect_left(range(batch.num_rows), True, key=lambda row: repr(_key(batch, names, row)) == last)
