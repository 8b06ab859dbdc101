"""One table's trouble is its own: it stops at a definite time, says why, and others go on; one call mends it."""

import dataclasses
from collections import Counter
from functools import partial
from typing import Any

import pytest
from ingest.pipeline.conftest import contents

from persist import InvalidArgument, PersistError, VersionMismatch
from persist.runtime import system
from persist.sources import SILENT_MS
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create, resnapshot, status
from persist_ingest.location import client
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.pipeline import records as recording
from persist_ingest.pipeline.anew import attempt
from persist_ingest.pipeline.records import SourceNotFound
from persist_ingest.pipeline.troubles import SNAPSHOTTING, Trouble, amend, with_trouble
from persist_ingest.sources.port import BadRows, HeldUp, SourceFailure
from persist_ingest.sources.postgres import reader as reading

OPTIONS = PipelineOptions(tick_ms=1, told_ms=0, commit_steps_late=0, forget_ms=0)
BAD, GOOD = "public.bad", "public.good"
SLOT = (
    "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"
)


@pytest.fixture(autouse=True)
def looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)


def begun(here: Location, shop: Any, **options: str) -> Pipeline:
    shop.run("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    for table in ("bad", "good"):
        shop.run(f"CREATE TABLE {table} (id int PRIMARY KEY, name text, n numeric(8,2), at timestamptz, mood mood)")
        shop.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        shop.run(f"INSERT INTO {table} SELECT i, 'n' || i, i, '2024-01-01', 'ok' FROM generate_series(1, 20) i")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": f"{BAD},{GOOD}", **options}, interval_ms=1)
    pipeline = Pipeline(here, "shop", options=OPTIONS)
    pipeline.step()
    return pipeline


def follows(here: Location, shop: Any, export: str, columns: str = "*") -> bool:
    return contents(here, "shop", export) == Counter(shop.select(f"SELECT {columns} FROM {export}"))


def uppers(here: Location) -> dict[str, int | None]:
    return dict(status(here, "shop", ask_upstream=False).uppers)


WAYS: dict[str, tuple[list[str], list[str], str]] = {
    "a column dropped": (["ALTER TABLE bad DROP COLUMN name"], [], "id, NULL, n, at, mood"),
    "a column renamed": (["ALTER TABLE bad RENAME COLUMN name TO called"], [], "id, NULL, n, at, mood, called"),
    "infinity": (["UPDATE bad SET at = 'infinity' WHERE id = 3"], ["UPDATE bad SET at = now() WHERE id = 3"], "*"),
    "NaN in numeric": (["UPDATE bad SET n = 'NaN' WHERE id = 3"], ["UPDATE bad SET n = 5 WHERE id = 3"], "*"),
    "another identity": (
        ["ALTER TABLE bad REPLICA IDENTITY DEFAULT", "UPDATE bad SET name = 'x' WHERE id = 4"],
        ["ALTER TABLE bad REPLICA IDENTITY FULL"],
        "*",
    ),
    "another type": (["ALTER TABLE bad ALTER n TYPE text USING n || '!'"], [], "id, name, NULL, at, mood, n"),
    "a default of old rows": (["ALTER TABLE bad ADD COLUMN more int DEFAULT 7"], [], "*"),
    "rewritten": (["ALTER TABLE bad ALTER name TYPE text USING upper(name)"], [], "*"),
    "a label renamed": (["ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"], [], "*"),
    "made anew": (
        ["DROP TABLE bad", "CREATE TABLE bad (LIKE good INCLUDING ALL)", "INSERT INTO bad SELECT * FROM good LIMIT 3"],
        ["ALTER TABLE bad REPLICA IDENTITY FULL"],
        "*",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_one_table_stops_and_the_other_goes_on_within_a_step_and_one_call_mends_it(
    here: Location, shop: Any, way: str
) -> None:
    breaks, corrects, shown = WAYS[way]
    heard: list[PersistError] = []
    begun(here, shop).close()
    if way == "a label renamed":
        # Only one of them has this type: it would be the trouble of both.
        shop.run("ALTER TABLE good ALTER mood TYPE text")
        with Pipeline(here, "shop", options=OPTIONS) as pipeline:
            pipeline.step()
        resnapshot(here, "shop", GOOD) if GOOD in Records(client(here)).source("shop").troubles else None
    with Pipeline(here, "shop", options=OPTIONS, complain=heard.append) as pipeline:
        before, at = contents(here, "shop", BAD), uppers(here)[BAD]
        shop.run(*breaks, "INSERT INTO good (id) VALUES (100)")
        pipeline.step()
        assert follows(here, shop, GOOD), "within a step"
        assert [error.details["export"] for error in heard] == [BAD]
        told = status(here, "shop")
        assert told.state == "running"
        assert told.exports[GOOD].state == "running"
        bad = told.exports[BAD]
        assert (bad.state, bad.upper) == ("stalled", uppers(here)[BAD])
        assert bad.error
        assert bad.hint
        assert bad.since_ms
        shop.run("INSERT INTO good (id) VALUES (101)")
        pipeline.step()
    assert contents(here, "shop", BAD) == before
    assert uppers(here)[BAD] == at
    shop.run(*corrects)
    # A restart knows, and so does one that was there before; nothing of the upstream is kept for the table.
    with Pipeline(here, "shop", options=OPTIONS) as one, Pipeline(here, "shop", options=OPTIONS) as two:
        shop.run("INSERT INTO good (id) VALUES (102)")
        one.step()
        two.step()
        assert follows(here, shop, GOOD)
        good = uppers(here)[GOOD]
        resnapshot(here, "shop", BAD)
        assert (uppers(here)[GOOD] or 0) == good, "without touching the others"
        shop.run("UPDATE bad SET id = id + 1000 WHERE id < 5", "INSERT INTO good (id) VALUES (103)")
        for each in (one, two, one):
            each.step()
        assert follows(here, shop, GOOD)
        assert contents(here, "shop", BAD) == Counter(shop.select(f"SELECT {shown} FROM bad"))
    assert {each.state for each in status(here, "shop").exports.values()} == {"running"}
    [count] = [status(here, "shop", count_rows=True).counts[BAD]]
    assert count.negative == 0


def test_what_was_read_before_stays_readable_and_the_change_has_one_time(here: Location, shop: Any) -> None:
    with begun(here, shop) as pipeline:
        before, at = contents(here, "shop", BAD), uppers(here)[BAD] or 0
        shop.run("UPDATE bad SET at = '-infinity' WHERE id = 3")
        pipeline.step()
        shop.run("UPDATE bad SET at = now()", "DELETE FROM bad WHERE id > 10")
        resnapshot(here, "shop", BAD)
    shard = Records(client(here)).source("shop").shards[BAD]
    with client(here).open_reader(shard) as reader:
        rows = reader.snapshot(at - 1).to_arrow()
        assert rows.num_rows == sum(before.values())
        diffs = reader.diffs([at], client(here).recent_upper(shard)).to_arrow()
    assert len(set(diffs["ts"].to_pylist())) == 1, "one definite time"
    assert follows(here, shop, BAD)


def test_the_last_one_that_runs_stops_the_source_and_keeps_what_it_needs(here: Location, shop: Any) -> None:
    with begun(here, shop) as pipeline:
        shop.run("UPDATE bad SET at = 'infinity' WHERE id = 3", "INSERT INTO good (id) VALUES (100)")
        pipeline.step()
        shop.run("ALTER TABLE good RENAME TO fine", "UPDATE fine SET name = 'x'")
        with pytest.raises(SourceFailure, match="renamed"):
            pipeline.step()
        assert list(Records(client(here)).source("shop").troubles) == [BAD]
        # So correcting it is enough, also after a snapshot of the other.
        shop.run("ALTER TABLE fine RENAME TO good", "UPDATE bad SET at = now() WHERE id = 3")
        resnapshot(here, "shop", BAD)
        pipeline.step()
        pipeline.step()
        assert follows(here, shop, GOOD)
        assert follows(here, shop, BAD)


def test_a_table_that_runs_is_snapshotted_again_under_two_ingesters_at_work(here: Location, shop: Any) -> None:
    import threading

    begun(here, shop).close()
    pipelines = [Pipeline(here, "shop", options=OPTIONS) for _ in range(2)]
    threads = [threading.Thread(target=each.run) for each in pipelines]
    for thread in threads:
        thread.start()
    try:
        for number in range(3):
            shop.run(f"INSERT INTO bad (id) VALUES ({1000 + number})", "UPDATE good SET name = name || '.'")
            resnapshot(here, "shop", BAD)
            shop.run("TRUNCATE bad", f"INSERT INTO bad (id) VALUES ({2000 + number})", "DELETE FROM good WHERE id = 5")
    finally:
        for each in pipelines:
            each.stop()
        for thread in threads:
            thread.join()
    with Pipeline(here, "shop", options=OPTIONS) as last:
        last.step()
        last.step()
    assert follows(here, shop, BAD)
    assert follows(here, shop, GOOD)
    assert Records(client(here)).source("shop").turn == 3


def interrupted(here: Location, beat_ms: int) -> None:
    """An attempt that died: it said so, and nothing more."""
    records = Records(client(here))
    source = records.source("shop")
    known = Trouble(**source.troubles[BAD])
    trouble = dataclasses.replace(known, state=SNAPSHOTTING, attempt="dead", beat_ms=beat_ms)
    amend(records, source, lambda now: with_trouble(now, BAD, trouble))


def test_nothing_is_let_go_while_an_attempt_is_at_work_and_a_pipeline_goes_on_with_one_that_died(
    here: Location, shop: Any
) -> None:
    with begun(here, shop) as pipeline:
        shop.run("UPDATE bad SET at = 'infinity' WHERE id = 3")
        pipeline.step()
        interrupted(here, system().now_ms())
        with pytest.raises(InvalidArgument, match="already"):
            resnapshot(here, "shop", BAD)
        held = shop.select(SLOT)
        for number in range(3):
            shop.run(f"INSERT INTO good (id) VALUES ({100 + number})")
            pipeline.step()
        assert follows(here, shop, GOOD)
        assert shop.select(SLOT) == held
        assert status(here, "shop").exports[BAD].state == "snapshotting"
        interrupted(here, system().now_ms() - SILENT_MS - 1)
        pipeline.step()
        pipeline.watch.wait()
        told = status(here, "shop").exports[BAD]
        assert told.state == "stalled"
        assert "cannot be stored" in told.error
        shop.run("UPDATE bad SET at = now() WHERE id = 3")
        interrupted(here, 0)
        pipeline.step()
        pipeline.watch.wait()
        assert status(here, "shop").exports[BAD].state == "running"
        pipeline.step()
        assert follows(here, shop, BAD)


def test_what_cannot_be_read_anew_stays_stalled_and_says_why(here: Location, shop: Any) -> None:
    with begun(here, shop) as pipeline:
        shop.run("UPDATE bad SET at = 'infinity' WHERE id = 3")
        pipeline.step()
        before = contents(here, "shop", BAD)
        refused: list[tuple[list[str], type[PersistError], str]] = [
            ([], BadRows, "cannot be stored"),
            (["ALTER TABLE bad ALTER id TYPE bigint"], SourceFailure, "another type"),
            (["DROP TABLE bad"], SourceFailure, "no such table"),
        ]
        for statements, error, said in refused:
            shop.run(*statements)
            with pytest.raises(error, match=said):
                resnapshot(here, "shop", BAD)
            told = status(here, "shop").exports[BAD]
            assert told.state == "stalled"
            assert said in told.error
            shop.run("INSERT INTO good (id) SELECT max(id) + 1 FROM good")
            pipeline.step()
        assert contents(here, "shop", BAD) == before
        assert follows(here, shop, GOOD)
    with pytest.raises(InvalidArgument) as unknown:
        resnapshot(here, "shop", "public.god")
    assert GOOD in unknown.value.hint
    with pytest.raises(SourceNotFound):
        resnapshot(here, "shops", GOOD)


def test_others_that_know_less_agree(here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that looked before the table was altered, and does not know, comes to the same."""
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)
    with begun(here, shop) as one, Pipeline(here, "shop", options=OPTIONS) as two:
        two.step()
        shop.run("ALTER TABLE bad DROP COLUMN name")
        one.step()
        since = status(here, "shop").exports[BAD].since_ms
        before = shop.select(SLOT)
        for number in range(100, 150):
            shop.run(f"INSERT INTO good (id) VALUES ({number})")
            one.step()
            if shop.select(SLOT) != before:
                break
        assert shop.select(SLOT) != before, "what the other one would read for the table is gone"
        two.step()
        assert follows(here, shop, GOOD)
        assert status(here, "shop").exports[BAD].since_ms == since
        resnapshot(here, "shop", BAD)
        shop.run("INSERT INTO bad (id) VALUES (100)")
        two.step()
        two.step()
        assert contents(here, "shop", BAD) == Counter(shop.select("SELECT id, NULL, n, at, mood FROM bad"))


def test_a_source_none_of_whose_tables_runs_waits(here: Location, shop: Any) -> None:
    with begun(here, shop) as pipeline:
        records = Records(client(here))
        now = system().now_ms()
        for export in (BAD, GOOD):
            trouble = Trouble(state=SNAPSHOTTING, since_ms=now, attempt="other", beat_ms=now)
            amend(records, records.source("shop"), partial(with_trouble, export=export, trouble=trouble))
        pipeline.step()
        with pytest.raises(HeldUp):
            pipeline.step()
        assert set(status(here, "shop").exports) == {BAD, GOOD}
        for export in (BAD, GOOD):
            amend(records, records.source("shop"), partial(with_trouble, export=export, trouble=None))
        shop.run("INSERT INTO good (id) VALUES (100)")
        pipeline.step()
        assert follows(here, shop, GOOD)


def test_earlier_releases_do_not_read_a_record_whose_exports_stand_aside(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begun(here, shop) as pipeline:
        records = Records(client(here))
        assert not {"troubles", "turn"} & records.raw()["shop"].keys()
        shop.run("ALTER TABLE bad DROP COLUMN name")
        pipeline.step()
        assert records.raw()["shop"]["version"] == 3
        monkeypatch.setattr(recording, "APART", 2)
        with pytest.raises(VersionMismatch):
            records.source("shop")
