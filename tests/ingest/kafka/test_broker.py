"""Topics of a real broker, with what librdkafka's mock has not: transactions, compaction, damage, growth, new lives."""

import itertools
import threading
import time
from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from ingest.kafka.conftest import Topic, ids
from ingest.pipeline.conftest import contents
from ingest.sources.suite import check_laws, check_probe, reached, rows_of

from persist import LocationError, PersistError
from persist.sources import SourceFrontier, SourceKind, UpstreamLost, UpstreamReplaced
from persist_ingest import Location, Pipeline, PipelineOptions, create, status
from persist_ingest.sources.kafka import KAFKA, librdkafka
from persist_ingest.sources.kafka.reader import KafkaReader

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=0, told_ms=0, commit_steps_late=0)
START = SourceFrontier.minimum(SourceKind.PARTITIONS)
Topics = Callable[..., Topic]


def opened(topic: Topic, **options: str) -> KafkaReader:
    with KAFKA.create(topic.options(**options), source=topic.name) as beginning:
        reader = KAFKA.open(beginning.definition, beginning.reader.exports())
    assert isinstance(reader, KafkaReader)
    return reader


def test_only_committed_messages_are_there_and_markers_leave_holes(topic: Topics) -> None:
    feed = topic(2)
    transactions = feed.transactional()
    counted = itertools.count()
    wanted = set()
    for turn in range(12):
        transactions.begin_transaction()
        numbers = [next(counted) for _ in range(5)]
        feed.put(range(numbers[0], numbers[-1] + 1), producer=transactions, partitions=2)
        if turn % 3:
            transactions.commit_transaction(60)
            wanted |= set(numbers)
        else:
            transactions.abort_transaction(60)
    reader = opened(feed)
    end = reached(reader)
    middle = SourceFrontier.at(SourceKind.PARTITIONS, {0: 11, 1: 13})
    found = check_laws(reader, [START, middle, end])
    check_probe(reader)
    assert {row[2] for row in rows_of(found, "rows")} == wanted
    assert sum(end.bounds) > next(counted)  # markers have offsets, too
    reader.close()


def test_an_open_transaction_holds_everything_behind_it_back(here: Location, topic: Topics) -> None:
    feed = topic()
    feed.put(range(5))
    create(here, "feed", "kafka", feed.options(), interval_ms=1)
    transactions = feed.transactional()
    transactions.begin_transaction()
    feed.put(range(5, 8), producer=transactions)
    feed.put(range(8, 10))
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
        assert ids(here) == [*range(5)]
        transactions.commit_transaction(60)
        pipeline.run(until=lambda step: ids(here) == [*range(10)])
    assert ids(here) == [*range(10)]


