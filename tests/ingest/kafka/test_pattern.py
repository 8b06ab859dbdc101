"""All topics that match a pattern, of a real broker: each a table, also those that come and go while it runs."""

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from ingest.kafka.conftest import Topic, ids
from ingest.kafka.registry import avro, record, registry_server
from ingest.kafka.test_broker import remade
from ingest.pipeline.conftest import contents
from ingest.sources.suite import check_laws, check_probe, reached, rows_of

from persist import InvalidArgument
from persist.sources import SourceFrontier, SourceKind
from persist_ingest import (
    Location,
    Pipeline,
    PipelineOptions,
    Records,
    add_export,
    create,
    drop_export,
    resnapshot,
    status,
)
from persist_ingest.location import client
from persist_ingest.pipeline import pipeline as pipelines
from persist_ingest.pipeline.anew import watching
from persist_ingest.sources.kafka import KAFKA
from persist_ingest.sources.kafka.pattern import reader as pattern_reader
from persist_ingest.sources.kafka.pattern.reader import TopicsReader

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=0, told_ms=0, commit_steps_late=0)
KIND = SourceKind.FILES
START = SourceFrontier.minimum(KIND)


class Shop:
    """Topics that begin with one name."""

    def __init__(self, make: Callable[..., Topic]) -> None:
        self._make = make
        self.prefix = f"shop{uuid.uuid4().hex[:8]}"

    def topic(self, name: str, partitions: int = 1) -> Topic:
        """One of them, new."""
        other = self._make(partitions)
        other.delete()
        other.name = f"{self.prefix}.{name}"
        other.create(partitions)
        while other.admin.list_topics(other.name, timeout=60).topics[other.name].error is not None:
            time.sleep(0.02)  # the broker has it from its controller a moment later
        return other

    def options(self, server: str, **more: str) -> dict[str, str]:
        given = {"bootstrapServers": server, "topicPattern": f"{self.prefix}\\..*", "schema": "id bigint", "key": "id"}
        return {**given, **more}


