"""A table is altered while it is read anew, or just before: what is put into the export is what SELECT says."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
from ingest.pipeline.conftest import Shop, contents

from persist.testing import servers
from persist_ingest import (
    Location,
    Pace,
    Pipeline,
    PipelineOptions,
    Records,
    add_export,
    create,
    drop_export,
    resnapshot,
    status,
)
from persist_ingest.location import client
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.pipeline.anew import attempt, joining, watching
from persist_ingest.pipeline.troubles import SNAPSHOTTING, Trouble, amend, held, with_trouble
from persist_ingest.sources.postgres import pieces
from persist_ingest.sources.postgres import reader as reading
from persist_ingest.sources.postgres.making import again as making

OPTIONS = PipelineOptions(tick_ms=1, told_ms=10**9, commit_steps_late=0, forget_ms=10**9, pace=Pace(rows=5))
ITEMS, GOOD = "public.items", "public.good"
SLOT = (
    "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"
)


@pytest.fixture(autouse=True)
def looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)


def begun(here: Location, shop: Any, columns: str, rows: str, **options: str) -> None:
    shop.run(f"CREATE TABLE items ({columns})", "CREATE TABLE good (id int PRIMARY KEY)")
    shop.run(f"INSERT INTO items SELECT {rows} FROM generate_series(1, 30) i")
    given = {"dsn": shop.dsn, "tables": f"{ITEMS},{GOOD}", "setReplicaIdentity": "true", **options}
    create(here, "shop", "postgres", given, interval_ms=1)


def settled(here: Location) -> None:
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        for _ in range(2):
            pipeline.step()


def follows(here: Location, shop: Any, columns: str = "*") -> bool:
    return contents(here, "shop", ITEMS) == Counter(shop.select(f"SELECT {columns} FROM items"))


def states(here: Location) -> dict[str, str]:
    return {name: each.state for name, each in status(here, "shop", ask_upstream=False).exports.items()}


def read_anew(
    here: Location, monkeypatch: pytest.MonkeyPatch, before: dict[int, Callable[[], object]], most: int = 5
) -> list[Any]:
    """Snapshot it again, with something that happens before a piece; behind which key each piece began."""
    began: list[Any] = []
    piece = making.TableAnew.piece

    def opened(self: making.TableAnew, after: tuple[str, ...] | None, rows: int) -> AbstractContextManager[Any]:
        began.append(after)
        before.pop(len(began), lambda: None)()
        return piece(self, after, rows)

    with monkeypatch.context() as hooks:
        hooks.setattr(making.TableAnew, "piece", opened)
        resnapshot(here, "shop", ITEMS, pace=Pace(rows=most))
    assert not before
    return began


def test_pieces_of_another_order_are_read_from_the_begin(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows between two keys are others in the order of another collation, which rewrites nothing."""
    begun(here, shop, 'k text COLLATE "C" PRIMARY KEY, v int', "chr(64 + i) || i, i")
    altered = 'ALTER TABLE items ALTER COLUMN k TYPE text COLLATE "POSIX"'
    began = read_anew(here, monkeypatch, {4: lambda: shop.run(altered)})
    assert [at for at, after in enumerate(began, 1) if after is None] == [1, 5]
    settled(here)
    assert follows(here, shop)


