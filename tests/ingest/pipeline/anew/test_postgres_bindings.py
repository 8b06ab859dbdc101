"""While a table is read anew, the others' bindings are forgotten; from its first time on all of them are kept."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from ingest.pipeline.conftest import contents

from persist import Overloaded
from persist.client.binding import remap_shard
from persist_ingest import Location, Pace, Pipeline, PipelineOptions, create, resnapshot, status
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.pipeline import troubles
from persist_ingest.pipeline.anew import attempt
from persist_ingest.sources.postgres import pieces
from persist_ingest.sources.postgres import reader as reading
from persist_ingest.sources.postgres.making import again as making

OPTIONS = PipelineOptions(tick_ms=1, told_ms=10**9, commit_steps_late=0, forget_ms=0)
TABLES = ("public.a", "public.b")
MOST = 12


@pytest.fixture(autouse=True)
def looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(remap_shard, "BINDINGS_MAX", MOST)


@pytest.fixture
def pipeline(here: Location, shop: Any) -> Any:
    for table in ("a", "b"):
        shop.run(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)", f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        shop.run(f"INSERT INTO {table} SELECT i, 0 FROM generate_series(1, 20) i")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": ",".join(TABLES)}, interval_ms=1)
    with Pipeline(here, "shop", options=OPTIONS) as made:
        made.step()
        yield made


def stepping(pipeline: Pipeline, shop: Any, steps: int) -> Callable[[], None]:
    """Once, both tables change for so many steps."""
    todo = list(range(1, steps + 1))

    def steps_of() -> None:
        while todo:
            number = todo.pop()
            shop.run(f"UPDATE a SET n = {number} WHERE id < 5", f"UPDATE b SET n = {number} WHERE id < 3")
            pipeline.step()

    return steps_of


def follow(here: Location, shop: Any) -> bool:
    return all(contents(here, "shop", each) == Counter(shop.select(f"SELECT * FROM {each}")) for each in TABLES)


def test_a_long_snapshot_does_not_keep_bindings(
    here: Location, shop: Any, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, steps = pieces.TablePiece.rows, stepping(pipeline, shop, 3 * MOST)

    def between(self: pieces.TablePiece) -> Any:
        steps()
        yield from rows(self)

    monkeypatch.setattr(pieces.TablePiece, "rows", between)
    resnapshot(here, "shop", "public.a", pace=Pace(rows=5))
    pipeline.step()
    assert follow(here, shop)


def test_from_its_first_time_on_all_are_kept(
    here: Location, shop: Any, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, steps, found = attempt.Attempt._bound, stepping(pipeline, shop, MOST // 2), list[Any]()

    def then(self: attempt.Attempt, *given: Any) -> Any:
        trace = bound(self, *given)
        steps()
        found.append((trace.upper, self._minter.bindings(self._source.remap_source).since))
        return trace

    monkeypatch.setattr(attempt.Attempt, "_bound", then)
    resnapshot(here, "shop", "public.a", pace=Pace(rows=5))
    assert all(since.less_than(upper) for upper, since in found)
    pipeline.step()
    assert follow(here, shop)
    with Pipeline(here, "shop", options=OPTIONS) as again:
        shop.run("DELETE FROM a WHERE id = 7")
        again.step()
        assert follow(here, shop)


def test_a_source_with_as_many_as_there_may_be_goes_on(
    here: Location, shop: Any, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left so by what kept them for too long."""
    with monkeypatch.context() as before:
        before.setattr(troubles.Held, "by", lambda *_, **__: troubles.Held(bindings=True))
        with pytest.raises(Overloaded):
            stepping(pipeline, shop, 3 * MOST)()
    assert not troubles.snapshotted(pipeline.source)
    with pytest.raises(Overloaded):
        pipeline.step()
    pipeline.step()
    assert follow(here, shop)
    assert {each.state for each in status(here, "shop").exports.values()} == {"running"}


def test_a_column_that_goes_between_two_pieces_has_it_begun_anew(
    here: Location, shop: Any, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece, todo = making.TableAnew.piece, ["ALTER TABLE a DROP COLUMN more", ""]

    def later(self: making.TableAnew, *given: Any) -> Any:
        if todo and (next := todo.pop()):
            shop.run(next)
        return piece(self, *given)

    shop.run("ALTER TABLE a ADD COLUMN more text", "UPDATE a SET more = 'x' WHERE id = 3")
    pipeline.step()
    monkeypatch.setattr(making.TableAnew, "piece", later)
    resnapshot(here, "shop", "public.a", pace=Pace(rows=5))
    assert not todo
    pipeline.step()
    kept = Counter[Any]()
    for row, count in contents(here, "shop", "public.a").items():
        kept[row[:2]] += count
        assert row[2] is None
    assert kept == Counter(shop.select("SELECT * FROM a"))
