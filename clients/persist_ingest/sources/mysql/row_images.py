"""Rows of many row events at once, column by column: where each value lies, never what it is.

A row's length follows from its values, so the next row of an event begins where the one before ends. Many events are
walked side by side: the first rows of all, then the second rows, and so on; a server cuts events at some kilobytes.
Source: MariaDB documentation, ROWS_EVENT_V1; sources.md section 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from persist import CorruptData
from persist_ingest.sources.mysql import table_map as of
from persist_ingest.sources.mysql.table_map import MapColumn
from persist_ingest.sources.tables.gathering import Bools, Bytes, Ints

_PAD: Final = 16
"""Bytes behind the data, so that a number can be read at its end."""
_FIXED: Final = {
    of.TINY: 1,
    of.SHORT: 2,
    of.INT24: 3,
    of.LONG: 4,
    of.LONGLONG: 8,
    of.FLOAT: 4,
    of.DOUBLE: 8,
    of.YEAR: 1,
    of.DATE: 3,
    of.NEWDATE: 3,
}
_FRACTIONS: Final = {of.TIMESTAMP2: 4, of.DATETIME2: 5, of.TIME2: 3}
_PREFIXED: Final = frozenset({of.BLOB, of.BLOB_COMPRESSED, of.GEOMETRY})
_DIGIT_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


@dataclass(frozen=True, slots=True)
class ImageField:
    """Where the values of a column lie: begin and length of each, and whether there is one."""

    starts: Ints
    lengths: Ints
    valid: Bools


@dataclass(frozen=True, slots=True)
class ImageRows:
    """Rows of several events. ``events``: of which each is; ``diffs``: -1 what was, 1 what is."""

    data: Bytes
    events: Ints
    diffs: Ints
    fields: tuple[ImageField, ...]


def fixed_size(column: MapColumn) -> int | None:
    """Bytes that every value of this column takes; None: each says it."""
    if column.type in _FIXED:
        return _FIXED[column.type]
    if column.type in _FRACTIONS:
        return _FRACTIONS[column.type] + (column.meta + 1) // 2
    if column.type == of.NEWDECIMAL:
        whole, fraction = column.meta - column.second, column.second
        return whole // 9 * 4 + _DIGIT_BYTES[whole % 9] + fraction // 9 * 4 + _DIGIT_BYTES[fraction % 9]
    if column.type == of.BIT:
        return column.second + (column.meta > 0)
    if column.type in (of.ENUM, of.SET):
        return column.meta
    return None


def _prefix(column: MapColumn) -> int:
    """Bytes of the length that a value begins with."""
    if column.type in _PREFIXED:
        return column.meta
    return 1 if column.meta <= 255 else 2


def read_images(columns: Sequence[MapColumn], bodies: Sequence[bytes], kinds: Ints) -> ImageRows:
    """The rows of row events of one form. ``bodies``: rows alone; ``kinds``: by event, 1 insert, -1 delete, 0 update.

    Raises CorruptData where rows do not end where their event does.
    """
    lengths = np.fromiter(map(len, bodies), np.int64, len(bodies))
    data = np.frombuffer(b"".join([*bodies, bytes(_PAD)]), np.uint8)
    ends = np.cumsum(lengths)
    at = ends - lengths
    live = np.flatnonzero(lengths > 0)
    number, events, diffs = 0, list[Ints](), list[Ints]()
    parts: list[list[ImageField]] = [[] for _ in columns]
    while len(live):
        here, after = _walk(data, at[live], columns)
        if (after > ends[live]).any():
            raise CorruptData("a row of the binlog ends behind its event", hint="report it")
        for part, found in zip(parts, here, strict=True):
            part.append(found)
        events.append(live)
        # An update has the row that was, then the row that is.
        diffs.append(np.where(kinds[live] == 0, 1 if number % 2 else -1, kinds[live]))
        at[live] = after
        live = live[after < ends[live]]
        number += 1
    return ImageRows(data, _joined(events), _joined(diffs), tuple(map(_field, parts)))


def _walk(data: Bytes, at: Ints, columns: Sequence[MapColumn]) -> tuple[list[ImageField], Ints]:
    """The values of one row at each of these places, and where each row ends."""
    nulls = at
    at = at + (len(columns) + 7) // 8
    found = []
    for place, column in enumerate(columns):
        valid = (data[nulls + place // 8] >> (place % 8)) & 1 == 0
        size = fixed_size(column)
        if size is not None:
            lengths = np.where(valid, size, 0)
            found.append(ImageField(at, lengths, valid))
            at = at + lengths
            continue
        width = _prefix(column)
        # At the end of the data there may be none to read.
        lengths = np.where(valid, little(data, np.minimum(at, len(data) - width), width), 0)
        starts = at + np.where(valid, width, 0)
        found.append(ImageField(starts, lengths, valid))
        at = starts + lengths
        if len(at) and at.max() > len(data):
            raise CorruptData("a row of the binlog ends behind its event", hint="report it")
    return found, at


def little(data: Bytes, at: Ints, size: int) -> Ints:
    """The unsigned numbers of up to eight bytes at these places, the least byte first, as int64 has their bits."""
    found = np.zeros(len(at), np.uint64)
    for byte in range(size):
        found |= data[at + byte].astype(np.uint64) << np.uint64(8 * byte)
    return found.view(np.int64)


def big(data: Bytes, at: Ints, size: int) -> Ints:
    """The same, the greatest byte first."""
    found = np.zeros(len(at), np.uint64)
    for byte in range(size):
        found = (found << np.uint64(8)) | data[at + byte].astype(np.uint64)
    return found.view(np.int64)


def _joined(parts: Sequence[npt.NDArray[np.generic]]) -> Ints:
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


def _field(parts: Sequence[ImageField]) -> ImageField:
    if not parts:
        return ImageField(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
    valid = np.concatenate([part.valid for part in parts])
    return ImageField(_joined([part.starts for part in parts]), _joined([part.lengths for part in parts]), valid)
