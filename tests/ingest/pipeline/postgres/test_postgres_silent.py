"""A server that stands still, as a frozen machine does, is not waited for without end, nor against being stopped."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from ingest.pipeline.conftest import Shop, contents

from persist import Indeterminate, LocationError
from persist.testing import servers
from persist_ingest import Location, Pipeline, PipelineOptions, create, status
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.sources.postgres import rows, session
from persist_ingest.sources.postgres.column_types import column_type
from persist_ingest.sources.tables import silence
from persist_ingest.sources.tables.silence import ended_by

OPTIONS = PipelineOptions(tick_ms=1, told_ms=0)
ITEMS = "public.items"
INT4 = 23
JOIN_SECONDS = 60.0


class Frozen:
    """A PostgreSQL of its own, all processes of which can be made to stand still."""

    def __init__(self, server: servers.Server) -> None:
        self.shop = Shop(server, "postgres")
        self._root = psutil.Process(server.pid)
        self._still: list[int] = []

    def freeze(self) -> None:
        # The one that starts others first.
        for process in (self._root, *self._root.children(recursive=True)):
            os.kill(process.pid, signal.SIGSTOP)
            self._still.append(process.pid)

    def thaw(self) -> None:
        while self._still:
            os.kill(self._still.pop(), signal.SIGCONT)


@pytest.fixture(scope="module")
def frozen_server() -> Iterator[Frozen]:
    with servers.start_postgres({"wal_level": "logical", "fsync": "off"}) as server:
        made = Frozen(server)
        made.shop.run("CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1), (2)")
        made.shop.run("ALTER TABLE items REPLICA IDENTITY FULL")
        yield made
        made.shop.close()


@pytest.fixture
def frozen(frozen_server: Frozen) -> Iterator[Frozen]:
    yield frozen_server
    frozen_server.thaw()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(silence, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(session, "_CONNECT_SECONDS", "2")


Asked = Callable[[str], Any]


@pytest.fixture(params=["psycopg", "adbc"])
def asked(frozen: Frozen, request: pytest.FixtureRequest) -> Iterator[Asked]:
    """Statements in a session of either kind."""
    with rows.held(frozen.shop.dsn, ITEMS, adbc=request.param == "adbc") as holder:
        yield holder.rows


def test_a_statement_ends_when_the_server_says_nothing_even_if_asked(frozen: Frozen, soon: None, asked: Asked) -> None:
    assert asked("SELECT 1") == [(1,)]
    frozen.freeze()
    with pytest.raises(Indeterminate, match="does not answer"):
        asked("SELECT 1")
    frozen.thaw()


def test_a_long_statement_of_a_server_that_is_there_is_waited_for(soon: None, asked: Asked) -> None:
    """Three times as long as a silent server would be."""
    assert asked("SELECT 1 FROM pg_sleep(3)") == [(1,)]


@pytest.mark.parametrize("adbc", [True, False])
def test_amid_rows(frozen: Frozen, soon: None, adbc: bool) -> None:
    """More of them than lie between server and client."""
    with rows.held(frozen.shop.dsn, ITEMS, adbc=adbc) as holder:
        found = holder.columns(["i"], [column_type(INT4, -1)], "FROM (SELECT generate_series(1, 4000000) i) s")
        assert next(found)
        frozen.freeze()
        with pytest.raises(Indeterminate, match="does not answer"):
            list(found)


def test_connecting_ends_when_it_is_to_be_stopped(frozen: Frozen) -> None:
    stopped = threading.Event()
    stopped.set()
    frozen.freeze()
    with ended_by(stopped), pytest.raises(Indeterminate, match="broken off"):
        session.UpstreamConnection(frozen.shop.dsn)


@contextmanager
def running(pipeline: Pipeline, seen: threading.Event, ended: list[BaseException]) -> Iterator[threading.Thread]:
    """The pipeline in a thread, which ends with the block. ``seen``: it did a step."""

    def until(step: object) -> bool:
        seen.set()
        return False

    def run() -> None:
        try:
            pipeline.run(until=until)
        except LocationError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        pipeline.stop()
        thread.join(JOIN_SECONDS)
    assert not thread.is_alive()


def test_a_pipeline_says_that_it_waits_gives_up_and_goes_on_at_the_next_start(
    here: Location, frozen: Frozen, soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(here, "shop", "postgres", {"dsn": frozen.shop.dsn, "tables": ITEMS}, interval_ms=1)
    seen, waits, ended = threading.Event(), threading.Event(), list[BaseException]()

    def state() -> str:
        return status(here, "shop", ask_upstream=False).state

    with Pipeline(here, "shop", options=OPTIONS, complain=lambda error: waits.set()) as pipeline:
        with running(pipeline, seen, ended):
            assert seen.wait(JOIN_SECONDS)
            assert state() == "running"
            frozen.freeze()
            assert waits.wait(JOIN_SECONDS)
            give_up = time.monotonic() + JOIN_SECONDS
            while state() != "stalled":
                assert time.monotonic() < give_up
        assert not ended
    monkeypatch.setattr(ingesting, "PATIENCE_SECONDS", 0.5)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline, running(pipeline, seen, ended) as thread:
        thread.join(JOIN_SECONDS)
        assert ended
    assert state() == "failed"
    frozen.thaw()
    frozen.shop.run("INSERT INTO items VALUES (3)")
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        while contents(here, "shop", ITEMS).total() < 3:
            pipeline.step()


def test_a_pipeline_whose_server_stands_still_amid_a_step_stops_long_before_it_would_give_up(
    here: Location, frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(here, "shop2", "postgres", {"dsn": frozen.shop.dsn, "tables": ITEMS}, interval_ms=1)
    monkeypatch.setattr(silence, "SILENT_SECONDS", 10 * JOIN_SECONDS)
    seen, still, ended = threading.Event(), threading.Event(), list[BaseException]()
    look = silence.Silence.look

    def looked(self: silence.Silence) -> None:
        still.set()
        look(self)

    with Pipeline(here, "shop2", options=OPTIONS) as pipeline:
        with running(pipeline, seen, ended):
            assert seen.wait(JOIN_SECONDS)
            frozen.freeze()
            monkeypatch.setattr(silence.Silence, "look", looked)
            assert still.wait(JOIN_SECONDS)
        assert not ended
