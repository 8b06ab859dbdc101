"""Rows of 20-byte keys and 60-byte half-compressible vals, made by arithmetic, and a checksum of any bag of them."""

import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import py_buffer

KEY_BYTES, VAL_BYTES = 20, 60
COLUMNS = ("k", "v", "ts", "diff")
_WORDS = (KEY_BYTES + VAL_BYTES) // 4
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_KEY = np.frombuffer(b"user", np.uint8)
_VAL = np.frombuffer(b'{"id":"________________","amt":________________,"st":"ok"}  ', np.uint8)
_CHUNK = 1 << 16


def make(count: int, *, time: int = 0, start: int = 0, salt: int = 0) -> pa.Table:
    """``count`` updates of diff +1 at ``time``; keys are distinct for distinct (salt, start + i), in random order."""
    ids = np.arange(start, start + count, dtype=np.uint64) + np.uint64(salt << 40)
    mixed = ids * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    keys = np.empty((count, KEY_BYTES), np.uint8)
    keys[:, :4] = _KEY
    keys[:, 4:] = _digits(mixed, 16)
    vals = np.empty((count, VAL_BYTES), np.uint8)
    vals[:] = _VAL
    vals[:, 7:23] = _digits(mixed * np.uint64(0x94D049BB133111EB), 16)
    vals[:, 31:47] = _digits(mixed >> np.uint64(3), 10)
    columns = [
        _binary(keys),
        _binary(vals),
        pa.array(np.full(count, time, np.uint64)),
        pa.array(np.ones(count, np.int64)),
    ]
    return pa.table(columns, names=list(COLUMNS))


def signed(table: pa.Table) -> pa.Table:
    """The same with an int64 ts: lake formats know no unsigned integers."""
    return table.set_column(2, "ts", table.column("ts").cast(pa.int64()))


class Sum:
    """Counts and sums rows (key, val, diff) in any order and any chunking."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    @classmethod
    def of(cls, *tables: pa.Table | pa.RecordBatch) -> "Sum":
        found = cls()
        for table in tables:
            found.add(table)
        return found

    def add(self, data: pa.Table | pa.RecordBatch) -> None:
        table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        for batch in table.to_batches(max_chunksize=_CHUNK):
            self.rows += batch.num_rows
            self._sum = (self._sum + _hash(batch)) % 2**64

    def join(self, rows: int, digest: int) -> None:
        """Add what another process summed."""
        self.rows += rows
        self._sum = (self._sum + digest) % 2**64

    @property
    def digest(self) -> int:
        return self._sum

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and (self.rows, self._sum) == (other.rows, other._sum)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __str__(self) -> str:
        return f"{self.rows:,} rows, checksum {self._sum:016x}"


def _hash(batch: pa.RecordBatch) -> int:
    keys, vals = _bytes(batch.column("k"), KEY_BYTES), _bytes(batch.column("v"), VAL_BYTES)
    words = np.concatenate([keys.view(np.uint32), vals.view(np.uint32)], axis=1).astype(np.uint64)
    mixed = (words * _weights()).sum(axis=1, dtype=np.uint64)
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(32)
    diffs = batch.column("diff").to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    return int((mixed * diffs).sum(dtype=np.uint64))


def _bytes(column: pa.Array, width: int) -> np.ndarray:
    """Rows x width. Raises ValueError unless every value has exactly that many bytes."""
    array = pc.cast(column, pa.binary(width))
    if array.null_count:
        raise ValueError("null")
    data = np.frombuffer(array.buffers()[1], np.uint8)
    return data[array.offset * width : (array.offset + len(array)) * width].reshape(len(array), width)


@functools.cache
def _weights() -> np.ndarray:
    return np.random.default_rng(7).integers(0, 2**64, _WORDS, dtype=np.uint64) | np.uint64(1)


def _digits(numbers: np.ndarray, base: int) -> np.ndarray:
    """Sixteen digits of each number, most significant first."""
    rest, out = numbers.copy(), np.empty((len(numbers), 16), np.uint8)
    for place in range(15, -1, -1):
        out[:, place] = _HEX[(rest % np.uint64(base)).astype(np.int64)]
        rest //= np.uint64(base)
    return out


def _binary(matrix: np.ndarray) -> pa.Array:
    count, width = matrix.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, py_buffer(offsets), py_buffer(np.ascontiguousarray(matrix).reshape(-1))]
    )
