"""The first snapshot of a large table is read in pieces: whatever kills it, it goes on, and reads anew only the piece
that it was at. Real PostgreSQL, processes and signals."""

import json
import signal
import textwrap
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from forked import run_program
from ingest.pipeline.anew.killing import logging, reads
from ingest.pipeline.anew.slots import SLOT
from ingest.pipeline.conftest import contents
from simulation.budget import FULL

from persist import NotReadable, PersistError
from persist_ingest import (
    Location,
    Pace,
    Pipeline,
    PipelineOptions,
    Records,
    Source,
    create,
    drop,
    resnapshot,
    status,
)
from persist_ingest.location import client
from persist_ingest.pipeline import claims as claiming
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.pipeline.anew import again, attempt, watching
from persist_ingest.pipeline.records import SourceExists, SourceNotFound
from persist_ingest.sources.port import BadRows
from persist_ingest.sources.postgres import pieces
from persist_ingest.sources.postgres import reader as reading
from persist_ingest.sources.postgres.making import beginning

OPTIONS = PipelineOptions(tick_ms=1, told_ms=10**9, commit_steps_late=0, forget_ms=10**9, pace=Pace(rows=5))
PACE = Pace(rows=5)
ITEMS, GOOD = "public.items", "public.good"
ROWS, KILLS = (10_000_000, 20) if FULL else (16_000, 4)
LEFT = """
SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT temporary),
       (SELECT count(*) FROM pg_publication)
"""


@pytest.fixture(autouse=True)
def large_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of a page is large, one that is empty is not; and a pipeline looks at every step."""
    monkeypatch.setattr(beginning, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)


def options(shop: Any, **more: str) -> dict[str, str]:
    return {"dsn": shop.dsn, "tables": f"{ITEMS},{GOOD}", "setReplicaIdentity": "true", **more}


def made(shop: Any, rows: int = 30) -> None:
    shop.run("CREATE TABLE items (id int PRIMARY KEY, name text)", "CREATE TABLE good (id int PRIMARY KEY)")
    shop.run(f"INSERT INTO items SELECT i * 10, 'n' || i FROM generate_series(1, {rows}) i")


def follows(here: Location, shop: Any, export: str = ITEMS) -> bool:
    return bool(contents(here, "shop", export) == Counter(shop.select(f"SELECT * FROM {export}")))


PROGRAM = """
import json, sys
from ingest.pipeline.anew.killing import killed_at
from persist_ingest import Location, Pace, create
from persist_ingest.pipeline.anew import again, watching
from persist_ingest.sources.postgres.making import beginning

