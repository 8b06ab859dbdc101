"""Rows of a step by ranges of their keys' hashes, so that each range is worked on alone: in memory, or in files.

Source: sources.md section 4, upsert.
"""

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from persist.arrow import Numbers, array_of
from persist_ingest.pipeline.newest.hashes import key_hashes
from persist_ingest.pipeline.newest.runs import keys_of

SPILL_BYTES: Final = 64 << 20
"""Bytes of rows that are kept in memory."""
_RANGES: Final = 64
_SHIFT: Final = np.uint64(58)
_HASH: Final = "\0hash"


class Gathered:
    """Rows that have a key, added in any order. All rows of a key are in one range. Raises OSError."""

    def __init__(self, key_names: Sequence[str], *, spill_bytes: int = SPILL_BYTES) -> None:
        self._key_names = key_names
        self._spill_bytes = spill_bytes
        self._kept: list[pa.Table] = []
        self._bytes = 0
        self._files: list[Any] = []
        self._writers: dict[int, Any] = {}

    @property
    def is_spilled(self) -> bool:
        """Whether rows went to files."""
        return bool(self._files)

    def add(self, rows: pa.Table) -> None:
        """These, too; all have the columns of the first."""
        if not rows.num_rows:
            return
        rows = rows.append_column(_HASH, array_of(key_hashes(keys_of(rows, self._key_names))))
        self._kept.append(rows)
        self._bytes += rows.nbytes
        if self._bytes > self._spill_bytes:
            self._spill()

    def ranges(self) -> Iterator[tuple[pa.Table, Numbers]]:
        """The rows and their hashes, range by range, ascending; in a range in the order they were added. Once."""
        if not self._files:
            if self._kept:
                yield _parted(pa.concat_tables(self._kept))
            return
        self._spill()
        for number, file in enumerate(self._files):
            writer = self._writers.pop(number, None)
            if writer is not None:
                writer.close()
                file.seek(0)
                yield _parted(pa.ipc.open_stream(file).read_all())
            file.close()

    def close(self) -> None:
        """Remove the files."""
        for file in self._files:
            file.close()

    def _spill(self) -> None:
        if not self._files:
            self._files = [tempfile.TemporaryFile() for _ in range(_RANGES)]  # noqa: SIM115 - closed by ranges()
        for rows in self._kept:
            of = (_hashes(rows) >> _SHIFT).astype(np.int64)
            order = np.argsort(of, kind="stable")
            cuts = np.searchsorted(of[order], np.arange(_RANGES + 1))
            rows = rows.take(array_of(order))
            for number in np.flatnonzero(np.diff(cuts)):
                piece = rows.slice(int(cuts[number]), int(cuts[number + 1] - cuts[number]))
                if number not in self._writers:
                    self._writers[int(number)] = pa.ipc.new_stream(self._files[number], rows.schema)
                self._writers[int(number)].write_table(piece)
        self._kept, self._bytes = [], 0


def _parted(rows: pa.Table) -> tuple[pa.Table, Numbers]:
    return rows.drop_columns([_HASH]), _hashes(rows)


def _hashes(rows: pa.Table) -> Numbers:
    return rows.column(_HASH).to_numpy()
