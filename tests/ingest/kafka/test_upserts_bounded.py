"""Upserts of a topic of a real broker: a step costs what its own keys do, however many there are."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from ingest.kafka.conftest import Topic
from ingest.pipeline.conftest import contents
from sure import sure

from persist.arrow import Numbers
from persist_ingest import Location, Pipeline, PipelineOptions, create
from persist_ingest.pipeline.newest.runs import Run

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=10**9, told_ms=10**9)
KEYS, WIDE = 20_000, 200
"""Many keys, and bytes of each value."""
STATE_BYTES = KEYS * WIDE


@pytest.fixture
def arrow() -> Iterator[pa.MemoryPool]:
    """What Arrow has in memory from now on: what is mapped is not."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


def value(turn: int, number: int) -> str:
    return f"{turn} of {number} ".ljust(WIDE, "x")


def put(feed: Topic, numbers: range, turn: int) -> Counter[Any]:
    for number in numbers:
        feed.producer.produce(feed.name, key=f"k{number}", value=f'{{"v":"{value(turn, number)}"}}')
        feed.producer.poll(0)
    assert feed.producer.flush(60) == 0
    return Counter({(f"k{number}", value(turn, number)): 1 for number in numbers})


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """How much each call of a method of runs is given, from now on."""
    counts, method = list[int](), getattr(Run, name)

    def counting(run: Run, given: Numbers) -> Any:
        counts.append(len(given))
        return method(run, given)

    monkeypatch.setattr(Run, name, counting)
    return counts


def test_a_step_looks_at_its_own_keys_and_none_is_held_in_memory(
    here: Location, topic: Callable[..., Topic], arrow: pa.MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = topic()
    held = put(feed, range(KEYS), 0)
    options = feed.options(key="k", keyFormat="text", keySchema="k string", schema="v string", envelope="upsert")
    create(here, "feed", "kafka", options, interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        while contents(here, "feed", "rows") != held:
            pipeline.step()
        assert arrow.bytes_allocated() < STATE_BYTES / 20, "nothing is held of each key"
        looked = counted(monkeypatch, "places")
        touched = counted(monkeypatch, "take")
        few = range(0, KEYS, KEYS // 10)
        newer = put(feed, few, 1)
        during = pa.proxy_memory_pool(arrow)
        pa.set_memory_pool(during)
        step = pipeline.step()
        pa.set_memory_pool(arrow)
        assert step.rows == 2 * len(few), "what they were, and what they are"
        assert len(few) <= sum(looked) <= len(few) * len(looked)
        assert sum(touched) == len(few)
        assert 0 < sure(during.max_memory()) < STATE_BYTES / 20
    for number in few:
        del held[f"k{number}", value(0, number)]
    assert contents(here, "feed", "rows") == held + newer
