"""What sources say of themselves, while others say theirs in the same shard; and that saying it ends nothing."""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from client.shard.test_restored import Address
from ingest.pipeline.conftest import contents

from persist import Client, ShardId, UpperMismatch, aio
from persist.sources import RECORDS
from persist_ingest import Location, Pipeline, PipelineOptions, Records, Source, create, drop, status
from persist_ingest.location import client
from persist_ingest.pipeline.records import is_silent

OPTIONS = PipelineOptions(tick_ms=1, told_ms=0)
LOAD = {"generator": "counter", "messages": "50"}


class Interleaved:
    """A client whose owner is overtaken: others do something right after its first answers about the upper."""

    def __init__(self, the_client: Any, others: Callable[[], None], times: int = 1) -> None:
        self._client = the_client
        self._others = others
        self._left = times

    def recent_upper(self, shard: Any) -> Any:
        answer = self._client.recent_upper(shard)
        if self._left:
            self._left -= 1
            self._others()
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def named(name: str, generation: int = 1) -> Source:
    """A source of which only the name matters."""
    unknown = {"type": "", "kind": "lsn", "incarnation": "", "remap": "", "exports": {}, "definition": {}}
    return Source(name=name, generation=generation, **cast(Any, unknown))


def test_records_are_read_while_others_move_their_since(here: Location) -> None:
    create(here, "count", "loadgen", LOAD)
    others, other = Records(client(here)), named("other")

    def move() -> None:
        for number in range(3):
            others.tell(other, "ingester", {"state": "running", "at_ms": number})
            others.ask("other", 1, str(number))

    assert Records(cast(Any, Interleaved(client(here), move))).source("count").name == "count"
    assert Records(cast(Any, Interleaved(client(here), move, times=3))).status(other)["ingester"]["at_ms"] == 2
    mine = Records(cast(Any, Interleaved(client(here), move, times=3)))
    mine.tell(other, "mine", {"state": "running", "at_ms": 7})
    mine.ask("mine", 1, "7")
    assert others.status(other)["mine"]["at_ms"] == 7
    assert others.status(other)["ingester"]["at_ms"] == 2
    assert [others.asked(named(name)) for name in ("mine", "other")] == ["7", "2"]


def test_what_is_said_of_a_source_moves_nothing_of_others(here: Location) -> None:
    """Looks at sources are at what did not change, however many ingesters say how they fare."""
    create(here, "count", "loadgen", LOAD)
    records, the_client = Records(client(here)), client(here)
    before = the_client.recent_upper(RECORDS)
    for number in range(5):
        records.tell(named("count"), "a", {"at_ms": number})
        records.tell(named("other"), "a", {"at_ms": number})
    assert the_client.recent_upper(RECORDS) == before
    assert records.status(named("count")) == {"a": {"at_ms": 4}}
    assert records.status(named("count", 2)) == {}


def test_status_of_an_earlier_release_is_read_and_goes(here: Location) -> None:
    create(here, "count", "loadgen", LOAD)
    records, source = Records(client(here)), Records(client(here)).source("count")
    records.change("status", "count/old", lambda _: {"at_ms": 0, "state": "failed"})
    records.tell(source, "new", {"at_ms": 1, "state": "running"})
    assert records.status(source).keys() == {"old", "new"}
    records.forget_silent(source, "new")
    assert records.status(source).keys() == {"new"}
    records.change("status", "count/old", lambda _: {"at_ms": 0, "state": "failed"})
    drop(here, "count")
    assert not records._read("status")
    create(here, "count", "loadgen", LOAD)
    assert status(here, "count").ingesters == {}


def test_a_word_of_a_clock_that_is_ahead_is_no_sign_of_life() -> None:
    """An attempt of a machine an hour ahead that ended is taken over, not left alone for an hour."""
    now = 10**12
    said = {now - 30_001: True, now - 30_000: False, now: False, now + 30_000: False, now + 3_600_000: True}
    assert {at: is_silent(at, now, 30_000) for at in said} == said


