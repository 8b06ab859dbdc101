"""Tables are read anew piece by piece while they change: no row is doubled or missing, whenever and whatever dies."""

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from forked import run_program
from ingest.pipeline.anew.killing import reads
from ingest.pipeline.anew.slots import SLOT
from ingest.pipeline.conftest import contents
from simulation.budget import seeds

from persist import InvalidArgument, PersistError, VersionMismatch
from persist.sources import SILENT_MS, UpstreamRegressed
from persist_ingest import (
    Location,
    Pace,
    Pipeline,
    PipelineOptions,
    Records,
    add_export,
    create,
    drop,
    drop_export,
    resnapshot,
    status,
)
from persist_ingest.location import client
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.pipeline import records as recording
from persist_ingest.pipeline.anew import again, attempt, joining, watching
from persist_ingest.pipeline.lives.losing import Losses
from persist_ingest.pipeline.troubles import troubles
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.postgres import pieces
from persist_ingest.sources.postgres import reader as reading
from persist_ingest.sources.postgres.making import again as making
from persist_ingest.sources.registry import pulled_type

OPTIONS = PipelineOptions(tick_ms=1, told_ms=10**9, commit_steps_late=0, forget_ms=10**9, pace=Pace(rows=5))
ITEMS, GOOD = "public.items", "public.good"


@pytest.fixture(autouse=True)
def looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)


def begun(here: Location, shop: Any, columns: str = "id int PRIMARY KEY, name text", rows: int = 30) -> None:
    shop.run(f"CREATE TABLE items ({columns})", "CREATE TABLE good (id int PRIMARY KEY)")
    if rows:
        shop.run(f"INSERT INTO items SELECT i * 10, 'n' || i FROM generate_series(1, {rows}) i")
    options = {"dsn": shop.dsn, "tables": f"{ITEMS},{GOOD}", "setReplicaIdentity": "true"}
    create(here, "shop", "postgres", options, interval_ms=1)


def follows(here: Location, shop: Any, export: str = ITEMS) -> bool:
    return bool(contents(here, "shop", export) == Counter(shop.select(f"SELECT * FROM {export}")))


def settled(here: Location, steps: int = 3) -> None:
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        for _ in range(steps):
            pipeline.step()


def hooked(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], *, inside: bool = True) -> None:
    """Something happens between a piece's snapshot and its rows, and between those and the position behind them.

    ``inside``: the former, too, when the table is locked against what takes it whole.
    """
    high, rows = making.TableAnew.high, pieces.TablePiece.rows

    def later(self: making.TableAnew) -> Any:
        act()
        return high(self)

    def between(self: pieces.TablePiece) -> Iterator[Any]:
        act()
        yield from rows(self)

    monkeypatch.setattr(making.TableAnew, "high", later)
    if inside:
        monkeypatch.setattr(pieces.TablePiece, "rows", between)


