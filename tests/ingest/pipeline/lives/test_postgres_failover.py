"""A standby takes over, and the source goes on with it: with every row, or not at all."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ingest.pipeline.conftest import contents
from ingest.pipeline.lives.pairs import ITEMS, Pair, ingest, made, pipeline, state, there
from ingest.pipeline.lives.put_back import DSN
from ingest.pipeline.lives.standbys import CONFIG, promote, replayed, sql, standby_of, until

from persist import Determinate, InvalidArgument, LocationError, PersistError
from persist.sources import Lsn, UpstreamLost, UpstreamRegressed, UpstreamReplaced
from persist.testing import servers
from persist_ingest import Location, Pace, Pipeline, PipelineOptions, Records, alter, create, resnapshot, status
from persist_ingest.location import client
from persist_ingest.pipeline.anew import attempt
from persist_ingest.pipeline.lives import succeeding
from persist_ingest.pipeline.troubles import SNAPSHOTTING, Trouble, amend, troubles, with_trouble
from persist_ingest.sources.port import HeldUp
from persist_ingest.sources.postgres import checks, reader
from persist_ingest.sources.postgres.making import again as making
from persist_ingest.sources.postgres.session import check_dsn, let_go

SECONDS = 120.0
"""Of what takes three while nothing else runs."""


def test_a_source_goes_on_with_the_standby_that_was_promoted(here: Location, pair: Pair) -> None:
    sql(pair.primary, "ALTER SYSTEM SET synchronized_standby_slots = 'standby'", "SELECT pg_reload_conf()")
    pair.fill(pair.primary, 1, 100)
    made(here)
    pair.fill(pair.primary, 101, 200)
    with pipeline(here) as opened:
        opened.run(steps=3)
        pair.synced(opened)
        pair.fill(pair.primary, 201, 300)
        sql(pair.primary, "UPDATE items SET name = 'x' WHERE id = 7", "DELETE FROM items WHERE id = 8")
        opened.run(steps=2)
        pair.fill(pair.primary, 901, 950)
        opened.run(steps=1)
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


def at(server: servers.Server) -> str:
    return f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"


def test_a_source_is_led_to_the_server_that_took_over_by_altering_its_dsn(here: Location, pair: Pair) -> None:
    """Also while a pipeline waits for the one that is gone; and a server that is another one is refused there."""
    pair.fill(pair.primary, 1, 10)
    made(here, dsn=at(pair.primary))
    with pipeline(here) as opened:
        pair.synced(opened)
        replayed(pair.primary, pair.standby)
        pair.primary.kill()
        promote(pair.standby)
        pair.fill(pair.standby, 11, 20)

        def altered(error: PersistError) -> None:
            assert isinstance(error, LocationError)
            opened._complain = lambda _: None
            alter(here, "shop", {"dsn": at(pair.standby)})

        opened._complain = altered
        opened.run(until=lambda step: contents(here, "shop", ITEMS) == there(pair.standby))
    resnapshot(here, "shop", ITEMS)
    with servers.start_postgres(CONFIG, version=18) as other:
        alter(here, "shop", {"dsn": at(other)})
        before = state(here)
        with pipeline(here) as opened, pytest.raises(UpstreamReplaced, match="another server"):
            opened.step()
        assert state(here) == before
    alter(here, "shop", {"dsn": at(pair.standby)})
    pair.fill(pair.standby, 21, 30)
    ingest(here)
    assert contents(here, "shop", ITEMS) == there(pair.standby)
    for dsn, says in (("host=a password=b", "must not hold a password"), ("host", "no connection string"), ("", "dsn")):
        with pytest.raises(InvalidArgument, match=says):
            alter(here, "shop", {"dsn": dsn})


def test_tables_that_stand_aside_for_a_copy_go_on_with_the_standby_that_was_promoted(
    here: Location, pair: Pair
) -> None:
    """That has all that was bound, by its history, and its slot is beyond what the copy had."""
    made(here)
    pair.fill(pair.primary, 1, 10)
    with servers.start_postgres(CONFIG, version=18) as copy, pipeline(here) as opened:
        pair.synced(opened)
        let_go(check_dsn(DSN))
        for each in (copy, pair.primary):
            each.kill()
        shutil.rmtree(copy.directory / "data")
        subprocess.run(["cp", "-a", pair.primary.directory / "data", copy.directory / "data"], check=True)
        (copy.directory / "data" / "postmaster.pid").unlink()
        for each in (copy, pair.primary):
            each.start()
        ((had,),) = sql(copy, "SELECT pg_current_wal_insert_lsn()::text")
        pair.fill(pair.primary, 11, 2000)

        def is_beyond() -> Any:
            with contextlib.suppress(LocationError):
                opened.run(steps=1)
            sql(pair.primary, "SELECT pg_log_standby_snapshot()")
            replayed(pair.primary, pair.standby)
            sql(pair.standby, "SELECT pg_sync_replication_slots()")
            return sql(pair.standby, f"SELECT confirmed_flush_lsn > '{had}' FROM pg_replication_slots")[0][0]

        until(is_beyond)
        replayed(pair.primary, pair.standby)
        pair.primary.kill()
        pair.lead(copy)
        with pipeline(here) as other, pytest.raises(UpstreamRegressed):
            other.step()
        assert status(here, "shop", ask_upstream=False).exports[ITEMS].state == "stalled"
        promote(pair.standby)
        pair.lead(pair.standby)
        pair.fill(pair.standby, 3001, 3010)
        with pipeline(here) as other:
            other.run(until=lambda step: contents(here, "shop", ITEMS) == there(pair.standby))
    assert [timeline for timeline, _ in Records(client(here)).source("shop").definition["followed"]] == [2]


def lost(here: Location, pair: Pair) -> int:
    """The source has rows that the standby, which is promoted then, has not; how far it was."""
    made(here)
    with pipeline(here) as opened:
        pair.fill(pair.primary, 1, 10)
        pair.synced(opened)
        pair.standby.kill()
        pair.fill(pair.primary, 11, 20)
        opened.run(steps=3)
        assert len(contents(here, "shop", ITEMS)) == 20
        bound = client(here).minter().bindings(opened.source.remap_source).frontier.bound(0) or 0
    pair.primary.kill()
    pair.standby.start()
    promote(pair.standby)
    pair.lead(pair.standby)
    pair.fill(pair.standby, 30, 40)
    return bound


def test_a_standby_that_lacks_what_was_bound_is_refused_and_nothing_changes(here: Location, pair: Pair) -> None:
    bound = lost(here, pair)
    before = state(here)
    with pipeline(here) as opened, pytest.raises(UpstreamReplaced, match="lost") as raised:
        opened.run(steps=1)
    assert raised.value.details["bound"] == f"{{{Lsn(bound)}}}"
    assert "has" in raised.value.details
    assert state(here) == before
    # The primary that was is one still.
    pair.primary.start()
    pair.lead(pair.primary)
    pair.fill(pair.primary, 21, 25)
    ingest(here)
    assert contents(here, "shop", ITEMS) == there(pair.primary)


def test_that_more_was_bound_is_said_before_that_the_slot_is_gone(here: Location, pair: Pair) -> None:
    """No slot that is made anew mends that."""
    lost(here, pair)
    slot = Records(client(here)).source("shop").definition["slot"]
    sql(pair.standby, f"SELECT pg_drop_replication_slot('{slot}')")
    with pipeline(here) as opened, pytest.raises(UpstreamReplaced, match="lost"):
        opened.run(steps=1)


class Both:
    """An ingester of each server, which are primaries both. Each step is made where its server is led to."""

    def __init__(self, pair: Pair, old: Pipeline, new: Pipeline) -> None:
        self._pair = pair
        self._old = old
        self._new = new

    def old(self) -> None:
        self._pair.lead(self._pair.primary)
        self._old.step()

    def new(self) -> None:
        self._pair.lead(self._pair.standby)
        self._new.step()


@pytest.fixture
def both(here: Location, pair: Pair) -> Iterator[Both]:
    """The standby was promoted when it had all that was bound; and both servers have more since."""
    made(here)
    pair.fill(pair.primary, 1, 10)
    with pipeline(here) as old, pipeline(here) as new:
        found = Both(pair, old, new)
        pair.synced(old)
        with pytest.raises(Determinate, match="has the slot for the time"):
            found.new()
        replayed(pair.primary, pair.standby)
        promote(pair.standby)
        pair.fill(pair.primary, 11, 20)
        pair.fill(pair.standby, 30, 40)
        yield found


def test_an_ingester_of_the_old_primary_binds_nothing_once_another_followed(
    here: Location, pair: Pair, both: Both
) -> None:
    both.new()
    before = state(here)
    for _ in range(2):
        with pytest.raises(UpstreamReplaced, match="before"):
            both.old()
    assert state(here) == before
    both.new()
    pair.fill(pair.standby, 41, 50)
    both.new()
    assert contents(here, "shop", ITEMS) == there(pair.standby)


def test_one_that_had_asked_the_old_primary_just_before_binds_nothing(
    here: Location, pair: Pair, both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    mint = both._old._minter.mint
    followed = 0

    def late(*given: Any, **more: Any) -> Any:
        nonlocal followed
        if not followed:
            followed = 1
            both.new()
            pair.lead(pair.primary)
        return mint(*given, **more)

    monkeypatch.setattr(both._old._minter, "mint", late)
    with pytest.raises(UpstreamReplaced, match="before"):
        both.old()
    assert followed
    pair.fill(pair.standby, 41, 50)
    both.new()
    assert contents(here, "shop", ITEMS) == there(pair.standby)


def test_where_the_old_primary_is_further_the_source_stays_with_it(here: Location, pair: Pair, both: Both) -> None:
    both.old()
    before = state(here)
    for _ in range(2):
        with pytest.raises(UpstreamReplaced, match="lost"):
            both.new()
    assert state(here) == before
    pair.fill(pair.primary, 21, 25)
    both.old()
    assert contents(here, "shop", ITEMS) == there(pair.primary)


def test_a_table_that_was_looked_at_in_a_lost_history_is_read_anew(
    here: Location, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(here)
    pair.fill(pair.primary, 1, 10)
    real = checks.high

    def late(*given: Any) -> Any:
        """Between the log's end, which is bound, and the look at tables."""
        found = real(*given)
        monkeypatch.setattr(reader, "high", real)
        replayed(pair.primary, pair.standby)
        promote(pair.standby)
        sql(pair.primary, "ALTER TABLE items ADD COLUMN note text")
        return found

    with pipeline(here) as old:
        pair.synced(old)
        monkeypatch.setattr(reader, "high", late)
        old.step()
    pair.lead(pair.standby)
    sql(pair.standby, "ALTER TABLE items ADD COLUMN note text DEFAULT 'all'")
    with pipeline(here) as new, pytest.raises(HeldUp):
        new.step()
    trouble = troubles(Records(client(here)).source("shop"))[ITEMS]
    assert trouble.state == "stalled"
    assert "another server took over" in trouble.error
    resnapshot(here, "shop", ITEMS)
    ingest(here)
    assert contents(here, "shop", ITEMS) == there(pair.standby)


