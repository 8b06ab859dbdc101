"""Whether a MariaDB still is the server a source was made for, with the log it had, and where that log begins and ends.

A position means something in one log of one server alone. So the server's id and the names of the log's files have to
be what they were, and at a place that was remembered has to be what was there: the GTIDs before it.
Source: sources.md section 1; catalog-semantics.md section 4.2, restart checks; MariaDB documentation, BINLOG_GTID_POS.
"""

from typing import Final

from persist.digits import whole_number
from persist.runtime import system
from persist.sources import Lsn, UpstreamLost, UpstreamReplaced
from persist_ingest.sources.lives import HistoryLost
from persist_ingest.sources.mysql.definition import Mark, MySqlDefinition, file_of, place_of, position
from persist_ingest.sources.mysql.session import MySqlConnection
from persist_ingest.sources.port import SourceFailure

_NEW_SOURCE: Final = "make a new source"
_END: Final = "SHOW MASTER STATUS"
_GTIDS: Final = "SELECT @@global.gtid_binlog_pos"
_FILES: Final = "SHOW BINARY LOGS"
_OWN_IDS: Final = 1 << 31
_TRIES: Final = 2


def check_server(session: MySqlConnection, definition: MySqlDefinition) -> None:
    """Raise UpstreamReplaced unless this is the server that the source was made of."""
    (number,) = session.row("SELECT @@global.server_id")
    if number != definition.number:
        raise UpstreamReplaced(
            "another server answers, whose binlog has other positions: a failover, or a new server",
            hint=f"{_NEW_SOURCE} of this server, or point it to the one it was made of",
            expected=definition.number,
            found=number,
        )


def end_of_log(session: MySqlConnection, base: str) -> tuple[int, Mark | None]:
    """Where the log ends, also with the GTIDs before that if it stands still for a moment. Raises UpstreamReplaced."""
    before = _end(session)
    for _ in range(_TRIES):
        gtids, after = str(session.row(_GTIDS)[0]), _end(session)
        if before == after:
            break
        before = after
    name, place = after
    if name.rpartition(".")[0] != base:
        raise UpstreamReplaced(
            "the files of the binlog have other names: it is another log",
            hint=_NEW_SOURCE,
            expected=base,
            found=name,
        )
    offset = position(number_of(name), place)
    return offset, Mark(offset=offset, gtids=gtids) if before == after else None


def _end(session: MySqlConnection) -> tuple[str, int]:
    found = session.rows(_END)
    if not found:
        raise UpstreamLost("the server does not write a binlog any more", hint=f"set log_bin, and {_NEW_SOURCE}")
    return str(found[0][0]), int(str(found[0][1]))


def number_of(name: str) -> int:
    """The number of a file of the log."""
    number = whole_number(name.rpartition(".")[2])
    if number is None:
        raise SourceFailure("a file of the binlog has no number", hint="see log_bin", name=name)
    return number


def begin_of_log(session: MySqlConnection, base: str) -> int:
    """The first position that is still there."""
    files = [str(row[0]) for row in session.rows(_FILES)]
    return min((position(number_of(name), 0) for name in files), default=0)


def retained(session: MySqlConnection) -> int:
    """Bytes of all files."""
    return sum(int(str(row[1])) for row in session.rows(_FILES))


def check_mark(session: MySqlConnection, definition: MySqlDefinition, mark: Mark) -> None:
    """Raise HistoryLost unless the log has at that place what it had there.

    Where the server purged that file it cannot be asked: then what it wrote since has to be more, see ``check_grown``.
    """
    if not _is_kept(session, definition, mark):
        return
    found = _gtids_at(session, definition, mark)
    if not _same(found, mark):
        raise HistoryLost(
            "the binlog is not the one that was read: it was reset, restored or lost its end",
            hint=f"{_NEW_SOURCE} (after RESET MASTER, a restore, or a crash that lost what was not synced)",
            at=Lsn(mark.offset),
            expected=mark.gtids,
            found=found,
        )


def check_grown(
    session: MySqlConnection, definition: MySqlDefinition, before: Mark, offset: int, now: Mark | None
) -> None:
    """Raise HistoryLost where the log ends before where it did, or has less transactions.

    Numbers of transactions alone may go down in a log that lost nothing: gtid_seq_no sets them, and a domain that is
    not used any more can be deleted. Then the place that was reached has what it had.
    """
    missing = now is not None and any(
        _sequences(now.gtids).get(domain, -1) < number for domain, number in _sequences(before.gtids).items()
    )
    if missing and _is_kept(session, definition, before):
        missing = not _same(_gtids_at(session, definition, before), before)
    if missing or offset < before.offset:
        raise HistoryLost(
            "the binlog has less than it had: it was reset, restored or lost its end",
            hint=f"{_NEW_SOURCE} (after RESET MASTER, a restore, or a crash that lost what was not synced)",
            had=f"{Lsn(before.offset)} {before.gtids}",
            has=f"{Lsn(offset)} {now.gtids if now else ''}",
        )


def _is_kept(session: MySqlConnection, definition: MySqlDefinition, mark: Mark) -> bool:
    """Whether the file is there that a place is in: what is there can be asked for."""
    return position(file_of(mark.offset), 0) >= begin_of_log(session, definition.base)


def _gtids_at(session: MySqlConnection, definition: MySqlDefinition, mark: Mark) -> str | None:
    """The GTIDs before that place; None: no transaction ends there."""
    name, place = definition.file_name(file_of(mark.offset)), place_of(mark.offset)
    found = session.row("SELECT BINLOG_GTID_POS(%s, %s)", (name, place))[0]
    return None if found is None else str(found)


def _same(found: str | None, mark: Mark) -> bool:
    return found is not None and sorted(found.split(",")) == sorted(mark.gtids.split(","))


def _sequences(gtids: str) -> dict[str, int]:
    """By domain, the number of the last one."""
    parts = [each.strip().split("-") for each in gtids.split(",") if each.strip()]
    return {domain: int(number) for domain, _, number in parts}


def has_checksums(session: MySqlConnection) -> bool:
    """Events are sent with checksums, until one says otherwise."""
    return bool(session.row("SELECT @@global.binlog_checksum")[0] == "CRC32")


def asked_as(definition: MySqlDefinition) -> int:
    """The id under which the log is asked for.

    SUBTLE: the server ends the session of another reader with the same id, be it a replica. So it is another one each
    time, of many.
    """
    if definition.server_id:
        return definition.server_id
    return _OWN_IDS | int.from_bytes(system().random_bytes(4), "big") % (_OWN_IDS - 1)
