"""Distributed transactions (XA): their rows are logged when they are prepared, and count where they are committed.

So a commit may lie far behind its rows: in another step, or behind a restart. Which transactions are prepared at a
place is what the log says before it, nothing else: where one was seen to be is only remembered to look there first.
Source: MariaDB documentation, XA transactions; GTID_EVENT; docs/adr/0025-mysql-by-position.md.
"""

import struct
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import closing
from typing import Final

from persist_ingest.sources.mysql import upstream
from persist_ingest.sources.mysql.definition import MySqlDefinition, file_of, place_of, position
from persist_ingest.sources.mysql.log import Group, LogReader
from persist_ingest.sources.mysql.session import MySqlConnection, Server
from persist_ingest.sources.mysql.statements import Name
from persist_ingest.sources.mysql.table_map import number_at

_KNOWN_MAX: Final = 10_000
_COMPLETED: Final = -1
_XID: Final = struct.Struct("<iBB")
_COMMIT: Final = "XA COMMIT"

_known: OrderedDict[tuple[str, bytes], int] = OrderedDict()
"""By incarnation of an upstream and transaction, where its rows were seen to begin."""


def noted(definition: MySqlDefinition, group: Group) -> None:
    """Remember where a prepared transaction is."""
    _known[definition.incarnation, group.xid] = group.began
    _known.move_to_end((definition.incarnation, group.xid))
    while len(_known) > _KNOWN_MAX:
        _known.popitem(last=False)


def prepared_before(definition: MySqlDefinition, xid: bytes, end: int, tables: Collection[Name]) -> Group | None:
    """The transaction of that name that is prepared where the log is at ``end``, with its rows of these tables.

    None: the log does not have it any more. To be closed. Raises as reading the log does.
    """
    began = _began(definition, xid, end)
    if began is None:
        return None
    for group in _groups(definition, began, end, tables):
        if group.prepared and group.xid == xid:
            return group
    return None


def _began(definition: MySqlDefinition, xid: bytes, end: int) -> int | None:
    with MySqlConnection(definition.server) as session:
        oldest = file_of(upstream.begin_of_log(session, definition.base))
    known = _known.get((definition.incarnation, xid), end)
    if known < end and file_of(known) >= oldest:
        # One of the same name may have come since.
        last = _last(definition, known, end).get(xid, _COMPLETED)
        return None if last == _COMPLETED else last
    return _searched(definition, xid, end, oldest)


def _searched(definition: MySqlDefinition, xid: bytes, end: int, oldest: int) -> int | None:
    """File after file, the newest first: what the log says of it last."""
    for file in range(file_of(end), oldest - 1, -1):
        last = _last(definition, position(file, 0), min(end, position(file + 1, 0)))
        if xid in last:
            return None if last[xid] == _COMPLETED else last[xid]
    return None


def _last(definition: MySqlDefinition, begin: int, end: int) -> dict[bytes, int]:
    """By transaction that the log names there, where its rows begin if it is only prepared at the end."""
    found: dict[bytes, int] = {}
    for group in _groups(definition, begin, end, ()):
        if group.xid:
            found[group.xid] = group.began if group.prepared else _COMPLETED
            group.rows.close()
    return found


def _groups(definition: MySqlDefinition, begin: int, end: int, tables: Collection[Name]) -> Iterator[Group]:
    with MySqlConnection(definition.server) as session:
        upstream.check_server(session, definition)
        log = LogReader(tables, begin, end, file_of(begin), upstream.has_checksums(session))
        events = session.events(
            definition.file_name(file_of(begin)), max(4, place_of(begin)), upstream.asked_as(definition)
        )
        with closing(events):
            for packets in events:
                yield from log.groups(packets)
                if log.is_done:
                    return


class Unsettled:
    """Whether commits are under way that the log has and others do not see yet, when a moment is taken.

    SUBTLE: an ordinary commit becomes visible together with its place in the log. One of a prepared transaction is
    logged first, and visible some time later: a moment that is taken in between says a place behind a commit that it
    does not have. Such a transaction was prepared when this was made, or what was logged since has its commit.
    """

    def __init__(self, session: MySqlConnection) -> None:
        """To be made before the moment. ``session``: another one than that of the moment."""
        self._session = session
        file, place = session.rows("SHOW MASTER STATUS")[0][:2]
        self._file, self._place = str(file), int(str(place))
        self._open = _prepared_now(session)

    def at(self, server: Server, offset: int) -> bool:
        """Whether a moment of now, at that position, may lack a commit that the log has before it."""
        number, place = upstream.number_of(self._file), self._place
        if file_of(offset) != number:
            return True
        if place_of(offset) != place:
            events = self._session.rows(f"SHOW BINLOG EVENTS IN %s FROM {place}", [self._file])
            if any(str(event[5]).startswith(_COMMIT) for event in events if int(str(event[4])) <= place_of(offset)):
                return True
        if not self._open:
            return False
        if not self._open <= _prepared_now(self._session):
            return True
        # They stayed what they are: prepared, or held up amid their commit, which the log has then.
        return not self._open <= self._idle(server, offset)

    def _idle(self, server: Server, offset: int) -> set[bytes]:
        base = self._file.rpartition(".")[0]
        (number,) = self._session.row("SELECT @@global.server_id")
        log = MySqlDefinition.of_log(server, int(str(number)), base)
        oldest = file_of(upstream.begin_of_log(self._session, base))
        return {xid for xid in self._open if _searched(log, xid, offset, oldest) is not None}


def _prepared_now(session: MySqlConnection) -> set[bytes]:
    """Those that are prepared, or being committed."""
    found = set[bytes]()
    for packets in session.packets("XA RECOVER"):
        for begin, end in packets.spans:
            row, values = bytes(packets.data[begin:end]), list[bytes]()
            at = 0
            for _ in range(4):
                size, at = number_at(row, at)
                values.append(row[at : at + size])
                at += size
            numbers = [int(each) for each in values[:3]]
            found.add(_XID.pack(*numbers) + values[3])
    return found
