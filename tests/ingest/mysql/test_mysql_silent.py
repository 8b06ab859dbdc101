"""A MariaDB that stands still, as a frozen machine does, is not waited for without end, nor against being stopped."""

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from ingest.mysql.conftest import Shop

from persist import Indeterminate, LocationError
from persist_ingest import Location, Pipeline
from persist_ingest.sources.mysql import session
from persist_ingest.sources.mysql.session import MySqlConnection, Server
from persist_ingest.sources.tables import silence
from persist_ingest.sources.tables.silence import ended_by

JOIN_SECONDS = 60.0


@pytest.fixture
def freeze(shop: Shop) -> Iterator[Callable[[], None]]:
    """Make the server stand still, until the test ends."""
    yield lambda: os.kill(shop.server.pid, signal.SIGSTOP)
    os.kill(shop.server.pid, signal.SIGCONT)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(silence, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(session, "CONNECT_SECONDS", 2)


def at(shop: Shop) -> Server:
    return Server(host="127.0.0.1", port=shop.server.port, user="root")


def test_a_statement_ends_when_the_server_says_nothing_even_if_asked(
    shop: Shop, soon: None, freeze: Callable[[], None]
) -> None:
    with MySqlConnection(at(shop)) as held:
        assert held.rows("SELECT 1") == [(1,)]
        freeze()
        with pytest.raises(Indeterminate, match="does not answer"):
            held.rows("SELECT 1")


def test_a_long_statement_of_a_server_that_is_there_is_waited_for(shop: Shop, soon: None) -> None:
    """Three times as long as a silent server would be."""
    with MySqlConnection(at(shop)) as held:
        assert held.rows("SELECT SLEEP(3)") == [(0,)]


def test_amid_rows(shop: Shop, soon: None, freeze: Callable[[], None]) -> None:
    """More of them than lie between server and client."""
    with MySqlConnection(at(shop)) as held:
        found = held.packets("SELECT seq, REPEAT('x', 200) FROM (SELECT 1 seq FROM " + _many() + ") s")
        assert next(found).spans
        freeze()
        with pytest.raises(Indeterminate, match="does not answer"):
            list(found)


def _many() -> str:
    ten = "(SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6)"
    return ", ".join(f"{ten} t{n}" for n in range(7))


def test_connecting_ends_when_it_is_to_be_stopped(shop: Shop, freeze: Callable[[], None]) -> None:
    stopped = threading.Event()
    stopped.set()
    freeze()
    with ended_by(stopped), pytest.raises(Indeterminate, match="broken off"):
        MySqlConnection(at(shop))


def test_a_pipeline_whose_server_stands_still_amid_a_step_stops_long_before_it_would_give_up(
    here: Location, shop: Shop, freeze: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "SILENT_SECONDS", 10 * JOIN_SECONDS)
    shop.run("CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1), (2)")
    still, stepped, ended = threading.Event(), threading.Event(), list[BaseException]()
    look = silence.Silence.look

    def looked(self: silence.Silence) -> None:
        still.set()
        look(self)

    def until(step: object) -> bool:
        stepped.set()
        return False

    def run(pipeline: Pipeline) -> None:
        try:
            pipeline.run(until=until)
        except LocationError as error:
            ended.append(error)

    with shop.source(here, "items") as pipeline:
        thread = threading.Thread(target=run, args=(pipeline,))
        thread.start()
        try:
            assert stepped.wait(JOIN_SECONDS)
            freeze()
            monkeypatch.setattr(silence.Silence, "look", looked)
            assert still.wait(JOIN_SECONDS)
        finally:
            pipeline.stop()
            thread.join(JOIN_SECONDS)
        assert not thread.is_alive()
        assert not ended
