"""Reading one life of a PostgreSQL database: watermarks, plans and changes.

Reading moves nothing upstream: the slot is peeked at, and moved by ``commit`` alone. Source: sources.md section 1.
"""

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeVar

from persist import Determinate, Schema
from persist.runtime import system
from persist.sources import Lsn, Probe, SourceFrontier, SourceKind, UpstreamLost
from persist.typed import Fields
from persist_ingest.sources.lives import ServerRun
from persist_ingest.sources.port import Event, ReadTask, SourceFailure, UpstreamStatus
from persist_ingest.sources.postgres import catalog
from persist_ingest.sources.postgres.checks import (
    check_found,
    check_life,
    check_tables,
    check_upstream,
    high,
    settle,
)
from persist_ingest.sources.postgres.decoding import EventDecoder, TableExport
from persist_ingest.sources.postgres.definition import PostgresDefinition
from persist_ingest.sources.postgres.framing import Framed, frame
from persist_ingest.sources.postgres.pgoutput import Chunk
from persist_ingest.sources.postgres.session import UpstreamConnection, lent, let_go, patiently

T = TypeVar("T")

KIND: Final = SourceKind.LSN
ADVANCE_SECONDS: Final = 1.0
LOG_SECONDS: Final = 2.0
_BOUNDARIES_MAX: Final = 4096

# Groups of about 20,000 small messages, and of 16 MiB: a value of bytes ends at 1 GiB.
_PEEK: Final = """
SELECT string_agg(data, ''::bytea ORDER BY o), string_agg(int4send(length(data)), ''::bytea ORDER BY o)
FROM (SELECT o, data, sum(length(data) + 800) OVER (ORDER BY o ROWS UNBOUNDED PRECEDING) / 16777216 AS part
      FROM pg_logical_slot_peek_binary_changes(%(slot)s::text, %(end)s::pg_lsn, NULL,
           'proto_version', '1', 'publication_names', %(publication)s::text)
           WITH ORDINALITY AS t(lsn, xid, data, o)) m
GROUP BY part ORDER BY part
"""

_ADVANCE: Final = "SELECT pg_replication_slot_advance(%(slot)s, %(to)s::pg_lsn)"

# A commit that waits for no standby: it has the server write the record out that its last page ends in.
_WRITE_OUT: Final = """
SELECT set_config('synchronous_commit', 'local', true), pg_logical_emit_message(true, 'persist', '')::text
"""

_BACKWARDS: Final = "55000"

