"""A reader of a table that stands still, as a frozen process does, keeps no other from altering it for long."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from ingest.pipeline.conftest import contents

from persist import PersistError
from persist_ingest import Location, Pipeline, PipelineOptions, create, resnapshot, status
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.pipeline.anew import attempt
from persist_ingest.sources.postgres import pieces, session, snapshot
from persist_ingest.sources.postgres.making import beginning

OPTIONS = PipelineOptions(tick_ms=1, told_ms=10**9, commit_steps_late=0, forget_ms=10**9)
ITEMS = "public.items"
ROWS = 40_000
ALTERED = "BEGIN; LOCK TABLE items IN ACCESS EXCLUSIVE MODE; COMMIT"
"""Waits as what alters it does, and leaves it as it is."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "HELD_SECONDS", 2.0)
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def alter(shop: Any) -> Iterator[Any]:
    """Alters the table, or fails when it takes 60 s."""
    with psycopg.connect(shop.dsn, autocommit=True) as other:
        other.execute("SET lock_timeout = '60s'")
        yield lambda: other.execute(ALTERED)


def begun(here: Location, shop: Any) -> None:
    """More rows than what lies between server and client takes in."""
    shop.run("CREATE TABLE items (id int PRIMARY KEY, name text)")
    shop.run("ALTER TABLE items ALTER COLUMN name SET STORAGE PLAIN", "ALTER TABLE items REPLICA IDENTITY FULL")
    shop.run(f"INSERT INTO items SELECT i, repeat('n', 1000) FROM generate_series(1, {ROWS}) i")
    made(here, shop)


def made(here: Location, shop: Any) -> None:
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": ITEMS}, interval_ms=1)


def test_who_stands_still_between_two_statements(
    here: Location, shop: Any, alter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pieces.TablePiece.rows
    stood: list[Any] = []

    def still(self: pieces.TablePiece) -> Any:
        if not stood:
            alter()
            stood.append(self)
        yield from rows(self)

    begun(here, shop)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        monkeypatch.setattr(pieces.TablePiece, "rows", still)
        resnapshot(here, "shop", ITEMS)
        _until_it_runs(here, pipeline)
    assert stood
    assert contents(here, "shop", ITEMS).total() == ROWS


@pytest.mark.parametrize("adbc", [True, False])
def test_who_stands_still_amid_rows(
    here: Location, shop: Any, alter: Any, monkeypatch: pytest.MonkeyPatch, adbc: bool
) -> None:
    rows = snapshot.SnapshotTask.rows
    ended: list[Any] = []

    def still(self: snapshot.SnapshotTask) -> Any:
        found = rows(self)
        yield next(found)
        if not ended:
            alter()
            ended.append("the lock was there no more")
            with pytest.raises(PersistError) as failed:
                list(found)
            raise failed.value
        yield from found

    monkeypatch.setattr(snapshot, "has_adbc", lambda: adbc)
    monkeypatch.setattr(snapshot, "TASK_BYTES", 1 << 30)
    monkeypatch.setattr(snapshot.SnapshotTask, "rows", still)
    monkeypatch.setattr(beginning, "AT_ONCE_BYTES", 1 << 40)
    with pytest.raises(PersistError):
        begun(here, shop)
    assert ended
    made(here, shop)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        _until_it_runs(here, pipeline)
    assert contents(here, "shop", ITEMS).total() == ROWS


def _until_it_runs(here: Location, pipeline: Pipeline) -> None:
    for _ in range(50):
        pipeline.step()
        if status(here, "shop").exports[ITEMS].state == "running":
            return
    raise AssertionError(status(here, "shop").exports[ITEMS])
