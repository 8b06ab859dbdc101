"""A read beyond what a stalled table holds says why, at once, through each door; what it holds is read as before."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist import ExportStalled, InvalidArgument, NotYetAvailable
from persist.client.shard import stalls as stalling
from persist.client.shard.stalls import Stalls
from persist.core.source import standing
from persist.sources import RECORDS
from persist_ingest import Location, Pipeline, PipelineOptions, Records, adopt, create, resnapshot
from persist_ingest.location import client
from persist_ingest.pipeline import pipeline as ingesting

OPTIONS = PipelineOptions(tick_ms=1, told_ms=0, commit_steps_late=0, forget_ms=0)
BAD, GOOD = "public.bad", "public.good"
TIMEOUT = 120.0
"""What a read would wait for that is not ended by the reason."""


@pytest.fixture(autouse=True)
def looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)


@pytest.fixture
def begun(here: Location, shop: Any) -> Iterator[Pipeline]:
    """A source of two tables, of which one is named in an environment, with a view of each."""
    for table in ("bad", "good"):
        shop.run(f"CREATE TABLE {table} (id int PRIMARY KEY, name text)", f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        shop.run(f"INSERT INTO {table} SELECT i, 'n' || i FROM generate_series(1, 20) i")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": f"{BAD},{GOOD}"}, interval_ms=1)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        yield pipeline


def shard(here: Location, export: str = BAD) -> persist.ShardId:
    return Records(client(here)).source("shop").shards[export]


def stall(pipeline: Pipeline, shop: Any) -> None:
    shop.run("ALTER TABLE bad DROP COLUMN name", "INSERT INTO good VALUES (21, 'x')")
    pipeline.step()
    pipeline.step()


def upper(here: Location, export: str = BAD) -> int:
    time = client(here).recent_upper(shard(here, export)).time
    assert time is not None
    return time


def check(error: ExportStalled, at: int) -> None:
    assert error.message.startswith(f"{BAD} of source shop is stalled since 1"), error
    assert "a column was dropped" in error.message
    assert f"persist source resnapshot shop {BAD}" in error.hint
    assert error.details["upper"] == f"[{at}]"
    assert (error.details["source"], error.details["export"]) == ("shop", BAD)
    assert int(error.details["since_ms"]) > 0


def refused(read: Callable[[], object], at: int) -> None:
    began = time.monotonic()
    with pytest.raises(ExportStalled) as told:
        read()
    assert time.monotonic() - began < TIMEOUT / 4
    check(told.value, at)


def subscribed(the_client: persist.Client, name: str, at: int, up_to: int) -> list[Any]:
    with the_client.environment().subscribe(name, as_of=at, up_to=up_to, timeout=TIMEOUT) as live:
        return list(live)


def test_a_reader_of_a_stalled_table_hears_why_and_reads_on_once_it_is_mended(
    here: Location, shop: Any, begun: Pipeline
) -> None:
    with client(here).open_reader(shard(here)) as reader:
        stall(begun, shop)
        at = upper(here)
        assert reader.snapshot(at - 1, timeout=TIMEOUT).to_arrow().num_rows == 20
        refused(lambda: reader.snapshot(at, timeout=TIMEOUT), at)
        refused(lambda: reader.snapshot(at + 5, timeout=TIMEOUT), at)
        refused(lambda: reader.diffs(at - 1, at + 1, timeout=TIMEOUT), at)
        refused(lambda: next(iter(reader.subscribe(at, timeout=TIMEOUT))), at)
        assert reader.snapshot(timeout=TIMEOUT).to_arrow().num_rows == 20, "the latest is what it holds"
        now = upper(here, GOOD)
        with client(here).open_reader(shard(here, GOOD)) as other:
            assert other.snapshot(now - 1, timeout=TIMEOUT).to_arrow().num_rows == 21
            with pytest.raises(NotYetAvailable) as late:
                other.snapshot(now + 10**6, timeout=0.5)
            assert type(late.value) is NotYetAvailable, "one that runs is waited for"
        resnapshot(here, "shop", BAD)
        begun.step()
        assert reader.snapshot(at, timeout=TIMEOUT).to_arrow().num_rows == 20


def test_a_stall_that_begins_while_a_read_waits_ends_the_wait(here: Location, shop: Any, begun: Pipeline) -> None:
    heard: list[BaseException] = []
    ahead = upper(here) + 10**9

    def read() -> None:
        with client(here).open_reader(shard(here)) as reader:
            try:
                reader.snapshot(ahead, timeout=TIMEOUT)
            except BaseException as error:
                heard.append(error)

    waits = threading.Thread(target=read)
    waits.start()
    waits.join(0.5)
    assert waits.is_alive()
    stall(begun, shop)
    waits.join(TIMEOUT / 4)
    assert not waits.is_alive()
    (error,) = heard
    assert isinstance(error, ExportStalled)
    check(error, upper(here))


def test_a_source_that_failed_says_so_and_one_that_died_or_goes_on_is_waited_for(
    here: Location, shop: Any, begun: Pipeline
) -> None:
    at = upper(here)
    with client(here).open_reader(shard(here)) as reader:
        with pytest.raises(NotYetAvailable) as late:
            reader.snapshot(at + 10**6, timeout=0.5)
        assert type(late.value) is NotYetAvailable
        begun.close()
        shop.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT temporary")
        with Pipeline(here, "shop", options=OPTIONS) as again, pytest.raises(persist.sources.UpstreamLost):
            again.run(steps=1)
        with pytest.raises(ExportStalled, match=r"^source shop failed at .*: UpstreamLost") as told:
            reader.snapshot(at, timeout=TIMEOUT)
        assert told.value.details["upper"] == f"[{at}]"
        assert "persist source status shop" in told.value.hint


def test_sql_says_why_for_what_is_read_and_what_is_computed_from_it(here: Location, shop: Any, begun: Pipeline) -> None:
    the_client = client(here)
    adopt(here, "shop", begin=True)
    with the_client.session(files=True) as session:

        def rows(text: str) -> list[dict[str, Any]]:
            return session.execute(text)[-1].to_arrow().to_pylist()

        session.execute(
            f"SET statement_timeout = '{int(TIMEOUT)}s'; CREATE VIEW plain AS SELECT id FROM bad;"
            "CREATE MATERIALIZED VIEW kept WITH (refresh on commit) AS SELECT count(*) AS n FROM plain;"
            "CREATE MATERIALIZED VIEW often WITH (refresh every '1s') AS SELECT count(*) AS n FROM bad;"
            "CREATE TABLE mine (id bigint)"
        )
        begun.step()
        assert rows(f"SELECT n FROM kept AS OF {upper(here) - 1}") == [{"n": 20}]
        stall(begun, shop)
        at = upper(here)
        for name in ("bad", "plain", "kept"):
            assert len(rows(f"SELECT * FROM {name} AS OF {at - 1}")) == (1 if name == "kept" else 20)
            refused(partial(rows, f"SELECT * FROM {name} AS OF {at}"), at)
        # A view that is refreshed each second shows at this time what was there at the second before.
        assert rows(f"SELECT n FROM often AS OF {(at - 1) // 1000 * 1000 + 999}") == [{"n": 20}]
        refused(lambda: rows(f"SELECT n FROM often AS OF {(at - 1) // 1000 * 1000 + 1000}"), at)
        refused(lambda: session.execute(f"COPY (SELECT * FROM kept AS OF {at}) TO '{here.directory}/x.csv'"), at)
        refused(lambda: rows(f"SELECT * FROM good, plain AS OF {at}"), at)
        refused(lambda: the_client.read("kept", as_of=at, timeout=TIMEOUT), at)
        with the_client.environment().subscribe("bad", as_of=at - 1, timeout=TIMEOUT) as live:
            next(iter(live))
        for name, ending in (("bad", at + 1), ("bad", at + 10**6), ("kept", at + 1)):
            refused(partial(subscribed, the_client, name, at - 1, ending), at)
        assert subscribed(the_client, "kept", at - 1, at)
        refused(lambda: the_client.environment().subscribe("kept", as_of=at, timeout=TIMEOUT), at)
        session.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(ExportStalled, match="stalled") as told:
            rows("SELECT * FROM mine, bad")
        assert told.value.hint.endswith("or with isolation serializable")
        session.execute("SET isolation = 'serializable'")
        assert len(rows("SELECT * FROM good")) == 21
        assert len(rows("SELECT * FROM bad")) == 20
        resnapshot(here, "shop", BAD)
        begun.step()
        assert rows(f"SELECT n FROM kept AS OF {upper(here) - 1}") == [{"n": 20}]


def test_what_a_source_feeds_nothing_else_writes_also_without_an_environment(
    here: Location, shop: Any, begun: Pipeline
) -> None:
    the_client, at = client(here), upper(here)
    for name in (shard(here), "shop.public.bad"):
        # To read it as a table would complete it: its ingester would take that for rows of another ingester.
        with pytest.raises(InvalidArgument, match="a source feeds this") as told:
            the_client.table(name).snapshot()
        assert told.value.details["source"] == "shop"
        with pytest.raises(InvalidArgument, match="a source feeds this"):
            the_client.named(name, writes=True)
    with pytest.raises(InvalidArgument, match="a source feeds this"):
        the_client.open_writer("shop.public.bad")
    assert upper(here) == at
    assert the_client.table("mine", schema=persist.Schema(key={"id": pa.int64()})).snapshot().rows == 0


def test_many_reads_that_wait_look_together_and_take_records_apart_once(
    here: Location, shop: Any, begun: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, parsed = Counter[Stalls](), list[int]()
    look, parse = Stalls._look, standing.all_fed

    async def looked(self: Stalls, shard: persist.ShardId) -> Any:
        looks[self] += str(shard) == str(RECORDS)
        return await look(self, shard)

    def taken_apart(records: Any) -> Any:
        parsed.append(len(records))
        return parse(records)

    monkeypatch.setattr(Stalls, "_look", looked)
    monkeypatch.setattr(standing, "all_fed", taken_apart)
    monkeypatch.setattr(stalling, "LOOK_SECONDS", 0.3)
    ahead = upper(here) + 10**9

    def read() -> None:
        with client(here).open_reader(shard(here)) as reader, ThreadPoolExecutor(20) as pool:
            waits = [pool.submit(reader.snapshot, ahead, timeout=4.0) for _ in range(20)]
            for each in waits:
                with pytest.raises(NotYetAvailable):
                    each.result()

    began = time.monotonic()
    read()
    read()
    # One each at first, which may be together, and one of all in each round: if each looked for itself, some 500.
    rounds = 2 * 20 + (time.monotonic() - began) / stalling.LOOK_SECONDS
    assert looks.total() > 0
    assert max(looks.values()) <= rounds
    assert len(parsed) == 1
