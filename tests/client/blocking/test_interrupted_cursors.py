"""Interrupted fetches: what was fetched and not returned is fetched again. A cursor loses nothing, guarantee 35."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from client.blocking.test_interrupted import Handled
from client.support import memory_place
from sure import sure

import persist
from persist.client.sql.errors import SqlFailed

pytestmark = [
    # Interrupted before it was given, and in what is called when objects go.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROWS = 60
"""More than there are places at which one fetch can be interrupted."""


@pytest.fixture
def client() -> Iterator[persist.Client]:
    place = memory_place()
    with persist.embedded(blob=place.blob, consensus=place.consensus) as client:
        yield client


@pytest.fixture
def environment(client: persist.Client) -> Iterator[Any]:
    with contextlib.closing(client.environment()) as environment:
        client.sql("CREATE TABLE t (id BIGINT PRIMARY KEY); CREATE CURSOR c FOR SUBSCRIBE t")
        table = client.table(sure(environment.resolve("t").data), mode="wal")
        for id in range(ROWS):
            table.insert([{"id": id}])
        yield environment


@pytest.fixture
def cursor(environment: Any) -> Iterator[Any]:
    with environment.cursor("c") as cursor:
        yield cursor


@pytest.fixture
def session(client: persist.Client, environment: Any) -> Iterator[Any]:
    with client.session() as session:
        yield session


def test_interrupt_at_every_place_of_a_fetch_takes_nothing_away(cursor):
    found, n = list[int](), 0
    while True:
        n += 1
        fetched = None
        with contextlib.suppress(KeyboardInterrupt), Handled({n}) as handled:
            fetched = cursor.fetch(1)
        if fetched is not None:
            found += fetched.updates["id"].to_pylist()
        if handled.seen < n:
            break
    found += cursor.fetch().updates["id"].to_pylist()
    assert n > 20
    assert found == list(range(ROWS))
    cursor.acknowledge()
    assert cursor.acknowledged == cursor.position


def test_acknowledging_after_an_interrupted_fetch_acknowledges_nothing_of_it(cursor):
    before, n = cursor.fetch(1).position, 0
    while n < ROWS:
        n += 1
        fetched = None
        with contextlib.suppress(KeyboardInterrupt), Handled({n}) as handled:
            fetched = cursor.fetch(1)
        if fetched is not None:
            break
        cursor.acknowledge()
        assert cursor.acknowledged == cursor.position == before
        if handled.seen < n:
            break
    assert n > 20


def test_interrupt_of_a_text_takes_nothing_away_of_all_that_it_fetched(session):
    text, found = "FETCH 1 FROM c; FETCH 1 FROM c", list[int]()

    def took(results: Any) -> None:
        for each in results:
            found.extend(each.to_arrow()["id"].to_pylist())

    took(session.execute(text))
    with Handled(set()) as handled:
        results = session.execute(text)
    took(results)
    interrupted = 0
    for n in range(handled.seen - 9, handled.seen + 1):
        results = None
        with contextlib.suppress(KeyboardInterrupt), Handled({n}):
            results = session.execute(text)
        interrupted += results is None
        took(results or ())
    took(session.execute("FETCH ALL FROM c"))
    assert interrupted
    assert found == list(range(ROWS))


def test_a_text_that_fails_gives_none_of_what_it_fetched(session):
    with pytest.raises(SqlFailed):
        session.execute("FETCH 7 FROM c; SELECT 'x'::int")
    (first,) = session.execute("FETCH 3 FROM c")
    with pytest.raises(SqlFailed):
        session.execute("FETCH 5 FROM c; FETCH 2 FROM c; SELECT 'x'::int")
    first_rows, rest = first.to_arrow()["id"].to_pylist(), session.execute("FETCH ALL FROM c")[0].to_arrow()
    assert [*first_rows, *rest["id"].to_pylist()] == list(range(ROWS))