def test_many_at_once_change_records_in_time(here: Location) -> None:
    create(here, "count", "loadgen", LOAD)
    with ThreadPoolExecutor(12) as threads:
        for _ in range(3):
            done = [threads.submit(Records(client(here)).ask, f"s{number}", 1, "x") for number in range(12)]
            assert [each.result() for each in done] == [None] * 12
    assert all(Records(client(here)).asked(named(f"s{number}")) for number in range(12))


def test_what_was_seen_before_a_restore_is_not_taken_for_what_is_there() -> None:
    """What a client saw last holds for as long as nothing changed; the same upper in another history is a change."""
    address = Address()

    async def opened() -> aio.Client:
        return address.client()

    async def closed() -> None:
        async with address:
            pass

    with Client(opened) as one, Client(opened) as another:
        mine, others, count = Records(one), Records(another), named("count")
        mine.tell(count, "a", {"at_ms": 0})
        states = one._run(address.backup())
        mine.tell(count, "a", {"at_ms": 1})
        said = ShardId.named("persist", "status of source count, life 1")
        seen = one.recent_upper(said)
        assert mine.status(count) == {"a": {"at_ms": 1}}
        one._run(address.restore(states))
        others.tell(count, "a", {"at_ms": 2})
        assert one.recent_upper(said) == seen
        assert mine.status(count) == {"a": {"at_ms": 2}}
        others.tell(count, "a", {"at_ms": 3})
        assert mine.status(count) == {"a": {"at_ms": 3}}
        mine.tell(count, "a", None)
        assert mine.status(count) == others.status(count) == {}
        one._run(closed())


def test_a_pipeline_goes_on_when_it_cannot_say_how_it_fares(here: Location, caplog: pytest.LogCaptureFixture) -> None:
    create(here, "count", "loadgen", LOAD)
    with Pipeline(here, "count", options=OPTIONS) as pipeline:
        pipeline.step()
        # A writer goes beyond what a line of status may be: no change of a record succeeds any more.
        the_client = client(here)
        said = ShardId.named("persist", "status of source count, life 1")
        writer = the_client.open_writer(said)
        upper = the_client.recent_upper(said)
        assert not isinstance(writer.compare_and_append([], upper, []), UpperMismatch)
        with caplog.at_level(logging.WARNING):
            step = pipeline.run(steps=2)
        assert step is not None
        assert pipeline.figures.untold >= 2
    assert "count" in caplog.text


def test_failed_lines_of_status_are_counted_in_the_next(here: Location) -> None:
    create(here, "count", "loadgen", LOAD)
    with Pipeline(here, "count", options=dataclasses.replace(OPTIONS, told_ms=0)) as pipeline:
        pipeline.figures.untold = 3
        pipeline.step()
        [told] = status(here, "count").ingesters.values()
        assert told["untold"] == 3


def test_a_pipeline_goes_on_whatever_others_of_its_location_say_meanwhile(here: Location, shop: Any) -> None:
    """On a real PostgreSQL: between any look of one at what is recorded and what it does by it, others say theirs."""
    for name in ("one", "two"):
        shop.run(f"CREATE TABLE {name} (id int PRIMARY KEY)", f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        create(here, name, "postgres", {"dsn": shop.dsn, "tables": f"public.{name}"}, interval_ms=1)
    every = PipelineOptions(tick_ms=1, told_ms=0, forget_ms=0, commit_steps_late=0)
    with (
        Pipeline(here, "one", options=every) as one,
        Pipeline(here, "one", options=every) as same,
        Pipeline(here, "two", options=every) as two,
    ):
        for each in (one, same, two):
            each.step()

        def others() -> None:
            for each in (two, same, two):
                each._told_at = float("-inf")
                each.step()

        for number in range(3):
            shop.run(f"INSERT INTO one VALUES ({number})", f"INSERT INTO two VALUES ({number})")
            one._records._client = cast(Any, Interleaved(one._client, others, times=4))
            one._told_at = float("-inf")
            one.run(steps=1)
            assert contents(here, "one", "public.one") == Counter(shop.select("SELECT * FROM one"))
        assert [each.figures.untold for each in (one, same, two)] == [0, 0, 0]
        assert [status(here, name).state for name in ("one", "two")] == ["running", "running"]
