"""Messages of PostgreSQL's logical replication (pgoutput, protocol 1), many at once, as numpy sees them.

A chunk is messages one after another and their lengths. Rows are walked column by column, never one by one.
Source: sources.md section 2; PostgreSQL documentation, logical replication message formats.
"""

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from persist import CorruptData
from persist_ingest.sources.tables.gathering import Bools, Bytes, Ints

BEGIN: Final = ord("B")
COMMIT: Final = ord("C")
RELATION: Final = ord("R")
TRUNCATE: Final = ord("T")
INSERT: Final = ord("I")
UPDATE: Final = ord("U")
DELETE: Final = ord("D")
_WHOLE_OLD: Final = ord("O")
_OLD_KEY: Final = ord("K")
_NEW: Final = ord("N")
_VALUE: Final = ord("t")
_NULL: Final = ord("n")
_UNCHANGED: Final = ord("u")


class Chunk:
    """Messages in order. ``data``: all their bytes; ``starts``: where each begins; ``tags``: what each is."""

    __slots__ = ("_longs", "_words", "data", "lengths", "starts", "tags")

    def __init__(self, data: Bytes, lengths: Ints) -> None:
        self.data = data
        self.lengths = lengths
        self.starts = np.cumsum(lengths) - lengths
        self.tags = data[self.starts]
        self._words = _view(data, ">u4")
        self._longs = _view(data, ">u8")

    @staticmethod
    def of(data: bytes, lengths: bytes) -> "Chunk":
        """From the bytes of messages and their lengths as big-endian int32."""
        return Chunk(np.frombuffer(data, np.uint8), np.frombuffer(lengths, ">i4").astype(np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    def words(self, at: Ints) -> Ints:
        """The unsigned 32-bit numbers at these places; anything where the data ends before."""
        found: Ints = self._words[np.minimum(at, len(self._words) - 1)].astype(np.int64)
        return found

    def longs(self, at: Ints) -> npt.NDArray[np.uint64]:
        """The unsigned 64-bit numbers at these places."""
        found: npt.NDArray[np.uint64] = self._longs[at].astype(np.uint64)
        return found

    def split(self, at: int) -> tuple["Chunk", "Chunk"]:
        """The first ``at`` messages, and the others."""
        cut = int(self.starts[at]) if at < len(self) else len(self.data)
        return Chunk(self.data[:cut], self.lengths[:at]), Chunk(self.data[cut:], self.lengths[at:])

    def message(self, at: int) -> bytes:
        """One message, without its tag."""
        start = int(self.starts[at])
        return self.data[start + 1 : start + int(self.lengths[at])].tobytes()


def _view(data: Bytes, kind: str) -> Any:
    """The numbers at every place of the data, aligned or not."""
    width = np.dtype(kind).itemsize
    padded = data if len(data) >= width else np.zeros(width, np.uint8)
    return np.ndarray((len(padded) - width + 1,), dtype=kind, buffer=padded, strides=(1,))


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column in a relation message."""

    name: str
    oid: int
    mod: int


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """The form of the rows that follow."""

    oid: int
    attributes: tuple[RelationColumn, ...]


def parse_relation(message: bytes) -> RelationMessage:
    """A relation message without its tag."""
    oid = struct.unpack_from(">I", message)[0]
    _, at = _name(message, 4)
    _, at = _name(message, at)
    count = struct.unpack_from(">H", message, at + 1)[0]
    at += 3
    attributes = []
    for _ in range(count):
        name, at = _name(message, at + 1)
        kind, mod = struct.unpack_from(">Ii", message, at)
        attributes.append(RelationColumn(name, kind, mod))
        at += 8
    return RelationMessage(oid, tuple(attributes))


def parse_truncate(message: bytes) -> tuple[int, ...]:
    """The oids of a truncate message without its tag."""
    count = struct.unpack_from(">I", message)[0]
    return struct.unpack_from(f">{count}I", message, 5)


def _name(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1


class NoOldRow(Exception):
    """An update or delete came without the whole old row: the table's replica identity is not FULL."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


@dataclass(frozen=True, slots=True)
class Field:
    """Where the values of a column lie: begin and length of each row's text, and whether there is one."""

    starts: Ints
    lengths: Ints
    valid: Bools


@dataclass(frozen=True, slots=True)
class MessageRows:
    """Rows of several messages in order: the old row of an update or delete (diff -1), then the new one (diff 1)."""

    messages: Ints
    diffs: Ints
    fields: tuple[Field, ...]


def read_rows(chunk: Chunk, messages: Ints, columns: int) -> MessageRows:
    """The rows of these inserts, updates and deletes of one relation with that many columns.

    Raises NoOldRow, with the message.
    """
    tags = chunk.tags[messages]
    after = chunk.starts[messages] + 5
    has_old, has_new = tags != INSERT, tags != DELETE
    missing = has_old & (chunk.data[after] != _WHOLE_OLD)
    if missing.any():
        raise NoOldRow(int(messages[np.argmax(missing)]))
    old, ends = _walk(chunk, after[has_old], columns)
    new_at = after.copy()
    new_at[has_old] = ends
    new, _ = _walk(chunk, _marked(chunk, new_at[has_new]), columns)
    if not has_new.any():
        return MessageRows(messages, np.full(len(messages), -1, np.int64), tuple(map(_field, old)))
    if not has_old.any():
        return MessageRows(messages, np.full(len(messages), 1, np.int64), tuple(map(_field, new)))
    return _interleaved(messages, has_old, has_new, old, new)


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """The rows of several messages in order: the old key of an update or delete that says one, then the new row.

    ``alive``: it is a new row; ``fresh``: its key had none before; ``before``: the place of the old key that a new row
    had, or -1. ``unchanged``: by column, whose values are those of the row's earlier version (None: of no row).
    """

    messages: Ints
    alive: Bools
    fresh: Bools
    before: Ints
    fields: tuple[Field, ...]
    unchanged: tuple[Bools | None, ...]


def read_keyed(chunk: Chunk, messages: Ints, columns: int, keys: Collection[int]) -> KeyedRows:
    """The rows of these inserts, updates and deletes of one relation with that many columns. ``keys``: of its key.

    Raises NoOldRow, with the message: a delete that does not say of what.
    """
    tags = chunk.tags[messages]
    after = chunk.starts[messages] + 5
    marks = chunk.data[after]
    has_old = (tags != INSERT) & ((marks == _OLD_KEY) | (marks == _WHOLE_OLD))
    has_new = tags != DELETE
    missing = ~has_old & ~has_new
    if missing.any():
        raise NoOldRow(int(messages[np.argmax(missing)]))
    old, ends = _walk(chunk, after[has_old], columns)
    new_at = after.copy()
    new_at[has_old] = ends
    new, _ = _walk(chunk, _marked(chunk, new_at[has_new]), columns)
    rows = has_old.astype(np.int64) + has_new
    first = np.cumsum(rows) - rows
    at_old, at_new = first[has_old], (first + has_old)[has_new]
    total = int(rows.sum())
    alive, fresh, before = np.zeros(total, np.bool_), np.zeros(total, np.bool_), np.full(total, -1, np.int64)
    alive[at_new] = True
    fresh[at_new] = (has_old | (tags == INSERT))[has_new]
    both = has_old & has_new
    before[(first + 1)[both]] = first[both]
    previous = (np.cumsum(has_old) - 1)[has_new]
    fields, unchanged = [], []
    for number, (was, now) in enumerate(zip(old, new, strict=True)):
        # Only a key says what it says of itself: what else is in it are nulls.
        told = has_old[has_new] & ((marks == _WHOLE_OLD)[has_new] | (number in keys))
        filled = _filled(was, now, previous, told)
        merged = _Walked(np.empty(total, np.uint8), np.empty(total, np.int64), np.empty(total, np.int64))
        for at, part in ((at_old, was), (at_new, filled)):
            merged.kinds[at], merged.starts[at], merged.lengths[at] = part.kinds, part.starts, part.lengths
        same = merged.kinds == _UNCHANGED
        unchanged.append(same if same.any() else None)
        merged.kinds[same] = _NULL
        fields.append(_field(merged))
    return KeyedRows(np.repeat(messages, rows), alive, fresh, before, tuple(fields), tuple(unchanged))


@dataclass(frozen=True, slots=True)
class _Walked:
    """The values of a column: kind, begin and length of each."""

    kinds: Bytes
    starts: Ints
    lengths: Ints


def _marked(chunk: Chunk, at: Ints) -> Ints:
    if not (chunk.data[at] == _NEW).all():
        raise CorruptData("a change has no new row", hint="is this protocol 1 of pgoutput?")
    return at


def _interleaved(
    messages: Ints, has_old: Bools, has_new: Bools, old: Sequence[_Walked], new: Sequence[_Walked]
) -> MessageRows:
    rows = has_old.astype(np.int64) + has_new
    first = np.cumsum(rows) - rows
    at_old, at_new = first[has_old], (first + has_old)[has_new]
    total = int(rows.sum())
    diffs = np.ones(total, np.int64)
    diffs[at_old] = -1
    # For each new row the index of its old one.
    previous = (np.cumsum(has_old) - 1)[has_new]
    fields = []
    for before, after in zip(old, new, strict=True):
        filled = _filled(before, after, previous, has_old[has_new])
        merged = _Walked(np.empty(total, np.uint8), np.empty(total, np.int64), np.empty(total, np.int64))
        for at, part in ((at_old, before), (at_new, filled)):
            merged.kinds[at], merged.starts[at], merged.lengths[at] = part.kinds, part.starts, part.lengths
        fields.append(_field(merged))
    return MessageRows(np.repeat(messages, rows), diffs, tuple(fields))


def _filled(before: _Walked, after: _Walked, previous: Ints, updated: Bools) -> _Walked:
    """Values that were stored out of line and did not change are not sent again: they are in the old row."""
    unchanged = (after.kinds == _UNCHANGED) & updated
    if not unchanged.any():
        return after
    source = previous[unchanged]
    filled = _Walked(after.kinds.copy(), after.starts.copy(), after.lengths.copy())
    filled.kinds[unchanged] = before.kinds[source]
    filled.starts[unchanged] = before.starts[source]
    filled.lengths[unchanged] = before.lengths[source]
    return filled


def _field(walked: _Walked) -> Field:
    valid: Bools = walked.kinds == _VALUE
    if not (valid | (walked.kinds == _NULL)).all():
        raise CorruptData("a row has values of an unknown form", hint="is this protocol 1 of pgoutput?")
    return Field(walked.starts, walked.lengths, valid)


def _walk(chunk: Chunk, at: Ints, columns: int) -> tuple[list[_Walked], Ints]:
    """The columns of rows from their markers on, and where each row ends."""
    counts = chunk.words(at + 1) >> 16
    if not (counts == columns).all():
        raise CorruptData("a row has another number of columns than its relation", hint="report it", columns=columns)
    at = at + 3
    walked = []
    for _ in range(columns):
        kinds = chunk.data[at]
        valued = kinds == _VALUE
        if valued.all():
            lengths = chunk.words(at + 1)
            starts = at + 5
        else:
            lengths = np.where(valued, chunk.words(at + 1), 0)
            starts = at + np.where(valued, 5, 1)
        walked.append(_Walked(kinds, starts, lengths))
        at = starts + lengths
    return walked, at
