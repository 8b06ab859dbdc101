"""Messages whose schemas are in a registry and change while the source runs, of a real broker."""

import dataclasses
import itertools
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from ingest.kafka.conftest import Certificates, Topic
from ingest.kafka.registry import RegistryServer, avro, framed, record, registry_server
from ingest.pipeline.conftest import contents

from persist import InvalidArgument, LocationError, PersistError
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create, status
from persist_ingest.location import client
from persist_ingest.sources.kafka import KAFKA
from persist_ingest.sources.kafka.complaints import NotAdmitted
from persist_ingest.sources.kafka.schemas.decoder import ColumnsGrew, Incompatible, RegisteredDecoder, fields_of
from persist_ingest.sources.kafka.schemas.rest import Registry
from persist_ingest.sources.port import BadRows, SourceFailure

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=0, told_ms=0, commit_steps_late=0)
FIRST = record(("id", "long"), ("name", ["null", "string"], None))
SECOND = record(("id", "long"), ("name", ["null", "string"], None), ("price", "double", 9.5))


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with registry_server() as server:
        yield server


class Feed:
    """A topic with a registry, whose messages are put by schema."""

    def __init__(self, topic: Topic, registry: RegistryServer) -> None:
        self.topic, self.registry = topic, registry
        self.schemas: dict[int, Any] = {}

    def register(self, schema: Any, part: str = "value") -> int:
        id = self.registry.register(f"{self.topic.name}-{part}", schema)
        self.schemas[id] = schema
        return id

    def put(self, id: int, *rows: dict[str, Any], key: bytes | None = None) -> None:
        for row in rows:
            self.topic.producer.produce(self.topic.name, key=key, value=avro(id, self.schemas[id], row))
        assert self.topic.producer.flush(60) == 0

    def options(self, **more: str) -> dict[str, str]:
        given = {"bootstrapServers": self.topic.server.uri, "topic": self.topic.name, "format": "avro", "key": "id"}
        return {**given, "schemaRegistry": self.registry.url, **more}


@pytest.fixture
def feed(topic: Callable[..., Topic], registry: RegistryServer) -> Feed:
    return Feed(topic(), registry)


def held(here: Location, export: str = "rows") -> list[tuple[Any, ...]]:
    return sorted(contents(here, "feed", export).elements(), key=repr)


