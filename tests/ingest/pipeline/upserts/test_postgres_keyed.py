"""Tables whose replica identity is their primary key: what a row was is looked up; each step is what SELECT says."""

import random
from collections import Counter
from typing import Any

import psycopg
import pytest
from ingest.pipeline.conftest import contents
from simulation.budget import FULL, seeds

from persist_ingest import Location, Pace, Pipeline, PipelineOptions, Records, add_export, create, resnapshot, status
from persist_ingest.location import client
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.pipeline.anew import attempt
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.postgres import pieces
from persist_ingest.sources.postgres import reader as reading
from persist_ingest.sources.postgres.making import again as making
from persist_ingest.sources.postgres.making import beginning

OPTIONS = PipelineOptions(tick_ms=1, told_ms=10**9, commit_steps_late=0, forget_ms=10**9, pace=Pace(rows=5))
DOCS, GOOD = "public.docs", "public.good"
LARGE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 90) g WHERE g > s.i * 0)"


@pytest.fixture(autouse=True)
def looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)
    # Events of a few messages each, so that one step and one transaction have many.
    monkeypatch.setattr(reading, "_PEEK", reading._PEEK.replace("16777216", "5000"))


def begun(here: Location, shop: Any, **options: str) -> None:
    shop.run(
        "CREATE TABLE docs (name text, n int, body text, id int, other text, PRIMARY KEY (id, name))",
        "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL",
        "ALTER TABLE docs ALTER other SET STORAGE EXTERNAL",
        "CREATE TABLE good (id int PRIMARY KEY, t text)",
        f"INSERT INTO docs SELECT 'a', i, {LARGE}, i, {LARGE} FROM generate_series(1, 25) s(i)",
    )
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": f"{DOCS},{GOOD}", **options}, interval_ms=1)


def follows(here: Location, shop: Any, export: str = DOCS) -> bool:
    columns = "id, name, n, body, other" if export == DOCS else "*"
    rows = Counter[Any]()
    for row, count in contents(here, "shop", export).items():
        rows[row[:5]] += count
    return rows == Counter(shop.select(f"SELECT {columns} FROM {export}"))


def is_sound(here: Location) -> bool:
    return not any(each.negative for each in status(here, "shop", count_rows=True).counts.values())


class Acts:
    """Random transactions, most of which leave the large values as they are."""

    def __init__(self, shop: Any, seed: int) -> None:
        self.shop = shop
        self.random = random.Random(seed)
        self.columns = 0

    def __call__(self) -> None:
        statements = [self._one() for _ in range(self.random.randrange(1, 6))]
        if self.random.random() < 0.6:
            statements = ["BEGIN", *statements, "ROLLBACK" if self.random.random() < 0.1 else "COMMIT"]
        try:
            self.shop.run(*statements)
        except psycopg.errors.UniqueViolation:
            self.shop.run("ROLLBACK")

    def _one(self) -> str:
        low = self.random.randrange(1, 40)
        some = f"id BETWEEN {low} AND {low + self.random.randrange(12)}"
        kind = self.random.randrange(12)
        if kind < 3:
            return f"UPDATE docs SET n = n + 1 WHERE {some}"
        if kind == 3:
            return f"UPDATE docs SET body = {LARGE} FROM (SELECT {low} i) s WHERE {some}"
        if kind == 4:
            return f"UPDATE docs SET body = NULL WHERE {some} AND n % 3 = 0"
        if kind == 5:
            return f"UPDATE docs SET name = CASE name WHEN 'a' THEN 'b' ELSE 'a' END WHERE {some}"
        if kind == 6:
            # Keys go round, so that one takes the place of another within a statement.
            return f"UPDATE docs SET id = 1000 - id, n = n + 1 WHERE {some} OR id BETWEEN {1000 - low} AND 1000"
        if kind == 7:
            return f"UPDATE docs SET id = id - 500 WHERE id > 900 AND id < 960 + {low}"
        if kind == 8:
            return f"DELETE FROM docs WHERE {some} AND n % 2 = 0"
        if kind == 9 and self.random.random() < 0.3:
            return "TRUNCATE docs"
        return (
            f"INSERT INTO docs SELECT 'a', i, {LARGE}, i, {LARGE} FROM generate_series({low}, {low + 4}) s(i) "
            f"ON CONFLICT (id, name) DO UPDATE SET n = docs.n + 100"
        )


