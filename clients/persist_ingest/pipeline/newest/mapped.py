"""Rows of an Arrow file that is mapped into memory, taken from all of its batches by one gather of each column.

Arrow's own ``take`` either joins all batches first, a copy of the file, or costs tens of microseconds a batch: a step
of a thousand rows out of fifty million touches every batch. Here places in the file are computed instead, and Arrow
copies the values. Source: Arrow's columnar format, physical memory layout; sources.md section 4, upsert.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from persist.arrow import ArrowArray, ArrowColumn, Numbers, array_of, frombuffer, py_buffer

TEXT_BYTES_MAX: Final = 1 << 30
"""Bytes of one column of text that are taken at once: its offsets have 32 bits."""
_WORDS: Final = (1, 2, 4, 8)
_SMALL: Final = (pa.binary(), pa.string())
_LARGE: Final = (pa.large_binary(), pa.large_string())


class MappedRows:
    """The rows of batches that stand one behind the other in ``buffer``, as ``batches`` has them."""

    def __init__(self, buffer: pa.Buffer, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
        self._schema = schema
        self._batches = batches
        self._starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
        self._columns = [
            _mapped(buffer, field.type, [batch.column(index) for batch in batches])
            for index, field in enumerate(schema)
        ]

    def take(self, rows: Numbers) -> pa.Table:
        """The rows at these places, which ascend."""
        of = np.searchsorted(self._starts, rows, "right") - 1
        local = rows - self._starts[of]
        try:
            columns = [
                self._each(index, of, local) if column is None else column.take(of, local)
                for index, column in enumerate(self._columns)
            ]
        except _TooLong:
            middle = len(rows) // 2
            return pa.concat_tables([self.take(rows[:middle]), self.take(rows[middle:])])
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _each(self, index: int, of: Numbers, local: Numbers) -> ArrowColumn:
        """A column whose layout is not known here, batch by batch."""
        cuts = np.flatnonzero(np.diff(of, prepend=-1)).tolist()
        return pa.chunked_array(
            [
                self._batches[int(of[begin])].column(index).take(array_of(local[begin:end]))
                for begin, end in zip(cuts, [*cuts[1:], len(of)], strict=True)
            ],
            self._schema.field(index).type,
        )


class _TooLong(Exception):
    """More text than one array holds."""


class _Column:
    """A column in many batches: where the buffers of each begin in the file, by the number of its batch."""

    def __init__(self, file: pa.Buffer, given: pa.DataType, places: Numbers) -> None:
        self._file = file
        self._type = given
        self._valid, self._first, self._last = places[:, 0], places[:, 1], places[:, -1]
        self._words: dict[int, Numbers] = {
            width: frombuffer(file, f"<u{width}", file.size // width) for width in _WORDS
        }
        self._has_nulls = bool((self._valid >= 0).any())

    def take(self, of: Numbers, local: Numbers) -> ArrowArray:
        """The values at these places of these batches. Raises _TooLong, where there are several."""
        if self._type in _SMALL or self._type in _LARGE:
            return self._text(of, local)
        if pa.types.is_boolean(self._type):
            values = _packed(self._bits(self._first[of], local))
        else:
            values = py_buffer(self._wide(self._first[of], local, self._type.bit_width // 8))
        return pa.Array.from_buffers(self._type, len(of), [self._validity(of, local), values])

    def _text(self, of: Numbers, local: Numbers) -> ArrowArray:
        is_small = self._type in _SMALL
        width = 4 if is_small else 8
        begin = self._wide(self._first[of], local, width).astype(np.int64)
        end = self._wide(self._first[of], local + 1, width).astype(np.int64)
        total = int((end - begin).sum())
        if is_small and total > TEXT_BYTES_MAX and len(of) > 1:
            raise _TooLong
        # Every other value of these is wanted; what lies between them is never looked at.
        offsets = np.empty(2 * len(of) + 1, np.int64)
        offsets[:-1:2], offsets[1::2] = begin + self._last[of], end + self._last[of]
        # SUBTLE: Arrow reserves memory for values of average length, by the last offset: not for all of the file.
        offsets[-1] = min(offsets[0] + 2 * total, self._file.size)
        pieces = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), 2 * len(of), [None, py_buffer(offsets), self._file]
        )
        _, ends, data = pieces.take(array_of(np.arange(0, 2 * len(of), 2))).buffers()
        if is_small:
            ends = py_buffer(frombuffer(ends, np.int64, len(of) + 1).astype(np.int32))
        return pa.Array.from_buffers(self._type, len(of), [self._validity(of, local), ends, data])

    def _validity(self, of: Numbers, local: Numbers) -> pa.Buffer | None:
        if not self._has_nulls:
            return None
        at = self._valid[of]
        valid = self._bits(np.maximum(at, 0), local) | (at < 0)
        return None if valid.all() else _packed(valid)

    def _bits(self, first: Numbers, local: Numbers) -> Numbers:
        flags: Numbers = (self._words[1][first + (local >> 3)] >> (local & 7).astype(np.uint8)) & 1 == 1
        return flags

    def _wide(self, first: Numbers, local: Numbers, width: int) -> Numbers:
        """Values of so many bytes each, as words or as bytes."""
        if width in self._words:
            # Buffers begin at multiples of 8 in the file, and the file at one in memory.
            words: Numbers = self._words[width][first // width + local]
            return words
        unit = 8 if width % 8 == 0 else 1
        at = (first // unit + local * (width // unit))[:, None] + np.arange(width // unit)
        return np.ascontiguousarray(self._words[unit][at])


def _packed(flags: Numbers) -> pa.Buffer:
    return py_buffer(np.packbits(flags, bitorder="little"))


def _mapped(file: pa.Buffer, given: pa.DataType, arrays: Sequence[ArrowArray]) -> _Column | None:
    """None: of another layout, or not in the file as it stands."""
    is_text = given in _SMALL or given in _LARGE
    is_wide = pa.types.is_primitive(given) or pa.types.is_decimal(given) or pa.types.is_fixed_size_binary(given)
    if not is_text and (not is_wide or given.bit_width == 0 or (given.bit_width % 8 and given != pa.bool_())):
        return None
    places = np.empty((len(arrays), 3 if is_text else 2), np.int64)
    for number, array in enumerate(arrays):
        if array.offset:
            return None
        for index, buffer in enumerate(array.buffers()):
            place = -1 if buffer is None else buffer.address - file.address
            if index and (buffer is None or not buffer.size):
                # Of nothing: where it stands does not matter.
                place = 0
            elif buffer is not None and (not 0 <= place <= file.size - buffer.size or place % 8):
                return None
            places[number, index] = place
    return _Column(file, given, places)