def test_a_field_that_is_added_grows_the_table(here: Location, feed: Feed) -> None:
    first = feed.register(FIRST)
    feed.put(first, {"id": 1, "name": "a"})
    create(here, "feed", "kafka", feed.options(), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
        assert held(here) == [(1, "a")]
        second = feed.register(SECOND)
        feed.put(second, {"id": 2, "name": None, "price": 1.5})
        feed.put(first, {"id": 3, "name": "c"})
        pipeline.step()
        wanted = [(1, "a", None), (2, None, 1.5), (3, "c", None)]
        assert held(here) == wanted
    # Another process begins with the columns that are there by now.
    feed.put(first, {"id": 4, "name": "d"})
    feed.put(second, {"id": 5, "name": "e", "price": 2.5})
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    assert held(here) == [*wanted, (4, "d", None), (5, "e", 2.5)]
    assert feed.registry.asked.count(f"/schemas/ids/{second}") == 1


def test_two_fields_come_in_one_step_and_one_goes(here: Location, feed: Feed) -> None:
    """What is not written any more is what the table's first schema says: here a default, there null."""
    ids = [
        feed.register(record(("id", "long"), ("name", ["null", "string"], None), ("kind", "string", "plain"))),
        feed.register(record(("id", "long"), ("ts", "long", 0), ("kind", "string", "plain"))),
        feed.register(record(("id", "long"), ("colour", ["null", "string"], None))),
    ]
    feed.registry.subjects[f"{feed.topic.name}-value"] = ids[:1]
    feed.put(ids[0], {"id": 1, "name": "a", "kind": "k"})
    create(here, "feed", "kafka", feed.options(), interval_ms=1)
    feed.put(ids[1], {"id": 2, "ts": 7, "kind": "l"})
    feed.put(ids[2], {"id": 3, "colour": "red"})
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    assert held(here) == [(1, "a", "k", None, None), (2, None, "l", 7, None), (3, None, "plain", None, "red")]


def test_a_field_that_is_called_as_a_column_is_has_another_name(here: Location, feed: Feed) -> None:
    first = feed.register(FIRST)
    create(here, "feed", "kafka", feed.options(renameColumns="name:title", include="offset"), interval_ms=1)
    more = record(("id", "long"), ("name", ["null", "string"], None), ("title", "int", 0), ("offset", "int", 0))
    second = feed.register(more)
    feed.put(first, {"id": 1, "name": "a"})
    feed.put(second, {"id": 2, "name": "b", "title": 7, "offset": 8})
    for _ in range(2):
        with Pipeline(here, "feed", options=OPTIONS) as pipeline:
            pipeline.step()
        feed.put(second, {"id": 3, "name": "c", "title": 9, "offset": 10})
    assert columns(here) == ["id", "title", "offset", "_title", "_offset"]
    assert held(here) == [(1, "a", 0, None, None), (2, "b", 1, 7, 8), (3, "c", 2, 9, 10)]


def columns(here: Location) -> list[str]:
    schema = client(here).schema(Records(client(here)).source("feed").shards["rows"])
    return [*schema.key.names, *schema.val.names]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (record(("id", "string"), ("name", ["null", "string"], None)), "string for column id, which is int64"),
        (record(("name", ["null", "string"], None)), "no field for column id"),
        (record(("id", "long"), ("name", ["null", "string", "long"], None)), "cannot be read"),
    ],
)
def test_an_incompatible_schema_stops_the_table_by_name(
    here: Location, feed: Feed, changed: dict[str, Any], says: str
) -> None:
    first = feed.register(FIRST)
    feed.put(first, {"id": 1, "name": "a"})
    create(here, "feed", "kafka", feed.options(), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    second = feed.register(changed)
    feed.put(first, {"id": 2, "name": "b"})
    feed.put(second, {"id": "3" if changed["fields"][0]["type"] == "string" else 3, "name": "c"})
    with Pipeline(here, "feed", options=OPTIONS) as pipeline, pytest.raises(SourceFailure, match=says) as failed:
        pipeline.run(steps=1)
    assert failed.value.details["export"] == "rows"
    assert f"schema {second}" in str(failed.value)
    assert held(here) == [(1, "a")]
    assert says in str(status(here, "feed"))


def test_payloads_that_name_no_schema_are_bad_rows(here: Location, feed: Feed) -> None:
    first = feed.register(FIRST)
    feed.put(first, {"id": 1, "name": "a"})
    for payload in (b"", b"{}", framed(77, b"\2\0"), framed(first, b"\2"), None):
        feed.topic.producer.produce(feed.topic.name, value=payload)
    feed.put(first, {"id": 2, "name": "b"})
    create(here, "feed", "kafka", feed.options(badRows="divert"), interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    assert held(here) == [(1, "a"), (2, "b")]
    assert [(row[2], "schema 77" in row[3]) for row in held(here, "errors")] == [
        *((1, False), (2, False), (3, True), (4, False), (5, False))
    ]
    create(here, "strict", "kafka", feed.options(), interval_ms=1)
    with Pipeline(here, "strict", options=OPTIONS) as pipeline, pytest.raises(BadRows, match="header"):
        pipeline.run(steps=1)


def test_a_registry_that_is_away_is_waited_for(here: Location, feed: Feed) -> None:
    first = feed.register(FIRST)
    create(here, "feed", "kafka", feed.options(), interval_ms=1)
    feed.put(first, {"id": 1, "name": "a"})
    feed.registry.is_broken = True
    complaints: list[PersistError] = []

    def complained(error: PersistError) -> None:
        complaints.append(error)
        feed.registry.is_broken = False

    with Pipeline(here, "feed", options=OPTIONS, complain=complained) as pipeline:
        pipeline.run(until=lambda step: held(here) == [(1, "a")])
    assert complaints
    assert all(isinstance(each, LocationError) for each in complaints)


def test_another_registry_in_its_place_is_found_out(here: Location, feed: Feed) -> None:
    """Its ids mean other things."""
    feed.register(FIRST)
    create(here, "feed", "kafka", feed.options(), interval_ms=1)
    feed.registry.schemas.clear()
    other = feed.register(record(("id", "long"), ("name", ["null", "string"], None), ("more", "int", 0)))
    feed.put(other, {"id": 1, "name": "a", "more": 1})
    with Pipeline(here, "feed", options=OPTIONS) as pipeline, pytest.raises(SourceFailure, match="another one"):
        pipeline.run(steps=1)


def test_keys_of_upserts_may_be_registered_and_do_not_grow(here: Location, feed: Feed) -> None:
    key_schema = record(("id", "long"), name="Key")
    key = feed.register(key_schema, "key")
    first, second = feed.register(FIRST), feed.register(SECOND)
    feed.registry.subjects[f"{feed.topic.name}-value"] = [first]
    options = {name: text for name, text in feed.options(envelope="upsert", keyFormat="avro").items() if name != "key"}
    create(here, "feed", "kafka", options, interval_ms=1)
    keys = [avro(key, key_schema, {"id": number}) for number in range(3)]
    feed.put(first, {"id": 0, "name": "a"}, key=keys[0])
    feed.put(second, {"id": 1, "name": "b", "price": 1.0}, key=keys[1])
    feed.put(second, {"id": 0, "name": "c", "price": 2.0}, key=keys[0])
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
        assert held(here) == [(0, "c", 2.0), (1, "b", 1.0)]
        grown = record(("id", "long"), ("part", "int", 0), name="Key")
        other = feed.register(grown, "key")
        feed.put(first, {"id": 2, "name": "d"}, key=avro(other, grown, {"id": 2, "part": 1}))
        with pytest.raises(SourceFailure, match="another key: part"):
            pipeline.step()


def test_json_with_a_schema_grows_too(here: Location, feed: Feed) -> None:
    subject = f"{feed.topic.name}-value"
    properties: dict[str, Any] = {"id": {"type": "integer"}, "day": {"type": "string", "format": "date"}}
    schema = {"type": "object", "properties": properties, "required": ["id"]}
    first = feed.registry.register(subject, schema, "JSON")
    grown = {**schema, "properties": {**properties, "tags": {"type": "array", "items": {"type": "string"}}}}
    create(here, "feed", "kafka", feed.options(format="json"), interval_ms=1)
    second = feed.registry.register(subject, grown, "JSON")
    for id, row in ((first, {"id": 1, "tags": ["not", "declared"]}), (second, {"id": 2, "tags": ["x"]})):
        feed.topic.producer.produce(feed.topic.name, value=framed(id, json.dumps(row).encode()))
    feed.topic.producer.flush(60)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    assert read_rows(here) == [(1, None, None), (2, None, ["x"])]


def read_rows(here: Location) -> list[tuple[Any, ...]]:
    """Also of lists, which cannot be counted."""
    shard = Records(client(here)).source("feed").shards["rows"]
    upper = client(here).recent_upper(shard).time or 1
    with client(here).open_reader(shard) as reader:
        rows = reader.snapshot(upper - 1).to_arrow().to_pylist()
    return [tuple(row.values())[:-1] for row in sorted(rows, key=lambda row: int(row["id"]))]


def test_who_may_ask_the_registry(
    certificates: Certificates, feed: Feed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("REGISTRY_PASSWORD", "regi5try-secret")
    tls = (certificates["broker.pem"], certificates["broker.key"])
    with registry_server(user="me", password="regi5try-secret", tls=tls) as server:
        feed.registry = server
        feed.register(FIRST)
        who = {"schemaRegistryUser": "me", "schemaRegistryPassword": "env:REGISTRY_PASSWORD"}
        known = {"schemaRegistryCa": certificates["ca.pem"]}
        with KAFKA.create(feed.options(**who, **known), source="feed") as beginning:
            assert "regi5try-secret" not in json.dumps(dict(beginning.definition))
        for options, says in (
            ({**known}, "user and password"),
            ({**who}, "certificate is not accepted"),
            ({**who, "schemaRegistryCa": certificates["stranger.pem"]}, "certificate is not accepted"),
        ):
            with pytest.raises(NotAdmitted, match=says), KAFKA.create(feed.options(**options), source="feed"):
                pass
        with pytest.raises(InvalidArgument, match="is not kept"):
            Registry(url=server.url.replace("//", "//me:regi5try-secret@"))
        with pytest.raises(InvalidArgument, match="is not kept"):
            Registry(url=server.url, user="me", password="regi5try-secret")
    assert "regi5try-secret" not in caplog.text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"schemaRegistry": "registry:8081"}, "must be a URL"),
        ({"schemaRegistryUser": "me"}, "belong together"),
        ({"avroSchema": "{}"}, "exclude each other"),
        ({"schemaSubject": "nothing"}, "no such subject"),
        ({"format": "text"}, "for format avro, json or protobuf"),
        ({"format": "json"}, "of type AVRO"),
        ({"envelope": "debezium", "format": "json"}, "without a registry"),
    ],
)
def test_wrong_options_are_refused(feed: Feed, options: dict[str, str], says: str) -> None:
    feed.register(FIRST)
    with pytest.raises(InvalidArgument, match=says), KAFKA.create(feed.options(**options), source="feed"):
        pass