@pytest.mark.parametrize("seed", seeds(8))
def test_every_step_is_what_select_says(here: Location, shop: Any, seed: int) -> None:
    begun(here, shop)
    assert shop.select("SELECT relreplident::text FROM pg_class WHERE relname = 'docs'") == [("d",)]
    act = Acts(shop, seed)
    with Pipeline(here, "shop", options=OPTIONS) as one:
        for number in range(16 if FULL else 12):
            for _ in range(act.random.randrange(4)):
                act()
            if number == 8:
                shop.run("ALTER TABLE docs ADD COLUMN later int")
                shop.run("ALTER TABLE docs DROP COLUMN later") if seed % 2 else None
            one.step()
            if DOCS in Records(client(here)).source("shop").troubles:
                # The column came and went, or the table was emptied beside it.
                assert number == 8
                resnapshot(here, "shop", DOCS, pace=Pace(rows=7))
                one.step()
            assert follows(here, shop)
            if number % 6 == 5:
                # Another one, which knows nothing, and is first this time.
                act()
                with Pipeline(here, "shop", options=OPTIONS) as two:
                    two.step()
                assert follows(here, shop)
    assert is_sound(here)


def hooked(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Something happens between a piece's snapshot and its rows, and behind them."""
    high, rows = making.TableAnew.high, pieces.TablePiece.rows

    def later(self: making.TableAnew) -> Any:
        act()
        return high(self)

    def between(self: pieces.TablePiece) -> Any:
        act()
        yield from rows(self)

    monkeypatch.setattr(making.TableAnew, "high", later)
    monkeypatch.setattr(pieces.TablePiece, "rows", between)


@pytest.mark.parametrize("seed", seeds(6))
def test_it_is_read_in_pieces_while_it_changes(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(beginning, "AT_ONCE_BYTES", 0)
    act = Acts(shop, seed)
    quiet = act._one

    def one() -> str:
        # A row that comes from behind with values that are not sent cannot be known: the table is read once more.
        found = quiet()
        return found if "TRUNCATE" not in found and "SET id" not in found else one()

    monkeypatch.setattr(act, "_one", one)
    with monkeypatch.context() as hooks:
        hooked(hooks, act)
        begun(here, shop)
        with Pipeline(here, "shop", options=OPTIONS) as pipeline:
            pipeline.step()
            pipeline.step()
            assert follows(here, shop)
            resnapshot(here, "shop", DOCS, pace=Pace(rows=4))
            act()
            pipeline.step()
            pipeline.step()
    assert follows(here, shop)
    assert is_sound(here)


def test_a_row_that_comes_from_what_was_not_read_yet_with_values_that_are_not_sent(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(here, shop)
    todo = ["UPDATE docs SET id = 0 WHERE id = 24", "UPDATE docs SET id = 1 - id WHERE id = 23"]
    with monkeypatch.context() as hooks:
        hooked(hooks, lambda: shop.run(*([todo.pop()] if todo else [])))
        resnapshot(here, "shop", DOCS, pace=Pace(rows=5))
    assert not todo
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
    assert follows(here, shop)
    assert is_sound(here)


def test_full_may_come_and_go_and_another_key_stops_it(here: Location, shop: Any) -> None:
    begun(here, shop)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        shop.run("UPDATE docs SET n = 0 WHERE id < 5", "ALTER TABLE docs REPLICA IDENTITY FULL")
        shop.run("UPDATE docs SET n = 1, id = id + 100 WHERE id < 5", "DELETE FROM docs WHERE id = 7")
        pipeline.step()
        shop.run("ALTER TABLE docs REPLICA IDENTITY DEFAULT", "UPDATE docs SET n = 7 WHERE id < 9")
        pipeline.step()
        assert follows(here, shop)
        shop.run("INSERT INTO good VALUES (1)", "ALTER TABLE docs DROP CONSTRAINT docs_pkey, ADD PRIMARY KEY (id)")
        shop.run("DELETE FROM docs WHERE id = 10")
        pipeline.step()
        told = status(here, "shop").exports[DOCS]
        assert told.state == "stalled"
        assert "primary key" in told.error
        assert follows(here, shop, GOOD)
        # It said OK, and the next change stopped it again.
        with pytest.raises(SourceFailure, match="primary key") as refused:
            resnapshot(here, "shop", DOCS)
        assert "drop-table" in refused.value.hint
        shop.run("ALTER TABLE docs DROP CONSTRAINT docs_pkey, ADD PRIMARY KEY (id, name)")
        resnapshot(here, "shop", DOCS)
        shop.run("DELETE FROM docs WHERE id = 11")
        pipeline.step()
        pipeline.step()
        assert follows(here, shop)


def test_what_contradicts_what_is_held_is_not_written(here: Location, shop: Any) -> None:
    """The key is dropped and put back between two looks, and meanwhile a row comes twice."""
    begun(here, shop)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        before = contents(here, "shop", DOCS)
        shop.run(
            "ALTER TABLE docs DROP CONSTRAINT docs_pkey",
            "INSERT INTO docs (name, n, id) VALUES ('a', 100, 3)",
            "TRUNCATE docs",
            "INSERT INTO docs (name, n, id) VALUES ('a', 100, 3), ('a', 101, 3)",
            "TRUNCATE docs",
            "ALTER TABLE docs ADD PRIMARY KEY (id, name)",
            "INSERT INTO good VALUES (1)",
        )
        pipeline.step()
        told = status(here, "shop").exports[DOCS]
        assert told.state == "stalled"
        assert "has one already" in told.error
        assert contents(here, "shop", DOCS) == before
        resnapshot(here, "shop", DOCS)
        pipeline.step()
        assert follows(here, shop)


def test_a_table_joins_by_its_key_and_one_without_any_is_refused(here: Location, shop: Any) -> None:
    begun(here, shop)
    shop.run("CREATE TABLE more (id int PRIMARY KEY, t text)", "INSERT INTO more SELECT generate_series(1, 23)")
    shop.run("CREATE TABLE poor (id int)", "CREATE TABLE late (id int, PRIMARY KEY (id) DEFERRABLE)")
    add_export(here, "shop", "public.more", pace=Pace(rows=5))
    shop.run(
        "UPDATE more SET t = 'x' WHERE id < 4",
        "UPDATE more SET id = -id WHERE id > 20",
        "DELETE FROM more WHERE id = 9",
    )
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
    assert follows(here, shop, "public.more")
    for table in ("poor", "late"):
        with pytest.raises(SourceFailure, match="neither FULL nor its primary key"):
            add_export(here, "shop", f"public.{table}")


def test_full_stays_what_is_set_where_that_is_asked_for(here: Location, shop: Any) -> None:
    begun(here, shop, setReplicaIdentity="true")
    assert shop.select("SELECT relreplident::text FROM pg_class WHERE relname = 'docs'") == [("f",)]
    assert not any(table["by_key"] for table in Records(client(here)).source("shop").definition["tables"])
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        shop.run(
            "ALTER TABLE docs REPLICA IDENTITY DEFAULT", "DELETE FROM docs WHERE id = 3", "INSERT INTO good VALUES (1)"
        )
        pipeline.step()
        assert status(here, "shop").exports[DOCS].state == "stalled"
        resnapshot(here, "shop", DOCS)
        assert shop.select("SELECT relreplident::text FROM pg_class WHERE relname = 'docs'") == [("f",)]
