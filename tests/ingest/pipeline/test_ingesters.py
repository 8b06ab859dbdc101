"""Several ingesters of one PostgreSQL, tables that grow under them, and what one does that was overtaken by others."""

from collections import Counter
from typing import Any

import pytest
from ingest.pipeline.conftest import contents

from persist.sources import UpstreamLost
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create
from persist_ingest.location import client
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.sources.postgres import reader as reading

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=10**9, told_ms=10**9, commit_steps_late=0)
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text)"
ORDERS = "CREATE TABLE orders (item int, number int)"
TABLES = ("items", "orders")


@pytest.fixture
def busy(here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A source of two tables, whose slot is moved at every step."""
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    shop.run(ITEMS, ORDERS, *(f"ALTER TABLE {table} REPLICA IDENTITY FULL" for table in TABLES))
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": "public.items,public.orders"}, interval_ms=1)
    return shop


def follows(here: Location, shop: Any) -> bool:
    return all(
        contents(here, "shop", f"public.{table}") == Counter(shop.select(f"SELECT * FROM {table}")) for table in TABLES
    )


def confirmed(shop: Any) -> int:
    [(position,)] = shop.select("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots "
                                "WHERE database = current_database() AND NOT temporary")  # fmt: skip
    return int(position)


def let_go(shop: Any, pipeline: Pipeline) -> None:
    """Ingest until the upstream has forgotten what came since."""
    before = confirmed(shop)
    for number in range(50):
        shop.run(f"INSERT INTO orders VALUES ({number}, 0)")
        pipeline.step()
        if confirmed(shop) > before:
            return
    raise AssertionError("the slot does not move")


def test_an_ingester_that_rested_goes_on_where_the_others_are(here: Location, busy: Any) -> None:
    with Pipeline(here, "shop", options=OPTIONS) as one, Pipeline(here, "shop", options=OPTIONS) as two:
        one.step()
        two.step()
        busy.run("INSERT INTO items VALUES (1, 'a')")
        for _ in range(2):
            let_go(busy, one)
        busy.run("UPDATE items SET name = 'b'")
        step = two.step()
        assert step.rows == 2, "what the others did not do yet, and no more"
        assert follows(here, busy)
        one.step()
        assert follows(here, busy)


def test_an_ingester_that_rested_before_its_first_step_does_so_too(here: Location, busy: Any) -> None:
    with Pipeline(here, "shop", options=OPTIONS) as one, Pipeline(here, "shop", options=OPTIONS) as two:
        one.step()
        two._open()
        for _ in range(2):
            let_go(busy, one)
        busy.run("INSERT INTO items VALUES (1, 'a')")
        two.step()
        assert follows(here, busy)


def test_what_nobody_has_and_the_upstream_let_go_is_lost(here: Location, busy: Any) -> None:
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        busy.run("INSERT INTO items VALUES (1, 'a')")
        busy.run("SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) FROM pg_replication_slots "
                 "WHERE database = current_database() AND NOT temporary")  # fmt: skip
        busy.run("INSERT INTO items VALUES (2, 'b')")
        with pytest.raises(UpstreamLost):
            pipeline.step()


def test_one_step_takes_in_all_that_grew(here: Location, busy: Any) -> None:
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        busy.run("INSERT INTO items VALUES (1, 'a')", "INSERT INTO orders VALUES (1, 1)")
        pipeline.step()
        busy.run("ALTER TABLE items ADD COLUMN price int", "INSERT INTO items VALUES (2, 'b', 2)")
        busy.run("ALTER TABLE orders ADD COLUMN place text", "INSERT INTO orders VALUES (2, 2, 'x')")
        busy.run("ALTER TABLE items ADD COLUMN more int", "UPDATE items SET more = id")
        pipeline.step()
        assert follows(here, busy)


def test_an_ingester_learns_of_columns_that_another_took_in(here: Location, busy: Any) -> None:
    with Pipeline(here, "shop", options=OPTIONS) as one, Pipeline(here, "shop", options=OPTIONS) as two:
        one.step()
        two.step()
        busy.run("ALTER TABLE items ADD COLUMN price int", "INSERT INTO items VALUES (1, 'a', 1)")
        busy.run("ALTER TABLE items ADD COLUMN more int", "INSERT INTO items VALUES (2, 'b', 2, 2)")
        one.step()
        busy.run("INSERT INTO items VALUES (3, 'c', 3, 3)")
        two.step()
        assert follows(here, busy)
        assert Records(client(here)).source("shop").exports
