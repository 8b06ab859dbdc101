"""Topics whose messages bring their times: CDCv2 over a broker, Debezium's two topics at the port of a cluster."""

import io
import json
import os
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import fastavro
import pytest
from ingest.pipeline.brought.test_brought_times import (
    AVRO,
    OPTIONS,
    at,
    change,
    progress,
    run,
    transaction,
    updates,
    upper,
)
from ingest.sources.fake_kafka import FakeCluster, Log, Message

from persist.core.time.timeline import CounterTimeline
from persist.sources import UpstreamLost, UpstreamReplaced
from persist_ingest import Location, Pipeline, create
from persist_ingest.sources.brought.debezium import DebeziumReader, DebeziumType
from persist_ingest.sources.port import SourceFailure, Stated, StatedProgress


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, Any]]:
    real = os.environ.get("PERSIST_KAFKA")
    if real is not None:
        yield real, confluent_kafka.Producer({"bootstrap.servers": real})
        return
    producer = confluent_kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 3})
    brokers = producer.list_topics(timeout=30).brokers.values()
    yield ",".join(f"{each.host}:{each.port}" for each in brokers), producer


def avro(value: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(AVRO), value)
    return b"\x00\x00\x00\x00\x07" + body.getvalue()


@pytest.mark.parametrize("form", ["json", "avro"])
def test_cdcv2_over_several_partitions(here: Location, cluster: tuple[str, Any], form: str) -> None:
    servers, producer = cluster
    topic = f"t{uuid.uuid4().hex}"

    def put(message: dict[str, Any], partition: int) -> None:
        value = json.dumps(message).encode() if form == "json" else avro(next(iter(message.values())))
        producer.produce(topic, value=value, partition=partition)
        assert producer.flush(60) == 0

    put(progress(0, 3, {2: 2}), 0)
    options = {"bootstrapServers": servers, "topic": topic, "key": "id", "format": form}
    more = {"schema": "id bigint"} if form == "json" else {"avroSchema": json.dumps(AVRO), "avroHeader": "confluent"}
    create(here, "ticks", "cdcv2", {**options, **more})
    put(updates((1, 2, 1)), 1)
    with Pipeline(here, "ticks", options=OPTIONS) as pipeline:
        pipeline.step()
        assert upper(here, "ticks") == 2
        put(updates((1, 2, 1), (2, 2, 1)), 2)
        pipeline.step()
        assert upper(here, "ticks") == 3
    put(updates((1, 3, -1)), 0)
    put(progress(3, 4, {3: 1}), 3)
    run(here, "ticks")
    assert upper(here, "ticks") == 4
    assert at(here, "ticks", 2) == {1: 1, 2: 1}
    assert at(here, "ticks", 3) == {2: 1}


class Topics:
    """The two topics of a connector."""

    def __init__(self) -> None:
        self.clusters = {name: FakeCluster({0: Log()}, topic_id=name) for name in ("shop.public.orders", "shop.tx")}

    def connect(self, topic: str, group: str, settings: tuple[tuple[str, str], ...]) -> FakeCluster:
        return self.clusters[topic]

    def put(self, topic: str, *messages: Any) -> None:
        self.clusters[topic].logs[0].put(*(Message(None, json.dumps(each).encode()) for each in messages))

    def reader(self) -> DebeziumReader:
        kind = DebeziumType(self.connect)
        options = {
            "bootstrapServers": "a:9092,b:9092",
            "topic": "shop.public.orders",
            "transactionTopic": "shop.tx",
            "schema": "id bigint",
            "key": "id",
        }
        with kind.create(options, source="shop") as beginning:
            reader = kind.open(beginning.definition, beginning.reader.exports())
        return reader


def test_a_transaction_topic_is_a_timeline() -> None:
    """Counter(struct) for Debezium consistency topics, with a struct to track broker/topic to tell apart different
    sources."""
    topics = Topics()
    reader = topics.reader()
    assert reader.counter == CounterTimeline("a:9092,b:9092", "shop.tx")
    topics.put("shop.public.orders", change("tx9", 1, None, 7))
    assert list(reader.follow()) == []
    topics.put("shop.tx", transaction("tx9", "BEGIN"), transaction("tx9", "END", orders=1))
    assert list(reader.follow()) == [Stated(1, "1", (({"id": 7}, 1),)), StatedProgress(0, 2, {1: 1})]
    assert list(reader.follow()) == []
    reader.close()


def test_transactions_that_were_thrown_away_cannot_be_counted() -> None:
    topics = Topics()
    reader = topics.reader()
    topics.clusters["shop.tx"].logs[0].low = 3
    with pytest.raises(UpstreamLost):
        list(reader.follow())


def test_another_topic_of_the_same_name() -> None:
    topics = Topics()
    reader = topics.reader()
    topics.clusters["shop.tx"].topic_id = "another"
    with pytest.raises(UpstreamReplaced):
        list(reader.follow())


def test_a_transaction_topic_has_one_partition() -> None:
    topics = Topics()
    topics.clusters["shop.tx"].logs[1] = Log()
    with pytest.raises(SourceFailure, match="several partitions"):
        topics.reader()
