"""A PostgreSQL whose files are put back as they were once, without any recovery."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ingest.pipeline.conftest import contents
from ingest.pipeline.lives.standbys import sql

from persist.testing import servers
from persist_ingest import Location, Pipeline, PipelineOptions, create, status
from persist_ingest.sources.postgres.session import check_dsn, let_go

CONFIG = {"wal_level": "logical", "fsync": "off"}
FAST = PipelineOptions(tick_ms=1, told_ms=1, commit_steps_late=0)
ITEMS, OTHERS = "public.items", "public.others"
DSN = "host=127.0.0.1 user=postgres dbname=postgres"
"""Without a port: which server it leads to is what PGPORT says."""


class Upstream:
    """A server of its own with two tables of 100 rows."""

    def __init__(self, server: servers.Server, earlier: Path) -> None:
        self.server = server
        self.dsn = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
        self._data = server.directory / "data"
        self._earlier = earlier
        for name in ("items", "others"):
            self.run(
                f"CREATE TABLE {name} (id int PRIMARY KEY, name text)",
                f"ALTER TABLE {name} REPLICA IDENTITY FULL",
                f"INSERT INTO {name} SELECT i, 'first' FROM generate_series(1, 100) i",
            )

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        return sql(self.server, *statements)

    def rows(self, export: str) -> Counter[Any]:
        return Counter(self.run(f"SELECT * FROM {export}"))

    def grow(self, first: int, rows: int = 2000, table: str = "others") -> None:
        """About half a kilobyte of log for each row."""
        self.run(f"INSERT INTO {table} SELECT {first} + i, repeat('x', 400) FROM generate_series(1, {rows}) i")

    def kept(self) -> None:
        """Its files as they are now are those that are put back."""
        self.run("CHECKPOINT")
        self._stopped(lambda: subprocess.run(["cp", "-a", self._data, self._earlier], check=True))

    def put_back(self) -> None:
        def exchanged() -> None:
            shutil.rmtree(self._data)
            subprocess.run(["cp", "-a", self._earlier, self._data], check=True)

        self._stopped(exchanged)

    def copy_to(self, place: Path) -> None:
        def copied() -> None:
            shutil.rmtree(place)
            subprocess.run(["cp", "-a", self._data, place], check=True)

        self.run("CHECKPOINT")
        self._stopped(copied)

    def restart(self) -> None:
        self._stopped(lambda: None)

    def _stopped(self, then: Callable[[], object]) -> None:
        let_go(check_dsn(self.dsn))
        self.server.kill()
        then()
        self.server.start()


@contextlib.contextmanager
def upstream(tmp_path: Path, version: int = 18) -> Iterator[Upstream]:
    with servers.start_postgres(CONFIG, version=version) as server:
        made = Upstream(server, tmp_path / "earlier")
        yield made
        let_go(check_dsn(made.dsn))


def begun(here: Location, dsn: str) -> None:
    create(here, "shop", "postgres", {"dsn": dsn, "tables": f"{ITEMS},{OTHERS}"}, interval_ms=1)
    stepped(here)


def stepped(here: Location, steps: int = 1) -> None:
    """By a process of its own, as it were."""
    with Pipeline(here, "shop", options=FAST) as pipeline:
        for _ in range(steps):
            pipeline.step()


@contextlib.contextmanager
def copied(shop: Upstream) -> Iterator[servers.Server]:
    """A server of a copy of its files as they are now. Both run then."""
    with servers.start_postgres(CONFIG, version=18) as copy:
        copy.kill()
        shop.copy_to(copy.directory / "data")
        copy.start()
        yield copy


PROGRAM = """
import sys, threading
from persist_ingest import Location, Pipeline, PipelineOptions

with Pipeline(Location(directory=sys.argv[1]), "shop", options=PipelineOptions(tick_ms=20)) as pipeline:
    threading.Thread(target=lambda: (sys.stdin.read(), pipeline.stop())).start()
    pipeline.run()
"""


@contextlib.contextmanager
def ingesting(here: Location, server: servers.Server) -> Iterator[None]:
    """An ingester in another process, which is led to that server."""
    environment = {**os.environ, "PGPORT": str(server.port)}
    program = [sys.executable, "-c", PROGRAM, str(here.directory)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, env=environment) as process:
        yield
        process.communicate(timeout=60)
        assert process.returncode == 0


def states(here: Location) -> dict[str, str]:
    return {name: each.state for name, each in status(here, "shop", ask_upstream=False).exports.items()}


@contextlib.contextmanager
def copy_with_less(here: Location, shop: Upstream, dsn: str) -> Iterator[servers.Server]:
    """Beside the server that the source is of, and was read from since."""
    begun(here, dsn)
    with copied(shop) as copy:
        shop.grow(1000)
        stepped(here)
        yield copy


def outgrow(copy: servers.Server) -> None:
    """It has more log than was bound, and rows of its own."""
    sql(
        copy,
        "INSERT INTO others SELECT i, repeat('y', 400) FROM generate_series(900001, 906000) i ON CONFLICT DO NOTHING",
    )


def goes_on(here: Location, shop: Upstream) -> None:
    shop.grow(4000)
    stepped(here, 2)
    found = states(here)
    assert {name: found[name] for name in (ITEMS, OTHERS)} == {ITEMS: "running", OTHERS: "running"}
    for export in (ITEMS, OTHERS):
        assert contents(here, "shop", export) == shop.rows(export)
