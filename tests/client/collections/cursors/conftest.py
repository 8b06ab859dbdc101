"""Targets that cursors are delivered into, as they are opened and looked into."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from sure import sure

import persist.sinks
from persist.sinks import FilesSink, SqliteSink

Rows = list[tuple[Any, ...]]


class Sunk:
    """One target: how it is opened, and which ids are in it."""

    def __init__(self, opened: Callable[[], Any], ids: Callable[[], list[int]]) -> None:
        self.opened, self.ids = opened, ids


@pytest.fixture(params=["sqlite", "postgres", "parquet", "jsonl"])
def sunk(request: pytest.FixtureRequest, tmp_path: Path) -> Sunk:
    if request.param == "sqlite":
        path = tmp_path / "sink.db"

        def in_sqlite() -> list[int]:
            with sqlite3.connect(path) as connection:
                return [id for (id,) in connection.execute('SELECT id FROM "odd ""table"')]

        return Sunk(lambda: SqliteSink(path, 'odd "table'), in_sqlite)
    if request.param == "postgres":
        uri = request.getfixturevalue("fresh_postgres_uri")()

        def in_postgres() -> list[int]:
            with psycopg.connect(uri) as connection:
                return [id for (id,) in connection.execute('SELECT id FROM "odd ""table"').fetchall()]

        return Sunk(lambda: persist.sinks.PostgresSink(uri, 'odd "table'), in_postgres)
    folder = tmp_path / "files"

    def in_files() -> list[int]:
        files = FilesSink(folder, request.param).files()
        if request.param == "parquet":
            return [sure(id) for path in files for id in pq.read_table(path).column("id").to_pylist()]
        return [json.loads(line)["id"] for path in files for line in path.read_text().splitlines()]

    return Sunk(lambda: FilesSink(folder, request.param), in_files)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Callable[[str], Any], Callable[[str], Rows]]:
    """Sinks into tables of one database, and statements there."""
    if request.param == "sqlite":
        path = tmp_path / "sink.db"

        def in_sqlite(text: str) -> Rows:
            connection = sqlite3.connect(path, isolation_level=None)
            try:
                return connection.execute(text).fetchall()
            finally:
                connection.close()

        return (lambda table: SqliteSink(path, table)), in_sqlite
    uri = request.getfixturevalue("fresh_postgres_uri")()

    def in_postgres(text: str) -> Rows:
        with psycopg.connect(uri, autocommit=True) as connection:
            done = connection.execute(text.encode())
            return done.fetchall() if done.description else []

    return (lambda table: persist.sinks.PostgresSink(uri, table)), in_postgres
