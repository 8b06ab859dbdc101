"""A source that is led elsewhere and back: nothing of the other server is read, and nothing has to be read anew."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ingest.pipeline.lives.put_back import (
    DSN,
    FAST,
    ITEMS,
    OTHERS,
    Upstream,
    copy_with_less,
    goes_on,
    outgrow,
    states,
    stepped,
)
from ingest.pipeline.lives.standbys import sql, until

from persist.sources import UpstreamRegressed
from persist.testing import servers
from persist_ingest import Location, Pipeline, Records, add_export, alter, resnapshot
from persist_ingest.location import client
from persist_ingest.pipeline.lives import losing
from persist_ingest.pipeline.lives.admitting import waiting
from persist_ingest.pipeline.troubles import SNAPSHOTTING, Trouble, amend, with_trouble
from persist_ingest.sources.lives import HistoryLost
from persist_ingest.sources.postgres.making import again
from persist_ingest.sources.postgres.session import check_dsn, let_go


def test_tables_go_on_once_dsn_is_altered_back_to_their_server(here: Location, shop: Upstream) -> None:
    with copy_with_less(here, shop, shop.dsn) as copy:
        wrong = shop.dsn.replace(str(shop.server.port), str(copy.port))
        alter(here, "shop", {"dsn": wrong})
        with pytest.raises(UpstreamRegressed, match="persist source status"):
            stepped(here)
        let_go(check_dsn(wrong))
        assert states(here) == {ITEMS: "stalled", OTHERS: "stalled"}
    alter(here, "shop", {"dsn": shop.dsn})
    goes_on(here, shop)


class Died(BaseException):
    """As kill -9 does."""


def test_tables_go_on_although_those_who_had_them_stand_aside_died_amid_it(
    here: Location, shop: Upstream, led: Callable[[servers.Server], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    led(shop.server)
    with copy_with_less(here, shop, DSN) as copy:
        led(copy)
        for step in ("set_aside", "_stalled"):
            done = getattr(losing, step)

            def dies(*given: Any, done: Callable[..., None] = done) -> None:
                done(*given)
                raise Died

            with monkeypatch.context() as patched:
                patched.setattr(losing, step, dies)
                with pytest.raises(Died):
                    stepped(here)
        assert states(here) == {ITEMS: "stalled", OTHERS: "stalled"}
        led(shop.server)
        goes_on(here, shop)


def test_none_goes_on_by_itself_once_a_person_has_one_of_them_read_anew(
    here: Location, shop: Upstream, led: Callable[[servers.Server], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that needs of the log is another part than they need."""
    led(shop.server)
    with copy_with_less(here, shop, DSN) as copy:
        led(copy)
        with pytest.raises(UpstreamRegressed):
            stepped(here)
        led(shop.server)
        records, piece = Records(client(here)), again.TableAnew.piece
        assert sorted(waiting(records, records.source("shop"))) == [ITEMS, OTHERS]

        def opened(*given: Any) -> Any:
            assert waiting(records, records.source("shop")) == []
            return piece(*given)

        monkeypatch.setattr(again.TableAnew, "piece", opened)
        resnapshot(here, "shop", ITEMS)
        assert states(here) == {ITEMS: "running", OTHERS: "stalled"}
        resnapshot(here, "shop", OTHERS)
        goes_on(here, shop)


def abandoned(here: Location) -> None:
    """Snapshots of both tables, with which the next pipeline goes on."""
    left = Trouble(state=SNAPSHOTTING, since_ms=0)
    records = Records(client(here))
    amend(records, records.source("shop"), lambda now: with_trouble(with_trouble(now, ITEMS, left), OTHERS, left))


@contextlib.contextmanager
def running(here: Location) -> Iterator[None]:
    with Pipeline(here, "shop", options=FAST) as pipeline:

        def run() -> None:
            with contextlib.suppress(UpstreamRegressed, HistoryLost):
                pipeline.run()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            pipeline.stop()
            thread.join()


def test_snapshots_that_are_gone_on_with_read_nothing_of_a_copy(
    here: Location, shop: Upstream, led: Callable[[servers.Server], None]
) -> None:
    """No table runs that would show it: only what was bound does, and later what is recorded of that."""
    led(shop.server)
    with copy_with_less(here, shop, DSN) as copy:
        led(copy)
        for _ in range(2):
            abandoned(here)
            with running(here):
                until(lambda: set(states(here).values()) == {"stalled"})
            outgrow(copy)
        sql(copy, "CREATE TABLE more (id int PRIMARY KEY)")
        with pytest.raises(HistoryLost):
            add_export(here, "shop", "public.more")
        assert "public.more" not in states(here)
        led(shop.server)
        for export in (ITEMS, OTHERS):
            resnapshot(here, "shop", export)
        goes_on(here, shop)