def test_a_promoted_standby_without_the_slot_is_named_and_its_tables_are_read_anew(
    here: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "1")
    with servers.start_postgres(CONFIG, version=16) as primary, standby_of(primary, 16, CONFIG, "standby") as standby:
        pair = Pair(primary, standby)
        pair.fill(primary, 1, 10)
        create(here, "shop", "postgres", {"dsn": DSN, "tables": ITEMS}, interval_ms=1)
        ingest(here)
        replayed(primary, standby)
        primary.kill()
        promote(standby)
        pair.lead(standby)
        pair.fill(standby, 11, 20)
        before = state(here)
        with pipeline(here) as opened, pytest.raises(UpstreamLost, match="the replication slot is gone"):
            opened.run(steps=1)
        assert state(here) == before
        slot = Records(client(here)).source("shop").definition["slot"]
        sql(standby, f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        resnapshot(here, "shop", ITEMS)
        pair.fill(standby, 21, 30)
        ingest(here)
        assert contents(here, "shop", ITEMS) == there(standby)
        let_go(check_dsn(DSN))


def test_a_table_that_is_being_read_anew_begins_anew_on_the_promoted_standby(
    here: Location, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)
    made(here)
    pair.fill(pair.primary, 1, 100)
    with pipeline(here) as opened:
        pair.synced(opened)
    piece, count = making.TableAnew.piece, 0

    def opened_piece(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            replayed(pair.primary, pair.standby)
            pair.primary.kill()
            promote(pair.standby)
            pair.lead(pair.standby)
            pair.fill(pair.standby, 101, 110)
        return piece(*given)

    monkeypatch.setattr(making.TableAnew, "piece", opened_piece)
    resnapshot(here, "shop", ITEMS, pace=Pace(rows=20))
    assert count > 3 + 5
    ingest(here)
    assert contents(here, "shop", ITEMS) == there(pair.standby)


def test_a_pipeline_goes_on_with_the_promoted_standby_while_its_only_table_is_read_anew(
    here: Location, pair: Pair
) -> None:
    made(here)
    pair.fill(pair.primary, 1, 80)
    with pipeline(here) as opened:
        pair.synced(opened)
    records, left = Records(client(here)), Trouble(state=SNAPSHOTTING, since_ms=0)
    amend(records, records.source("shop"), lambda now: with_trouble(now, ITEMS, left))

    def pieces() -> int:
        progress = records.source("shop").troubles[ITEMS].get("progress")
        return progress["reached"]["pieces"] if progress else 0

    options = PipelineOptions(tick_ms=10, told_ms=1, pace=Pace(rows=20, rows_per_second=40))
    with Pipeline(here, "shop", options=options) as opened, ThreadPoolExecutor(1) as beside:
        ran = beside.submit(opened.run)
        try:
            until(lambda: pieces() > 1, SECONDS)
            replayed(pair.primary, pair.standby)
            pair.primary.kill()
            promote(pair.standby)
            pair.lead(pair.standby)
            until(lambda: ran.done() or not records.source("shop").troubles, SECONDS)
            pair.fill(pair.standby, 201, 210)
            until(lambda: ran.done() or contents(here, "shop", ITEMS) == there(pair.standby), SECONDS)
        finally:
            opened.stop()
        ran.result()
    assert contents(here, "shop", ITEMS) == there(pair.standby)


def test_one_that_dies_between_bindings_and_record_is_gone_on_with(
    here: Location, pair: Pair, both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, before = succeeding._record, state(here)

    def dying(*_: Any) -> Any:
        monkeypatch.setattr(succeeding, "_record", record)
        raise Determinate("it died here")

    monkeypatch.setattr(succeeding, "_record", dying)
    with pytest.raises(Determinate, match="died"):
        both.new()
    with pytest.raises(UpstreamReplaced, match="before"):
        both.old()
    assert state(here) == before
    said = status(here, "shop", ask_upstream=False)
    assert (said.bound, said.resume_offsets, set(said.uppers)) == ("", None, set(said.exports))
    assert "later life of its upstream" in said.warnings[0]
    both.new()
    assert "later life" not in "".join(status(here, "shop", ask_upstream=False).warnings)
    pair.fill(pair.standby, 41, 50)
    both.new()
    assert contents(here, "shop", ITEMS) == there(pair.standby)


def test_two_that_die_between_bindings_and_record_with_a_promotion_between_are_gone_on_with(
    here: Location, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(here)
    pair.fill(pair.primary, 1, 10)
    with pipeline(here) as opened:
        pair.synced(opened)
    replayed(pair.primary, pair.standby)
    pair.primary.kill()
    promote(pair.standby)
    with standby_of(pair.standby, 18, CONFIG, "third") as third:
        slot = Records(client(here)).source("shop").definition["slot"]
        with monkeypatch.context() as patched:

            def dying(*_: Any) -> Any:
                raise Determinate("it died here")

            patched.setattr(succeeding, "_record", dying)
            pair.lead(pair.standby)
            with pipeline(here) as opened, pytest.raises(Determinate, match="died"):
                opened.step()
            replayed(pair.standby, third)
            pair.standby.kill()
            promote(third)
            pair.lead(third)
            sql(third, f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', failover => true)")
            with pipeline(here) as opened, pytest.raises(Determinate, match="died"):
                opened.step()
        with pipeline(here) as opened, pytest.raises(UpstreamLost, match="threw away"):
            opened.step()
        source = Records(client(here)).source("shop")
        assert [timeline for timeline, _ in source.definition["followed"]] == [2, 3]
        resnapshot(here, "shop", ITEMS)
        pair.fill(third, 700, 710)
        ingest(here)
        assert contents(here, "shop", ITEMS) == there(third)
        let_go(check_dsn(DSN))


def test_a_slower_ingester_tries_again_where_others_went_on_twice(
    here: Location, pair: Pair, both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look at the record and that at the bindings, which are two lives on then."""
    found = succeeding._incarnation

    def late(*given: Any) -> Any:
        monkeypatch.setattr(succeeding, "_incarnation", found)
        with pipeline(here) as faster:
            pair.lead(pair.standby)
            faster.step()
        return found(*given).replace("then 1 2@", "then 2 3@")

    monkeypatch.setattr(succeeding, "_incarnation", late)
    with pytest.raises(Determinate, match="another ingester goes on"):
        both.new()
    both.new()
    assert contents(here, "shop", ITEMS) == there(pair.standby)