class Model:
    """What the table held after each commit, and random transactions, of which one is open for long."""

    def __init__(self, shop: Any, seed: int) -> None:
        self.shop = shop
        self.random = random.Random(seed)
        self.states: list[tuple[int, Counter[Any]]] = []
        self.long = psycopg.connect(shop.dsn)
        self.is_open = False

    def act(self) -> None:
        for _ in range(self.random.randrange(3)):
            self._one()
            self.note()

    def note(self) -> None:
        """Nothing else writes: so this is what the log up to here comes to."""
        [(lsn,)] = self.shop.select("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
        self.states.append((lsn, Counter(self.shop.select("SELECT * FROM items"))))

    def end_long(self) -> None:
        """Commit what is open for long: a state of its own."""
        self.long.commit()
        self.is_open = False
        self.note()

    def at(self, lsn: int) -> Counter[Any]:
        return [state for known, state in self.states if known <= lsn][-1]

    def _one(self) -> None:
        low = self.random.randrange(1, 330)
        kind = self.random.randrange(9)
        # The long one has the odd keys for itself.
        even = f"id BETWEEN {low} AND {low + 40} AND id % 2 = 0"
        if kind < 2:
            self.shop.run(f"INSERT INTO items VALUES ({low * 2}, 'new') ON CONFLICT DO NOTHING")
        elif kind < 4:
            self.shop.run(f"UPDATE items SET name = name || '.' WHERE {even}")
        elif kind == 4:
            self.shop.run(f"DELETE FROM items WHERE {even} AND id % 3 = 0")
        elif kind == 5:
            free = "NOT EXISTS (SELECT FROM items o WHERE o.id = 660 - items.id)"
            self.shop.run(f"UPDATE items SET id = 660 - id WHERE {even} AND {free}")
        elif kind == 6:
            self.shop.run("BEGIN", f"DELETE FROM items WHERE {even}", "ROLLBACK")
        elif self.is_open:
            self.end_long()
        else:
            self.is_open = True
            self.long.execute(f"INSERT INTO items VALUES ({low * 2 + 1}, 'long') ON CONFLICT DO NOTHING".encode())
            self.long.execute(
                f"UPDATE items SET name = name || '!' WHERE id BETWEEN {low} AND 900 AND id % 2 = 1".encode()
            )


@pytest.mark.parametrize("seed", seeds(4))
def test_every_time_is_what_select_said_while_pieces_were_read(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    begun(here, shop)
    model = Model(shop, seed)
    model.note()
    # Such as are open when it begins are waited for.
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:

        def act() -> None:
            model.act()
            if model.random.random() < 0.4:
                pipeline.step()

        with monkeypatch.context() as hooks:
            begin = making.TableAnew.begin

            def alone(self: making.TableAnew) -> Any:
                model.end_long()
                return begin(self)

            hooks.setattr(making.TableAnew, "begin", alone)
            hooked(hooks, act)
            source = resnapshot(here, "shop", ITEMS, pace=Pace(rows=5), report=lambda rows: act())
        model.end_long()
        for _ in range(3):
            pipeline.step()
    assert follows(here, shop)
    minter = client(here).minter()
    trace = minter.bindings(source.remap_source)
    minter.close()
    shard = source.shards[ITEMS]
    # The first time at which it holds what was read is the one at which all of it changed.
    with client(here).open_reader(shard) as reader:
        upper = client(here).recent_upper(shard).time or 0
        changed: list[int] = [each or 0 for each in reader.diffs([0], [upper]).to_arrow()["ts"].to_pylist()]
        moved = max(changed, default=0)
        times = [each for each in trace.bindings if each.ts < upper and each.ts >= moved]
        assert times
        for binding in times:
            table = reader.snapshot(binding.ts).to_arrow()
            rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
            assert Counter({row[:-1]: row[-1] for row in rows}) == model.at(binding.frontier.bound(0) or 0)
    model.long.close()


KEYS = {
    "int": ("bigint", "(i * 7919) % 1000 - 500"),
    "text": ("text", "chr(64 + i % 40) || (i % 7)::text || '%''\\' || i"),
    "padded": ("char(9)", "chr(97 + i % 20) || i"),
    "numeric": ("numeric(12,3)", "i * 1.5 - 20"),
    "free numeric": ("numeric", "(i * 1.5 - 20)::numeric"),
    "float": ("float8", "i / 7.0 - 2"),
    "date": ("date", "'2024-01-01'::date + i * 13"),
    "instant": ("timestamptz", "'1969-12-01'::timestamptz + i * interval '3.000001 days'"),
    "moment": ("timestamp", "'2024-01-01'::timestamp + i * interval '1.000007 h'"),
    "time": ("time", "'00:00'::time + i * interval '11.5 min'"),
    "bytes": ("bytea", "decode(lpad(to_hex(i * 37 % 256), 2, '0') || '5c27', 'hex') || int4send(i)"),
    "uuid": ("uuid", "md5(i::text)::uuid"),
    "enum": ("mood", "('m' || i)::mood"),
    "inet": ("inet", "'10.0.0.0'::inet + i * 77"),
    "bool and int": ("bool, k2 int", "i % 2 = 0, -i"),
    "text and text": ("text, k2 text", "'g' || i % 3, 'h' || -i"),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_have_the_servers_order(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    declared, value = KEYS[kind]
    names = "k, k2" if "k2" in declared else "k"
    labels = ", ".join(f"'m{number * 17 % 60}'" for number in range(60))
    shop.run(f"CREATE TYPE mood AS ENUM ({labels})", "SET extra_float_digits = 1")
    begun(here, shop, f"k {declared}, v int, i int, PRIMARY KEY ({names})", 0)
    shop.run(f"INSERT INTO items SELECT {value}, 0, i FROM generate_series(1, 40) i")
    settled(here, 1)
    count = 0

    def act() -> None:
        nonlocal count
        count += 1
        shop.run(
            f"UPDATE items SET v = v + 1 WHERE i % 5 = {count % 5}",
            f"DELETE FROM items WHERE i % 7 = {count % 7} AND i <= 40",
            f"INSERT INTO items SELECT {value}, {count}, i FROM generate_series(1, 40) i "
            f"WHERE i % 7 = {(count - 1) % 7} ON CONFLICT DO NOTHING",
        )

    with monkeypatch.context() as hooks:
        hooked(hooks, act)
        resnapshot(here, "shop", ITEMS, pace=Pace(rows=9))
    settled(here, 2)
    shown = f"{names.replace('k', 'k::text', 1)}, v, i"
    by_number = {row[-1]: row[-2] for row in shop.select(f"SELECT {shown} FROM items")}
    found = contents(here, "shop", ITEMS)
    assert {row[-1]: row[-2] for row in found} == by_number
    assert set(found.values()) == {1}
    assert count > 8, "pieces"


def test_a_table_without_a_key_is_one_piece(here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(here, shop, "id int, name text")
    shop.run("INSERT INTO items SELECT * FROM items WHERE id < 100")
    with monkeypatch.context() as hooks:
        hooked(hooks, lambda: shop.run("INSERT INTO items VALUES (1, NULL)", "DELETE FROM items WHERE id = 40"))
        resnapshot(here, "shop", ITEMS, pace=Pace(rows=5))
    settled(here, 2)
    assert follows(here, shop)


def test_what_is_emptied_or_altered_on_the_way_is_read_from_its_begin(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(here, shop)
    todo = [
        ["TRUNCATE items", "INSERT INTO items SELECT i, 'fresh' FROM generate_series(1, 22) i"],
        [],
        ["ALTER TABLE items ADD COLUMN more int DEFAULT 3"],
        ["BEGIN", "TRUNCATE items", "INSERT INTO items SELECT i, 'again' FROM generate_series(1, 12) i", "COMMIT"],
        ["VACUUM FULL items", "UPDATE items SET name = 'moved' WHERE id > 6"],
        ["ALTER TABLE items ADD COLUMN late text", "UPDATE items SET late = 'x' WHERE id = 2"],
    ]
    with monkeypatch.context() as hooks:
        hooked(hooks, lambda: shop.run(*(todo.pop(0) if todo else [])), inside=False)
        resnapshot(here, "shop", ITEMS, pace=Pace(rows=5))
    assert not todo
    settled(here)
    assert follows(here, shop)


PROGRAM = """
import json, sys
from ingest.pipeline.anew.killing import killed_at
from persist_ingest import Location, Pace, resnapshot
from persist_ingest.pipeline.anew import again

again.SILENT_MS = -1
directory, place, number, log = json.loads(sys.argv[1])
killed_at(place, number, log)
resnapshot(Location(directory=directory), "shop", "public.items", pace=Pace(rows=5))
"""
PLACES = [
    ("Attempt._save", 1),
    ("WriteHandle.compare_and_append_batches", 3),
    ("WriteHandle.compare_and_append_batches.after", 4),
    ("Attempt._save", 8),
    ("attempt.carry_out", 1),
    ("attempt.carry_out.after", 1),
    ("attempt.discard", 1),
    ("attempt.discard.after", 1),
]


def test_one_that_is_killed_anywhere_again_and_again_reads_anew_only_the_piece_it_was_at(
    here: Location, shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "SILENT_MS", -1)
    monkeypatch.setattr(watching, "SILENT_MS", 10**9)
    begun(here, shop, rows=90)
    held = []
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        for number, (place, count) in enumerate(PLACES):
            given = json.dumps([here.directory, place, count, str(tmp_path / "log")])
            done = run_program(PROGRAM, given)
            assert done.returncode == -signal.SIGKILL, (place, done.stderr)
            shop.run(
                f"UPDATE items SET name = name || '{number}' WHERE id % 30 = 0",
                f"INSERT INTO items VALUES ({number * 50 + 5}, 'k')",
                f"DELETE FROM items WHERE id = {number * 40 + 10}",
            )
            for _ in range(3):
                pipeline.step()
            held += shop.select(SLOT)
            told = status(here, "shop", ask_upstream=False).exports[ITEMS]
            assert told.state == "snapshotting"
        assert held[-1] > held[2], "the log goes on meanwhile"
        assert Records(client(here)).raw()["shop"]["version"] == 4
        resnapshot(here, "shop", ITEMS)
    settled(here)
    assert follows(here, shop)
    assert follows(here, shop, GOOD)
    assert len(reads(tmp_path / "log")) > 10


def test_who_lost_a_snapshot_to_another_leaves_it_to_that_one_for_longer(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "SILENT_MS", -1)
    begun(here, shop)
    rows, main, begins, goes_on = (
        pieces.TablePiece.rows,
        threading.current_thread(),
        threading.Event(),
        threading.Event(),
    )

    def slow(self: pieces.TablePiece) -> Any:
        if threading.current_thread() is not main:
            begins.set()
            goes_on.wait()
        yield from rows(self)

    class Enough(Exception):
        pass

    def enough(rows: int) -> None:
        raise Enough

    def left() -> None:
        with pytest.raises(Enough):
            resnapshot(here, "shop", ITEMS, pace=Pace(rows=5), report=enough)

    left()
    monkeypatch.setattr(pieces.TablePiece, "rows", slow)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        begins.wait()
        resnapshot(here, "shop", ITEMS)
        goes_on.set()
        pipeline.watch.wait()
        assert pipeline.watch.silent_ms(ITEMS) == 2 * SILENT_MS
        left()
        pipeline.step()
        pipeline.watch.wait()
        assert pipeline.watch.silent_ms(ITEMS) == SILENT_MS
        pipeline.step()
    assert follows(here, shop)


def test_a_pipeline_goes_on_with_what_was_left_and_the_status_says_how_far_it_is(here: Location, shop: Any) -> None:
    begun(here, shop)

    class Enough(Exception):
        pass

    def enough(rows: int) -> None:
        progress = status(here, "shop", ask_upstream=False).exports[ITEMS].progress
        if progress is not None and progress.pieces == 3:
            raise Enough

    with pytest.raises(Enough):
        resnapshot(here, "shop", ITEMS, pace=Pace(rows=5), report=enough)
    progress = status(here, "shop", ask_upstream=False).exports[ITEMS].progress
    assert progress is not None
    assert (progress.pieces, progress.rows) == (3, 15)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        shop.run("UPDATE items SET name = 'x' WHERE id % 20 = 0", "INSERT INTO good VALUES (1)")
        pipeline.step()
        pipeline.watch.wait()
        assert status(here, "shop", ask_upstream=False).exports[ITEMS].state == "running"
        pipeline.step()
        pipeline.step()
    assert follows(here, shop)
    assert follows(here, shop, GOOD)
    assert Records(client(here)).raw()["shop"]["version"] == 3


def test_earlier_releases_do_not_read_a_record_of_a_snapshot_under_way(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(here, shop)

    def refused(rows: int) -> None:
        with monkeypatch.context() as older:
            older.setattr(recording, "PIECEWISE", 3)
            with pytest.raises(VersionMismatch):
                Records(client(here)).source("shop")

    resnapshot(here, "shop", ITEMS, pace=Pace(rows=20), report=refused)


def test_dropping_the_source_ends_a_snapshot_and_leaves_nothing_of_it(here: Location, shop: Any) -> None:
    begun(here, shop)

    staged: list[str] = []

    def dropped(rows: int) -> None:
        if not staged:
            staged.append(Records(client(here)).source("shop").troubles[ITEMS]["progress"]["staging"])
            drop(here, "shop")

    with pytest.raises(PersistError):
        resnapshot(here, "shop", ITEMS, pace=Pace(rows=5), report=dropped)
    assert client(here).recent_upper(staged[0]).is_empty


def test_a_history_that_is_lost_ends_a_snapshot_and_leaves_nothing_of_it(here: Location, shop: Any) -> None:
    begun(here, shop)
    records, staged = Records(client(here)), list[str]()
    error = UpstreamRegressed("it has less than was bound", hint="files were put back")

    def lost(rows: int) -> None:
        source = records.source("shop")
        if not staged:
            staged.append(source.troubles[ITEMS]["progress"]["staging"])
            watch = watching.Watch(here, "shop", minter="", pace=Pace())
            losses = Losses(client(here), records)
            losses.keep_in_mind(source, pulled_type(source.type, "shop"), None, error, watch.discard)
            watch.close()

    with pytest.raises(PersistError):
        resnapshot(here, "shop", ITEMS, pace=Pace(rows=5), report=lost)
    assert client(here).recent_upper(staged[0]).is_empty
    assert {each.state for each in troubles(records.source("shop")).values()} == {"stalled"}
    resnapshot(here, "shop", ITEMS, pace=Pace(rows=5))
    resnapshot(here, "shop", GOOD)
    settled(here)
    assert follows(here, shop)


def test_tables_join_and_leave_while_the_source_runs(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(here, shop)
    shop.run(
        "CREATE TABLE more (id int PRIMARY KEY, t text)", "INSERT INTO more SELECT i, 'm' FROM generate_series(1, 23) i"
    )
    with Pipeline(here, "shop", options=OPTIONS) as one, Pipeline(here, "shop", options=OPTIONS) as two:
        for each in (one, two):
            each.step()

        def at_work(rows: int) -> None:
            shop.run("UPDATE more SET t = t || '.' WHERE id % 4 = 0")
            one.step()

        claimed = again.read_anew

        def looked_at_first(*given: Any, **named: Any) -> Any:
            # A pipeline that sees it in the record leaves it to who put it there.
            one.step()
            one.watch.wait()
            return claimed(*given, **named)

        with monkeypatch.context() as hooks:
            hooks.setattr(joining, "read_anew", looked_at_first)
            source = add_export(here, "shop", "public.more", pace=Pace(rows=5), report=at_work)
        assert set(source.exports) == {ITEMS, GOOD, "public.more"}
        shop.run("DELETE FROM more WHERE id = 3", "INSERT INTO good VALUES (1)", "UPDATE items SET name = 'y'")
        for each in (one, two, one, two):
            each.step()
        for export in source.exports:
            assert follows(here, shop, export)
        with pytest.raises(InvalidArgument, match="already"):
            add_export(here, "shop", "public.more")
        with pytest.raises(InvalidArgument, match="no such table"):
            add_export(here, "shop", "public.moor")
        first = source.exports["public.more"]
        drop_export(here, "shop", "public.more")
        shop.run("INSERT INTO more VALUES (100, 'unseen')", "INSERT INTO good VALUES (2)")
        for each in (one, two):
            each.step()
        assert set(status(here, "shop").exports) == {ITEMS, GOOD}
        assert follows(here, shop, GOOD)
        assert shop.select("SELECT tablename FROM pg_publication_tables ORDER BY 1") == [("good",), ("items",)]
        assert client(here).recent_upper(first).is_empty
        again_there = add_export(here, "shop", "public.more")
        assert again_there.exports["public.more"] != first
        shop.run("DELETE FROM more WHERE id < 10")
        for each in (one, two, one, two):
            each.step()
        assert follows(here, shop, "public.more")
        drop_export(here, "shop", ITEMS)
        drop_export(here, "shop", "public.more")
        with pytest.raises(InvalidArgument, match="one export"):
            drop_export(here, "shop", GOOD)
    drop(here, "shop")


@pytest.mark.parametrize("published", ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public"])
def test_a_source_of_a_whole_publication_takes_new_tables_in(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch, published: str
) -> None:
    monkeypatch.setattr(watching, "JOIN_SECONDS", 0.0)
    shop.run("CREATE TABLE good (id int PRIMARY KEY)", "ALTER TABLE good REPLICA IDENTITY FULL")
    shop.run(f"CREATE PUBLICATION everything {published}")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "publication": "everything"}, interval_ms=1)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:

        def worked() -> None:
            for _ in range(4):
                pipeline.step()
                pipeline.watch.wait()

        pipeline.step()
        shop.run("CREATE TABLE fine (id int PRIMARY KEY, t text)", "ALTER TABLE fine REPLICA IDENTITY FULL")
        shop.run("CREATE TABLE poor (id int)", "INSERT INTO fine SELECT i, 'f' FROM generate_series(1, 17) i")
        worked()
        told = status(here, "shop").exports
        assert {name: each.state for name, each in told.items()} == {
            "public.fine": "running", GOOD: "running", "public.poor": "stalled",
        }  # fmt: skip
        assert "REPLICA IDENTITY FULL" in told["public.poor"].hint
        shop.run(
            "ALTER TABLE poor REPLICA IDENTITY FULL", "INSERT INTO poor VALUES (1)", "DELETE FROM fine WHERE id = 4"
        )
        resnapshot(here, "shop", "public.poor")
        worked()
        for export in told:
            assert follows(here, shop, export)
        # What is dropped is not taken in again.
        drop_export(here, "shop", "public.poor")
        worked()
        assert set(status(here, "shop").exports) == {"public.fine", GOOD}
    drop(here, "shop")


def test_a_table_that_cannot_join_is_refused_whole(here: Location, shop: Any) -> None:
    shop.run("CREATE TABLE good (id int PRIMARY KEY)", "ALTER TABLE good REPLICA IDENTITY FULL")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": GOOD}, interval_ms=1)
    shop.run("CREATE TABLE poor (id int)")
    with pytest.raises(SourceFailure, match="replica identity"):
        add_export(here, "shop", "public.poor")
    assert set(Records(client(here)).source("shop").exports) == {GOOD}
