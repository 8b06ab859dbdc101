"""Sources whose creation was killed on the way, and publications that several sources use. Real PostgreSQL."""

import json
import signal
import textwrap
from typing import Any

import psycopg
import pytest
from forked import run_program
from ingest.pipeline.conftest import contents

from persist_ingest import Location, Pipeline, PipelineOptions, Records, abandon, claims, create, drop
from persist_ingest.location import client
from persist_ingest.pipeline import claims as claiming
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.postgres.making import publications, setup

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text)"
FULL = "ALTER TABLE items REPLICA IDENTITY FULL"
LEFT = """
-- A temporary slot ends with its session, which PostgreSQL notices a moment later.
SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT temporary),
       (SELECT count(*) FROM pg_publication)
"""
OPTIONS = {"tables": "public.items", "setReplicaIdentity": "true"}

KILLED = """
import os, signal, sys, json
from persist_ingest import Location, create
from persist_ingest.pipeline import creation
from persist_ingest.sources.postgres.making import setup

directory, name, options, place = json.loads(sys.argv[1])
module, function, *after = place.split(".")
module = {"creation": creation, "setup": setup}[module]
original = getattr(module, function)

def killed(*given, **named):
    if after:
        original(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(module, function, killed)
create(Location(directory=directory), name, "postgres", options)
"""
PLACES = {
    "announced": "setup._chosen",
    "publication made": "setup._define",
    "slot made": "setup.snapshot_tasks",
    "recorded": "creation.set_up.after",
    "settled": "creation._begin",
}


def killed(here: Location, shop: Any, place: str, name: str = "shop", **options: str) -> None:
    """A process that creates a source and dies at that place, by a signal that is not handled."""
    given = json.dumps([here.directory, name, {"dsn": shop.dsn, **OPTIONS, **options}, PLACES[place]])
    done = run_program(textwrap.dedent(KILLED), given)
    assert done.returncode == -signal.SIGKILL, done.stderr


def gone(shop: Any) -> None:
    """The server has noticed that the process is dead: its sessions ended, and what went with them."""
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        sql = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'persist' AND datname = current_database()"
        )
        while connection.execute(sql).fetchall() != [(0,)]:
            pass


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is silent is taken for dead at once."""
    monkeypatch.setattr(claiming, "SILENT_MS", -1)


@pytest.mark.parametrize("place", PLACES)
def test_a_source_whose_creation_was_killed_is_created_under_the_same_name(
    here: Location, shop: Any, place: str
) -> None:
    shop.run(ITEMS, "INSERT INTO items VALUES (1, 'a')")
    killed(here, shop, place)
    gone(shop)
    create(here, "shop", "postgres", {"dsn": shop.dsn, **OPTIONS}, interval_ms=1)
    assert shop.select(LEFT) == [(1, 1)]
    shop.run("INSERT INTO items VALUES (2, 'b')")
    with Pipeline(here, "shop", options=PipelineOptions(tick_ms=1)) as pipeline:
        pipeline.run(until=lambda step: not step.rows and len(contents(here, "shop", "public.items")) == 2)
    drop(here, "shop")
    assert shop.select(LEFT) == [(0, 0)]


@pytest.mark.parametrize("place", PLACES)
def test_a_source_whose_creation_was_killed_is_dropped(here: Location, shop: Any, place: str) -> None:
    shop.run(ITEMS)
    killed(here, shop, place)
    gone(shop)
    abandon(here, "shop")
    assert shop.select(LEFT) == [(0, 0)]
    assert not claims(Records(client(here)))


@pytest.mark.parametrize("place", ["publication made", "settled"])
def test_a_publication_that_another_source_uses_stays_whatever_ends(here: Location, shop: Any, place: str) -> None:
    shop.run(ITEMS)
    killed(here, shop, place)
    gone(shop)
    create(here, "other", "postgres", {"dsn": shop.dsn, **OPTIONS, "publication": "persist_shop"}, interval_ms=1)
    abandon(here, "shop")
    create(here, "third", "postgres", {"dsn": shop.dsn, **OPTIONS, "publication": "persist_shop"})
    drop(here, "third")
    shop.run("INSERT INTO items VALUES (1, 'a')", "UPDATE items SET name = 'b'")
    with Pipeline(here, "other", options=PipelineOptions(tick_ms=1)) as pipeline:
        pipeline.run(until=lambda step: not step.rows and bool(contents(here, "other", "public.items")))
    assert contents(here, "other", "public.items") == {(1, "b"): 1}
    drop(here, "other")
    assert shop.select(LEFT) == [(0, 0)]


def test_a_failed_creation_leaves_another_ones_publication_and_replica_identity(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run(ITEMS)
    made = publications.make

    def overtaken(*given: Any) -> None:
        made(*given)
        create(here, "other", "postgres", {"dsn": shop.dsn, **OPTIONS, "publication": "persist_shop"}, interval_ms=1)
        raise SourceFailure("the first one fails here")

    monkeypatch.setattr(publications, "make", overtaken)
    with pytest.raises(SourceFailure, match="fails here"):
        create(here, "shop", "postgres", {"dsn": shop.dsn, **OPTIONS})
    assert shop.select(LEFT) == [(1, 1)]
    assert shop.select("SELECT relreplident FROM pg_class WHERE relname = 'items'") == [("f",)]
    drop(here, "other")
    assert shop.select(LEFT) == [(0, 0)]


def test_a_publication_that_no_source_made_is_neither_altered_nor_dropped(here: Location, shop: Any) -> None:
    shop.run(ITEMS, FULL, "CREATE PUBLICATION mine FOR TABLE items", "COMMENT ON PUBLICATION mine IS 'hands off'")
    comment = "SELECT obj_description(oid, 'pg_publication') FROM pg_publication"
    killed(here, shop, "slot made", publication="mine")
    gone(shop)
    abandon(here, "shop")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "publication": "mine"})
    drop(here, "shop")
    assert shop.select(comment) == [("hands off",)]
    assert shop.select(LEFT) == [(0, 1)]


def test_the_slot_of_another_that_took_the_name_meanwhile_stays(here: Location, shop: Any) -> None:
    shop.run(ITEMS, FULL)
    for place in ("slot made", "recorded", "settled"):
        killed(here, shop, place, slot="persist_shop")
        gone(shop)
        if place == "settled":
            shop.run("SELECT pg_drop_replication_slot('persist_shop')")
        shop.run("SELECT pg_create_logical_replication_slot('persist_shop', 'pgoutput')")
        abandon(here, "shop")
        assert shop.select(LEFT) == [(1, 0)]
        shop.run("SELECT pg_drop_replication_slot('persist_shop')")


def test_undoing_waits_for_nobody_who_holds_a_table(here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that waits for the whole table makes all others wait: then its replica identity stays."""
    monkeypatch.setattr(setup, "LOCK_SECONDS", 0.1)
    shop.run(ITEMS, "INSERT INTO items VALUES (1, 'a')")
    with psycopg.connect(shop.dsn) as other:

        def ended(rows: int) -> None:
            other.execute("SELECT * FROM items")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            create(here, "shop", "postgres", OPTIONS | {"dsn": shop.dsn}, report=ended)
    assert shop.select(LEFT) == [(0, 0)]
    assert shop.select("SELECT relreplident::text FROM pg_class WHERE relname = 'items'") == [("f",)]
