"""A standby takes over, and the source goes on with it: with every row, or not at all."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from ingest.pipeline.conftest import contents
from ingest.standbys import CONFIG, promote, replayed, sql, standby_of, until

from persist.sources import UpstreamLost, UpstreamReplaced
from persist.testing import servers
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create, resnapshot
from persist_ingest.location import client
from persist_ingest.sources.postgres.session import let_go

ITEMS = "public.items"
DSN = "host=127.0.0.1 user=postgres dbname=postgres"
"""Without a port: which server it leads to is what PGPORT says."""
FAST = PipelineOptions(tick_ms=10, told_ms=1)


class Pair:
    """A primary with a table, and its standby. ``now``: where the source's connections lead to."""

    def __init__(self, primary: servers.Server, standby: servers.Server) -> None:
        self.primary = primary
        self.standby = standby
        sql(primary, "CREATE TABLE items (id int PRIMARY KEY, name text)", "ALTER TABLE items REPLICA IDENTITY FULL")
        self.lead(primary)

    def lead(self, server: servers.Server) -> None:
        """The source's new connections lead there."""
        let_go(DSN)
        os.environ["PGPORT"] = str(server.port)

    def fill(self, server: servers.Server, first: int, last: int) -> None:
        sql(server, f"INSERT INTO items SELECT i, 'n' || i FROM generate_series({first}, {last}) i")

    def synced(self, here: Location) -> None:
        """The standby has the source's slot as it is now, for good."""
        slot = Records(client(here)).source("shop").definition["slot"]
        ((confirmed,),) = sql(self.primary, f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'")
        asked = f"""SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND synced AND NOT temporary
                 AND confirmed_flush_lsn >= '{confirmed}'"""

        def is_synced() -> Any:
            # What it begins with has to be in the log.
            sql(self.primary, "SELECT pg_log_standby_snapshot()")
            return sql(self.standby, asked)[0][0]

        until(is_synced)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("PGPORT", "0")
    config = {**CONFIG, "sync_replication_slots": "on"}
    with servers.start_postgres(config, version=18) as primary, standby_of(primary, 18, config, "standby") as standby:
        yield Pair(primary, standby)
        let_go(DSN)


def made(here: Location, **options: str) -> None:
    create(here, "shop", "postgres", {"dsn": DSN, "tables": ITEMS, "failoverSlot": "true", **options}, interval_ms=1)


@contextlib.contextmanager
def pipeline(here: Location) -> Iterator[Pipeline]:
    with Pipeline(here, "shop", options=FAST) as opened:
        yield opened


def ingest(here: Location, steps: int = 4) -> None:
    """What there is now, with what lets the slot move."""
    with pipeline(here) as opened:
        opened.run(steps=steps)


def there(server: servers.Server) -> Counter[Any]:
    return Counter(sql(server, "SELECT * FROM items"))


def state(here: Location) -> tuple[Any, Any]:
    """All that is recorded of the source, and what it holds."""
    return Records(client(here)).raw()["shop"], contents(here, "shop", ITEMS)


def test_a_source_goes_on_with_the_standby_that_was_promoted(here: Location, pair: Pair) -> None:
    pair.fill(pair.primary, 1, 100)
    made(here)
    pair.fill(pair.primary, 101, 200)
    with pipeline(here) as opened:
        opened.run(steps=3)
        pair.synced(here)
        pair.fill(pair.primary, 201, 300)
        sql(pair.primary, "UPDATE items SET name = 'x' WHERE id = 7", "DELETE FROM items WHERE id = 8")
        opened.run(steps=2)
        replayed(pair.primary, pair.standby)
        pair.primary.kill()
        promote(pair.standby)
        pair.lead(pair.standby)
        pair.fill(pair.standby, 301, 400)
        sql(pair.standby, "UPDATE items SET name = 'y' WHERE id = 301", "DELETE FROM items WHERE id = 9")
        opened.run(until=lambda step: step.rows > 0 or contents(here, "shop", ITEMS) == there(pair.standby))
        assert contents(here, "shop", ITEMS) == there(pair.standby)
    source = Records(client(here)).source("shop")
    assert [timeline for timeline, _ in source.definition["followed"]] == [2]
    # Another process goes on, and a snapshot does.
    pair.fill(pair.standby, 401, 500)
    ingest(here)
    assert contents(here, "shop", ITEMS) == there(pair.standby)
    resnapshot(here, "shop", ITEMS)
    sql(pair.standby, "TRUNCATE items")
    pair.fill(pair.standby, 501, 510)
    ingest(here)
    assert contents(here, "shop", ITEMS) == there(pair.standby)
