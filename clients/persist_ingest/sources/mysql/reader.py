"""Reading one life of a MariaDB's binlog: watermarks, plans and changes. Reading moves nothing upstream.

Source: sources.md section 1; docs/adr/0025-mysql-by-position.md.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from persist import Determinate, Schema
from persist.runtime import system
from persist.sources import Lsn, Probe, SourceFrontier, SourceKind
from persist.typed import Fields
from persist_ingest.sources.mysql import distributed, upstream
from persist_ingest.sources.mysql.charsets import Charsets
from persist_ingest.sources.mysql.decoding import GroupDecoder, LoggedExport
from persist_ingest.sources.mysql.definition import MySqlDefinition, file_of, place_of
from persist_ingest.sources.mysql.log import LogReader
from persist_ingest.sources.mysql.session import MySqlConnection, lent, let_go
from persist_ingest.sources.port import Event, ReadTask, UpstreamStatus

KIND: Final = SourceKind.LSN
BEHIND_SECONDS: Final = 10.0
"""For how long the log may end before what the server said of it."""
MARK_SECONDS: Final = 60.0
"""Between two marks by which the log is known from another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTask:
    """The groups that end in ``(begin, end]``."""

    definition: MySqlDefinition
    schemas: Mapping[str, Schema]
    begin: int
    end: int

    @property
    def weight(self) -> int:
        if file_of(self.begin) == file_of(self.end):
            return self.end - self.begin
        return place_of(self.end) + (file_of(self.end) - file_of(self.begin)) * 1024

    @property
    def ordered(self) -> bool:
        return True

    def read(self) -> Iterator[Event]:
        definition = self.definition
        exports = [
            LoggedExport(table, self.schemas[table.export], definition.zero_dates)
            for table in definition.tables
            if table.export in self.schemas
        ]
        decoder = GroupDecoder(
            exports,
            Charsets.at(definition.server),
            lambda xid: distributed.prepared_before(definition, xid, self.begin, decoder.tables),
        )
        reached, give_up = self.begin, system().monotonic() + BEHIND_SECONDS
        while reached < self.end:
            before = reached
            with MySqlConnection(definition.server) as session:
                upstream.check_server(session, definition)
                log = LogReader(decoder.tables, reached, self.end, file_of(reached), upstream.has_checksums(session))
                events = session.events(
                    definition.file_name(file_of(reached)), max(4, place_of(reached)), upstream.asked_as(definition)
                )
                for packets in events:
                    for group in log.groups(packets):
                        if group.prepared:
                            distributed.noted(definition, group)
                        yield from decoder.events(group)
                    if log.is_done:
                        break
                events.close()
            reached = log.reached
            if reached == before:
                if system().monotonic() > give_up:
                    raise Determinate(
                        "the binlog ends before where the server said",
                        hint="it is tried again",
                        wanted=Lsn(self.end),
                        reached=Lsn(reached),
                    )
                threading.Event().wait(0.02)
        yield from decoder.finish()


class MySqlReader:
    """Implements the SourceReader and Revised ports. Uses the session that tasks of this process use, too."""

    def __init__(self, definition: MySqlDefinition, schemas: Mapping[str, Schema]) -> None:
        """Of the tables that have a schema. The others stay in the definition as they are."""
        self._whole = definition
        self._definition = definition.of(schemas)
        self._schemas = {table.export: schemas[table.export] for table in self._definition.tables}
        self._revised: Fields | None = None
        self._session: MySqlConnection | None = None
        self._mark = definition.mark
        self._marked_at = system().monotonic()

    @property
    def kind(self) -> SourceKind:
        return KIND

    @property
    def incarnation(self) -> str:
        return self._definition.incarnation

    def exports(self) -> Mapping[str, Schema]:
        return dict(self._schemas)

    def probe(self) -> Probe:
        with lent(self._definition.server) as session:
            high, low = self._checked(session)
        return Probe(kind=KIND, incarnation=self.incarnation, high=(Lsn(high),), low=(Lsn(min(low, high)),))

    def plan(self, begin: SourceFrontier, end: SourceFrontier, tasks: int) -> Sequence[ReadTask]:
        first, last = begin.bound(0) or 0, end.bound(0) or 0
        if first >= last:
            return ()
        return (LogTask(definition=self._definition, schemas=self.exports(), begin=first, end=last),)

    def adopt(self, export: str, schema: Schema) -> None:
        self._schemas[export] = schema

    def commit(self, frontier: SourceFrontier) -> None:
        """Nothing: the server keeps its log as long as it is set to, read or not."""

    def status(self) -> UpstreamStatus:
        with lent(self._definition.server) as session:
            high, low = self._checked(session)
            kept = upstream.retained(session)
            known = session.variables("binlog_expire_logs_seconds")
        return UpstreamStatus(
            committed=None,
            bytes_behind=None,
            details={
                "server_id": self._definition.number,
                "current_file": self._definition.file_name(file_of(high)),
                "current_position": place_of(high),
                "current_lsn": str(Lsn(high)),
                "oldest_file": self._definition.file_name(file_of(low)),
                "gtids": self._mark.gtids,
                "retained_bytes": kept,
                "binlog_expire_logs_seconds": known.get("binlog_expire_logs_seconds"),
            },
        )

    def revised(self) -> Mapping[str, object] | None:
        return self._revised

    def close(self) -> None:
        let_go(self._definition.server)

    def _checked(self, session: MySqlConnection) -> tuple[int, int]:
        """Where the log ends and begins, once it is sure to be the one that was read until now."""
        if self._session is not session:
            # Another connection: it may be another server by now, or another log.
            upstream.check_server(session, self._definition)
            upstream.check_mark(session, self._definition, self._mark)
        high, mark = upstream.end_of_log(session, self._definition.base)
        low = upstream.begin_of_log(session, self._definition.base)
        upstream.check_grown(session, self._definition, self._mark, high, mark)
        self._session, self._mark = session, mark or self._mark
        if file_of(self._mark.offset) > file_of(self._definition.mark.offset) or self._is_due():
            self._remark()
        return high, low

    def _is_due(self) -> bool:
        return system().monotonic() > self._marked_at + MARK_SECONDS

    def _remark(self) -> None:
        if self._mark != self._definition.mark:
            self._definition = replace(self._definition, mark=self._mark)
            self._whole = replace(self._whole, mark=self._mark)
            self._revised = self._whole.to_json()
        self._marked_at = system().monotonic()