directory, options, place, number, rows, log = json.loads(sys.argv[1])
beginning.AT_ONCE_BYTES, again.SILENT_MS, watching.SILENT_MS = 0, -1, -1
killed_at(place, number, log)
create(Location(directory=directory), "shop", "postgres", options, interval_ms=1, pace=Pace(rows=rows))
"""
PLACES = (
    "TablePiece.rows",
    "Attempt._save",
    "WriteHandle.compare_and_append_batches",
    "WriteHandle.compare_and_append_batches.after",
)


@pytest.mark.timeout(7_200 if FULL else 900)
@pytest.mark.parametrize("whole", ["true", "false"])
def test_the_first_snapshot_is_killed_again_and_again_and_reads_anew_only_the_piece_it_was_at(
    here: Location, shop: Any, tmp_path: Path, whole: str
) -> None:
    """``whole``: changes say what rows were, else their keys."""
    made(shop, ROWS)
    asked = options(shop, setReplicaIdentity=whole)
    rows = 50_000 if FULL else 1_000
    # Each gets on by as many pieces as it takes for the last one to be killed when most was read.
    each = ROWS // rows // (KILLS + 1)
    held = []
    for number in range(KILLS):
        place = PLACES[number % len(PLACES)]
        given = json.dumps([here.directory, asked, place, each + 2, rows, str(tmp_path / "log")])
        done = run_program(textwrap.dedent(PROGRAM), given)
        assert done.returncode == -signal.SIGKILL, (place, done.stderr)
        shop.run(
            f"UPDATE items SET name = name || '{number}' WHERE id % 3000 = 0",
            f"INSERT INTO items VALUES ({number * 1000 + 5}, 'k')",
            f"DELETE FROM items WHERE id = {number * 400 + 10}",
            "INSERT INTO good SELECT coalesce(max(id), 0) + 1 FROM good",
        )
        told = status(here, "shop", ask_upstream=False).exports
        assert told[ITEMS].state == "snapshotting"
        assert told[ITEMS].upper == 0
        assert told[ITEMS].progress
        held += shop.select(SLOT)
    assert held == sorted(held)
    # A life of few pieces may end before the server was notified how far the log was consumed.
    assert not FULL or held[-1] > held[0], "the log is consumed meanwhile"
    read = status(here, "shop", ask_upstream=False).exports[ITEMS].progress
    assert read is not None
    assert read.rows > ROWS // 2
    with_same = {"interval_ms": 1, "pace": Pace(rows=rows)}
    with pytest.MonkeyPatch.context() as impatient:
        impatient.setattr(watching, "SILENT_MS", -1)
        impatient.setattr(again, "SILENT_MS", -1)
        impatient.setattr(pieces, "opened", logging(tmp_path / "log"))
        with pytest.raises(SourceExists):
            create(here, "shop", "postgres", {**asked, "snapshotTasks": "3"}, **with_same)  # type: ignore[arg-type]
        create(here, "shop", "postgres", asked, **with_same)  # type: ignore[arg-type]
    with pytest.raises(SourceExists):
        create(here, "shop", "postgres", asked, **with_same)  # type: ignore[arg-type]
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        pipeline.step()
    assert is_equal(here, shop)
    assert follows(here, shop, GOOD)
    counts = reads(tmp_path / "log")
    assert sum(counts.values()) <= len(counts) + KILLS
    assert len(counts) >= ROWS // rows


def is_equal(here: Location, shop: Any) -> bool:
    """Row for row, by sorted digests: there may be more than fit here twice."""
    import pyarrow.compute as pc

    shard = Records(client(here)).source("shop").shards[ITEMS]
    with client(here).open_reader(shard) as reader:
        table = reader.snapshot((client(here).recent_upper(shard).time or 0) - 1).to_arrow().sort_by("id")
    assert pc.min(table["diff"]).as_py() == pc.max(table["diff"]).as_py() == 1
    ids, names = (column.combine_chunks() for column in (table["id"], table["name"]))
    begin = 0
    for first in range(0, table.num_rows + 1, 500_000):
        there = shop.select(f"SELECT id, name FROM items ORDER BY id OFFSET {first} LIMIT 500000")
        same = slice(begin, begin + len(there))
        if [each[0] for each in there] != ids[same].to_pylist() or [x[1] for x in there] != names[same].to_pylist():
            return False
        begin += len(there)
    return begin == table.num_rows


def test_large_and_small_tables_begin_together_and_have_no_earlier_history(here: Location, shop: Any) -> None:
    made(shop)
    shop.run("CREATE TABLE more (id int PRIMARY KEY)", "INSERT INTO more SELECT generate_series(1, 12)")
    shop.run("CREATE TABLE bare (id int)", "INSERT INTO bare SELECT generate_series(1, 12)")
    tables = f"{ITEMS},{GOOD},public.more,public.bare"
    reported: list[int] = []
    source = create(
        here, "shop", "postgres", options(shop, tables=tables), interval_ms=1, pace=PACE, report=reported.append
    )
    assert sum(reported) == 30 + 12 + 12
    assert not source.troubles
    told = status(here, "shop")
    assert {each.state for each in told.exports.values()} == {"running"}
    least = min(each.upper or 0 for each in told.exports.values())
    for export, shard in source.shards.items():
        with client(here).open_reader(shard) as reader:
            assert reader.snapshot(least - 1).to_arrow().num_rows == shop.select(f"SELECT count(*) FROM {export}")[0][0]
            if export not in (GOOD, "public.bare"):
                with pytest.raises(NotReadable):
                    reader.snapshot((reader.since.time or 0) - 1)
    shop.run("UPDATE items SET id = id + 1", "DELETE FROM more", "DELETE FROM bare", "INSERT INTO good VALUES (1)")
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
    assert all(follows(here, shop, export) for export in source.exports)


def test_a_pipeline_goes_on_with_a_first_snapshot_that_was_broken_off(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(shop)

    class Enough(BaseException):
        pass

    def enough(*_: object, **__: object) -> None:
        raise Enough

    with monkeypatch.context() as broken:
        broken.setattr("persist_ingest.pipeline.creation.completed", enough)
        with pytest.raises(Enough):
            create(here, "shop", "postgres", options(shop), interval_ms=1, pace=PACE)
    assert status(here, "shop").exports[ITEMS].state == "snapshotting"
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        pipeline.watch.wait()
        pipeline.step()
        pipeline.step()
    assert follows(here, shop)
    resnapshot(here, "shop", ITEMS, pace=PACE)
    drop(here, "shop")
    assert shop.select(LEFT) == [(0, 0)]


def test_a_row_that_cannot_be_stored_leaves_nothing(here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "SILENT_MS", -1)
    shop.run("CREATE TABLE items (id int PRIMARY KEY, at timestamptz)", "CREATE TABLE good (id int PRIMARY KEY)")
    shop.run("INSERT INTO items SELECT i, '2024-01-01' FROM generate_series(1, 29) i")
    shop.run("INSERT INTO items VALUES (30, 'infinity')")
    with pytest.raises(BadRows, match="cannot be stored"):
        create(here, "shop", "postgres", options(shop), interval_ms=1, pace=PACE)
    with pytest.raises(SourceNotFound):
        Records(client(here)).source("shop")
    assert shop.select(LEFT) == [(0, 0)]
    shop.run("UPDATE items SET at = now()")
    create(here, "shop", "postgres", options(shop), interval_ms=1, pace=PACE)
    assert follows(here, shop)


def test_the_log_is_consumed_while_no_table_runs_yet(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("CREATE TABLE items (id int PRIMARY KEY, name text)")
    shop.run("INSERT INTO items SELECT i, 'n' || i FROM generate_series(1, 60) i")
    confirmed: list[Any] = []
    rows, release, released = pieces.TablePiece.rows, watching.Watch._release, threading.Semaphore(0)

    def told(self: watching.Watch, source: Source) -> None:
        release(self, source)
        confirmed.extend(shop.select(SLOT))
        released.release()

    def slowly(self: pieces.TablePiece) -> Any:
        for _ in range(2):
            assert released.acquire(timeout=60)
        with psycopg.connect(shop.dsn) as other:
            other.execute("UPDATE items SET name = name || '.' WHERE id % 7 = 0")
        yield from rows(self)

    with monkeypatch.context() as slow:
        slow.setattr(pieces.TablePiece, "rows", slowly)
        slow.setattr(watching.Watch, "_release", told)
        create(here, "shop", "postgres", options(shop, tables=ITEMS), interval_ms=1, pace=Pace(rows=10))
    assert follows(here, shop)
    assert len(set(confirmed)) > 3


def test_what_cannot_be_read_in_pieces_is_read_at_once(here: Location, shop: Any) -> None:
    made(shop)
    shop.run("CREATE PUBLICATION added FOR TABLE items WITH (publish = 'insert')")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "publication": "added"}, interval_ms=1)
    assert follows(here, shop)


def test_another_creation_ends_one_that_was_broken_off(here: Location, shop: Any) -> None:
    made(shop)
    given = json.dumps([here.directory, options(shop), "TablePiece.rows", 3, 5, "/dev/null"])
    assert run_program(textwrap.dedent(PROGRAM), given).returncode == -signal.SIGKILL
    with pytest.raises(PersistError):
        create(here, "shop", "loadgen", {}, interval_ms=1)
    drop(here, "shop")
    assert shop.select(LEFT) == [(0, 0)]
    create(here, "shop", "postgres", options(shop), interval_ms=1, pace=PACE)
    assert follows(here, shop)


def test_one_that_was_broken_off_and_cannot_go_on_stays_and_is_mended(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("CREATE TABLE items (id int PRIMARY KEY, at timestamptz)", "CREATE TABLE good (id int PRIMARY KEY)")
    shop.run("INSERT INTO items SELECT i, '2024-01-01' FROM generate_series(1, 29) i")
    given = json.dumps([here.directory, options(shop), "TablePiece.rows", 3, 5, "/dev/null"])
    assert run_program(textwrap.dedent(PROGRAM), given).returncode == -signal.SIGKILL
    monkeypatch.setattr(watching, "SILENT_MS", -1)
    monkeypatch.setattr(again, "SILENT_MS", -1)
    shop.run("INSERT INTO items VALUES (30, 'infinity')")
    with pytest.raises(BadRows, match="cannot be stored"):
        create(here, "shop", "postgres", options(shop), interval_ms=1, pace=PACE)
    assert status(here, "shop").exports[ITEMS].state == "stalled"
    shop.run("UPDATE items SET at = now()", "INSERT INTO good VALUES (1)")
    resnapshot(here, "shop", ITEMS, pace=PACE)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
    assert follows(here, shop)
    assert follows(here, shop, GOOD)
