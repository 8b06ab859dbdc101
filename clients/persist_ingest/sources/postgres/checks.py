"""Whether a PostgreSQL still is the one a source was made for, and its tables what they were read as.

Source: sources.md section 1, semantics seen; catalog-semantics.md section 4.2, restart checks.
"""

import threading
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Final

from persist import Determinate
from persist.runtime import system
from persist.sources import Lsn, UpstreamLost, UpstreamReplaced
from persist_ingest.sources.port import HeldUp, SourceFailure, TableAltered
from persist_ingest.sources.postgres import catalog
from persist_ingest.sources.postgres.catalog import DEFAULT, FULL, Looked, Slot, quoted
from persist_ingest.sources.postgres.definition import PostgresDefinition, PublishedTable
from persist_ingest.sources.postgres.form import Evidence, Part, TableForm, check_form
from persist_ingest.sources.postgres.session import UpstreamConnection

SETTLE_SECONDS: Final = 2.0
"""How long to wait between a commit's record and the moment others see it, before it is tried again."""
_NEW_SOURCE: Final = "make a new source"
_AGAIN: Final = "snapshot it again (persist source resnapshot)"
_LOST: Final = {
    "wal_removed": (
        "the server threw away WAL that the replication slot needed",
        "raise max_slot_wal_keep_size",
    ),
    "rows_removed": (
        "the standby gave the replication slot up: the primary removed what it needed of the catalogs",
        "set hot_standby_feedback = on and primary_slot_name on the standby",
    ),
    "wal_level_insufficient": (
        "the standby gave the replication slot up: the primary does not log what logical replication needs",
        "set wal_level = logical on the primary",
    ),
    "idle_timeout": (
        "the server gave the replication slot up, as it was not read for long",
        "raise idle_replication_slot_timeout",
    ),
}
"""Of each ``invalidation_reason`` what it says, and what to correct."""


def check_upstream(session: UpstreamConnection, definition: PostgresDefinition) -> tuple[Slot, PostgresDefinition]:
    """The slot of a source when all of it is there, and the definition with the forms its tables have now.

    All that committed before the call is as the definition says. Raises UpstreamReplaced, UpstreamLost, TableAltered,
    SourceFailure, Determinate.
    """
    check_life(session, definition)
    return check_slot(session, definition), check_tables(session, definition)


def check_life(session: UpstreamConnection, definition: PostgresDefinition) -> None:
    """Raise UpstreamReplaced unless the server is on the timeline that the source is on, of the same database."""
    system, timeline, database = catalog.identity(session)
    known, began = definition.life
    found = f"{system}/{timeline}/{database}"
    if (system, timeline, database) == (definition.system, known, definition.database):
        history = catalog.history(session, timeline) if began else ()
        if not history or history[-1][1] == began:
            return
        found = f"{found} from {Lsn(history[-1][1])} on"
    raise UpstreamReplaced(
        "this is another database, or another life of it: restored, promoted or recreated",
        hint="persist source run goes on with it where it has the same history; else make a new source",
        expected=f"{definition.system}/{known}/{definition.database}" + (f" from {Lsn(began)} on" if began else ""),
        found=found,
    )


def check_slot(session: UpstreamConnection, definition: PostgresDefinition) -> Slot:
    """The slot of a source, which has what it is made for. Raises UpstreamLost, and Determinate: it will have that."""
    return check_found(catalog.slot(session, definition.slot), definition)


def check_found(found: Slot | None, definition: PostgresDefinition) -> Slot:
    """As ``check_slot``, of what was found."""
    if found is None or found.plugin != "pgoutput":
        raise UpstreamLost("the replication slot is gone", hint=_slot_again(definition), slot=definition.slot)
    if found.synced and found.on_standby:
        raise Determinate(
            "this is a standby, which has the slot for the time when it is promoted",
            hint="it is tried again; name the primary, or both and target_session_attrs=read-write (persist source "
            "alter -o dsn=...)",
            slot=definition.slot,
        )
    if found.temporary:
        raise UpstreamLost(
            "the standby was promoted before it had all of the replication slot",
            hint=_slot_again(definition, is_there=True),
            slot=definition.slot,
        )
    if found.wal_status == "lost":
        message, correction = _LOST.get(found.why_lost, _LOST["wal_removed"])
        hint = f"{correction}; {_slot_again(definition, is_there=True)}"
        raise UpstreamLost(message, hint=hint, slot=definition.slot)
    return found


