"""What a pipeline counts, asked for over HTTP, and what the status warns of, on a real PostgreSQL."""

import threading
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from ingest.pipeline.conftest import Shop
from sure import sure

from persist import NotYetAvailable
from persist.testing import servers
from persist_cli.shard.reads import SnapshotFile, snapshot
from persist_cli.source.watching import watched
from persist_ingest import Location, Pipeline, PipelineOptions, create, resnapshot, status
from persist_ingest.location import client
from persist_ingest.pipeline.records import Records
from persist_ingest.pipeline.reporting.figures import HELP, warnings
from persist_ingest.sources.postgres import reader as reading

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=0, told_ms=0, commit_steps_late=0)


def begun(here: Location, shop: Any) -> None:
    for table in ("good", "bad"):
        shop.run(f"CREATE TABLE {table} (id int PRIMARY KEY, name text)", f"INSERT INTO {table} VALUES (1, 'a')")
    options = {"dsn": shop.dsn, "tables": "public.good,public.bad", "setReplicaIdentity": "true"}
    create(here, "shop", "postgres", options, interval_ms=1)


def asked(address: object, path: str = "metrics") -> str:
    with urllib.request.urlopen(f"http://{address}/{path}", timeout=30) as answer:
        return str(answer.read().decode())


def figures(address: object) -> dict[str, float]:
    """Values by name and labels, as Prometheus reads them."""
    lines = [line for line in asked(address).splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def of(name: str, export: str, **labels: str) -> str:
    named = {"source": "shop", "export": export, **labels}
    inside = ",".join(f'{key}="{text}"' for key, text in named.items())
    return f"persist_source_export_{name}{{{inside}}}"


def test_each_table_is_counted_and_one_that_stalls_falls_behind(here: Location, shop: Any) -> None:
    begun(here, shop)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline, watched("127.0.0.1:0", pipeline) as address:
        shop.run("INSERT INTO good SELECT n, 'b' FROM generate_series(2, 11) n", "UPDATE bad SET name = 'c'")
        pipeline.step()
        first = figures(address)
        assert first[of("rows_total", "public.good")] == 10
        assert first[of("rows_total", "public.bad")] == 2, "a row and what it was before"
        assert first[of("state", "public.bad", state="running")] == 1
        assert first['persist_source_steps_total{source="shop"}'] == 1
        assert first['persist_source_upstream_retained_bytes{source="shop"}'] > 0
        assert first['persist_source_upstream_lost{source="shop"}'] == 0
        shop.run("ALTER TABLE bad DROP COLUMN name", "INSERT INTO good VALUES (12, 'b')")
        pipeline.step()
        then = figures(address)
        assert then[of("state", "public.bad", state="stalled")] == 1
        assert then[of("state", "public.bad", state="running")] == 0
        assert then[of("state", "public.good", state="running")] == 1
        assert then['persist_source_failures_total{source="shop",reason="TABLE_ALTERED"}'] == 1
        assert asked(address, "readyz").splitlines() == ["ready", "public.bad: stalled"]
        pipeline.step()
        # No step comes between these two: both fall behind, the one that stalled is further behind.
        late = figures(address)
        later = figures(address)
        assert later[of("lag_seconds", "public.bad")] > late[of("lag_seconds", "public.good")]
        assert later[of("lag_seconds", "public.good")] >= late[of("lag_seconds", "public.good")]
        assert later[of("stalled_seconds", "public.bad")] >= late[of("stalled_seconds", "public.bad")]
        assert {name.partition("{")[0] for name in later} <= set(HELP), "each says what it is"
        told = status(here, "shop")
        assert sure(told.exports["public.bad"].lag_ms) > sure(told.exports["public.good"].lag_ms)
        assert not told.warnings
    told = status(here, "shop")
    assert [each.partition(",")[0] for each in told.warnings] == ["nothing ingests this source"]


def test_another_ingester_that_is_first_is_counted(here: Location, shop: Any) -> None:
    begun(here, shop)
    with Pipeline(here, "shop", options=OPTIONS) as one, Pipeline(here, "shop", options=OPTIONS) as two:
        one.step()
        two.step()
        counted = [one.figures.exports["public.good"].rows, one.figures.exports["public.good"].first]
        shop.run("INSERT INTO good VALUES (2, 'b')")
        read, alone = two._append, threading.Lock()

        def late(name: str, done: Any, upper: Any) -> bool:
            # What two is about to append is durable by then. It appends exports side by side; one is for one thread.
            with alone:
                while one.step().upper.less_than(upper):
                    pass
            return read(name, done, upper)

        two._append = late  # type: ignore[method-assign]
        while not two.step().overtaken:
            pass
        exports = {name: each for name, each in two.figures.exports.items() if each.rows}
        assert not exports, "it wrote none of them"
        assert two.figures.exports["public.good"].overtaken == 1
        mine = one.figures.exports["public.good"]
        assert mine.rows == counted[0] + 1
        assert mine.first > counted[1]


def test_what_was_taken_back_without_having_come_is_found_by_itself(here: Location, shop: Any) -> None:
    begun(here, shop)
    shop.run("INSERT INTO good SELECT n, 'b' FROM generate_series(2, 3000) n", "UPDATE good SET name = 'c'")
    with Pipeline(here, "shop", options=OPTIONS) as pipeline, watched("127.0.0.1:0", pipeline) as address:
        pipeline.step()
        the_client = client(here)
        shard = pipeline.source.shards["public.good"]
        upper = sure(the_client.recent_upper(shard).time)
        never = [(({"id": id}, {"name": "never"}), upper, -1) for id in (1, 7, 3000, 5000)]
        the_client.open_writer(shard).compare_and_append(never, [upper], [upper + 1])
        shop.run("INSERT INTO bad VALUES (2, 'b')")
        pipeline.step()
        assert not status(here, "shop").warnings, "nothing was counted yet"
        recount = pipeline.recount
        recount.portion_rows = 700
        portions = 0
        while recount.found.keys() != {"public.good", "public.bad"}:
            recount.go_on(pipeline.source)
            portions += 1
        assert portions == 6, "a few hundred rows each, and the other table"
        assert recount.found["public.good"].negative == 4
        assert recount.found["public.good"].rows == 3004, "each once"
        assert recount.found["public.bad"].negative == 0
        pipeline.step()
        assert figures(address)[of("negative_rows", "public.good")] == 4
        assert figures(address)[of("negative_rows", "public.bad")] == 0
        told = status(here, "shop")
        assert told.recounted["public.good"].negative == 4
        [warning] = told.warnings
        assert warning.startswith("public.good held 4 rows less than no times")
        resnapshot(here, "shop", "public.good")
        while recount.found["public.good"].negative:
            recount.go_on(pipeline.source)
        pipeline.step()
        assert not status(here, "shop").warnings


def test_a_read_of_times_that_a_stalled_table_does_not_get_says_why(here: Location, shop: Any) -> None:
    begun(here, shop)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        shop.run("ALTER TABLE bad DROP COLUMN name", "INSERT INTO bad VALUES (2)")
        pipeline.step()
    the_client, shards = client(here), Records(client(here)).source("shop").shards
    upper = sure(the_client.recent_upper(shards["public.bad"]).time)

    def asked(export: str, as_of: int, timeout: float) -> None:
        request = SnapshotFile(shard=str(shards[export]), as_of=as_of, where=None, columns=(), limit=None,
                               file_format="json", output=None)  # fmt: skip
        snapshot(the_client, request, timeout=timeout, json=False)

    with pytest.raises(NotYetAvailable, match=r"stalled since .*dropped") as said:
        asked("public.bad", upper, timeout=3600)
    assert "persist source resnapshot shop public.bad" in str(said.value.hint)
    asked("public.bad", upper - 1, timeout=60)
    with pytest.raises(NotYetAvailable, match="not complete in time"):
        asked("public.good", upper + 10**9, timeout=0.1)


def test_a_pipeline_counts_beside_its_steps(here: Location, shop: Any) -> None:
    begun(here, shop)
    with Pipeline(here, "shop", options=replace(OPTIONS, recount_ms=1)) as pipeline:
        pipeline.watch._joined_at = float("inf")
        while pipeline.recount.found.keys() != {"public.good", "public.bad"}:
            pipeline.step()
        assert not pipeline.watch.failed


def test_rows_of_one_key_are_counted_once_however_portions_are_cut(here: Location, shop: Any) -> None:
    shop.run("CREATE TABLE twice (a float8, b text)", "ALTER TABLE twice REPLICA IDENTITY FULL")
    shop.run(
        "INSERT INTO twice SELECT CASE n % 3 WHEN 0 THEN 'NaN'::float8 WHEN 1 THEN NULL ELSE 1 END, NULL"
        " FROM generate_series(1, 9) n"
    )
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": "public.twice"}, interval_ms=1)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        pipeline.recount.portion_rows = 1
        while not pipeline.recount.found:
            pipeline.recount.go_on(pipeline.source)
        assert pipeline.recount.found["public.twice"].rows == 3, "different ones, each of them three times"


def test_a_slot_near_its_limit_is_warned_of_before_it_is_lost(here: Location) -> None:
    config = {"wal_level": "logical", "fsync": "off", "max_slot_wal_keep_size": "192MB", "wal_keep_size": "0"}
    with servers.start_postgres(config) as server:
        shop = Shop(server, "postgres")
        begun(here, shop)
        with Pipeline(here, "shop", options=OPTIONS) as pipeline:
            pipeline.step()
            assert not status(here, "shop").warnings
            warned: Sequence[str] = ()
            while not warned:  # 16 MB each time
                shop.run("SELECT pg_logical_emit_message(false, 'x', 'y')", "SELECT pg_switch_wal()", "CHECKPOINT")
                told = status(here, "shop")
                assert not told.upstream_error, "lost without a warning"
                warned = told.warnings
            [warning] = warned
            assert "max_slot_wal_keep_size" in warning
            pipeline.step()
            pipeline.step()
        shop.close()


def test_what_an_open_transaction_keeps_of_the_log_is_counted(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server keeps its log from there on, although all that was committed since is read."""
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)
    monkeypatch.setattr(reading, "LOG_SECONDS", 0.0)
    begun(here, shop)
    retained, behind = (
        f'persist_source_upstream_{each}{{source="shop"}}' for each in ("retained_bytes", "bytes_behind")
    )
    with Pipeline(here, "shop", options=OPTIONS) as pipeline, watched("127.0.0.1:0", pipeline) as address:

        def stepped(wanted: Callable[[dict[str, float]], bool]) -> dict[str, float]:
            while True:
                shop.run("UPDATE good SET name = name || '.'")
                pipeline.step()
                if wanted(found := figures(address)):
                    return found

        with psycopg.connect(shop.dsn) as other:
            other.execute("INSERT INTO bad VALUES (2, 'open')")
            for _ in range(4):
                shop.run("SELECT pg_logical_emit_message(false, 'x', repeat('y', 1000000))")
            found = stepped(lambda found: found[behind] < 1_000_000)
            assert found[retained] > 4_000_000
            assert status(here, "shop").upstream["retained_bytes"] > 4_000_000
        stepped(lambda found: found[retained] < 1_000_000)


def test_what_is_warned_of() -> None:
    fine = {"retained_bytes": 1000, "safe_wal_size": 1000, "wal_status": "reserved"}
    assert not [*warnings(fine, is_ingested=True)]
    assert not [*warnings({}, is_ingested=False)], "an upstream that says nothing"
    assert not [*warnings({**fine, "safe_wal_size": None}, is_ingested=True)], "without a limit"
    [near] = warnings({**fine, "safe_wal_size": 249}, is_ingested=True)
    assert "after 249 more bytes" in near
    assert not [*warnings({**fine, "safe_wal_size": 251}, is_ingested=True)]
    [lost] = warnings({**fine, "wal_status": "lost"}, is_ingested=True)
    assert "gave up" in lost
    [about] = warnings({**fine, "wal_status": "unreserved"}, is_ingested=True)
    assert "is about to" in about
    assert len([*warnings({**fine, "safe_wal_size": 1}, is_ingested=False)]) == 2
