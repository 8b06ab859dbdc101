"""Whether a server logs what a source needs, and lets this user read it: each refusal says the next step.

Source: sources.md section 1; MariaDB documentation, binary log settings.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from persist import InvalidArgument
from persist_ingest.sources.mysql import catalog
from persist_ingest.sources.mysql.catalog import ListedTable
from persist_ingest.sources.mysql.session import MySqlConnection, quoted
from persist_ingest.sources.port import SourceFailure

VERSION_MIN: Final = (10, 5)
RETENTION_SECONDS: Final = 3600
"""A server that keeps its log for less is refused: a source that rests for as long would be lost."""
_WANTED: Final[Mapping[str, tuple[frozenset[str], str, str]]] = {
    "log_bin": (
        frozenset({"ON", "1"}),
        "the server does not write a binlog",
        "set log_bin in its configuration, and restart it",
    ),
    "binlog_format": (
        frozenset({"ROW"}),
        "the server does not log rows",
        "SET GLOBAL binlog_format = ROW, and in its configuration; sessions that are open keep what they had",
    ),
    "binlog_row_image": (
        frozenset({"FULL"}),
        "the server does not log whole rows",
        "SET GLOBAL binlog_row_image = FULL, and in its configuration; sessions that are open keep what they had",
    ),
    "binlog_row_metadata": (
        frozenset({"FULL"}),
        "the server does not log what columns are called",
        "SET GLOBAL binlog_row_metadata = FULL, and in its configuration",
    ),
    "sync_binlog": (
        frozenset({"1"}),
        "the server may lose the end of its binlog when its machine fails, after a source has read it",
        "SET GLOBAL sync_binlog = 1, and in its configuration",
    ),
    "innodb_flush_log_at_trx_commit": (
        frozenset({"1", "3"}),
        "the server may lose transactions when its machine fails, after a source has read them",
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in its configuration",
    ),
}
_RIGHTS: Final = (
    ("REPLICATION SLAVE", ("REPLICATION SLAVE", "REPLICATION REPLICA")),
    ("BINLOG MONITOR", ("BINLOG MONITOR", "REPLICATION CLIENT")),
)


def check_server(session: MySqlConnection) -> None:
    """Raise SourceFailure unless the server logs whole rows, keeps them, and loses none."""
    (version,) = session.row("SELECT VERSION()")
    found = re.match(r"(\d+)\.(\d+)", str(version))
    if "mariadb" not in str(version).lower():
        raise SourceFailure(
            "this is no MariaDB: the binlog of MySQL is another one, which is not read",
            hint="MySQL can be read through Kafka, by Debezium: see the Kafka source",
            version=version,
        )
    if found is None or (int(found[1]), int(found[2])) < VERSION_MIN:
        raise SourceFailure("MariaDB 10.5 or newer is needed", hint="upgrade the server", version=version)
    known = session.variables(*_WANTED, "binlog_expire_logs_seconds", "expire_logs_days")
    for name, (wanted, message, hint) in _WANTED.items():
        if known.get(name, "").upper() not in wanted:
            raise SourceFailure(message, hint=hint, **{name: known.get(name, "")})
    kept = float(known.get("binlog_expire_logs_seconds") or float(known.get("expire_logs_days") or 0) * 86400)
    if 0 < kept < RETENTION_SECONDS:
        raise SourceFailure(
            "the server throws its binlog away too soon for a source that may rest",
            hint="SET GLOBAL binlog_expire_logs_seconds = 259200 (three days), or longer",
            binlog_expire_logs_seconds=kept,
        )


def check_rights(session: MySqlConnection) -> None:
    """Raise SourceFailure unless this user may read the log."""
    grants = " ".join(str(row[0]).upper() for row in session.rows("SHOW GRANTS"))
    on_all = " ".join(each for each in re.split(r"(?=GRANT )", grants) if " ON *.* " in each)
    if "ALL PRIVILEGES" in on_all:
        return
    for name, spellings in _RIGHTS:
        if not any(each in on_all for each in spellings):
            raise SourceFailure(
                "this user may not read the binlog",
                hint=f"GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO this user (it lacks {name})",
                user=session.server.user,
            )


def check_filters(session: MySqlConnection, databases: Sequence[str]) -> None:
    """Raise SourceFailure where the server leaves databases out of its log."""
    (row,) = session.rows("SHOW MASTER STATUS")
    only, never = (_listed(str(each)) for each in row[2:4])
    for database in sorted(set(databases)):
        if (only and database not in only) or database in never:
            raise SourceFailure(
                "the server does not log changes of this database",
                hint="correct binlog_do_db and binlog_ignore_db in its configuration, and restart it",
                database=database,
            )


def check_server_id(session: MySqlConnection, server_id: int) -> None:
    """Raise InvalidArgument where another has this id: the server ends the session of the other."""
    if not server_id:
        return
    (own,) = session.row("SELECT @@global.server_id")
    others = {int(str(row[0])) for row in session.rows("SHOW SLAVE HOSTS")}
    if server_id == own or server_id in others:
        raise InvalidArgument(
            "another server or replica has this serverId",
            hint="choose one that none has, or leave it out: then it is another one each time",
            serverId=server_id,
        )


def check_table(session: MySqlConnection, table: ListedTable) -> None:
    """Raise SourceFailure for what has no rows of its own, or whose changes the log does not have."""
    export = f"{table.database}.{table.name}"
    if table.kind == catalog.VERSIONED:
        raise SourceFailure("a table that keeps its history cannot be read", hint="leave it out", table=export)
    if table.kind != catalog.BASE:
        raise SourceFailure("only tables can be replicated", hint="name its tables", table=export, kind=table.kind)
    if table.engine.upper() != "INNODB":
        raise SourceFailure(
            "only tables of InnoDB show one moment, and are whole after a crash",
            hint=f"ALTER TABLE {quoted(table.database, table.name)} ENGINE = InnoDB, or leave it out",
            table=export,
            engine=table.engine,
        )
    found = catalog.cascades(session, table.database, table.name)
    if found:
        raise SourceFailure(
            "rows of this table change with those of another by a foreign key, which is not logged",
            hint="make the foreign key RESTRICT, and delete or update its rows yourself; or leave the table out",
            table=export,
            constraints=",".join(found),
        )


def _listed(text: str) -> set[str]:
    return {each.strip() for each in text.split(",") if each.strip()}
