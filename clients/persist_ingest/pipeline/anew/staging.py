"""What a step of an export that is read anew comes to in the shard where that lies meanwhile.

Source: sources.md section 1; kernel.md section 1.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np
import pyarrow as pa

from persist import Schema
from persist.arrow import ArrowArray, Numbers
from persist_ingest.pipeline.newest.keyed import ByKey
from persist_ingest.pipeline.state import Contents
from persist_ingest.sources.port import Changes, Keyed


class Staging(AbstractContextManager["Staging"]):
    """One step, at the time ``upper``, which is the shard's. ``keyed``: the log says of earlier rows only the key."""

    def __init__(self, contents: Contents, schema: Schema, upper: int, *, keyed: bool) -> None:
        self._fields = pa.schema([*schema.key, *schema.val])
        self._upper = upper
        self._by_key = ByKey(contents, upper, self._fields, schema.key.names) if keyed else None

    def there(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """These were read of the upstream itself."""
        if self._by_key is not None:
            yield from self._by_key.put(rows, self._upper)
        elif rows.num_rows:
            yield self._timed(rows, np.ones(rows.num_rows, np.int64))

    def changed(self, changes: Changes | Keyed) -> Iterator[pa.RecordBatch]:
        """These the log has. Raises TableAltered."""
        if isinstance(changes, Changes):
            yield self._timed(changes.rows, np.asarray(changes.diffs))
        elif self._by_key is not None:
            yield from self._by_key.changed(changes, self._times(changes.rows))

    def finish(self) -> str:
        """What its append is called, see ``upserts.appended``; empty: nothing has to be known of that."""
        return "" if self._by_key is None else self._by_key.finish(self._upper + 1)

    def __exit__(self, *_: object) -> None:
        if self._by_key is not None:
            self._by_key.close()

    def _times(self, rows: pa.RecordBatch) -> ArrowArray:
        return pa.array(np.full(rows.num_rows, self._upper, np.uint64))

    def _timed(self, rows: pa.RecordBatch, diffs: Numbers) -> pa.RecordBatch:
        names = [*rows.schema.names, "ts", "diff"]
        return pa.RecordBatch.from_arrays([*rows.columns, self._times(rows), pa.array(diffs)], names=names)
