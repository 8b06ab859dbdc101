"""A PostgreSQL, its standby, and a source that is led from one to the other."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ingest.pipeline.conftest import contents
from ingest.pipeline.lives.put_back import DSN, ITEMS
from ingest.pipeline.lives.standbys import sql, until

from persist.testing import servers
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create
from persist_ingest.location import client
from persist_ingest.sources.postgres.session import check_dsn, let_go

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
        let_go(check_dsn(DSN))
        os.environ["PGPORT"] = str(server.port)

    def fill(self, server: servers.Server, first: int, last: int) -> None:
        sql(server, f"INSERT INTO items SELECT i, 'n' || i FROM generate_series({first}, {last}) i")

    def synced(self, opened: Pipeline) -> None:
        """The standby has the source's slot for good, which moves meanwhile."""

        def is_synced() -> Any:
            # What it begins with has to be in the log. By hand, as the server that does so by itself takes its time.
            sql(self.primary, "SELECT pg_log_standby_snapshot()")
            opened.run(steps=1)
            sql(self.standby, "SELECT pg_sync_replication_slots()")
            return sql(self.standby, "SELECT synced AND NOT temporary FROM pg_replication_slots") == [(True,)]

        try:
            until(is_synced)
        except AssertionError:
            raise AssertionError(self.standby.log()[-3000:]) from None


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
