"""What a table map event says of a table: the form of the rows that follow it, in the log itself.

With binlog_row_metadata=FULL it says names, signs, character sets and labels, too. So rows are read by what they were
when they were written, and never by what the catalog says later.
Source: MariaDB documentation, TABLE_MAP_EVENT; rpl_utility and log_event_server of its source are where its order is.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from persist import CorruptData

TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT = 10, 11, 12, 13, 14, 15, 16
TIMESTAMP2, DATETIME2, TIME2 = 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
NEWDECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 246, 247, 248, 252, 253, 254, 255
_NUMERIC: Final = frozenset({TINY, SHORT, INT24, LONG, LONGLONG, FLOAT, DOUBLE, NEWDECIMAL, YEAR})
_CHARACTER: Final = frozenset({STRING, VAR_STRING, VARCHAR, BLOB, GEOMETRY, BLOB_COMPRESSED, VARCHAR_COMPRESSED})
_ONE_BYTE: Final = frozenset({FLOAT, DOUBLE, BLOB, BLOB_COMPRESSED, GEOMETRY, TIMESTAMP2, DATETIME2, TIME2})
_OLD: Final = frozenset({TIMESTAMP, DATETIME, TIME})
BINARY: Final = 63
"""The collation of what is no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapColumn:
    """A column of a table map. ``meta``: by type, see the event; ``size``: bytes of it, where that is fixed."""

    name: str
    type: int
    meta: int
    second: int = 0
    unsigned: bool = False
    collation: int = 0
    labels: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table, as the rows behind this event have it. ``form``: bytes that are equal where its form is."""

    table_id: int
    database: str
    table: str
    form: bytes = field(repr=False)

    @staticmethod
    def of(body: bytes) -> "TableMap":
        """From an event's body, which is behind its header and before its checksum."""
        table_id = int.from_bytes(body[:6], "little")
        size = body[8]
        database = body[9 : 9 + size].decode("utf8")
        at = 10 + size
        size = body[at]
        table = body[at + 1 : at + 1 + size].decode("utf8")
        return TableMap(table_id, database, table, body[at + 2 + size :])


def parse_form(form: bytes) -> tuple[MapColumn, ...]:
    """The columns of a form. Raises CorruptData: it has types that are not known."""
    count, at = _number(form, 0)
    types = list(form[at : at + count])
    at += count
    size, at = _number(form, at)
    metas = _metas(types, form[at : at + size])
    at += size + (count + 7) // 8
    said = _Told(types, form, at)
    return tuple(
        MapColumn(
            name=said.names[place] if place < len(said.names) else "",
            type=kind,
            meta=meta,
            second=second,
            unsigned=said.unsigned[place],
            collation=said.collations[place],
            labels=said.labels[place],
        )
        for place, (kind, (meta, second)) in enumerate(zip(types, metas, strict=True))
    )


def _metas(types: list[int], data: bytes) -> list[tuple[int, int]]:
    """The metadata of each column; real types of enums and sets are in it."""
    found, at = [], 0
    for place, kind in enumerate(types):
        if kind in _ONE_BYTE:
            found.append((data[at], 0))
            at += 1
        elif kind in (STRING, VAR_STRING, ENUM, SET):
            first, second = data[at], data[at + 1]
            at += 2
            if kind == STRING and first & 0x30 != 0x30:
                found.append((second | ((first & 0x30) ^ 0x30) << 4, 0))
            else:
                types[place] = first if kind == STRING else kind
                found.append((second, 0))
        elif kind in (NEWDECIMAL, BIT):
            found.append((data[at], data[at + 1]))
            at += 2
        elif kind in (VARCHAR, VARCHAR_COMPRESSED):
            found.append((data[at] | data[at + 1] << 8, 0))
            at += 2
        elif kind in _OLD or kind > NEWDATE:
            raise CorruptData("a column of a type that is not known", hint="leave its table out", type=kind)
        else:
            found.append((0, 0))
    return found


class _Told:
    """What is said beside types: signs, character sets, names, labels; by column."""

    def __init__(self, types: Sequence[int], form: bytes, at: int) -> None:
        count = len(types)
        self.names: list[str] = []
        self.unsigned = [False] * count
        self.collations = [0] * count
        self.labels: list[tuple[bytes, ...]] = [()] * count
        self._types = types
        readers: dict[int, Callable[[bytes], None]] = {
            1: self._signs,
            2: lambda data: self._default(data, _CHARACTER),
            3: lambda data: self._each(data, _CHARACTER),
            4: self._named,
            5: lambda data: self._labelled(data, SET),
            6: lambda data: self._labelled(data, ENUM),
            10: lambda data: self._default(data, frozenset({ENUM, SET})),
            11: lambda data: self._each(data, frozenset({ENUM, SET})),
        }
        while at < len(form):
            kind = form[at]
            size, at = _number(form, at + 1)
            if kind in readers:
                readers[kind](form[at : at + size])
            at += size

    def _places(self, kinds: frozenset[int]) -> list[int]:
        return [place for place, kind in enumerate(self._types) if kind in kinds]

    def _signs(self, data: bytes) -> None:
        for number, place in enumerate(self._places(_NUMERIC)):
            self.unsigned[place] = bool(data[number // 8] & 0x80 >> number % 8)

    def _default(self, data: bytes, kinds: frozenset[int]) -> None:
        common, at = _number(data, 0)
        places = self._places(kinds)
        for place in places:
            self.collations[place] = common
        while at < len(data):
            number, at = _number(data, at)
            self.collations[places[number]], at = _number(data, at)

    def _each(self, data: bytes, kinds: frozenset[int]) -> None:
        at = 0
        for place in self._places(kinds):
            self.collations[place], at = _number(data, at)

    def _named(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            size, at = _number(data, at)
            self.names.append(data[at : at + size].decode("utf8"))
            at += size

    def _labelled(self, data: bytes, kind: int) -> None:
        at = 0
        for place in self._places(frozenset({kind})):
            count, at = _number(data, at)
            found = []
            for _ in range(count):
                size, at = _number(data, at)
                found.append(data[at : at + size])
                at += size
            self.labels[place] = tuple(found)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and what follows it."""
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
    if size is None:
        raise CorruptData("a table map cannot be read", hint="is this MariaDB 10.5 or newer?")
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


number_at: Final = _number
HEAD: Final = struct.Struct("<IBIIIH")
"""Of an event: when, what, of which server, how long, where it ends, flags."""