@pytest.fixture
def shop(topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(watching, "JOIN_SECONDS", 0.0)
    monkeypatch.setattr(pipelines, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(pattern_reader, "GONE_SECONDS", 0.2)
    return Shop(topic)


def held(here: Location, topic: Topic) -> list[int]:
    found = contents(here, "feed", topic.name)
    return sorted(row[0] for row in found.elements())


def states(here: Location) -> dict[str, str]:
    return {
        name.rpartition(".")[2]: each.state for name, each in status(here, "feed", ask_upstream=False).exports.items()
    }


def test_readers_keep_the_laws(shop: Shop) -> None:
    orders, items = shop.topic("orders", 3), shop.topic("items")
    orders.put(range(30), partitions=3)
    items.put(range(100, 105))
    with KAFKA.create(shop.options(orders.server.uri), source="feed") as beginning:
        reader = KAFKA.open(beginning.definition, beginning.reader.exports())
    assert isinstance(reader, TopicsReader)
    end = reached(reader)
    assert end.keys == (f"{items.name}/0", *(f"{orders.name}/{each}" for each in range(3)))
    middle = SourceFrontier.at(KIND, {f"{orders.name}/1": 4, f"{items.name}/0": 2})
    found = check_laws(reader, [START, middle, end])
    check_probe(reader)
    assert [row[2] for row in rows_of(found, items.name)] == [*range(100, 105)]
    assert sorted(row[2] for row in rows_of(found, orders.name)) == [*range(30)]
    reader.commit(end)
    reader.commit(START)
    assert reader.status().committed == end
    assert reader.status().details == {"topics": 2, "partitions": 4, "messages_behind": 0}
    reader.close()


def test_topics_that_come_are_taken_in_at_one_time(here: Location, shop: Shop) -> None:
    orders = shop.topic("orders")
    orders.put(range(5))
    create(here, "feed", "kafka", shop.options(orders.server.uri), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
        assert held(here, orders) == [*range(5)]
        late = shop.topic("late", 2)
        late.put(range(50), partitions=2)
        pipeline.run(until=lambda step: late.name in status(here, "feed", ask_upstream=False).exports)
        orders.put(range(5, 8))
        pipeline.run(until=lambda step: states(here)["late"] == "running" and held(here, late) == [*range(50)])
        pipeline.run(until=lambda step: held(here, orders) == [*range(8)])
    late.put(range(50, 60))
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.run(until=lambda step: held(here, late) == [*range(60)])
    assert states(here) == {"orders": "running", "late": "running"}
    other = shop._make()
    assert other.name not in Records(client(here)).source("feed").exports


def test_a_topic_that_lost_messages_before_it_came_begins_with_what_it_has(here: Location, shop: Shop) -> None:
    orders = shop.topic("orders")
    create(here, "feed", "kafka", shop.options(orders.server.uri), interval_ms=1)
    late = shop.topic("late")
    late.put(range(10))
    late.admin.delete_records([TopicPartition(late.name, 0, 4)])[TopicPartition(late.name, 0)].result(60)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.run(until=lambda step: states(here).get("late") == "running" and len(held(here, late)) == 6)
    assert held(here, late) == [*range(4, 10)]


def test_a_topic_that_is_deleted_stalls_by_name_and_may_come_back(here: Location, shop: Shop) -> None:
    orders, items = shop.topic("orders"), shop.topic("items")
    orders.put(range(3))
    items.put(range(3))
    create(here, "feed", "kafka", shop.options(orders.server.uri), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
        items.delete()
        pipeline.run(until=lambda step: states(here)["items"] == "stalled")
        orders.put(range(3, 6))
        pipeline.run(until=lambda step: held(here, orders) == [*range(6)])
        told = status(here, "feed", ask_upstream=False).exports[items.name]
        assert "does not exist any more" in str(told.error)
        assert "drop-table" in str(told.hint)
        assert held(here, items) == [0, 1, 2]
        with pytest.raises(InvalidArgument, match="no snapshots"):
            resnapshot(here, "feed", items.name)
        remade(items)
        items.put(range(10, 12))
        drop_export(here, "feed", items.name)
        pipeline.run(steps=5)
        assert states(here) == {"orders": "running"}
        add_export(here, "feed", items.name)
        pipeline.run(until=lambda step: held(here, items) == [10, 11])
    assert states(here) == {"orders": "running", "items": "running"}


def test_a_table_that_was_dropped_may_be_made_of_the_same_topic_again(here: Location, shop: Shop) -> None:
    """From where the topic begins, whatever was bound of it for the table it had."""
    orders, items = shop.topic("orders"), shop.topic("items")
    items.put(range(3))
    create(here, "feed", "kafka", shop.options(orders.server.uri), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
        for _ in range(2):
            drop_export(here, "feed", items.name)
            items.put(range(3, 5))
            pipeline.run(steps=3)
            add_export(here, "feed", items.name)
            pipeline.run(until=lambda step: len(held(here, items)) >= 5)
    assert held(here, items) == [0, 1, 2, 3, 3, 4, 4]


def test_a_topic_made_anew_is_not_read_into_the_old_table(here: Location, shop: Shop) -> None:
    orders, items = shop.topic("orders"), shop.topic("items")
    items.put(range(3))
    create(here, "feed", "kafka", shop.options(orders.server.uri), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    items.delete()
    remade(items)
    items.put(range(10, 20))
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.run(until=lambda step: states(here)["items"] == "stalled")
    assert "made anew" in str(status(here, "feed", ask_upstream=False).exports[items.name].error)
    assert held(here, items) == [0, 1, 2]


def test_what_one_topic_lost_or_has_wrong_stops_its_table_alone(here: Location, shop: Shop) -> None:
    orders, lost, wrong = shop.topic("orders"), shop.topic("lost"), shop.topic("wrong")
    lost.put(range(3))
    create(here, "feed", "kafka", shop.options(orders.server.uri), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    lost.put(range(3, 9))
    lost.admin.delete_records([TopicPartition(lost.name, 0, 8)])[TopicPartition(lost.name, 0)].result(60)
    wrong.producer.produce(wrong.name, value=b"?")
    wrong.producer.flush(60)
    orders.put(range(5))
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.run(until=lambda step: held(here, orders) == [*range(5)])
    assert states(here) == {"orders": "running", "lost": "stalled", "wrong": "stalled"}
    told = status(here, "feed", ask_upstream=False).exports
    assert "UpstreamLost" in str(told[lost.name].error)
    assert "BadRows" in str(told[wrong.name].error)
    assert held(here, lost) == [0, 1, 2]


def test_bad_rows_of_all_are_put_aside_together(here: Location, shop: Shop) -> None:
    orders, items = shop.topic("orders"), shop.topic("items")
    create(here, "feed", "kafka", shop.options(orders.server.uri, badRows="divert"), interval_ms=1)
    for topic in (orders, items):
        topic.producer.produce(topic.name, value=b"?")
        topic.put(range(2))
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    bad = {(row[0], row[1], row[2]) for row in contents(here, "feed", "errors")}
    assert bad == {(each.name, f"{each.name}/0", 0) for each in (orders, items)}
    assert held(here, orders) == held(here, items) == [0, 1]


def test_tables_of_topics_grow_each_by_its_own_schemas(here: Location, shop: Shop) -> None:
    first = record(("id", "long"))
    second = record(("id", "long"), ("price", "double", 1.5))
    with registry_server() as registry:
        orders, items = shop.topic("orders"), shop.topic("items")
        known = {each.name: registry.register(f"{each.name}-value", first) for each in (orders, items)}
        options = shop.options(orders.server.uri, format="avro", schemaRegistry=registry.url)
        del options["schema"]
        create(here, "feed", "kafka", options, interval_ms=1)
        grown = registry.register(f"{items.name}-value", second)
        broken = registry.register(f"{orders.name}-value", record(("id", "string")))
        items.producer.produce(items.name, value=avro(grown, second, {"id": 1, "price": 2.0}))
        orders.producer.produce(orders.name, value=avro(known[orders.name], first, {"id": 7}))
        items.producer.flush(60)
        orders.producer.flush(60)
        with Pipeline(here, "feed", options=OPTIONS) as pipeline:
            pipeline.run(until=lambda step: len(contents(here, "feed", items.name)) == 1)
            assert held(here, orders) == [7]
            orders.producer.produce(orders.name, value=avro(broken, record(("id", "string")), {"id": "x"}))
            orders.producer.flush(60)
            pipeline.run(until=lambda step: states(here)["orders"] == "stalled")
            # A topic that comes before its schema is taken in once that is there.
            late = shop.topic("late")
            pipeline.run(steps=5)
            assert late.name not in Records(client(here)).source("feed").exports
            id = registry.register(f"{late.name}-value", second)
            late.producer.produce(late.name, value=avro(id, second, {"id": 3, "price": 4.0}))
            late.producer.flush(60)
            pipeline.run(until=lambda step: states(here).get("late") == "running" and held(here, late) == [3])
    assert contents(here, "feed", items.name) == {(1, 2.0): 1}
    assert contents(here, "feed", late.name) == {(3, 4.0): 1}


def test_two_ingesters_agree_while_topics_come(here: Location, shop: Shop) -> None:
    """All rows once, whichever of them was faster."""
    orders = shop.topic("orders", 2)
    create(here, "feed", "kafka", shop.options(orders.server.uri), interval_ms=1)
    ended = threading.Event()
    failures: list[BaseException] = []

    def ingest() -> None:
        try:
            with Pipeline(here, "feed", options=OPTIONS) as pipeline:
                pipeline.run(until=lambda step: ended.is_set())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ingest) for _ in range(2)]
    for thread in threads:
        thread.start()
    made = {orders: 0}
    for turn in range(4):
        made[shop.topic(f"more{turn}")] = 0
        for topic in [*made, *made]:
            topic.put(range(made[topic], made[topic] + 5), partitions=2 if topic is orders else 1)
            made[topic] += 5
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.run(
            until=lambda step: (
                len(states(here)) == 5
                and all(each == "running" for each in states(here).values())
                and all(len(held(here, topic)) == count for topic, count in made.items())
            )
        )
    ended.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert {topic.name: held(here, topic) for topic in made} == {
        topic.name: [*range(count)] for topic, count in made.items()
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "orders"}, "exclude each other"),
        ({"export": "orders"}, "exclude each other"),
        ({"topicPattern": "("}, "no regular expression"),
        ({"topicPattern": "nothing-is-called-so"}, "no topic matches"),
        ({"kye": "id"}, r"did you mean key\?"),
        ({"schema": ""}, "needs option schema"),
    ],
)
def test_wrong_options_are_refused(shop: Shop, options: dict[str, str], says: str) -> None:
    orders = shop.topic("orders")
    given: dict[str, Any] = {**shop.options(orders.server.uri), **options}
    with pytest.raises(InvalidArgument, match=says), KAFKA.create(given, source="feed"):
        pass


def test_a_source_of_one_topic_gets_no_others(here: Location, topic: Callable[..., Topic]) -> None:
    feed = topic()
    create(here, "feed", "kafka", feed.options(), interval_ms=1)
    with pytest.raises(InvalidArgument, match="of one topic"):
        add_export(here, "feed", "other")
    assert ids(here) == []
