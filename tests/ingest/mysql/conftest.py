"""A MariaDB to ingest from, one for all tests of a process: a database of its own for each test."""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from ingest.pipeline.conftest import contents

from persist.testing import servers
from persist_ingest import Location, Pipeline, PipelineOptions, create

_numbers = itertools.count(1)
OPTIONS = PipelineOptions(tick_ms=1, told_ms=10**9, commit_steps_late=0)


class Shop:
    """A database of one MariaDB."""

    def __init__(self, server: servers.Server, name: str) -> None:
        self.server = server
        self.name = name
        self.options = {"host": "127.0.0.1", "port": str(server.port), "user": "root"}
        self._connection: Any = None

    @property
    def connection(self) -> Any:
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    def connect(self) -> Any:
        """A session of its own; in UTC, as what is read is."""
        connection: Any = pymysql.connect(
            host="127.0.0.1",
            port=self.server.port,
            user="root",
            database=self.name,
            charset="utf8mb4",
            autocommit=True,
            ssl_disabled=True,
        )
        connection.query("SET time_zone = '+00:00', sql_mode = ''")
        return connection

    def run(self, *statements: str) -> None:
        for statement in statements:
            with self.connection.cursor() as cursor:
                cursor.execute(statement)

    def select(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()]

    def export(self, table: str) -> str:
        return f"{self.name}.{table}"

    def source(self, here: Location, *tables: str, **options: str) -> Pipeline:
        """A source of these tables, and a pipeline of it."""
        named = ",".join(map(self.export, tables))
        create(here, "shop", "mysql", {**self.options, "tables": named, **options}, interval_ms=1)
        return self.pipeline(here)

    def pipeline(self, here: Location) -> Pipeline:
        return Pipeline(here, "shop", options=OPTIONS)

    def there(self, here: Location, table: str) -> Counter[Any]:
        """What the export of a table holds."""
        return contents(here, "shop", self.export(table))

    def rows(self, table: str, columns: str = "*") -> Counter[Any]:
        """What SELECT says."""
        return Counter(self.select(f"SELECT {columns} FROM {table}"))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@pytest.fixture(scope="session")
def mariadb() -> Iterator[servers.Server]:
    if not servers.has_mariadb():
        pytest.skip("there is no MariaDB: make setup installs Debian's")
    with servers.start_mariadb() as server:
        yield server


@pytest.fixture
def shop(mariadb: servers.Server) -> Iterator[Shop]:
    made = Shop(mariadb, f"shop_{next(_numbers)}")
    connection = pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root", autocommit=True, ssl_disabled=True)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {made.name}")
    connection.close()
    yield made
    made.run(f"DROP DATABASE {made.name}")
    made.close()
