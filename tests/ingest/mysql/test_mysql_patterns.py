"""Tables of MariaDB that a source takes in as they come, by a pattern of their names."""

from collections.abc import Callable

import pytest
from ingest.mysql.conftest import Shop

from persist_ingest import Location, Pipeline, add_export, create, drop_export, status
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.pipeline.anew import attempt, watching
from persist_ingest.sources.tables.patterns import matches


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(watching, "JOIN_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)


def until(pipeline: Pipeline, holds: Callable[[], bool]) -> None:
    for _ in range(60):
        pipeline.step()
        pipeline.watch.wait()
        if holds():
            return
    raise AssertionError(pipeline.source)


def exports(here: Location, shop: Shop) -> dict[str, str]:
    told = status(here, "shop", ask_upstream=False).exports
    return {export.removeprefix(f"{shop.name}."): each.state for export, each in told.items()}


def test_tables_that_come_are_taken_in(here: Location, shop: Shop) -> None:
    shop.run(
        "CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)", "CREATE TABLE log_1 (id int PRIMARY KEY)"
    )
    options = {"tables": shop.export("*"), "excludeTables": f"{shop.export('log_*')}, {shop.export('_*')}"}
    create(here, "shop", "mysql", {**shop.options, **options}, interval_ms=1)
    with shop.pipeline(here) as pipeline:
        assert exports(here, shop) == {"a": "running"}
        shop.run(
            "CREATE TABLE b (id int PRIMARY KEY, name text)",
            "INSERT INTO b VALUES (1, 'x'), (2, 'y')",
            "CREATE TABLE log_2 (id int PRIMARY KEY)",
            "CREATE TABLE _b_new (id int PRIMARY KEY)",
            "CREATE VIEW v AS SELECT * FROM b",
            "CREATE TABLE `Odd*Name` (id int PRIMARY KEY)",
            "CREATE TABLE other (id int PRIMARY KEY) ENGINE = MyISAM",
        )
        until(pipeline, lambda: len(exports(here, shop)) == 4 and "snapshotting" not in exports(here, shop).values())
        assert exports(here, shop) == {"a": "running", "b": "running", "Odd*Name": "running", "other": "stalled"}
        assert "InnoDB" in status(here, "shop", ask_upstream=False).exports[shop.export("other")].error
        shop.run("UPDATE b SET name = 'z' WHERE id = 1", "DELETE FROM a")
        until(pipeline, lambda: shop.there(here, "b") == shop.rows("b") and not shop.there(here, "a"))
        # What was dropped from the source stays out, until it is asked for.
        drop_export(here, "shop", shop.export("b"))
        drop_export(here, "shop", shop.export("other"))
        for _ in range(5):
            pipeline.step()
            pipeline.watch.wait()
        assert exports(here, shop) == {"a": "running", "Odd*Name": "running"}
        add_export(here, "shop", shop.export("b"))
        until(pipeline, lambda: exports(here, shop).get("b") == "running")
        shop.run("INSERT INTO b VALUES (3, 'c')")
        until(pipeline, lambda: shop.there(here, "b") == shop.rows("b"))
    # As much after a restart.
    shop.run("CREATE TABLE late AS SELECT 7 AS id")
    with shop.pipeline(here) as pipeline:
        until(pipeline, lambda: exports(here, shop).get("late") == "running")
        assert shop.there(here, "late") == shop.rows("late")


def test_a_source_of_named_tables_takes_nothing_in(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE a (id int PRIMARY KEY)")
    with shop.source(here, "a") as pipeline:
        shop.run("CREATE TABLE b (id int PRIMARY KEY)")
        for _ in range(5):
            pipeline.step()
            pipeline.watch.wait()
        assert exports(here, shop) == {"a": "running"}


def test_patterns() -> None:
    assert matches(("d", "log_1"), [("d", "log_*")])
    assert matches(("d", "log_"), [("d", "log_*")])
    assert matches(("d", "a.b"), [("d", "*.b")])
    assert not matches(("d", "xlog_1"), [("d", "log_*")])
    assert not matches(("d", "axb"), [("d", "a.b")])
    assert not matches(("e", "log_1"), [("d", "*")])
