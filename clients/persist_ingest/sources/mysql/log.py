"""The binlog as whole groups: a transaction with its rows, or a statement that stands alone, by where each ends.

Only its end says where a transaction ends, so its rows are kept until that is read, in a file once they are many.
Source: MariaDB documentation, binlog events, GTID_EVENT; sources.md section 1.
"""

import struct
import tempfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import Final

from persist import CorruptData
from persist.sources import UpstreamLost
from persist_ingest.sources.mysql.definition import position
from persist_ingest.sources.mysql.session import Packets
from persist_ingest.sources.mysql.statements import Name, words
from persist_ingest.sources.mysql.table_map import HEAD, TableMap, number_at
from persist_ingest.sources.port import SourceFailure

KEPT_BYTES: Final = 64 << 20
_QUERY, _ROTATE, _FORMAT, _XID, _MAP, _INCIDENT = 2, 4, 15, 16, 19, 26
_LOADED, _XA_PREPARED, _GTID, _QUERY_COMPRESSED = 18, 38, 162, 165
_PASSED: Final = frozenset({3, 5, 9, 13, 14, 17, 27, 28, 29, 160, 161, 163, 164})
"""Of statements' surroundings, and of the log itself."""
_ROWS: Final = {23: 1, 24: 0, 25: -1, 30: 1, 31: 0, 32: -1, 166: 1, 167: 0, 168: -1, 169: 1, 170: 0, 171: -1}
"""Row events by what they do: insert, update or delete."""
_LATER: Final = frozenset({30, 31, 32, 169, 170, 171})
_COMPRESSED: Final = frozenset({166, 167, 168, 169, 170, 171})
_ARTIFICIAL, _IGNORABLE = 0x20, 0x80
_STANDALONE, _GROUPED, _PREPARED, _COMPLETED = 0x01, 0x02, 0x40, 0x80
_CRC: Final = 4
_KEPT: Final = struct.Struct("<ibBI")


@dataclass(frozen=True, slots=True)
class RowEvent:
    """Rows of one table. ``kind``: 1 insert, 0 update, -1 delete; ``whole``: with every column."""

    table: TableMap
    kind: int
    whole: bool
    body: bytes


@dataclass(frozen=True, slots=True)
class Statement:
    """What was given as text. ``database``: that of names without one."""

    database: str
    text: bytes


class _Rows:
    """Row events of a group, in order."""

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._maps: list[TableMap] = []
        self._events: list[RowEvent] = []
        self._file: tempfile.SpooledTemporaryFile[bytes] | None = None

    def append(self, event: RowEvent) -> None:
        self.count += 1
        self.bytes += len(event.body)
        self._events.append(event)
        if self._file is not None or self.bytes > KEPT_BYTES:
            self._spill()

    def tables(self) -> set[Name]:
        """Those that have rows here."""
        found = {(each.database, each.table) for each in self._maps}
        return found | {(each.table.database, each.table.table) for each in self._events}

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.SpooledTemporaryFile(1)  # noqa: SIM115 - closed by close()
        for event in self._events:
            if not self._maps or self._maps[-1] != event.table:
                self._maps.append(event.table)
            self._file.write(_KEPT.pack(len(self._maps) - 1, event.kind, event.whole, len(event.body)))
            self._file.write(event.body)
        self._events.clear()

    def __iter__(self) -> Iterator[RowEvent]:
        if self._file is not None:
            self._file.seek(0)
            while head := self._file.read(_KEPT.size):
                number, kind, whole, size = _KEPT.unpack(head)
                yield RowEvent(self._maps[number], kind, bool(whole), self._file.read(size))
            self._file.seek(0, 2)
        yield from self._events

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@dataclass(slots=True)
class Group:
    """What became visible at once. ``end``: where it ends. ``odd``: why its rows say less than what happened.

    ``xid``: of a distributed transaction (XA), its format, lengths and name. ``prepared``: it does not count yet, but
    once another group of that name commits it, and is its reader's to close. ``began``: where the group begins.
    """

    standalone: bool = False
    prepared: bool = False
    xid: bytes = b""
    began: int = 0
    end: int = 0
    rows: _Rows = field(default_factory=_Rows)
    statements: list[Statement] = field(default_factory=list)
    odd: str = ""