def high(session: UpstreamConnection, definition: PostgresDefinition) -> catalog.Positions:
    """Where the log ends, once the standbys that the server names have what is safely written. Raises HeldUp.

    SUBTLE: the server shows no change of a slot for standbys before they have it (``synchronized_standby_slots``), but
    its log's end at once. What is bound beyond what they have could not be gone on with when one of them took over.
    """
    found = catalog.positions(session)
    if definition.failover:
        give_up = system().monotonic() + SETTLE_SECONDS
        while behind := catalog.standbys_behind(session, found.flushed):
            if system().monotonic() > give_up:
                raise HeldUp(
                    "the standbys that synchronized_standby_slots names do not have the log yet",
                    hint="it is tried again; are they there? A name without a slot is waited for, too: correct the "
                    "setting, also on a server that was promoted",
                    slots=", ".join(behind),
                    wanted=Lsn(found.flushed),
                )
            threading.Event().wait(0.01)
    return found


def written(session: UpstreamConnection, definition: PostgresDefinition) -> int:
    """The end of a record, up to which everything is safely written that commits before the call. Raises HeldUp."""
    give_up = system().monotonic() + SETTLE_SECONDS
    first = found = high(session, definition)
    while not found.is_whole and found.flushed < first.between:
        if system().monotonic() > give_up:
            raise HeldUp("the server does not write its log on", hint="it is tried again", wanted=Lsn(first.between))
        threading.Event().wait(0.01)
        found = high(session, definition)
    return found.flushed if found.is_whole else first.between


def _slot_again(definition: PostgresDefinition, *, is_there: bool = False) -> str:
    """What mends a source whose slot does not have what it needs, with all that it held at earlier times."""
    drop = f"SELECT pg_drop_replication_slot('{definition.slot}'); " if is_there else ""
    return (
        f"with its ingesters stopped: {drop}SELECT pg_create_logical_replication_slot('{definition.slot}', 'pgoutput')"
        "; then persist source resnapshot of each of its tables; or make a new source"
    )


def settle(session: UpstreamConnection, transactions: Set[int]) -> None:
    """Wait until these transactions, whose commits are in the log, can be seen. Raises HeldUp: that takes long.

    A commit is in the log a moment before the catalogs show it, and longer when it waits for a standby.
    """
    give_up = system().monotonic() + SETTLE_SECONDS
    while left := transactions & catalog.unseen(session):
        if system().monotonic() > give_up:
            raise HeldUp(
                "a commit that is in the log cannot be seen yet: it waits for a synchronous standby",
                hint="it is tried again; is the standby there?",
                transactions=sorted(left),
            )
        threading.Event().wait(0.01)


def check_tables(session: UpstreamConnection, definition: PostgresDefinition) -> PostgresDefinition:
    """The publication is what it was, and so are its tables, or what they became is in the definition that returns.

    Raises UpstreamReplaced (another publication), TableAltered, SourceFailure, Determinate.
    """
    found = catalog.publication(session, definition.publication)
    details = {"publication": definition.publication}
    if found is None or found.oid != definition.publication_oid:
        raise UpstreamReplaced("the publication was dropped, and changes with it", hint=_NEW_SOURCE, **details)
    if found.publishes != definition.publishes:
        raise SourceFailure(
            "the publication lets other changes through than it did",
            hint=f"ALTER PUBLICATION ... SET (publish = '{','.join(definition.publishes)}'), then persist source "
            f"resnapshot of each of its tables; or {_NEW_SOURCE}",
            **details,
            was=",".join(definition.publishes),
            now=",".join(found.publishes),
        )
    if any(table.form is None or table.form.coverage is None for table in definition.tables):
        _check_published(session, definition)
    now = catalog.look(session, definition)
    for table in definition.tables:
        _check_table(definition, table, now.get(table.oid))
    return _looked(session, definition, now)


