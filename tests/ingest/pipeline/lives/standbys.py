"""Physical standbys of a PostgreSQL, and their promotion."""

import contextlib
import os
import pwd
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg

from persist.testing import servers

CONFIG = {"wal_level": "logical", "fsync": "off", "wal_keep_size": "256MB"}


def sql(server: servers.Server, *statements: str, dbname: str = "postgres") -> list[tuple[Any, ...]]:
    """The rows of the last statement, each in a transaction of its own."""
    rows: list[tuple[Any, ...]] = []
    where = f"host=127.0.0.1 port={server.port} user=postgres dbname={dbname}"
    with psycopg.connect(where, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
            rows = cursor.fetchall() if cursor.description else []
    return rows


def until(question: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What is true in the end."""
    give_up = time.monotonic() + seconds
    while not (found := question()):
        assert time.monotonic() < give_up, "it never came"
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def standby_of(
    primary: servers.Server, version: int, config: Mapping[str, str], slot: str = ""
) -> Iterator[servers.Server]:
    """A standby that follows a primary. ``slot``: what that keeps its log for it with."""
    if slot:
        sql(primary, f"SELECT pg_create_physical_replication_slot('{slot}', true)")
    given = {**config, "primary_slot_name": slot, "hot_standby_feedback": "on" if slot else "off"}
    with servers.start_postgres(given, version=version) as standby:
        standby.kill()
        data = standby.directory / "data"
        shutil.rmtree(data)
        program = servers.postgres_program("pg_basebackup", newest=True)
        options = ["-D", str(data), "-d", primary.uri, "-R", "-X", "stream", "-c", "fast", "--no-sync"]
        subprocess.run([program, *options], check=True, capture_output=True)
        # What the program writes has words that earlier servers do not know.
        where = f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres"
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{where}'\n")
        if os.geteuid() == 0:
            for place in (data, *data.rglob("*")):
                os.chown(place, pwd.getpwnam("nobody").pw_uid, -1, follow_symlinks=False)
        standby.start()
        yield standby


def replayed(primary: servers.Server, standby: servers.Server) -> None:
    """Until the standby shows all that was committed."""
    ((end,),) = sql(primary, "SELECT pg_current_wal_insert_lsn()::text")
    until(lambda: sql(standby, f"SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn")[0][0])


def promote(standby: servers.Server) -> None:
    """Have it take over."""
    assert sql(standby, "SELECT pg_promote()") == [(True,)]


@contextlib.contextmanager
def logging(primary: servers.Server) -> Iterator[None]:
    """The primary logs all the time which transactions run: what slots of a standby begin at, and move to."""
    stopped = threading.Event()

    def log() -> None:
        # Until it is killed.
        with contextlib.suppress(psycopg.Error), psycopg.connect(primary.uri, autocommit=True) as connection:
            while not stopped.wait(0.1):
                connection.execute("SELECT pg_log_standby_snapshot()")

    thread = threading.Thread(target=log)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
