"""Places to ingest into, and a PostgreSQL to ingest from: a database of its own for each test."""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from ingest.databases import VERSIONS, create_database, drop_database

from persist.testing import servers
from persist_ingest import Location, Records
from persist_ingest.location import client

_numbers = itertools.count(1)


class Shop:
    """A database of one PostgreSQL."""

    def __init__(self, server: servers.Server, name: str) -> None:
        self.dsn = f"host=127.0.0.1 port={server.port} user=postgres dbname={name}"
        self.connection = psycopg.connect(self.dsn, autocommit=True)

    def run(self, *statements: str) -> None:
        """Each in a transaction of its own, unless BEGIN says otherwise."""
        for statement in statements:
            self.connection.execute(statement.encode())

    def select(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql.encode()).fetchall()

    def close(self) -> None:
        self.connection.close()


@pytest.fixture(scope="session")
def shop_server() -> Iterator[servers.Server]:
    config = {"wal_level": "logical", "max_replication_slots": "64", "max_wal_senders": "64", "fsync": "off"}
    with servers.start_postgres(config, version=VERSIONS[0]) as server:
        yield server


@pytest.fixture
def shop(shop_server: servers.Server) -> Iterator[Shop]:
    name = f"ingest_{next(_numbers)}"
    with psycopg.connect(shop_server.uri, autocommit=True) as connection:
        connection.execute(create_database(name))
    made = Shop(shop_server, name)
    yield made
    made.close()
    drop_database(shop_server.uri, name)


def contents(here: Location, source: str, export: str) -> Counter[Any]:
    """The rows of an export at its last complete time, in the order of its columns."""
    the_client = client(here)
    shard = Records(the_client).source(source).shards[export]
    upper = the_client.recent_upper(shard).time or 0
    with the_client.open_reader(shard) as reader:
        table = reader.snapshot(upper - 1).to_arrow()
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return Counter({row[:-1]: row[-1] for row in rows})
