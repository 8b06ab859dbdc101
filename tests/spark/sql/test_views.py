"""Materialized views that Spark computes: at their refresh times what the query gives, once, whatever is killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import persist
import pyspark_persist

HERE = Path(__file__).parent
QUERY = "SELECT name, count(*) AS n, sum(amount) AS total FROM t GROUP BY name"
SECONDS = 280


@contextlib.contextmanager
def refreshing(location: str, scratch: Path, place: str, number: int = 1) -> Iterator[subprocess.Popen[str]]:
    """A process that refreshes views on Spark; all of its group is killed in the end."""
    arguments = [sys.executable, str(HERE / "refreshing.py"), location, str(scratch), place, str(number)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def made(client: Any) -> None:
    client.sql(
        "CREATE TABLE t (id int PRIMARY KEY, name text, amount numeric(12, 2)) WITH (RETAIN HISTORY FOREVER);"
        "INSERT INTO t VALUES (1, 'a', 1.5), (2, 'b', 2), (3, NULL, NULL)"
    )
    client.sql(
        "CREATE MATERIALIZED VIEW here WITH (REFRESH EVERY '1s', RETAIN HISTORY FOREVER) AS SELECT count(*) AS n FROM t"
    )
    client.sql(
        f"CREATE MATERIALIZED VIEW v WITH (RUNNER = 'spark', REFRESH EVERY '1s', RETAIN HISTORY FOREVER) AS {QUERY}"
    )


def written(client: Any, text: str) -> int:
    """The time at which a statement wrote."""
    return int(client.sql(text)[0].ts)


def upper(client: Any, name: str) -> int:
    with client.environment() as environment:
        return int(client.recent_upper(environment.resolve(name).data).time)


def wait_beyond(client: Any, name: str, at: int) -> None:
    ends = time.monotonic() + SECONDS
    while upper(client, name) <= at:
        assert time.monotonic() < ends, f"{name} does not pass {at}"
        time.sleep(0.2)


def check(client: Any, times: list[int]) -> None:
    """At each time the view has what the query had at its refresh time before."""
    for at in times:
        refreshed = at // 1000 * 1000
        expected = sorted(map(repr, client.sql(f"{QUERY} AS OF {refreshed}")[0].rows))
        assert sorted(map(repr, client.sql(f"SELECT * FROM v AS OF {at}")[0].rows)) == expected, at


def updates(client: Any) -> list[tuple[Any, ...]]:
    """All that was ever appended to the view, consolidated at its own times."""
    with client.environment() as environment:
        item = environment.resolve("v")
    with client.open_reader(item.data) as reader:
        since, end = reader.since.time, reader.upper.time
        rows = reader.snapshot(since).to_pylist()
        later = reader.diffs(since + 1, end).to_pylist()
    return [tuple(row.values()) for row in [*rows, *later]]


def test_the_leader_leaves_a_view_to_spark_and_rows_are_those_of_the_query(
    spark: Any, tmp_path: Path, capfd: Any
) -> None:
    with persist.embedded(str(tmp_path)) as client:
        made(client)
        begun = upper(client, "here")
        wait_beyond(client, "here", begun)
        assert upper(client, "v") == 0
        assert "RUNNER = 'spark'" in client.sql("SHOW CREATE MATERIALIZED VIEW v")[0].rows[0][1]
        times = []
        with client.views(pyspark_persist.SparkRunner(spark)) as views:
            for statement in (
                "INSERT INTO t VALUES (4, 'a', 4)",
                "UPDATE t SET amount = amount + 1 WHERE name = 'a'",
                "DELETE FROM t WHERE name IS NULL",
            ):
                times.append(written(client, statement) + 1000)
                while upper(client, "v") <= times[-1]:
                    views.work()
                assert [(each.name, each.stalled) for each in views.states()] == [("persist.public.v", "")]
        check(client, times)
        # The difference, and not all rows again: what did not change was written once.
        assert [row[-1] for row in updates(client) if row[0] == "b"] == [1]


def test_a_query_that_spark_does_not_run_is_refused_when_the_view_is_made(spark: Any, tmp_path: Path) -> None:
    with persist.embedded(str(tmp_path)) as client:
        client.sql("CREATE TABLE t (id int, s text)")
        with pytest.raises(persist.PersistError, match="not run by Spark"):
            client.sql("CREATE MATERIALIZED VIEW v WITH (RUNNER = 'spark') AS SELECT upper(s) AS s FROM t")
        with pytest.raises(persist.PersistError, match="'spark' or 'duckdb'"):
            client.sql("CREATE MATERIALIZED VIEW v WITH (RUNNER = 'flink') AS SELECT s FROM t")
        client.sql("CREATE MATERIALIZED VIEW v WITH (RUNNER = 'duckdb') AS SELECT upper(s) AS s FROM t")


def test_rows_that_have_no_answer_stall_the_view_alone_until_they_are_mended(spark: Any, tmp_path: Path) -> None:
    with persist.embedded(str(tmp_path)) as client:
        client.sql("CREATE TABLE t (id int PRIMARY KEY, d int); INSERT INTO t VALUES (1, 1)")
        for name, query in (("v", "SELECT id / d AS q FROM t"), ("w", "SELECT id FROM t")):
            client.sql(f"CREATE MATERIALIZED VIEW {name} WITH (RUNNER = 'spark', RETAIN HISTORY FOREVER) AS {query}")
        with client.views(pyspark_persist.SparkRunner(spark)) as views:
            at = written(client, "INSERT INTO t VALUES (2, 0)")
            while upper(client, "w") <= at + 1000 or not views.states()[0].stalled:
                views.work()
            stalled, going = views.states()
            assert "DIVIDE_BY_ZERO" in stalled.stalled
            assert going.stalled == ""
            at = written(client, "UPDATE t SET d = 2 WHERE id = 2")
            while upper(client, "v") <= at + 1000:
                views.work()
            assert views.states()[0].stalled == ""
        assert sorted(client.sql(f"SELECT q FROM v AS OF {at + 1000}")[0].rows) == [(1,), (1,)]


@pytest.mark.timeout(900)  # a JVM begins for each place
@pytest.mark.parametrize("place", ["job", "written", "appended"])
def test_a_refresh_that_is_killed_is_there_once_or_not_at_all(spark: Any, tmp_path: Path, place: str) -> None:
    """«exactly once, resumable»: by SIGKILL, with its JVM and its executors, and begun again in another process."""
    location = str(tmp_path / "p")
    with persist.embedded(location) as client:
        made(client)
        first = written(client, "INSERT INTO t VALUES (4, 'a', 4)")
        with refreshing(location, tmp_path / "one", place) as process:
            assert process.wait(timeout=SECONDS) == -signal.SIGKILL
        stood = upper(client, "v")
        assert (stood > 0) == (place == "appended")
        later = written(client, "UPDATE t SET amount = 7 WHERE name = 'a'")
        with client.views(pyspark_persist.SparkRunner(spark)) as views:
            while upper(client, "v") <= later + 1000:
                views.work()
        check(client, [first + 1000, later + 1000])
        counts: dict[tuple[Any, ...], int] = {}
        for row in updates(client):
            key = row[:3]
            counts[key] = counts.get(key, 0) + row[-1]
        # Whatever was begun: no row is there twice, and none is taken away that was not there.
        assert set(counts.values()) <= {0, 1}
