"""Who alters a table while persist reads it waits for what is being read, and for nothing that waits behind it.

In between all others waits who uses the table. Real PostgreSQL.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from ingest.pipeline.anew.test_postgres_first import ITEMS, OPTIONS, PACE, follows, made, options
from ingest.pipeline.conftest import contents

from persist_ingest import Location, Pipeline, create
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.pipeline.anew import attempt
from persist_ingest.sources.postgres import pieces, snapshot
from persist_ingest.sources.postgres.making import beginning, slots

OURS = """
SELECT pid, left(query, 80) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name = 'persist'
"""
OTHERS = OURS.replace("= 'persist'", "<> 'persist'")
PLACES = {
    "checked": (pieces, "_check_columns"),
    "end looked for": (pieces, "_last"),
    "read": (pieces.TablePiece, "rows"),
}

ADDED = "ALTER TABLE items ADD COLUMN extra int"


@pytest.fixture(autouse=True)
def large_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginning, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)


class Other:
    """Another user of the table, in a thread."""

    def __init__(self, dsn: str, *statements: str) -> None:
        self.failed: list[psycopg.Error] = []
        self.thread = threading.Thread(target=self._run, args=(dsn, statements), daemon=True)

    def _run(self, dsn: str, statements: tuple[str, ...]) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                for statement in statements:
                    connection.execute(statement.encode())
        except psycopg.Error as error:
            self.failed.append(error)


def until(shop: Any, holds: Callable[[Any], bool]) -> None:
    while not holds(shop):
        threading.Event().wait(0.02)


@contextmanager
def watched(dsn: str, waited: list[Any]) -> Iterator[None]:
    """Notes which of our sessions wait for a lock while another user does, and ends that one's waiting."""
    over = threading.Event()

    def watch() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.wait(0.05):
                others = connection.execute(OTHERS.encode()).fetchall()
                ours = connection.execute(OURS.encode()).fetchall()
                if ours and others:
                    waited.extend(ours)
                    for pid, _ in others:
                        connection.execute("SELECT pg_terminate_backend(%s)", [pid])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("place", "statement", "adbc"),
    [
        ("checked", ADDED, True),
        ("end looked for", ADDED, False),
        ("end looked for", "TRUNCATE items", True),
        ("read", ADDED, True),
        ("read", "TRUNCATE items", False),
        ("read", "VACUUM FULL items", True),
        # The index is held since the end of the piece was looked for in it.
        ("read", "REINDEX INDEX items_pkey", True),
        ("read", "REINDEX INDEX items_pkey", False),
    ],
)
def test_who_alters_a_table_amid_a_piece(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch, place: str, statement: str, adbc: bool
) -> None:
    made(shop)
    whole, name = PLACES[place]
    original = getattr(whole, name)
    waited: list[Any] = []
    alters, reads = Other(shop.dsn, statement), Other(shop.dsn, "SELECT count(*) FROM items")

    def amid(*given: Any) -> Any:
        if not alters.thread.ident:
            alters.thread.start()
            until(shop, lambda shop: shop.select(OTHERS))
            reads.thread.start()
        return original(*given)

    monkeypatch.setattr(snapshot, "has_adbc", lambda: adbc)
    monkeypatch.setattr(whole, name, amid)
    with watched(shop.dsn, waited):
        create(here, "shop", "postgres", options(shop), interval_ms=1, pace=PACE)
        for other in (alters, reads):
            other.thread.join()
    assert not waited
    assert not alters.failed
    assert not reads.failed
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        assert ITEMS not in pipeline.source.troubles
        found = Counter(row[:2] for row in contents(here, "shop", ITEMS).elements())
        assert found == Counter(shop.select("SELECT id, name FROM items"))


def test_who_writes_alters_the_table_while_the_slot_waits_for_it(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "SLOT_SECONDS", 60.0)
    made(shop)
    done: list[object] = []
    create_it = threading.Thread(
        target=lambda: done.append(create(here, "shop", "postgres", options(shop), interval_ms=1, pace=PACE))
    )
    shop.run("ALTER TABLE items REPLICA IDENTITY FULL", "ALTER TABLE good REPLICA IDENTITY FULL")
    with psycopg.connect(shop.dsn) as writer:
        writer.execute("SET lock_timeout = '5s'")
        writer.execute("INSERT INTO items VALUES (5, 'written')")
        create_it.start()
        until(shop, lambda shop: shop.select(OURS))
        writer.execute("ALTER TABLE items ADD COLUMN extra int DEFAULT 7")
    create_it.join()
    assert done
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        assert follows(here, shop)
