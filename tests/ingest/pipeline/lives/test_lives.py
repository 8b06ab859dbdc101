"""Lives of a source: to create or drop one late, or without an answer, destroys nothing of another life."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import pytest
from ingest.pipeline.conftest import contents
from ingest.pipeline.gates import GATES, PATIENCE, Gate

from persist import Indeterminate, LocationError, PersistError
from persist.sources import RECORDS
from persist_ingest import Location, Pipeline, PipelineOptions, Records, abandon, claims, create, drop
from persist_ingest import location as locations
from persist_ingest.location import client
from persist_ingest.pipeline.claims import Claim, ClaimLost, SourceCreating, take
from persist_ingest.pipeline.records import SourceNotFound

OPTIONS = PipelineOptions(tick_ms=1, told_ms=10**9)
TYPE = "ingest.pipeline.gates:GATED"
LOAD = {"generator": "counter", "messages": "500"}


@pytest.fixture(autouse=True)
def gates() -> Iterator[None]:
    GATES.clear()
    yield
    GATES.clear()


@contextlib.contextmanager
def standing(place: str, work: Callable[[], Any]) -> Iterator[tuple[Gate, Future[Any]]]:
    """``work`` in another thread, once it stands still at that place."""
    gate = GATES[place] = Gate()
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(work)
        try:
            assert gate.reached.wait(PATIENCE)
            yield gate, begun
        finally:
            gate.opened.set()


def made(here: Location) -> Any:
    return create(here, "shop", TYPE, LOAD, interval_ms=1)


def ingest(here: Location) -> None:
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.run(until=lambda step: not step.rows)


def is_whole(here: Location) -> bool:
    """The source has all of its rows, and is ingested on."""
    ingest(here)
    return sum(contents(here, "shop", "counter").values()) == 500


def test_claim_of_a_later_release_is_read(here: Location) -> None:
    """What it says beside what this one knows is passed over, and the name can be taken over."""
    mine, _ = take(Records(client(here)), "shop", TYPE)
    record: dict[str, Any] = mine.to_record()
    record["creating"] |= {"later": {"nobody": "knows"}}
    assert Claim.of("shop", record) == mine


class LostAnswers:
    """A client whose answers are lost: that to a write of the records, from the one that ``is_it`` picks on."""

    def __init__(self, real: Any, is_it: Callable[[list[Any]], bool], *, happens: bool, resolves: bool) -> None:
        self._real, self._is_it, self._happens, self._resolves = real, is_it, happens, resolves
        self.lost = 0

    def open_writer(self, shard: Any, **named: Any) -> Any:
        writer = self._real.open_writer(shard, **named)
        return Lossy(self, writer) if shard == RECORDS else writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Lossy:
    def __init__(self, owner: LostAnswers, writer: Any) -> None:
        self._owner, self._writer = owner, writer

    def compare_and_append(self, updates: list[Any], *bounds: Any) -> Any:
        owner = self._owner
        if owner.lost or not owner._is_it(updates):
            return self._writer.compare_and_append(updates, *bounds)
        owner.lost += 1
        if owner._happens:
            self._writer.compare_and_append(updates, *bounds)
        raise Indeterminate("no answer within the timeout", hint="retry")

    def resolve(self) -> Any:
        if not self._owner._resolves:
            raise Indeterminate("no answer within the timeout", hint="retry")
        return self._writer.resolve()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


def is_the_source(updates: list[Any]) -> bool:
    """The record says that the source is there."""
    return any(
        diff > 0 and '"dropped"' not in row[1]["record"] and row[0]["kind"] == "source" for row, _, diff in updates
    )


@contextlib.contextmanager
def losing(here: Location, *, happens: bool, resolves: bool) -> Iterator[LostAnswers]:
    the_client = client(here)
    [key] = [each for each, known in locations._clients.items() if known is the_client]
    lossy = LostAnswers(the_client, is_the_source, happens=happens, resolves=resolves)
    locations._clients[key] = cast(Any, lossy)
    try:
        yield lossy
    finally:
        locations._clients[key] = the_client


def test_a_create_that_wakes_late_leaves_the_source_of_another_alone(here: Location) -> None:
    with standing("shards", lambda: made(here)) as (gate, late):
        assert claims(Records(client(here)))["shop"].source is not None
        abandon(here, "shop")
        made(here)
        assert is_whole(here)
        gate.opened.set()
        with pytest.raises(PersistError):
            late.result(PATIENCE)
    assert is_whole(here)


def test_a_create_that_wakes_late_before_its_shards_leaves_them_alone(here: Location) -> None:
    with standing("upstream", lambda: made(here)) as (gate, late):
        abandon(here, "shop")
        made(here)
        gate.opened.set()
        with pytest.raises(PersistError):
            late.result(PATIENCE)
    assert is_whole(here)


@pytest.mark.parametrize("resolves", [True, False], ids=["found out", "not found out"])
def test_a_source_whose_last_answer_was_lost_is_whole(here: Location, resolves: bool) -> None:
    with losing(here, happens=True, resolves=resolves) as lossy, contextlib.suppress(LocationError):
        made(here)
    assert lossy.lost == 1
    assert list(Records(client(here)).sources()) == ["shop"]
    assert is_whole(here)


def test_a_drop_that_wakes_late_leaves_the_next_life_alone(here: Location) -> None:
    made(here)
    with standing("drop", lambda: drop(here, "shop")) as (gate, late):
        drop(here, "shop")
        made(here)
        gate.opened.set()
        with pytest.raises(PersistError):
            late.result(PATIENCE)
    assert list(Records(client(here)).sources()) == ["shop"]
    assert is_whole(here)


def test_an_ingester_whose_source_was_made_again_leaves_the_next_life_alone(here: Location) -> None:
    made(here)
    with Pipeline(here, "shop", options=PipelineOptions(tick_ms=1)) as pipeline:
        pipeline.step()
        drop(here, "shop")
        made(here)
        next_life = Records(client(here)).source("shop")
        with pytest.raises(SourceNotFound, match="another one has its name"):
            pipeline._take_over(next_life)
        with pytest.raises(PersistError):
            pipeline.step()
        assert pipeline.source.generation < next_life.generation
    assert is_whole(here)


def test_an_attempt_at_work_is_left_to_it_and_an_abandoned_one_taken_over(
    here: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Claim] = []
    with standing("shards", lambda: made(here)) as (gate, late):
        with pytest.raises(SourceCreating):
            made(here)
        monkeypatch.setattr("persist_ingest.pipeline.claims.SILENT_MS", -1)
        source = create(here, "shop", TYPE, LOAD, interval_ms=1, taken_over=heard.append)
        gate.opened.set()
        with pytest.raises(ClaimLost):
            late.result(PATIENCE)
    assert [each.name for each in heard] == ["shop"]
    assert source.generation == 2
    assert is_whole(here)


def test_an_attempt_that_fails_before_its_shards_leaves_no_trace(here: Location) -> None:
    with pytest.raises(PersistError):
        create(here, "shop", TYPE, {"generator": "none"})
    assert not claims(Records(client(here)))
    assert made(here).generation == 1
