"""A PostgreSQL for logical replication, a database of its own for each test, and a reader's bookkeeping.

Tests of what versions differ in run on all of them: EVERY_VERSION, and what is marked ``@pytest.mark.every_version``.
The cases of others run on one each, by turns, and on all of them in ``make sim PART=places``.
"""

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import psycopg
import pyarrow as pa
import pytest
from dealing import Case, call_of, case_of
from ingest.databases import VERSIONS, create_database, drop_database
from simulation.budget import FULL
from sure import sure

from persist.sources import SourceFrontier, SourceKind
from persist.testing import servers
from persist_ingest.sources.port import Beginning, Changes, Event, SourceReader, Truncated
from persist_ingest.sources.postgres import POSTGRES

EVERY_VERSION = ("test_postgres_model", "test_postgres_types")
Found: TypeAlias = pytest.Item | pytest.Collector | list[pytest.Item | pytest.Collector] | None

LOGICAL = {"wal_level": "logical", "max_replication_slots": "64", "max_wal_senders": "64", "fsync": "off"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_version: see tests/ingest/sources/postgres/conftest.py")


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Found, Found]:
    """Deal the cases of each test out over the versions: where one is not dealt to, it is not made."""
    found = yield
    if not isinstance(found, list):
        return found
    cases: dict[Case, int] = {}
    return [item for item in found if not isinstance(item, pytest.Function) or _is_dealt_to(item, cases)]


def _is_dealt_to(item: pytest.Function, cases: dict[Case, int]) -> bool:
    call = call_of(item)
    if FULL or call is None or "logical_postgres" not in call.params or item.get_closest_marker("every_version"):
        return True
    if item.module.__name__.rpartition(".")[2] in EVERY_VERSION:
        return True
    turn = zlib.crc32(item.originalname.encode()) + cases.setdefault(case_of(call, "logical_postgres"), len(cases))
    return bool(call.params["logical_postgres"] == VERSIONS[turn % len(VERSIONS)])


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
                rows[row] += sure(diff)

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


@pytest.fixture(scope="session", params=VERSIONS)
def logical_postgres(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    with servers.start_postgres(LOGICAL, version=request.param) as server:
        yield server


_numbers = itertools.count(1)


@pytest.fixture
def upstream(logical_postgres: servers.Server) -> Iterator[Upstream]:
    name = f"shop_{next(_numbers)}"
    with psycopg.connect(logical_postgres.uri, autocommit=True) as connection:
        connection.execute(create_database(name))
    made = Upstream(f"host=127.0.0.1 port={logical_postgres.port} user=postgres dbname={name}", logical_postgres)
    yield made
    made.close()
    drop_database(logical_postgres.uri, name)


@pytest.fixture
def read_events() -> Callable[[SourceReader, SourceFrontier, SourceFrontier], Sequence[Event]]:
    return read
