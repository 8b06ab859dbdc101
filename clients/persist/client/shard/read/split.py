"""Split: one key range of a read, readable alone in any process that reaches the blob store.

Source: design 001, snapshot; architecture.md section 4; spark.md section 2.3.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from persist.client.shard.loop_thread import process_loop
from persist.client.shard.process_blobs import process_blob
from persist.client.shard.read.whole import WholeIterator
from persist.core.data.splits import KeyRange
from persist.core.shard.batch import Part
from persist.machine.parts.fetch import Fetcher, ranges
from persist.machine.parts.reading import Reading, parse_where
from persist.retry.attempts import Attempts
from persist.runtime import system
from persist.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Part of a snapshot or change feed. Picklable; holds descriptions of parts, never data but inline ones.

    In the process that made it, it also keeps the parts from being deleted; elsewhere the maker must keep the snapshot
    (and its reader) until the split was read.
    """

    blob_uri: str
    settings: Settings
    reading: Reading
    pin: object = field(default=None, compare=False, repr=False)

    @property
    def rows(self) -> int:
        """Updates in the parts to be read: an upper estimate of the rows."""
        return self.reading.rows

    @property
    def encoded_bytes(self) -> int:
        """Bytes of the parts to be read."""
        return self.reading.encoded_bytes

    @property
    def keys(self) -> KeyRange | None:
        """The range of canonical keys it reads; None: all keys."""
        return self.reading.key_range

    @property
    def parts(self) -> tuple[Part, ...]:
        """Descriptions of the parts it reads."""
        return tuple(self.reading.parts)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows: key…, val…, diff (a change feed: ts before diff)."""
        return self.reading.output(None)

    def to_arrow(self, columns: Sequence[str] | None = None, where: object = None) -> pa.Table:
        """All its rows as one table. Arguments as of ``read``. Raises as that does."""
        return self.read(columns, where).read_all()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Its rows, as they are decoded, for consumers of Arrow streams. Raises as ``read``.

        Source: the Arrow PyCapsule interface.
        """
        return self.read().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]  # untyped in the stubs

    def read(
        self, columns: Sequence[str] | None = None, where: object = None, *, consolidated: bool = True
    ) -> pa.RecordBatchReader:
        """The rows, at most 65,536 per batch, as they are decoded. Blocking; fetches ahead within 32 MiB.

        ``columns``: these, in this order, and diff. ``where``, ``consolidated``: as in ``Snapshot.to_batches``. Opens
        the blob store once per process. Raises InvalidArgument, CorruptData, LocationError.
        """
        reading = self.reading.narrowed(where=parse_where(where))
        if not consolidated:
            reading = replace(reading, consolidated=False)
        output = reading.output(columns)
        return pa.RecordBatchReader.from_batches(output, WholeIterator(_rows(self, reading, columns)))

    # SUBTLE: not __getstate__, which dataclasses of early Python 3.11 replace in frozen classes with slots.
    def __reduce__(self) -> tuple[object, ...]:
        return _unpinned, (self.blob_uri, self.settings, self.reading)


def _unpinned(blob_uri: str, settings: Settings, reading: Reading) -> Split:
    return Split(blob_uri=blob_uri, settings=settings, reading=reading)


def _rows(split: Split, reading: Reading, columns: Sequence[str] | None) -> Generator[pa.RecordBatch, None, None]:
    reading = reading.focused
    if not reading.runs:
        return
    with process_loop().holding(_open(split, reading), Fetcher.close) as fetcher:
        yield from reading.batches(fetcher.reader, columns)


async def _open(split: Split, reading: Reading) -> Fetcher:
    settings = split.settings
    return Fetcher(
        process_blob(split.blob_uri, settings),
        ranges(reading.parts, reading.key_range),
        settings=settings,
        attempts=Attempts(settings=settings, runtime=system()),
        budget_bytes=settings.fetch_bytes_max // 8,
    )
