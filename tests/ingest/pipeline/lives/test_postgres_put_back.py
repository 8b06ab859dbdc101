"""Files of a server that are put back: rows of both histories are nowhere beside one another."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ingest.pipeline.conftest import contents
from ingest.pipeline.lives.put_back import ITEMS, OTHERS, Upstream, begun, stepped, upstream

from persist.sources import UpstreamRegressed
from persist_ingest import Location, Pace, resnapshot
from persist_ingest.pipeline.anew import attempt
from persist_ingest.pipeline.anew.attempt import SnapshotLost
from persist_ingest.sources.postgres.making import again


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Upstream]:
    with upstream(tmp_path) as made:
        yield made


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


def lose_history(shop: Upstream) -> None:
    """What pieces read of before, and what is not there any more afterwards."""
    shop.run("UPDATE items SET name = 'lost' WHERE id <= 40", "INSERT INTO items VALUES (0, 'lost')")
    shop.grow(1000)


def test_a_snapshot_in_pieces_ends_where_a_pipeline_saw_that_files_were_put_back(
    here: Location, shop: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(here, shop.dsn)
    shop.kept()
    lose_history(shop)
    stepped(here)

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


def test_a_snapshot_in_pieces_begins_anew_that_sees_itself_that_files_were_put_back(
    here: Location, shop: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is shorter than at the piece before, and past it by the end of the snapshot."""
    begun(here, shop.dsn)
    shop.kept()
    lose_history(shop)
    stepped(here)
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

    monkeypatch.setattr(again.TableAnew, "high", grown)
    before_piece(monkeypatch, 3, put_back)
    resnapshot(here, "shop", ITEMS, pace=Pace(rows=20))
    stepped(here)
    assert contents(here, "shop", ITEMS) == shop.rows(ITEMS)