_MAY_LOG: Final = """
SELECT NOT pg_is_in_recovery() AND to_regprocedure('pg_log_standby_snapshot()') IS NOT NULL
   AND has_function_privilege(to_regprocedure('pg_log_standby_snapshot()'), 'execute')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesTask:
    """The transactions whose commits end in ``(begin, end]``. ``server``: in the log of the run that has it bound."""

    definition: PostgresDefinition
    schemas: Mapping[str, Schema]
    begin: int
    end: int
    server: str = ""

    @property
    def weight(self) -> int:
        return self.end - self.begin

    @property
    def ordered(self) -> bool:
        return True

    def read(self) -> Iterator[Event]:
        for _, event in self.framed():
            yield event

    def framed(self) -> Iterator[tuple[Framed, Event]]:
        """The events, each with the messages it stems from. A commit up to the end is seen by all afterwards."""
        definition = self.definition
        with lent(definition.dsn) as session:
            if self.server not in ("", session.server_began):
                # What its log has there may be another history: that is found out before anything is bound of it.
                raise Determinate("the server was started anew, or another one answers", hint="it is tried again")
            # After the range was bound: who commits in it and is not among these is seen by the look that follows.
            unseen = catalog.unseen(session)
            slot, definition = check_upstream(session, definition)
            if catalog.positions(session).flushed < self.end:
                # Beyond its end a log shows nothing, which would pass for all there is.
                raise Determinate(
                    "the server does not have all of the log yet that another one had",
                    hint="it is tried again once it has; or name the primary (target_session_attrs=read-write)",
                    wanted=Lsn(self.end),
                )
            _check_begin(slot, definition, self.begin)
            decoder = EventDecoder(self._exports(definition), catalog.LiveCatalog(session))
            for framed in frame(_peek(session, definition, self.begin, self.end), self.begin, self.end):
                late = unseen.intersection(framed.xids[framed.wanted].tolist())
                if late:
                    settle(session, late)
                    unseen -= late
                    _, definition = check_upstream(session, definition)
                    decoder.look(self._exports(definition))
                for event in decoder.events(framed):
                    yield framed, event

    def _exports(self, definition: PostgresDefinition) -> list[TableExport]:
        return [TableExport(table, self.schemas[table.export]) for table in definition.tables]


def _check_begin(slot: catalog.Slot | None, definition: PostgresDefinition, begin: int) -> None:
    """Raise UpstreamLost unless the slot has everything from there on."""
    if slot is None or slot.confirmed > begin:
        raise UpstreamLost(
            "the upstream threw away what was not read yet",
            hint="snapshot each of its tables again (persist source resnapshot)",
            slot=definition.slot,
            confirmed=Lsn(slot.confirmed) if slot else None,
            resume=Lsn(begin),
        )


def _peek(session: UpstreamConnection, definition: PostgresDefinition, begin: int, end: int) -> Iterator[Chunk]:
    """What the slot has up to the end. Raises UpstreamLost: that is not all there was from the beginning.

    SUBTLE: while the slot is waited for, another session may consume it, and then what is left passes for all there
    is. The server decodes everything before it answers with the first group: so a slot that is moved no further than
    the beginning by then had all of it.
    """
    publication = catalog.quoted(definition.publication)
    params = {"slot": definition.slot, "end": str(Lsn(end)), "publication": publication}
    # Groups have no order of their own: they are sorted anyway, and hashing them would hold all of them.
    session.run("SET enable_hashagg = off")
    groups = session.blobs(_PEEK, params)
    first = next(groups, None)
    _check_begin(catalog.slot(session, definition.slot), definition, begin)
    if first is not None:
        for data, lengths in chain((first,), groups):
            yield Chunk.of(data, lengths)


def _advance(session: UpstreamConnection, slot: str, target: int) -> None:
    """Move the slot there, unless it is there or beyond by now: other readers of it move it as well."""
    try:
        patiently(lambda: session.rows(_ADVANCE, {"slot": slot, "to": str(Lsn(target))}))
    except SourceFailure as error:
        found = catalog.slot(session, slot) if error.details.get("sqlstate") == _BACKWARDS else None
        if found is None or found.confirmed < target:
            raise


def keep_for_standbys(session: UpstreamConnection, slot: str) -> None:
    """Have standbys take the slot over when they are promoted, which is not so of one that was copied or made anew."""
    patiently(lambda: session.aside().run(f"ALTER_REPLICATION_SLOT {catalog.quoted(slot)} (FAILOVER true)"))
    session.end_aside()


class PostgresReader:
    """Implements SourceReader, Remembers, Revised, Lags and OnServer, in the session that this process' tasks use."""

    def __init__(self, definition: PostgresDefinition, schemas: Mapping[str, Schema]) -> None:
        """Of the tables that have a schema. The others stay in the definition as they are."""
        self._whole = definition
        self._definition = self._kept = definition.of(schemas)
        self._schemas = {table.export: schemas[table.export] for table in self._definition.tables}
        self._revised: Fields | None = None
        self._may_log: bool | None = None
        self._run: ServerRun | None = None
        # Positions between two records. A slot moved into a commit's record would never show that commit again, and
        # what is flushed may end inside a record: so it is moved to one of these.
        self._between: list[int] = []
        self._bound: int | None = None
        self._amid = 0
        self._advanced_at: float | None = None
        self._logged_at: float | None = None

    @property
    def kind(self) -> SourceKind:
        return KIND

    @property
    def incarnation(self) -> str:
        return self._definition.incarnation

    def exports(self) -> Mapping[str, Schema]:
        return dict(self._schemas)

    def remember(self, frontier: SourceFrontier) -> None:
        self._bound = frontier.bound(0) or 0

    def probe(self) -> Probe:
        end, slot = self._asked(self._checked)
        return Probe(kind=KIND, incarnation=self.incarnation, high=(Lsn(end),), low=(Lsn(min(slot.confirmed, end)),))

    def plan(self, begin: SourceFrontier, end: SourceFrontier, tasks: int) -> Sequence[ReadTask]:
        first, last = begin.bound(0) or 0, end.bound(0) or 0
        if first >= last:
            return ()
        return (
            ChangesTask(
                definition=self._definition, schemas=self.exports(), begin=first, end=last, server=self.run().name
            ),
        )

    def adopt(self, export: str, schema: Schema) -> None:
        self._schemas[export] = schema

    def commit(self, frontier: SourceFrontier) -> None:
        now = system().monotonic()
        if self._advanced_at is not None and now < self._advanced_at + ADVANCE_SECONDS:
            return
        if self._asked(lambda session: self._advanced(session, frontier)):
            self._advanced_at = now
        del self._between[: max(0, self._known(frontier) - 1)]
        if self._may_log and (self._logged_at is None or now >= self._logged_at + LOG_SECONDS):
            # Only at such a record can the server forget WAL; by itself it writes one every 15 s.
            self._asked(lambda session: session.rows("SELECT pg_log_standby_snapshot()"))
            self._logged_at = now

    def status(self) -> UpstreamStatus:
        end, slot = self._asked(self._checked)
        return UpstreamStatus(
            committed=SourceFrontier.at(KIND, {0: slot.confirmed}),
            bytes_behind=max(0, end - slot.confirmed),
            details={
                "slot": self._definition.slot,
                "publication": self._definition.publication,
                "confirmed_lsn": str(Lsn(slot.confirmed)),
                "current_lsn": str(Lsn(end)),
                "retained_bytes": max(0, end - slot.restart),
                "wal_status": slot.wal_status,
                "safe_wal_size": slot.safe_wal_size,
                "active_pid": slot.active_pid,
                "timeline": self._definition.life[0],
                "failover": slot.failover,
                "why_lost": slot.why_lost,
            },
        )

    def lags(self) -> bool:
        return self._asked(catalog.is_standby)

    def run(self) -> ServerRun:
        if self._run is None:
            self._asked(self._checked)
        assert self._run is not None
        return self._run

    def revised(self) -> Mapping[str, object] | None:
        return self._revised

    def close(self) -> None:
        let_go(self._definition.dsn)

    def _advanced(self, session: UpstreamConnection, frontier: SourceFrontier) -> bool:
        """Move the slot, which is the one that was just looked at: another server's is asked of another session."""
        if self._run is not None and session.server_began != self._run.name:
            # Of that one it is not known yet whether it has the history that was read.
            return False
        _, slot = self._checked(session)
        if self._definition.failover and not slot.failover:
            keep_for_standbys(session, self._definition.slot)
        known = self._known(frontier)
        target = self._between[known - 1] if known else 0
        if target <= slot.confirmed:
            return False
        _advance(session, self._definition.slot, target)
        return True

    def _known(self, frontier: SourceFrontier) -> int:
        """How many of the positions that the slot may be moved to are not beyond."""
        return bisect.bisect_right(self._between, frontier.bound(0) or 0)

    def _checked(self, session: UpstreamConnection) -> tuple[int, catalog.Slot]:
        """How far the log is safely written, asked for before it is made sure that nothing of it was left out."""
        found = high(session, self._definition)
        seen = catalog.slot(session, self._definition.slot)
        if self._run is not None and self._run.name != session.server_began:
            # What was not safely written of an earlier run may be gone, and records lie elsewhere since.
            self._between.clear()
        self._run = ServerRun(name=session.server_began, read=seen.confirmed if seen else 0, end=found.flushed)
        check_life(session, self._definition)
        slot = check_found(seen, self._definition)
        self._definition = check_tables(session, self._definition)
        if self._definition.is_news(self._kept):
            # Afterwards: what was looked at is of no later history.
            self._kept = self._definition.kept(self._kept, catalog.positions(session).between)
            self._revised = self._whole.within(self._kept).to_json()
        end = self._ending(session, found)
        if not self._between or found.between > self._between[-1]:
            self._between.append(found.between)
            del self._between[:-_BOUNDARIES_MAX]
        return end, slot

    def _ending(self, session: UpstreamConnection, found: catalog.Positions) -> int:
        """Where the last record ends that is known to be safely written.

        SUBTLE: a server that takes over has the log up to the end of a record, as nothing else is ever replayed. So one
        whose beginning was bound would look lost; and until the rest is written the slot shows nothing.
        """
        if found.is_whole or self._bound is None:
            self._amid = 0
            return found.flushed
        if self._amid == found.flushed:
            # It stays so while a transaction rests: then what was committed before would not be bound, either.
            with suppress(SourceFailure):
                session.rows(_WRITE_OUT)
        self._amid = found.flushed
        known = bisect.bisect_right(self._between, found.flushed)
        return max(min(self._bound, found.flushed), self._between[known - 1] if known else 0)

    def _asked(self, question: Callable[[UpstreamConnection], T]) -> T:
        with lent(self._definition.dsn) as session:
            if self._may_log is None:
                self._may_log = bool(session.row(_MAY_LOG)[0])
            return question(session)
