"""Kafka sources through the real client: on librdkafka's mock cluster, and on the brokers PERSIST_KAFKA names."""

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import pytest
from ingest.sources.suite import check_laws, check_probe, reached, read, rows_of
from sure import as_a, sure

from persist import LocationError
from persist.sources import SourceFrontier, SourceKind, UpstreamLost
from persist_ingest.sources.kafka import KAFKA, librdkafka
from persist_ingest.sources.kafka.reader import KafkaReader
from persist_ingest.sources.port import SourceFailure, Upserts

KIND = SourceKind.PARTITIONS
START = SourceFrontier.minimum(KIND)
REAL = os.environ.get("PERSIST_KAFKA")
PARTITIONS = 4
"""Of a topic the mock cluster makes."""


@dataclass
class Broker:
    servers: str
    producer: Any
    is_real: bool = False

    def topic(self) -> str:
        name = f"t{uuid.uuid4().hex}"
        if self.is_real:
            from confluent_kafka.admin import AdminClient
            from confluent_kafka.cimpl import NewTopic

            admin = AdminClient({"bootstrap.servers": self.servers})
            admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(timeout=30)
        return name

    def put(self, topic: str, count: int, size: int = 0) -> None:
        padding = "x" * size
        for number in range(count):
            value = f'{{"id":{number},"name":"{padding}"}}'
            while True:
                try:
                    self.producer.produce(topic, key=b"k%d" % (number % 9), value=value, partition=number % PARTITIONS)
                    break
                except BufferError:
                    self.producer.poll(0.1)
        assert self.producer.flush(60) == 0


@pytest.fixture(scope="module", params=["mock", *(["real"] if REAL else [])])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    if request.param == "real":
        assert REAL is not None
        yield Broker(REAL, confluent_kafka.Producer({"bootstrap.servers": REAL}), is_real=True)
        return
    producer = confluent_kafka.Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "mock", "log_level": 3})
    brokers = producer.list_topics(timeout=30).brokers.values()
    yield Broker(",".join(f"{each.host}:{each.port}" for each in brokers), producer)


def made(broker: Broker, topic: str, **options: str) -> KafkaReader:
    given = {"bootstrapServers": broker.servers, "topic": topic, "schema": "id bigint, name string", "key": "id"}
    with KAFKA.create({**given, **options}, source=topic) as beginning:
        return as_a(KafkaReader, KAFKA.open(beginning.definition, beginning.reader.exports()))


def test_topics_are_read_by_the_laws(broker: Broker) -> None:
    topic = broker.topic()
    broker.put(topic, 9_000)
    reader = made(broker, topic, include="partition,offset,timestamp,key")
    end = reached(reader)
    assert end.bounds == (2250,) * PARTITIONS
    middle = SourceFrontier.at(KIND, {0: 2250, 1: 17, 3: 0})
    found = check_laws(reader, [START, middle, end])
    check_probe(reader)
    assert sorted(row[2] for row in rows_of(found, "rows")) == list(range(9_000))
    broker.put(topic, 8)
    after = reached(reader)
    assert after.bounds == (2252,) * PARTITIONS
    assert len(rows_of(read(reader, end, after), "rows")) == 8
    reader.commit(end)
    reader.commit(START)
    assert reader.status().committed == end
    assert reader.status().details == {"partitions": PARTITIONS, "messages_behind": 8}
    reader.close()


def test_upserts_come_partition_by_partition(broker: Broker) -> None:
    topic = broker.topic()
    broker.put(topic, 2_000)
    reader = made(broker, topic, key="who", envelope="upsert")
    plan = reader.plan(START, reached(reader), 3)
    assert len(plan) == 1
    partitions = [each for event in plan[0].read() for each in sure(as_a(Upserts, event).partitions).to_pylist()]
    assert partitions == sorted(map(sure, partitions))
    assert len(partitions) == 2_000
    reader.close()


def test_what_the_topic_dropped_is_lost_and_not_skipped(broker: Broker) -> None:
    topic = broker.topic()
    broker.put(topic, 10)
    reader = made(broker, topic)
    beyond = SourceFrontier.at(KIND, {0: 1_000_000})  # a begin the broker does not have, as after retention
    with pytest.raises(UpstreamLost, match="no longer has"):
        read(reader, beyond, SourceFrontier.at(KIND, {0: 1_000_001}))
    reader.close()


def test_a_range_that_does_not_arrive_is_tried_later(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.topic()
    broker.put(topic, 10)
    reader = made(broker, topic)
    monkeypatch.setattr(librdkafka, "STALLED_SECONDS", 0.5)
    with pytest.raises(LocationError, match="do not arrive"):
        read(reader, START, SourceFrontier.at(KIND, {0: 1_000}))
    reader.close()


def test_brokers_that_are_away_are_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(librdkafka, "ANSWER_SECONDS", 0.5)
    nowhere = Broker("127.0.0.1:1", None)
    with pytest.raises(LocationError, match="tried again later"):
        made(nowhere, "t")


def test_errors_of_the_client_mean_what_they_say() -> None:
    kafka_error = confluent_kafka.KafkaError
    for code, kind in (
        (kafka_error._AUTO_OFFSET_RESET, UpstreamLost),
        (kafka_error.OFFSET_OUT_OF_RANGE, UpstreamLost),
        (kafka_error.UNKNOWN_TOPIC_OR_PART, SourceFailure),
        (kafka_error._TRANSPORT, LocationError),
    ):
        assert isinstance(librdkafka.failure(kafka_error(code), "t"), kind)