def test_a_row_is_the_same_whatever_the_table_has_by_then_and_whatever_is_beside_it(registry: RegistryServer) -> None:
    schemas = {
        registry.register("s", each): each for each in (FIRST, SECOND, record(("id", "int"), ("price", "float")))
    }
    rows: list[dict[str, Any]] = [
        {"id": number, "name": None if number % 4 else f"n{number}", "price": number / 2} for number in range(60)
    ]
    payloads = [avro(id, schemas[id], row) for row, id in zip(rows, itertools.cycle(schemas), strict=False)]
    payloads[7], payloads[20] = b"\0\0\0\0\x09", payloads[20][:-1]
    declared = Registry(registry.url).schema(1)
    before = RegisteredDecoder(
        registry=Registry(registry.url), format="avro", declared=declared, fields=fields_of("avro", declared)
    )
    with pytest.raises(ColumnsGrew) as grown:
        before.decode(payloads)
    after = dataclasses.replace(before, fields=pa.schema([*before.fields, *grown.value.fields]))
    whole = after.decode(payloads)
    assert [each.index for each in whole.bad] == [7, 20]
    assert whole.rows.num_rows == 58
    alone = [after.decode([payload]).rows.to_pylist() for payload in payloads]
    assert whole.rows.to_pylist() == [row for rows_ in alone for row in rows_]
    old = [at for at in range(60) if at % 3 == 0]
    known = before.decode([payloads[at] for at in old])
    again = after.decode([payloads[at] for at in old])
    assert known.rows.to_pylist() == again.rows.drop_columns(["price"]).to_pylist()
    assert again.rows.column("price").null_count == len(old)
    assert np.array_equal(known.good, again.good)
    with pytest.raises(Incompatible):
        dataclasses.replace(before, fixed=True).decode(payloads)
