"""Every pair of timelines over every path into Spark: the right answer or the error at once, never a wait.

Quoted: design 004, Timelines.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client.collections.support import SCHEMA, shard_of, updates

import persist
import pyspark_persist
from persist.catalog import CreateSource, Export, QualifiedName
from persist.core.catalog.values import Retain
from persist.core.time.errors import MultipleTimelines

TIMELINES = {
    "clock": "M",
    "mine": "U.mine",
    "theirs": "U.theirs",
    "counter": "C.kafka:9092/transactions",
    "other_counter": "C.kafka:9092/others",
    "external": "E",
    "other_external": "E",
}
"""Some of each variant, and several of those of which there are several."""
SECONDS = 1.0
"""Of a processor, so that what else this machine does is no matter; and what waits, waits for much longer than WAIT."""
WAIT = 10.0
JOIN = "SELECT a.name, b.name FROM {a} AS a JOIN {b} AS b ON a.id = b.id"


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two collections in each timeline: ``mine_1``, ``mine_2``. Their rows are 1, and of the second one 2, too."""
    place = str(tmp_path_factory.mktemp("timelines"))
    with persist.embedded(place) as client, client.environment() as environment:
        for name, timeline in TIMELINES.items():
            if timeline == "M":
                for number in (1, 2):
                    client.sql(f"CREATE TABLE {name}_{number} (id bigint PRIMARY KEY, name text)")
                    client.sql(f"INSERT INTO {name}_{number} VALUES (1, '{name}')")
                client.sql(f"INSERT INTO {name}_2 VALUES (2, '{name}')")
                continue
            exports = []
            for number in (1, 2):
                shard = shard_of(f"{name}_{number}")
                writer = client.open_writer(shard, schema=SCHEMA)
                given = [(1, name, 2, 1), (2, name, 4, 1)][:number]
                # Neither is complete beyond what the other one has.
                writer.compare_and_append(updates(*given), 0, 6 if number == 1 else 9)
                exports.append(Export(f"{name}_{number}", SCHEMA, shard))
            kind = "cdcv2" if timeline == "E" else "files"
            environment.execute(CreateSource(QualifiedName(name), kind, (), tuple(exports), timeline, retain=Retain()))
        yield place


Path_ = Callable[[Any, str, str, str], list[tuple[Any, ...]]]


def _timedomain(spark: Any, where: str, a: str, b: str) -> list[tuple[Any, ...]]:
    both = pyspark_persist.timedomain(spark, [a, b], location=where)
    frame = both[a].join(both[b], "id").select(both[a]["name"], both[b]["name"])
    return [tuple(row) for row in frame.collect()]


def _sql(spark: Any, where: str, a: str, b: str) -> list[tuple[Any, ...]]:
    frame = pyspark_persist.sql(spark, JOIN.format(a=a, b=b), location=where)
    return [tuple(row) for row in frame.collect()]


def _runner(spark: Any, where: str, a: str, b: str) -> list[tuple[Any, ...]]:
    with persist.embedded(where) as client:
        return list(client.sql(JOIN.format(a=a, b=b), runner=pyspark_persist.SparkRunner(spark))[0].rows)


def _view_on_spark(spark: Any, where: str, a: str, b: str) -> list[tuple[Any, ...]]:
    text = "CREATE MATERIALIZED VIEW v WITH (RUNNER = 'spark') AS SELECT a.id FROM {a} AS a, {b} AS b"
    with persist.embedded(where) as client:
        client.sql(text.format(a=a, b=b))
        client.sql("DROP MATERIALIZED VIEW v")
    name = a.rpartition("_")[0]
    return [(name, name)]


PATHS: list[Path_] = [_timedomain, _sql, _runner, _view_on_spark]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__.strip("_"))
def test_every_pair_is_answered_or_refused_at_once(spark: Any, where: str, path: Path_) -> None:
    """«Prevent users from doing things that are silently meaningless.» «Prevent user queries blocking forever.»"""
    with pytest.raises(MultipleTimelines):  # what is opened once is opened
        path(spark, where, "mine_1", "theirs_2")
    for one, other in itertools.product(TIMELINES, TIMELINES):
        a, b = f"{one}_1", f"{other}_2"
        if one == other:
            assert path(spark, where, a, b) == [(one, one)]
            continue
        tries = []
        for _ in range(2):
            began, computed = time.monotonic(), time.process_time()
            with pytest.raises(MultipleTimelines) as refused:
                path(spark, where, a, b)
            tries.append((time.process_time() - computed, time.monotonic() - began))
            for name, number in ((one, 1), (other, 2)):
                assert f"persist.public.{name}" in refused.value.details["timelines"]
                assert f"persist.public.{name}_{number}" in refused.value.details["paths"]
            if tries[0][0] < SECONDS and tries[0][1] < WAIT:
                break  # Only what took long is tried once more, as it may have met other work.
        assert min(took for took, _ in tries) < SECONDS, (one, other, tries)
        assert min(took for _, took in tries) < WAIT, (one, other, tries)


@pytest.mark.parametrize("one", list(TIMELINES))
def test_one_name_is_loaded_at_a_time_of_its_own_timeline(spark: Any, where: str, one: str) -> None:
    """What is loaded one by one is checked one by one: ``option("table")`` is of one timeline, whichever it is."""
    frame = spark.read.format("persist").option("location", where).option("table", f"{one}_2").load()
    assert sorted(row.id for row in frame.collect()) == [1, 2]
    if TIMELINES[one] != "M":
        early = spark.read.format("persist").option("location", where).option("table", f"{one}_2").option("asOf", 3)
        assert [row.id for row in early.load().collect()] == [1]


def test_a_number_of_another_timeline_is_no_time(spark: Any, where: str) -> None:
    """«For the Debezium sources, this would require waiting until there were as many transactions as milliseconds since
    the Unix epoch, which essentially will never happen. We should prevent this poor UX from happening to users.»
    """
    began = time.monotonic()
    with pytest.raises(MultipleTimelines):
        pyspark_persist.sql(spark, JOIN.format(a="clock_1", b="counter_1"), as_of=5, location=where)
    assert time.monotonic() - began < 2 * WAIT
