"""A source of a standby: what its snapshots leave unsaid is not guessed."""

import os
import pwd
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from ingest.pipeline.conftest import contents

from persist.testing import servers
from persist_ingest import Location, Pace, Pipeline, PipelineOptions, create, resnapshot
from persist_ingest.pipeline.anew import attempt
from persist_ingest.sources.postgres import pieces
from persist_ingest.sources.postgres.making import again as making

CONFIG = {"wal_level": "logical", "hot_standby_feedback": "on", "fsync": "off"}


class Pair:
    """A primary with one table, and its standby."""

    def __init__(self, primary: servers.Server, standby: servers.Server) -> None:
        self.dsn = f"host=127.0.0.1 port={standby.port} user=postgres dbname=postgres"
        self._uri = primary.uri
        self.primary = psycopg.connect(primary.uri, autocommit=True)
        self.long = psycopg.connect(primary.uri)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._log)

    def __enter__(self) -> "Pair":
        for statement in (
            "CREATE TABLE items (id int PRIMARY KEY, name text)",
            "ALTER TABLE items REPLICA IDENTITY FULL",
            "INSERT INTO items SELECT i * 10, 'n' FROM generate_series(1, 30) i",
            "CREATE PUBLICATION everything FOR TABLE items",
        ):
            self.primary.execute(statement.encode())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self.primary.close()
        self.long.close()

    def _log(self) -> None:
        """What a slot of a standby begins at, and moves to."""
        with psycopg.connect(self._uri, autocommit=True) as connection:
            while not self._stopped.wait(0.1):
                connection.execute("SELECT pg_log_standby_snapshot()")

    def replayed(self) -> None:
        """Until the standby shows all that was committed."""
        row = self.primary.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        with psycopg.connect(self.dsn, autocommit=True) as standby:
            while standby.execute("SELECT pg_last_wal_replay_lsn() < %s::pg_lsn", row).fetchone() == (True,):
                threading.Event().wait(0.01)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with servers.start_postgres(CONFIG) as primary, servers.start_postgres(CONFIG) as standby:
        standby.kill()
        data = standby.directory / "data"
        shutil.rmtree(data)
        program = servers.postgres_program("pg_basebackup")
        given = ["-D", str(data), "-d", primary.uri, "-R", "-X", "stream", "-c", "fast", "--no-sync"]
        subprocess.run([program, *given], check=True, capture_output=True)
        if os.geteuid() == 0:
            for place in (data, *data.rglob("*")):
                os.chown(place, pwd.getpwnam("nobody").pw_uid, -1, follow_symlinks=False)
        standby.start()
        with Pair(primary, standby) as both:
            yield both


def test_a_piece_waits_until_no_transaction_is_open_on_the_primary(
    here: Location, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)
    create(here, "shop", "postgres", {"dsn": pair.dsn, "publication": "everything"}, interval_ms=1)
    piece, rows = making.TableAnew.piece, pieces.TablePiece.rows
    count = 0

    def opened(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            pair.long.execute("INSERT INTO items VALUES (125, 'long')")
            pair.long.execute("UPDATE items SET name = 'long' WHERE id IN (20, 120, 130, 280)")
            pair.primary.execute("INSERT INTO items VALUES (256, 'later')")
            pair.replayed()
        elif count == 4:
            committed()
        return piece(*given)

    def committed() -> None:
        pair.long.commit()
        pair.replayed()

    def read(self: pieces.TablePiece) -> Iterator[Any]:
        if count == 3:
            committed()
        yield from rows(self)

    monkeypatch.setattr(making.TableAnew, "piece", opened)
    monkeypatch.setattr(pieces.TablePiece, "rows", read)
    resnapshot(here, "shop", "public.items", pace=Pace(rows=5))
    pair.replayed()
    with Pipeline(here, "shop", options=PipelineOptions(tick_ms=1)) as pipeline:
        pipeline.step()
    wanted = Counter(pair.primary.execute("SELECT * FROM items").fetchall())
    assert contents(here, "shop", "public.items") == wanted
    assert wanted[125, "long"] == 1
