"""A PostgreSQL for logical replication, a database of its own for each test, and a reader's bookkeeping."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from ingest.databases import drop_database

from persist.sources import SourceFrontier, SourceKind
from persist.testing import servers
from persist_ingest.sources.port import Beginning, Changes, Event, SourceReader, Truncated
from persist_ingest.sources.postgres import POSTGRES

LOGICAL = {"wal_level": "logical", "max_replication_slots": "64", "max_wal_senders": "64", "fsync": "off"}


class Upstream:
    """A database, and what became of its tables by events. ``rows``: of each export, with how often they are there."""

    def __init__(self, dsn: str, server: servers.Server) -> None:
        self.dsn = dsn
        self.server = server
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.rows: dict[str, Counter[tuple[Any, ...]]] = {}
        self.at = SourceFrontier.minimum(SourceKind.LSN)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def select(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql.encode()).fetchall()

    def create(
        self, tables: str | None = None, source: str = "shop", **options: str
    ) -> AbstractContextManager[Beginning]:
        named = {} if tables is None else {"tables": tables}
        return POSTGRES.create({"dsn": self.dsn, **named, **options}, source=source)

    def begin(self, beginning: Beginning) -> SourceReader:
        """Take the snapshot in."""
        self.at = beginning.bound
        for task in beginning.snapshot:
            self.apply(task.read())
        return POSTGRES.open(beginning.definition, beginning.reader.exports())

    def follow(self, reader: SourceReader) -> list[Event]:
        """Take everything in that happened until now."""
        end = high(reader)
        events = read(reader, self.at, end)
        self.apply(events)
        self.at = end
        return events

    def apply(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Truncated):
                self.rows[event.export] = Counter()
                continue
            assert isinstance(event, Changes)
            assert len(event.offsets) == len(event.diffs) == event.rows.num_rows
            rows = self.rows.setdefault(event.export, Counter())
            for row, diff in zip(tuples(event.rows), event.diffs.to_pylist(), strict=True):
                rows[row] += diff

    def holds(self, export: str, sql: str) -> bool:
        """What came is what a query says, row for row."""
        return {row: n for row, n in self.rows.get(export, {}).items() if n} == Counter(self.select(sql))

    def close(self) -> None:
        self.connection.close()


def tuples(rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in rows.columns]
    return list(zip(*[[tuple(v) if isinstance(v, list) else v for v in column] for column in columns], strict=True))


def high(reader: SourceReader) -> SourceFrontier:
    return SourceFrontier.of(SourceKind.LSN, reader.probe().high)


def read(reader: SourceReader, begin: SourceFrontier, end: SourceFrontier) -> list[Event]:
    return [event for task in reader.plan(begin, end, 2) for event in task.read()]


@pytest.fixture(scope="session", params=[16, 18])
def logical_postgres(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    with servers.start_postgres(LOGICAL, version=request.param) as server:
        yield server


_numbers = itertools.count(1)


@pytest.fixture
def upstream(logical_postgres: servers.Server) -> Iterator[Upstream]:
    name = f"shop_{next(_numbers)}"
    with psycopg.connect(logical_postgres.uri, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    made = Upstream(f"host=127.0.0.1 port={logical_postgres.port} user=postgres dbname={name}", logical_postgres)
    yield made
    made.close()
    drop_database(logical_postgres.uri, name)


@pytest.fixture
def read_events() -> Callable[[SourceReader, SourceFrontier, SourceFrontier], Sequence[Event]]:
    return read