def test_partitions_that_are_added_are_read_from_their_beginning(here: Location, topic: Topics) -> None:
    feed = topic(2)
    feed.put(range(10), partitions=2)
    create(here, "feed", "kafka", feed.options(), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
        feed.grow(5)
        feed.producer = confluent_kafka.Producer({"bootstrap.servers": feed.server.uri, "linger.ms": 0})
        feed.put(range(10, 40), partitions=5)
        pipeline.run(until=lambda step: len(ids(here)) == 40)
    assert ids(here) == [*range(40)]


def test_a_topic_made_anew_is_another_one_and_nothing_of_it_is_read(here: Location, topic: Topics) -> None:
    feed = topic()
    feed.put(range(3))
    create(here, "feed", "kafka", feed.options(), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    feed.delete()
    remade(feed)
    feed.put(range(100, 110))
    with pytest.raises(UpstreamReplaced):
        Pipeline(here, "feed", options=OPTIONS).run(steps=1)
    assert ids(here) == [0, 1, 2]
    assert status(here, "feed").state == "failed"


def remade(feed: Topic) -> None:
    """Once the broker has done away with the old one."""
    while True:
        try:
            feed.create(1)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            time.sleep(0.05)
        else:
            return


def test_what_retention_took_before_it_was_read_is_lost_and_said(here: Location, topic: Topics) -> None:
    feed = topic()
    feed.put(range(10))
    create(here, "feed", "kafka", feed.options(), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    feed.put(range(10, 30))
    feed.admin.delete_records([TopicPartition(feed.name, 0, 20)])[TopicPartition(feed.name, 0)].result(60)
    with pytest.raises(UpstreamLost):
        Pipeline(here, "feed", options=OPTIONS).run(steps=1)
    assert ids(here) == [*range(10)]


def test_compaction_beside_upserts_changes_nothing(here: Location, topic: Topics) -> None:
    feed = topic(
        1, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", segment_ms="100", delete_retention_ms="0"
    )
    options = feed.options(key="k", keyFormat="text", schema="v bigint", envelope="upsert")
    create(here, "before", "kafka", options, interval_ms=1)
    held: dict[str, int] = {}
    with Pipeline(here, "before", options=OPTIONS) as pipeline:
        for turn in range(8):
            for number in range(200):
                key, gone = f"k{number % 17}", number % 11 == turn
                feed.producer.produce(feed.name, key=key, value=None if gone else f'{{"v":{turn * 1000 + number}}}')
                held.pop(key, None)
                if not gone:
                    held[key] = turn * 1000 + number
            assert feed.producer.flush(60) == 0
            pipeline.step()
    compacted(feed)
    create(here, "after", "kafka", options, interval_ms=1)
    with Pipeline(here, "after", options=OPTIONS) as pipeline:
        pipeline.run(until=lambda step: set(contents(here, "after", "rows")) == set(held.items()))
    assert set(contents(here, "before", "rows")) == set(held.items())


def compacted(feed: Topic) -> None:
    """Wait until the cleaner took most messages away."""
    until, before = time.monotonic() + 60, sum(each.stat().st_size for each in feed.segments)
    while sum(each.stat().st_size for each in feed.segments) > before / 2:
        assert time.monotonic() < until, "the cleaner does not clean"
        feed.producer.produce(feed.name, key="filler", value=None)  # segments are rolled by what comes
        feed.producer.flush(60)
        time.sleep(0.1)


def test_a_broker_that_is_killed_is_waited_for(here: Location, topic: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = topic(2)
    feed.put(range(20), partitions=2)
    create(here, "feed", "kafka", feed.options(), interval_ms=1)
    # Only now: a topic that was just made has no leader for a moment.
    monkeypatch.setattr(librdkafka, "ANSWER_SECONDS", 1.0)
    complaints: list[PersistError] = []
    with Pipeline(here, "feed", options=OPTIONS, complain=complaints.append) as pipeline:
        pipeline.step()
        feed.server.kill()
        worker = threading.Thread(target=lambda: pipeline.run(until=lambda step: len(ids(here)) == 60))
        worker.start()
        while not complaints:
            time.sleep(0.05)
        feed.server.start()
        feed.put(range(20, 60), partitions=2)
        worker.join()
    assert all(isinstance(each, LocationError) for each in complaints)
    assert ids(here) == [*range(60)]


def test_damaged_messages_are_named_and_never_passed_over(
    here: Location, topic: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker sends what its disk says. Behind the damaged batch there are good ones."""
    monkeypatch.setattr(librdkafka, "STALLED_SECONDS", 5.0)
    feed = topic()
    for number in range(3):
        feed.put(range(number, number + 1))
    [segment] = feed.segments
    good = segment.read_bytes()
    at = good.index(b'{"id":1}')
    segment.write_bytes(good[:at] + b'{"id":7}' + good[at + 8 :])
    create(here, "feed", "kafka", feed.options(), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline, pytest.raises(LocationError, match="damaged") as caught:
        pipeline.step()
    assert caught.value.details["partition"] == "0"
    assert caught.value.details["offset"] == "1"
    # As when another replica, or the wire the next time, has it right.
    segment.write_bytes(good)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    assert ids(here) == [0, 1, 2]
