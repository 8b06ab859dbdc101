"""Replication slots: making one with its snapshot, and dropping no other's. Source: sources.md section 1."""

import threading
from contextlib import suppress
from typing import Final

from persist import Determinate, LocationError, PersistError
from persist.runtime import system
from persist.sources import Lsn
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.postgres import catalog
from persist_ingest.sources.postgres.catalog import quoted
from persist_ingest.sources.postgres.making.options import Options
from persist_ingest.sources.postgres.session import UpstreamConnection, patiently

SLOT_SECONDS: Final = 10
STANDBY_SECONDS: Final = 20.0
"""How long a standby may wait for what its primary logs by itself every 15 s, while anything happens there."""
_CANCELED: Final = "57014"
WATCH_SECONDS: Final = 5.0
"""For how long a slot is watched before it is taken for one without a reader."""
_WRITERS: Final = """
SELECT pid, usename, state, (now() - xact_start)::text FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 5
"""


def free(session: UpstreamConnection, options: Options) -> None:
    """Make sure that no slot has the name. Raises SourceFailure."""
    found = catalog.slot(session, options.slot)
    if found is None:
        return
    if not options.replace_slot or found.active_pid is not None:
        raise SourceFailure(
            "there is a replication slot of that name already",
            hint="name another one (option slot); or, if no source uses it any more, set replaceSlot=true",
            slot=options.slot,
            active_pid=found.active_pid,
        )
    _check_unused(session, found, options.slot)
    drop(session, options.slot, found.confirmed, found.confirmed)


def _check_unused(session: UpstreamConnection, found: catalog.Slot, name: str) -> None:
    """Nothing reads the slot. Between two reads no session holds it: but what is read is released after a while."""
    give_up = system().monotonic() + WATCH_SECONDS
    while system().monotonic() < give_up:
        with suppress(PersistError):
            # Something to be read, where nothing else happens.
            session.rows("SELECT pg_logical_emit_message(false, 'persist', '')")
        now = catalog.slot(session, name)
        if now is not None and (now.active_pid is not None or now.confirmed != found.confirmed):
            raise SourceFailure(
                "the replication slot of that name is in use: it is being read",
                hint="name another one (option slot), or drop the source that reads it",
                slot=name,
                active_pid=now.active_pid,
            )
        threading.Event().wait(0.1)


def drop(session: UpstreamConnection, name: str, least: int, most: int) -> None:
    """Drop the slot of that name if it was confirmed within this range, in one statement; another one stays."""
    sql = """
    SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
    WHERE slot_name = %(slot)s AND confirmed_flush_lsn BETWEEN %(least)s AND %(most)s
    """
    params = {"slot": name, "least": str(Lsn(least)), "most": str(Lsn(most))}
    patiently(lambda: session.rows(sql, params))


def exporter(dsn: str) -> UpstreamConnection:
    """A session for ``make``, which waits for locks of others: statement_timeout does not hold for such commands."""
    return UpstreamConnection(dsn, replication=True, lock_seconds=SLOT_SECONDS)


def make(session: UpstreamConnection, exporter: UpstreamConnection, name: str) -> tuple[int, str]:
    """Consistent point and name of the snapshot. Waits for the transactions that write now, but not for ever."""
    (is_standby,) = session.row("SELECT pg_is_in_recovery()")
    # Locks are not what a standby waits for.
    limit = threading.Timer(STANDBY_SECONDS, exporter.cancel) if is_standby else None
    try:
        if limit is not None:
            limit.start()
        answer = exporter.row(f"CREATE_REPLICATION_SLOT {quoted(name)} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT")
    except LocationError as error:
        if is_standby and error.details.get("sqlstate") == _CANCELED:
            raise Determinate(
                "a standby makes a slot once its primary has logged which transactions run, and that did not come",
                hint="on the primary: SELECT pg_log_standby_snapshot(), while this is tried again; and end "
                "transactions that write for long",
                seconds=STANDBY_SECONDS,
            ) from None
        writers = session.rows(_WRITERS)
        if error.details.get("sqlstate") != "55P03" or not writers:
            raise
        shown = "; ".join(f"pid {pid} {user} {state} for {age}" for pid, user, state, age in writers)
        raise Determinate(
            "a slot can be made only once the transactions that write now have ended",
            hint="wait for them or end them, and try again",
            transactions=shown,
        ) from None
    finally:
        if limit is not None:
            limit.cancel()
    return catalog.position(answer[1]), answer[2]
