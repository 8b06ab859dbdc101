"""Copies of a server's files with much log, rows and tables of their own: none of it is taken for the source's."""

import contextlib
from collections import Counter
from collections.abc import Callable

import pytest
from ingest.pipeline.conftest import contents
from ingest.pipeline.lives.put_back import (
    DSN,
    FAST,
    ITEMS,
    OTHERS,
    Upstream,
    begun,
    copied,
    copy_with_less,
    goes_on,
    ingesting,
    outgrow,
    states,
    stepped,
)
from ingest.pipeline.lives.standbys import promote, sql, until

from persist import Determinate, PersistError
from persist.sources import UpstreamRegressed, UpstreamReplaced
from persist.testing import servers
from persist_ingest import Location, Pipeline, Records, create, resnapshot
from persist_ingest.location import client
from persist_ingest.sources.lives import HistoryLost
from persist_ingest.sources.port import HeldUp


def test_a_server_that_a_person_decided_against_is_not_read_again(
    here: Location, shop: Upstream, led: Callable[[servers.Server], None]
) -> None:
    """The tables hold what the other one has by now, and this one has more log than was bound."""
    led(shop.server)
    with copy_with_less(here, shop, DSN) as copy:
        led(copy)
        with pytest.raises(UpstreamRegressed):
            stepped(here)
        outgrow(copy)
        for export in (ITEMS, OTHERS):
            resnapshot(here, "shop", export)
        sql(copy, "INSERT INTO items SELECT i, 'of the copy' FROM generate_series(2001, 2010) i")
        stepped(here, 2)
        kept = contents(here, "shop", OTHERS)
        led(shop.server)
        shop.grow(20_000, 12_000)
        with pytest.raises(HistoryLost):
            stepped(here)
        assert contents(here, "shop", OTHERS) == kept
        assert states(here) == {ITEMS: "stalled", OTHERS: "stalled"}
        led(copy)
        sql(copy, "UPDATE items SET name = 'at last' WHERE id = 2001")
        stepped(here, 2)
        assert states(here) == {ITEMS: "running", OTHERS: "running"}
    led(shop.server)
    with pytest.raises(HistoryLost):
        resnapshot(here, "shop", ITEMS)
    for export in (ITEMS, OTHERS):
        resnapshot(here, "shop", export)
    goes_on(here, shop)


def promoted(copy: servers.Server) -> None:
    """It runs as a standby for a moment, as it does when it is recovered from an archive."""
    copy.kill()
    (copy.directory / "data" / "standby.signal").touch()
    copy.start()
    promote(copy)


def test_a_copy_that_had_less_is_no_successor_once_it_is_promoted(
    here: Location, shop: Upstream, led: Callable[[servers.Server], None]
) -> None:
    """By its history it left the source's timeline behind all that was bound: but in another history."""
    led(shop.server)
    with copy_with_less(here, shop, DSN) as copy:
        led(copy)
        with pytest.raises(UpstreamRegressed):
            stepped(here)
        led(shop.server)
        stepped(here, 2)
        outgrow(copy)
        promoted(copy)
        led(copy)
        with pytest.raises(HistoryLost):
            stepped(here)
        with pytest.raises(HeldUp):
            stepped(here)
        led(shop.server)
        goes_on(here, shop)
        assert not Records(client(here)).source("shop").definition["followed"]
        # Unless a person says so.
        led(copy)
        with pytest.raises(HistoryLost):
            stepped(here)
        outgrow(copy)
        for export in (ITEMS, OTHERS):
            resnapshot(here, "shop", export)
        stepped(here)
        assert contents(here, "shop", OTHERS) == Counter(sql(copy, "SELECT * FROM others"))
        led(shop.server)
        with pytest.raises(UpstreamReplaced, match="left for a later one"):
            stepped(here)


@pytest.mark.parametrize("altered", ["ALTER TABLE items ADD COLUMN x int DEFAULT 5", "DROP TABLE items"])
def test_no_table_stands_aside_for_how_a_copy_has_it(
    here: Location, shop: Upstream, led: Callable[[servers.Server], None], altered: str
) -> None:
    led(shop.server)
    begun(here, DSN)
    with copied(shop) as copy:
        sql(copy, altered)
        with ingesting(here, shop.server):
            shop.grow(1000)
            until(lambda: contents(here, "shop", OTHERS) == shop.rows(OTHERS))
            led(copy)
            for _ in range(2):
                with pytest.raises(UpstreamReplaced, match="other ingesters go on"):
                    stepped(here)
                outgrow(copy)
            assert states(here) == {ITEMS: "running", OTHERS: "running"}
        with pytest.raises(HistoryLost):
            stepped(here)
    led(shop.server)
    goes_on(here, shop)


def test_one_that_is_led_to_a_copy_with_more_log_stops_while_others_go_on(
    here: Location, shop: Upstream, led: Callable[[servers.Server], None]
) -> None:
    led(shop.server)
    begun(here, DSN)
    with copied(shop) as copy:
        outgrow(copy)
        with ingesting(here, shop.server):
            shop.grow(1000, 100)
            until(lambda: contents(here, "shop", OTHERS) == shop.rows(OTHERS))
            led(copy)
            for _ in range(2):
                with pytest.raises(Determinate, match="bind from another server"):
                    stepped(here)
        led(shop.server)
        goes_on(here, shop)


def test_ingesters_go_on_beside_each_other_once_their_server_was_started_anew(
    here: Location, shop: Upstream, led: Callable[[servers.Server], None]
) -> None:
    led(shop.server)
    begun(here, DSN)
    with ingesting(here, shop.server), Pipeline(here, "shop", options=FAST) as pipeline:
        pipeline.step()
        for first in (1000, 2000):
            shop.run("CHECKPOINT")
            shop.restart()
            led(shop.server)
            shop.grow(first, 100)
            until(lambda: _stepped(pipeline) and contents(here, "shop", OTHERS) == shop.rows(OTHERS))
    assert states(here) == {ITEMS: "running", OTHERS: "running"}


def _stepped(pipeline: Pipeline) -> bool:
    with contextlib.suppress(PersistError):
        pipeline.step()
        return True
    return False


def test_a_source_of_all_tables_takes_in_none_that_was_made_in_a_copy(
    here: Location, shop: Upstream, led: Callable[[servers.Server], None]
) -> None:
    shop.run("CREATE PUBLICATION p FOR ALL TABLES")
    led(shop.server)
    create(here, "shop", "postgres", {"dsn": DSN, "publication": "p"}, interval_ms=1)
    stepped(here)
    with copied(shop) as copy:
        shop.grow(1000)
        stepped(here)
        sql(copy, "CREATE TABLE stray (id int PRIMARY KEY)")
        led(copy)
        with Pipeline(here, "shop", options=FAST) as pipeline, pytest.raises(UpstreamRegressed):
            pipeline.step()
        with Pipeline(here, "shop", options=FAST) as pipeline:
            with pytest.raises(HeldUp):
                pipeline.step()
            pipeline.watch.wait()
        assert set(states(here)) == {ITEMS, OTHERS}
    led(shop.server)
    shop.run("CREATE TABLE more (id int PRIMARY KEY)")
    with Pipeline(here, "shop", options=FAST) as pipeline:

        def is_taken_in() -> bool:
            pipeline.step()
            return states(here).get("public.more") == "running"

        until(is_taken_in)
    goes_on(here, shop)
