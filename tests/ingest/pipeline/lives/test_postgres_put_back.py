"""Files of a server that are put back: rows of both histories are nowhere beside one another."""

from collections.abc import Callable
from typing import Any

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
    ingesting,
    stepped,
)
from ingest.pipeline.lives.standbys import sql, until

from persist.sources import UpstreamRegressed, UpstreamReplaced
from persist.testing import servers
from persist_ingest import Location, Pace, Pipeline, Records, resnapshot, status
from persist_ingest.location import client
from persist_ingest.pipeline.anew import attempt
from persist_ingest.pipeline.anew.attempt import SnapshotLost
from persist_ingest.pipeline.records import Source
from persist_ingest.pipeline.troubles import Trouble, amend, with_trouble
from persist_ingest.sources.lives import HistoryLost
from persist_ingest.sources.port import HeldUp, TableAltered
from persist_ingest.sources.postgres.making import again


def before_piece(monkeypatch: pytest.MonkeyPatch, number: int, then: Callable[[], object]) -> None:
    """Do something just before that piece of a snapshot is read."""
    piece, count = again.TableAnew.piece, 0

    def opened(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count == number:
            then()
        return piece(*given)

    monkeypatch.setattr(again.TableAnew, "piece", opened)
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)


def read_what_will_be_lost(here: Location, shop: Upstream) -> None:
    """A source that reads on after the files of its server were copied, which has less once they are put back."""
    begun(here, shop.dsn)
    shop.kept()
    shop.run("UPDATE items SET name = 'lost' WHERE id <= 40", "INSERT INTO items VALUES (0, 'lost')")
    shop.grow(1000)
    stepped(here)


