"""Topics of Kafka through the whole pipeline: upserts, resumption, offsets committed upstream, bad rows put aside."""

import os
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from ingest.pipeline.conftest import contents
from sure import sure

from persist import PersistError
from persist.sources import SourceFrontier, SourceKind
from persist_ingest import Location, Pipeline, PipelineOptions, create, status
from persist_ingest.location import client
from persist_ingest.sources.port import BadRows

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=0, told_ms=0, commit_steps_late=0)
PARTITIONS = 4
Put = Callable[[str, int, str | None, str | None], None]


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, Any]]:
    real = os.environ.get("PERSIST_KAFKA")
    if real is not None:
        yield real, confluent_kafka.Producer({"bootstrap.servers": real})
        return
    producer = confluent_kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 3})
    brokers = producer.list_topics(timeout=30).brokers.values()
    yield ",".join(f"{each.host}:{each.port}" for each in brokers), producer


class Topic:
    """A topic, what was put into it, and what a reader of upserts has to hold."""

    def __init__(self, servers: str, producer: Any) -> None:
        self.servers, self.producer, self.name = servers, producer, f"t{uuid.uuid4().hex}"
        self.held: dict[str, int] = {}

    def put(self, key: str, value: int | None) -> None:
        """In the partition that the key belongs to."""
        payload = None if value is None else f'{{"v":{value}}}'
        self.raw(key, payload, sum(key.encode()) % PARTITIONS)
        self.held.pop(key, None)
        if value is not None:
            self.held[key] = value

    def raw(self, key: str, payload: str | None, partition: int) -> None:
        self.producer.produce(self.name, key=key, value=payload, partition=partition)

    def flush(self) -> None:
        assert self.producer.flush(60) == 0

    def options(self, **more: str) -> dict[str, str]:
        given = {"bootstrapServers": self.servers, "topic": self.name, "schema": "v bigint", "key": "k"}
        return {**given, "keySchema": "k string", "keyFormat": "text", "envelope": "upsert", **more}


@pytest.fixture
def topic(cluster: tuple[str, Any]) -> Topic:
    made = Topic(*cluster)
    made.put("first", 1)
    made.flush()
    return made


def rows(here: Location, export: str = "rows") -> Counter[Any]:
    return contents(here, "feed", export)


def test_the_newest_value_of_each_key(here: Location, topic: Topic) -> None:
    rng = random.Random(5)
    create(here, "feed", "kafka", topic.options(), interval_ms=1)
    pipeline = Pipeline(here, "feed", options=OPTIONS)
    for round_number in range(6):
        for _ in range(rng.randrange(1, 200)):
            topic.put(f"key{rng.randrange(30)}", None if rng.random() < 0.2 else rng.randrange(5))
        topic.flush()
        pipeline.step()
        assert rows(here) == Counter(topic.held.items())
        if round_number == 3:
            # What a new process knows is what the shard holds.
            pipeline.close()
            pipeline = Pipeline(here, "feed", options=OPTIONS)
    pipeline.close()


def test_offsets_are_committed_up_to_what_is_durable(here: Location, topic: Topic) -> None:
    source = create(here, "feed", "kafka", topic.options(), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        for number in range(50):
            topic.put(f"k{number}", number)
        topic.flush()
        pipeline.step()
        minter = client(here).minter()
        offsets = sure(minter.resumption(source.remap_source, source.shards).source.offsets)
        minter.close()
        told = status(here, "feed")
    assert told.upstream["committed"] == str(offsets) == told.bound
    assert offsets.kind is SourceKind.PARTITIONS
    assert sum(offsets.bounds) == 51
    assert not offsets.less_equal(SourceFrontier.minimum(SourceKind.PARTITIONS))


def test_bad_rows_stop_a_source_or_go_aside(here: Location, topic: Topic) -> None:
    topic.raw("bad", '{"v":"no number"}', 0)
    topic.flush()
    create(here, "strict", "kafka", topic.options(), interval_ms=1)
    with pytest.raises(BadRows) as caught:
        Pipeline(here, "strict", options=OPTIONS).run(steps=3)
    assert isinstance(caught.value, PersistError)
    assert status(here, "strict").state == "failed"

    create(here, "feed", "kafka", topic.options(badRows="divert"), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    assert rows(here) == Counter({("first", 1): 1})
    [error] = rows(here, "errors")
    assert "no number" in str(error)


def test_a_key_in_several_partitions_has_one_history(here: Location, topic: Topic, cluster: tuple[str, Any]) -> None:
    """However its messages fell into steps, as two ingesters must write the same."""
    for name in ("feed", "other"):
        create(here, name, "kafka", topic.options(), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        for number in range(12):
            for partition in (3, 0, 2):
                topic.raw("everywhere", f'{{"v":{number * 10 + partition}}}', partition)
            topic.flush()
            pipeline.step()
    # The same messages in one step: partitions in their order at the one time it has.
    with Pipeline(here, "other", options=OPTIONS) as pipeline:
        pipeline.step()
    [(_, newest)] = [row for row in rows(here) if row[0] == "everywhere"]
    [(_, at_once)] = [row for row in contents(here, "other", "rows") if row[0] == "everywhere"]
    assert newest == at_once == 113
