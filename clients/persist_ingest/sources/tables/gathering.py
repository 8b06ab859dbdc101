"""Values that lie anywhere in a buffer, taken out of it as one Arrow array. Source: sources.md section 2."""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from persist.arrow import ArrowArray, py_buffer
from persist_ingest.sources.port import BadRows

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

OFFSETS_END: Final = 2**31
"""Arrow's strings are found by numbers of 32 bits."""
BAD_ROW_HINT: Final = (
    "correct the row upstream, and snapshot the table again (persist source resnapshot); or have the source go on "
    "without the table (persist source drop-table)"
)


def gather(data: Bytes, starts: Ints, lengths: Ints, valid: Bools) -> ArrowArray:
    """The strings there, as one array of their own."""
    count = len(starts)
    ends = starts + lengths
    if count and (starts[1:] >= ends[:-1]).all() and ends[-1] < OFFSETS_END:
        offsets, taken = _taken(data, starts, ends)
    else:
        offsets, taken = _copied(data, starts, lengths)
    nulls = count - int(np.count_nonzero(valid))
    mask = py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(pa.string(), count, [mask, offsets, taken], nulls)


def _taken(data: Bytes, starts: Ints, ends: Ints) -> tuple[pa.Buffer, pa.Buffer]:
    """Every other string of the whole buffer cut at starts and ends: Arrow copies them faster than numpy."""
    count = len(starts)
    cuts = np.empty(2 * count + 1, np.int32)
    cuts[0:-1:2], cuts[1::2], cuts[-1] = starts, ends, ends[-1]
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count, [None, py_buffer(cuts), py_buffer(data)])
    even = pa.Array.from_buffers(pa.int32(), count, [None, py_buffer(np.arange(0, 2 * count, 2, dtype=np.int32))])
    taken = pieces.take(even)
    _, offsets, content = taken.buffers()
    return offsets, content  # type: ignore[return-value]  # strings have both


def _copied(data: Bytes, starts: Ints, lengths: Ints) -> tuple[pa.Buffer, pa.Buffer]:
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] >= OFFSETS_END:
        raise BadRows("values of a column, read at once, take 2 GiB or more", hint=BAD_ROW_HINT, bytes=int(offsets[-1]))
    where = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return py_buffer(offsets.astype(np.int32)), py_buffer(data[where])
