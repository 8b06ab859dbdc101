"""Upserts by ranges of keys on executors: what one process makes of them, whatever is killed, lost and overtaken."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ingest.pipeline.conftest import contents
from ingest.pipeline.test_kafka_pipeline import Topic, cluster

from persist_ingest import Location, Pipeline, PipelineOptions, create
from persist_ingest.location import release
from persist_ingest.pipeline import running
from persist_ingest.pipeline.running import Runner
from persist_ingest.pipeline.work import Done, Work
from persist_ingest.sources.kafka import reader
from persist_ingest.sources.port import BadRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["cluster"]
SMALL, LARGE = 1 << 60, 0
OPTIONS = {"tick_ms": 1, "forget_ms": 0, "told_ms": 0, "commit_steps_late": 0}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Location]:
    place = Location(directory=str(tmp_path / "data"))
    yield place
    release(place)


@pytest.fixture
def topic(cluster: tuple[str, Any], monkeypatch: pytest.MonkeyPatch) -> Topic:
    # Several tasks read even few messages.
    monkeypatch.setattr(reader, "LEAST_PER_TASK", 1)
    made = Topic(*cluster)
    made.put("first", 1)
    made.flush()
    return made


@dataclass
class Overtaken(Runner):
    """Has ``first`` step once, before what it came to is appended."""

    first: Pipeline | None = None

    def run(self, works: Sequence[Work], report: Callable[[int], None]) -> list[Done]:
        done = Runner.run(self, works, report)
        if self.first is not None:
            self.first.step()
            self.first = None
        return done


def pipeline(here: Location, place: Path, spark: "SparkSession | None", ranges: int = 3) -> Pipeline:
    options = PipelineOptions(**OPTIONS, key_ranges=ranges, state_dir=str(place))  # type: ignore[arg-type]  # all are ints
    made = Pipeline(here, "feed", options=options)
    made._runner = Overtaken((lambda: spark) if spark else None, LARGE)
    return made


def check(here: Location, topic: Topic) -> None:
    """The export holds what the topic says, each once."""
    assert contents(here, "feed", "rows") == Counter(topic.held.items())


def put(topic: Topic, rng: random.Random, count: int, keys: int = 60) -> None:
    for _ in range(count):
        topic.put(f"key{rng.randrange(keys)}", None if rng.random() < 0.2 else rng.randrange(5))
    topic.flush()


def test_whatever_happens_between_steps_they_equal_the_model(
    spark: "SparkSession", here: Location, topic: Topic, tmp_path: Path
) -> None:
    rng, place, bad = random.Random(3), tmp_path / "state", 0
    create(here, "feed", "kafka", topic.options(badRows="divert"), interval_ms=1)
    ingester, other = pipeline(here, place, spark), pipeline(here, tmp_path / "other", None)
    happens = ["", "small", "lost", "small", "", "overtaken", "restart", "bad", "elsewhere", "", "ranges", ""]
    for what in happens:
        put(topic, rng, rng.randrange(50, 300))
        ingester._runner.spark_bytes_min = SMALL if what == "small" else LARGE
        if what == "lost":
            shutil.rmtree(place)
        elif what in ("restart", "ranges"):
            ingester.close()
            ingester = pipeline(here, place, spark, ranges=2 if what == "ranges" else 3)
        elif what == "bad":
            topic.raw("bad", '{"v":"no number"}', 0)
            topic.flush()
            bad += 1
        elif what == "elsewhere":
            other.step()
            put(topic, rng, 100)
        elif what == "overtaken":
            runner = ingester._runner
            assert isinstance(runner, Overtaken)
            runner.first = other
        jobs = ingester._runner.jobs
        step = ingester.step()
        assert (ingester._runner.jobs > jobs) == (what != "small")
        assert (step.overtaken > 0) == (what == "overtaken") or what == "elsewhere"
        while what == "elsewhere" and step.overtaken:
            step = ingester.step()  # it did not know yet
        check(here, topic)
        assert sum(contents(here, "feed", "errors").values()) == bad
    ingester.close()
    other.close()
    assert len(list(place.glob("*-of-2.*"))) == 2
    assert len(list(place.glob("*-of-3.*"))) == 3, "one for each range, whichever process came"


def test_processes_that_are_killed_amid_a_step_change_nothing(
    spark: "SparkSession", here: Location, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import range_faults

    rng = random.Random(4)
    create(here, "feed", "kafka", topic.options(), interval_ms=1)
    with pipeline(here, tmp_path / "state", spark) as ingester:
        for fault in (None, "_sending", "_in_range", None):
            put(topic, rng, 400)
            with monkeypatch.context() as patched:
                if fault is not None:
                    patched.setattr(running, fault, getattr(range_faults, fault[1:]))
                ingester.step()
            check(here, topic)


def test_a_step_reads_what_is_kept_and_leaves_nothing_behind(
    spark: "SparkSession", here: Location, topic: Topic, tmp_path: Path
) -> None:
    """Neither all of the export, nor files of a shuffle."""
    rng, place = random.Random(5), tmp_path / "state"
    scratch = Path(spark.conf.get("spark.local.dir") or "")
    create(here, "feed", "kafka", topic.options(), interval_ms=1)
    before = set(scratch.rglob("shuffle_*"))
    with pipeline(here, place, spark) as ingester:
        for _ in range(4):
            put(topic, rng, 300)
            ingester.step()
        made = {path.name: path.stat().st_ino for path in place.glob("*/*.rows")}
        put(topic, rng, 300)
        ingester.step()
        # One run of each range is prepared; the others are those that were there.
        runs = {path.name: path.stat().st_ino for path in place.glob("*/*.rows")}
        assert made.items() <= runs.items()
        while set(scratch.rglob("shuffle_*")) - before:
            time.sleep(0.05)
    check(here, topic)


def test_an_executor_tells_what_is_wrong(spark: "SparkSession", here: Location, topic: Topic, tmp_path: Path) -> None:
    topic.raw("bad", '{"v":"no number"}', 0)
    topic.flush()
    create(here, "feed", "kafka", topic.options(), interval_ms=1)
    with pipeline(here, tmp_path / "state", spark) as ingester, pytest.raises(BadRows, match="no number"):
        ingester.run(steps=3)