def test_a_snapshot_in_pieces_ends_where_a_pipeline_saw_that_files_were_put_back(
    here: Location, shop: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_what_will_be_lost(here, shop)

    def put_back() -> None:
        shop.put_back()
        with pytest.raises(UpstreamRegressed):
            stepped(here)
        # The log is past all that was read, and nothing in it says that it is another one.
        shop.grow(5000, 4000)
        shop.run("UPDATE items SET name = 'new' WHERE id = 90")

    before_piece(monkeypatch, 3, put_back)
    with pytest.raises(SnapshotLost):
        resnapshot(here, "shop", ITEMS, pace=Pace(rows=20))
    resnapshot(here, "shop", ITEMS, pace=Pace(rows=20))
    stepped(here)
    assert contents(here, "shop", ITEMS) == shop.rows(ITEMS)
    resnapshot(here, "shop", OTHERS)
    stepped(here)
    assert contents(here, "shop", OTHERS) == shop.rows(OTHERS)


def test_a_snapshot_in_pieces_ends_that_sees_itself_that_files_were_put_back(
    here: Location, shop: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pipeline looks before the log is past all that was read: what the snapshot saw is kept in mind for them."""
    read_what_will_be_lost(here, shop)
    before_piece(monkeypatch, 3, shop.put_back)
    with pytest.raises(UpstreamRegressed):
        resnapshot(here, "shop", ITEMS, pace=Pace(rows=20))
    shop.grow(5000, 4000)
    before = contents(here, "shop", OTHERS)
    with pytest.raises(HeldUp, match="no export"):
        stepped(here)
    assert contents(here, "shop", OTHERS) == before
    for export in (ITEMS, OTHERS):
        resnapshot(here, "shop", export, pace=Pace(rows=20))
        stepped(here)
        assert contents(here, "shop", export) == shop.rows(export)


def test_a_snapshot_in_pieces_that_waits_for_the_log_begins_anew_once_files_were_put_back(
    here: Location, shop: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of the tables runs then, so that it may be read from a server that has less than was bound."""
    read_what_will_be_lost(here, shop)
    high, seen = again.TableAnew.high, list[str]()

    def grown(self: again.TableAnew) -> Any:
        found = high(self)
        if seen == ["put back"]:
            seen.append("grown")
            shop.grow(5000, 4000)
        return found

    def put_back() -> None:
        shop.put_back()
        seen.append("put back")

    altered = Trouble.of(TableAltered("as if", hint="snapshot it again"))

    def stalled(now: Source) -> Source:
        return with_trouble(with_trouble(now, ITEMS, altered), OTHERS, altered)

    amend(Records(client(here)), Records(client(here)).source("shop"), stalled)
    monkeypatch.setattr(again.TableAnew, "high", grown)
    before_piece(monkeypatch, 3, put_back)
    resnapshot(here, "shop", ITEMS, pace=Pace(rows=20))
    stepped(here)
    assert seen == ["put back", "grown"]
    assert contents(here, "shop", ITEMS) == shop.rows(ITEMS)


def states(here: Location) -> set[str]:
    return {each.state for each in status(here, "shop", ask_upstream=False).exports.values()}


def slot_at(server: servers.Server) -> int:
    ((position,),) = sql(server, "SELECT (confirmed_flush_lsn - '0/0')::int8 FROM pg_replication_slots")
    return int(position)


def test_an_ingester_that_is_led_to_a_copy_stops_itself_alone(
    here: Location, shop: Upstream, led: Callable[[servers.Server], None]
) -> None:
    led(shop.server)
    begun(here, DSN)
    with copied(shop) as copy:
        ((had,),) = sql(copy, "SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")
        with ingesting(here, shop.server):
            shop.grow(1000)
            until(lambda: contents(here, "shop", OTHERS) == shop.rows(OTHERS))
            led(copy)
            with pytest.raises(UpstreamReplaced, match="other ingesters go on"):
                stepped(here)
            sql(copy, "INSERT INTO others SELECT 9000 + i, repeat('y', 400) FROM generate_series(1, 6000) i")
            # It has more than was bound by now.
            with pytest.raises(UpstreamReplaced, match="other ingesters go on"):
                stepped(here)
            with pytest.raises(UpstreamReplaced, match="other ingesters go on"):
                resnapshot(here, "shop", ITEMS)
            assert states(here) == {"running"}
            shop.grow(4000)
            until(lambda: contents(here, "shop", OTHERS) == shop.rows(OTHERS))
            until(lambda: slot_at(shop.server) > had)
        # Also when the server that is read was started anew, and the copy. It knows its slots as of its checkpoint.
        shop.run("CHECKPOINT")
        shop.restart()
        copy.kill()
        copy.start()
        led(shop.server)
        shop.grow(7000, 10)
        stepped(here)
        led(copy)
        with pytest.raises(HistoryLost):
            stepped(here)
    led(shop.server)
    stepped(here)
    assert contents(here, "shop", OTHERS) == shop.rows(OTHERS)


def test_the_only_ingester_goes_on_once_it_is_led_back_from_a_copy(
    here: Location, shop: Upstream, led: Callable[[servers.Server], None]
) -> None:
    led(shop.server)
    begun(here, DSN)
    with copied(shop) as copy:
        led(shop.server)
        shop.grow(1000)
        stepped(here)
        led(copy)
        with pytest.raises(UpstreamRegressed):
            stepped(here)
        assert states(here) == {"stalled"}
        sql(copy, "INSERT INTO others SELECT 9000 + i, repeat('y', 400) FROM generate_series(1, 6000) i")
        with pytest.raises(HeldUp, match="no export"):
            stepped(here)
    led(shop.server)
    shop.grow(4000)
    stepped(here, 2)
    assert states(here) == {"running"}
    assert contents(here, "shop", OTHERS) == shop.rows(OTHERS)


def test_an_ingester_that_looks_late_at_files_that_were_put_back_reads_nothing_of_them(
    here: Location, shop: Upstream
) -> None:
    """Another one has seen it; by now the log is past all that was read, and the server was started anew."""
    begun(here, shop.dsn)
    shop.kept()
    shop.grow(1000)
    with Pipeline(here, "shop", options=FAST) as late:
        late.step()
        before = contents(here, "shop", OTHERS)
        shop.put_back()
        with pytest.raises(UpstreamRegressed):
            stepped(here)
        shop.grow(5000, 4000)
        shop.restart()
        for _ in range(2):
            with pytest.raises(HistoryLost):
                late.step()
    with pytest.raises(HeldUp, match="no export"):
        stepped(here)
    assert states(here) == {"stalled"}
    assert contents(here, "shop", OTHERS) == before
    for export in (ITEMS, OTHERS):
        resnapshot(here, "shop", export)
    shop.grow(9500, 100)
    shop.restart()
    stepped(here)
    assert contents(here, "shop", OTHERS) == shop.rows(OTHERS)
