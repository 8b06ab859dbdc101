"""Databases that sources are made from."""

import time

import psycopg

from persist.testing import servers

VERSIONS = tuple(servers.given_postgres()) or (16, 18)
"""Those of PostgreSQL that sources are tried on: see CONTRIBUTING.md for others."""


def create_database(name: str) -> bytes:
    """The statement that makes an empty one. By copying files: half of what writing each block to the log takes."""
    # PostgreSQL 14 does so by itself, and has no word for it.
    return f"CREATE DATABASE {name}{' STRATEGY file_copy' if min(VERSIONS) > 14 else ''}".encode()


def drop_database(uri: str, name: str) -> None:
    """Drop a database and its slots, once those that end with their connections are gone: they cannot be dropped."""
    with psycopg.connect(uri, autocommit=True) as connection:
        fleeting = "SELECT count(*) FROM pg_replication_slots WHERE database = %s AND temporary"
        while connection.execute(fleeting, [name]).fetchone() != (0,):
            time.sleep(0.01)
        sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s"
        connection.execute(sql, [name])
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