class LogReader:
    """Reads events from a position on. ``reached``: the end of the last group, or of what is between groups."""

    def __init__(self, tables: Collection[Name], begin: int, end: int, file: int, checksum: bool) -> None:
        """``file``: the number of the file that it begins in; ``checksum``: of events before the first says it."""
        self._tables = tables
        self._end = end
        self._file = file
        self._has_checksum = checksum
        self._maps: dict[int, TableMap] = {}
        self._group: Group | None = None
        self.reached = begin

    @property
    def is_done(self) -> bool:
        """All that was asked for was read."""
        return self.reached >= self._end

    def groups(self, packets: Packets) -> Iterator[Group]:
        """The groups that end in these events, up to the end that was given. Each is to be used before the next."""
        view = memoryview(packets.data)
        for begin, end in packets.spans:
            _, kind, _, size, log_pos, flags = HEAD.unpack_from(view, begin + 1)
            event = view[begin + 1 : end]
            if size != len(event):
                raise CorruptData("an event of the binlog has another length than it says", hint="report it")
            if kind == _FORMAT:
                self._has_checksum = event[-5] == 1
            if self._has_checksum:
                if zlib.crc32(event[:-_CRC]) != int.from_bytes(event[-_CRC:], "little"):
                    raise CorruptData("an event of the binlog does not have its checksum", hint="check that server")
                event = event[:-_CRC]
            body = event[HEAD.size :]
            if kind == _ROTATE:
                self._file = int(bytes(body[8:]).rpartition(b".")[2])
                continue
            found = self._taken(kind, body, flags)
            if log_pos and not flags & _ARTIFICIAL:
                at = position(self._file, log_pos)
                if at < self.reached:
                    raise SourceFailure(
                        "a file of the binlog is larger than 4 GiB: positions in it are not unique",
                        hint="make smaller transactions, and the source again",
                        file=self._file,
                    )
                if self._group is None or found is not None:
                    if found is not None and at <= self._end:
                        found.end = at
                        with nullcontext() if found.prepared else closing(found.rows):
                            yield found
                    self.reached = at
            if found is not None:
                self._group = None
                self._maps.clear()
            if self.is_done:
                return

    def _taken(self, kind: int, body: memoryview, flags: int) -> Group | None:
        """Take an event in; the group that ends with it."""
        if kind == _MAP:
            self._mapped(bytes(body))
        elif kind in _ROWS:
            self._rows(kind, body)
        elif kind == _GTID:
            mark = body[12]
            self._group = Group(
                standalone=bool(mark & _STANDALONE),
                prepared=bool(mark & _PREPARED),
                xid=_xid(body, mark) if mark & (_PREPARED | _COMPLETED) else b"",
                began=self.reached,
            )
        elif kind in (_XID, _XA_PREPARED):
            return self._open()
        elif kind in (_QUERY, _QUERY_COMPRESSED, _LOADED):
            return self._query(kind, body)
        elif kind == _INCIDENT:
            raise UpstreamLost("the server says that its binlog has a gap", hint="make a new source")
        elif kind not in _PASSED and kind != _FORMAT and not flags & _IGNORABLE:
            raise SourceFailure("the binlog has events of a kind that is not known", hint="update persist", kind=kind)
        return None

    def _open(self) -> Group:
        if self._group is None:
            self._group = Group()
        return self._group

    def _mapped(self, body: bytes) -> None:
        table = TableMap.of(body)
        if (table.database, table.table) in self._tables:
            self._maps[table.table_id] = table
        else:
            self._maps.pop(table.table_id, None)

    def _rows(self, kind: int, body: memoryview) -> None:
        table = self._maps.get(int.from_bytes(body[:6], "little"))
        if table is None:
            return
        at = 8
        if kind in _LATER:
            at += int.from_bytes(body[8:10], "little")
        head = bytes(body[at : at + 9])
        width, used = number_at(head, 0)
        at += used
        images, size = (2 if _ROWS[kind] == 0 else 1), (width + 7) // 8
        there = (
            int.from_bytes(body[at : at + size], "little"),
            int.from_bytes(body[at + size : at + 2 * size], "little"),
        )
        full = (1 << width) - 1
        whole = all(each & full == full for each in there[:images])
        rest = bytes(body[at + images * size :])
        rows = _uncompressed(rest) if kind in _COMPRESSED else rest
        self._open().rows.append(RowEvent(table, _ROWS[kind], whole, rows))

    def _query(self, kind: int, body: memoryview) -> Group | None:
        size, status = body[8], int.from_bytes(body[11:13], "little")
        at = 13 + status + (13 if kind == _LOADED else 0)
        database = bytes(body[at : at + size]).decode("utf8", "replace")
        text = bytes(body[at + size + 1 :])
        if kind == _QUERY_COMPRESSED:
            text = _uncompressed(text)
        group = self._open()
        if group.standalone or text.startswith(b"COMMIT"):
            if group.standalone:
                group.statements.append(Statement(database, text))
            return group
        said = words(text[:200])
        if said[:1] == ["XA"] and said[1:2] in (["COMMIT"], ["ROLLBACK"]):
            group.statements.append(Statement(database, text))
            return group
        if said[:1] == ["ROLLBACK"] and "TO" not in said:
            return Group()
        if said[:1] == ["ROLLBACK"]:
            group.odd = "a part of a transaction was rolled back that is in the log"
        elif said[:1] not in (["BEGIN"], ["START"], ["SAVEPOINT"], ["RELEASE"]):
            group.statements.append(Statement(database, text))
        return None


def _xid(body: memoryview, mark: int) -> bytes:
    """The format of a distributed transaction's name, its lengths, and the name."""
    at = 21 if mark & _GROUPED else 13
    return bytes(body[at : at + 6 + body[at + 4] + body[at + 5]])


def _uncompressed(data: bytes) -> bytes:
    """What log_bin_compress made of bytes: how long the length is, the length, then zlib's."""
    if not data or data[0] & 0xF0 != 0x80:
        raise CorruptData("a compressed event of the binlog is in an unknown form", hint="report it")
    return zlib.decompress(data[1 + (data[0] & 7) :])