def _check_published(session: UpstreamConnection, definition: PostgresDefinition) -> None:
    """At the first look, by what the publication has; afterwards by the versions of that."""
    now = catalog.tables_of(session, definition)
    for table in definition.tables:
        found = now.get(table.oid)
        if found is None:
            raise _dropped(definition, table)
        same = found.published and (found.row_filter, found.membership) == (table.row_filter, table.membership)
        if not same:
            raise SourceFailure(
                "the table was taken out of the publication, or its row filter changed: changes are lost",
                hint=_AGAIN,
                export=table.export,
                publication=definition.publication,
            )


def _looked(session: UpstreamConnection, definition: PostgresDefinition, now: dict[int, Looked]) -> PostgresDefinition:
    """The definition with the forms of now, when nothing that was read is wrong by what changed of them."""
    forms = {table.oid: table.form for table in definition.tables}
    others = [oid for oid, form in forms.items() if form is None or form.digest != now[oid].digest]
    found = catalog.forms(session, definition.publication, others) if others else {}
    for table in definition.tables:
        form, listed = table.form, now[table.oid]
        if table.oid in others:
            if table.oid not in found:
                raise _dropped(definition, table)
            if form is not None:
                evidence = Evidence(
                    has_old_rows=partial(catalog.has_old_rows, session, listed, form.horizon),
                    was_truncated=partial(catalog.was_truncated, session, definition, table.oid, table.oid),
                    part_has_old_rows=partial(_part_has_old_rows, session, form.horizon),
                    part_was_truncated=partial(_part_was_truncated, session, definition, table.oid),
                    has_no_file=partial(catalog.has_no_file, session),
                    was_made_as_one=partial(catalog.was_made_as_one, session),
                )
                check_form(form, found[table.oid], table.export, evidence, table.excluded)
            check_identities(session, definition, table, found[table.oid])
        elif form is not None:
            found[table.oid] = replace(form, horizon=listed.horizon)
    return definition.looked(found)


def _part_has_old_rows(session: UpstreamConnection, horizon: int, part: Part, nulls: Sequence[str]) -> bool:
    return catalog.has_old_rows(session, part, horizon, nulls)


def _part_was_truncated(session: UpstreamConnection, definition: PostgresDefinition, table: int, part: Part) -> bool:
    return catalog.was_truncated(session, definition, table, part.oid)


def check_identities(
    session: UpstreamConnection, definition: PostgresDefinition, table: PublishedTable, form: TableForm
) -> None:
    """Partitions say what rows were; those that were added are made to, where the source may."""
    for part in form.parts:
        if "update" not in definition.publishes or part.identity == FULL or part.kind != "r":
            continue
        statement = f"ALTER TABLE {quoted(part.schema, part.name)} REPLICA IDENTITY FULL"
        if not definition.identifies:
            raise SourceFailure(
                "the replica identity of a partition is not FULL",
                hint=f"{statement}, and {_AGAIN}; option setReplicaIdentity=true does that by itself",
                export=table.export,
                partition=f"{part.schema}.{part.name}",
            )
        session.run(statement)


def _check_table(definition: PostgresDefinition, table: PublishedTable, now: Looked | None) -> None:
    details = {"export": table.export, "publication": definition.publication}
    if now is None:
        raise _dropped(definition, table)
    if (now.schema, now.name) != (table.schema, table.name):
        # SUBTLE: it still is the same table. But where two were exchanged by their names, the other one is meant.
        raise SourceFailure(
            "the table was renamed",
            hint=f"{_AGAIN}, with what is called {quoted(table.schema, table.name)} now; or rename it back before",
            **details,
            now=quoted(now.schema, now.name),
        )
    if table.by_key and now.identity in (DEFAULT, FULL):
        if now.key != table.key:
            raise TableAltered("the primary key became another one, or went", hint=_AGAIN, **details)
    elif "update" in definition.publishes and now.identity != FULL:
        raise SourceFailure(
            "the table's replica identity is not what it was, nor FULL",
            hint=f"ALTER TABLE {quoted(now.schema, now.name)} REPLICA IDENTITY FULL, and {_AGAIN}",
            **details,
        )


def _dropped(definition: PostgresDefinition, table: PublishedTable) -> SourceFailure:
    return SourceFailure(
        "the table was dropped",
        hint=f"make a table of that name and {_AGAIN}, or {_NEW_SOURCE} without it",
        export=table.export,
        publication=definition.publication,
    )