def test_a_column_that_is_filled_before_the_log_begins_is_read(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration waits for the same writer as the snapshot, and commits before the position that this begins at."""
    begun(here, shop, "id int PRIMARY KEY, name text", "i, 'n' || i")
    waited = making._await_writers
    todo = ["BEGIN", "ALTER TABLE items ADD COLUMN more int", "UPDATE items SET more = id", "COMMIT"]

    def migrated(*given: Any) -> None:
        waited(*given)
        shop.run(*todo)
        todo.clear()

    monkeypatch.setattr(making, "_await_writers", migrated)
    resnapshot(here, "shop", ITEMS)
    settled(here)
    assert follows(here, shop)
    assert set(states(here).values()) == {"running"}


ALTERED = {
    "dropped": (["DROP COLUMN name"], "id, NULL, v"),
    "renamed": (["RENAME COLUMN name TO called"], "id, NULL, v, called"),
    "another type": (["ALTER COLUMN v TYPE text USING 'text ' || v"], "id, name, NULL, v"),
    "another key": (["DROP CONSTRAINT items_pkey", "ADD PRIMARY KEY (name, id)"], "*"),
}


@pytest.mark.parametrize("how", ALTERED)
def test_what_is_altered_between_two_pieces_is_read_from_its_begin(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    statements, columns = ALTERED[how]
    begun(here, shop, "id int PRIMARY KEY, name text, v int", "i, 'n' || i, i")
    began = read_anew(here, monkeypatch, {4: lambda: shop.run(*(f"ALTER TABLE items {each}" for each in statements))})
    assert [at for at, after in enumerate(began, 1) if after is None] == [1, 5]
    settled(here)
    assert follows(here, shop, columns)


@pytest.mark.parametrize("how", ["dropped", "another type", "another identity"])
def test_one_call_mends_a_source_that_was_at_rest(here: Location, shop: Any, how: str) -> None:
    """What stopped the table is read once more, as another is behind: it says nothing of the table any more."""
    begun(here, shop, "id int PRIMARY KEY, name text, v int", "i, 'n' || i, i")
    shop.run("UPDATE items SET v = v + 1", "INSERT INTO good VALUES (1)")
    statements, columns = ALTERED.get(how, (["REPLICA IDENTITY DEFAULT"], "*"))
    shop.run(*(f"ALTER TABLE items {each}" for each in statements))
    shop.run("UPDATE items SET v = v WHERE id < 9", "DELETE FROM items WHERE id = 9")
    shop.run("ALTER TABLE items REPLICA IDENTITY FULL")
    resnapshot(here, "shop", ITEMS)
    shop.run("DELETE FROM items WHERE id = 10", "INSERT INTO good VALUES (2)")
    settled(here)
    assert states(here) == {ITEMS: "running", GOOD: "running"}
    assert follows(here, shop, columns)
    assert contents(here, "shop", GOOD) == Counter([(1,), (2,)])


def test_columns_that_are_left_out_stay_so_when_their_table_comes_back(here: Location, shop: Any) -> None:
    begun(here, shop, "id int PRIMARY KEY, secret text", "i, 's'", excludeColumns="public.items.secret")
    drop_export(here, "shop", ITEMS)
    add_export(here, "shop", ITEMS)
    shop.run("UPDATE items SET secret = 'x', id = id + 100 WHERE id > 20")
    settled(here)
    assert follows(here, shop, "id")


def test_columns_that_are_left_out_stay_so_under_another_name(here: Location, shop: Any) -> None:
    begun(here, shop, "id int PRIMARY KEY, secret text", "i, 's'", excludeColumns="public.items.secret")
    shop.run("ALTER TABLE items RENAME COLUMN secret TO hidden")
    settled(here)
    assert states(here)[ITEMS] == "stalled"
    resnapshot(here, "shop", ITEMS)
    shop.run("ALTER TABLE items ADD COLUMN secret text", "UPDATE items SET secret = 'x', hidden = 'y' WHERE id > 20")
    settled(here)
    assert states(here)[ITEMS] == "running"
    assert follows(here, shop, "id")


@pytest.mark.parametrize("key", ["k vector(2), PRIMARY KEY (k)", "n int, k vector(2), PRIMARY KEY (n, k)"])
def test_keys_are_compared_by_the_operators_of_their_index(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Types of extensions have theirs in a schema that no session of a source looks into."""
    shop.run("CREATE EXTENSION vector")
    number = "i / 11, " if key.startswith("n") else ""
    begun(here, shop, f"{key}, v int", f"{number}('[' || i * 7 % 31 || ',2]')::vector, i")
    seen = []

    def rows(self: pieces.TablePiece) -> Iterator[Any]:
        seen.append(self.last)
        shop.run(
            f"UPDATE items SET v = v + 1 WHERE v % 5 = {len(seen) % 5}", f"DELETE FROM items WHERE v = {len(seen)}"
        )
        yield from read(self)

    read = pieces.TablePiece.rows
    monkeypatch.setattr(pieces.TablePiece, "rows", rows)
    read_anew(here, monkeypatch, {})
    settled(here)
    assert len(seen) > 4
    assert follows(here, shop, f"{'n, ' if number else ''}k::text, v")


def test_columns_that_a_primary_key_includes_are_no_part_of_it(here: Location, shop: Any) -> None:
    begun(here, shop, "id int, v int, j json, PRIMARY KEY (id) INCLUDE (v, j)", "i, nullif(i, 7), NULL::json")
    assert client(here).schema(Records(client(here)).source("shop").shards[ITEMS]).key.names == ["id"]
    resnapshot(here, "shop", ITEMS, pace=Pace(rows=5))
    settled(here)
    assert follows(here, shop)


def test_pieces_are_as_large_as_rows_are_now(here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics from when the table was nearly empty say how dense rows are, and not how many."""
    shop.run("CREATE TABLE items (id int PRIMARY KEY, t text) WITH (autovacuum_enabled = off)")
    shop.run("INSERT INTO items SELECT i, repeat('x', 1000) FROM generate_series(1, 5) i", "ANALYZE items")
    shop.run("INSERT INTO items SELECT i, repeat('x', 1000) FROM generate_series(6, 3000) i")
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 20)
    shop.run("ALTER TABLE items REPLICA IDENTITY FULL", "CREATE TABLE good (id int PRIMARY KEY)")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": ITEMS}, interval_ms=1)
    began = read_anew(here, monkeypatch, {}, most=50_000)
    assert 3 <= len(began) <= 6


def test_an_export_that_waits_its_turn_keeps_nothing_upstream(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that join are read one after the other; what they begin with is later than all that is released now."""
    monkeypatch.setattr(watching.Watch, "look", lambda self, source: None)
    begun(here, shop, "id int PRIMARY KEY, name text", "i, 'n'")
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
    shop.run("CREATE TABLE more (id int PRIMARY KEY)", "INSERT INTO more VALUES (1)")
    records = Records(client(here))
    source = records.source("shop")
    joining._add(client(here), records, source, joining._joins(source), "public.more")
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        moved: list[Sequence[Any]] = []
        for number in range(4):
            shop.run(f"INSERT INTO good VALUES ({number})")
            pipeline.step()
            moved += shop.select(SLOT)
    assert moved[0] != moved[-1]
    # One at work that has no position yet keeps everything, as it may have looked for that before.
    at_work = Trouble(state=SNAPSHOTTING, since_ms=1, attempt="one", beat_ms=1_000)
    claimed = amend(records, source, lambda found: with_trouble(found, "public.more", at_work))
    assert (held(claimed, 1_000), held(claimed, 1_001)) == (0, None)
    resnapshot(here, "shop", "public.more")
    shop.run("INSERT INTO more VALUES (2)")
    settled(here)
    assert contents(here, "shop", "public.more") == Counter([(1,), (2,)])


def test_a_server_that_restarts_within_a_piece_is_waited_for(here: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, count = pieces.TablePiece.rows, 0
    with servers.start_postgres({"wal_level": "logical"}) as server:
        shop = Shop(server, "postgres")
        begun(here, shop, "id int PRIMARY KEY, name text", "i, 'n' || i")

        def restarted(self: pieces.TablePiece) -> Iterator[Any]:
            nonlocal count
            count += 1
            if count == 3:
                server.kill()
                server.start()
            yield from rows(self)

        monkeypatch.setattr(pieces.TablePiece, "rows", restarted)
        resnapshot(here, "shop", ITEMS, pace=Pace(rows=5))
        shop = Shop(server, "postgres")
        shop.run("UPDATE items SET name = 'late' WHERE id % 4 = 0")
        settled(here)
        assert follows(here, shop)
        shop.close()
