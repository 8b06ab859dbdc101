"""Protobuf in a registry's wire format, and schemas that refer to others; messages are made by the libraries."""

import datetime
import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from ingest.kafka.conftest import Topic
from ingest.kafka.registry import (
    RegistryServer,
    avro,
    compiled,
    framed,
    indexed,
    record,
    reference,
    registry_server,
    varint,
)
from ingest.pipeline.conftest import contents

from persist import InvalidArgument
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create
from persist_ingest.decode.protobuf_rows import _varint
from persist_ingest.location import client
from persist_ingest.sources.kafka.schemas.decoder import Incompatible, RegisteredDecoder, fields_of
from persist_ingest.sources.kafka.schemas.rest import DEPTH_MAX, Registry

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=0, told_ms=0, commit_steps_late=0)
MONEY = """
syntax = "proto3";
package shop.types;
message Money { string currency = 1; sint64 units = 2; }
enum Level { NONE = 0; HIGH = 7; }
"""
BUYER = """
syntax = "proto3";
package shop;
import "types/money.proto";
message Buyer { string name = 1; types.Money credit = 2; types.Level level = 3; }
"""
ORDER = """
syntax = "proto3";
package shop;
import "buyer.proto";
import "types/money.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Note { string text = 1; message Inner { int32 n = 1; } }
message Order {
  int64 id = 1;
  optional string name = 2;
  Buyer buyer = 3;
  repeated types.Money prices = 4;
  map<string, int32> counts = 5;
  oneof how { string card = 6; int32 cash = 7; }
  google.protobuf.Timestamp at = 8;
  google.protobuf.StringValue word = 9;
  bytes raw = 10; uint64 big = 11; uint32 small = 12; float f = 13; double d = 14; bool yes = 15; fixed64 fix = 16;
  types.Level level = 17; repeated types.Level levels = 18;
  message Line { int32 number = 1; }
  repeated Line lines = 19;
}
"""


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with registry_server() as server:
        yield server


class Files:
    """Files that were compiled, and the library's own classes of their messages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = descriptor_pool.DescriptorPool()
        from google.protobuf import timestamp_pb2, wrappers_pb2

        for known in (timestamp_pb2, wrappers_pb2):
            self.pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)

    def add(self, name: str, text: str) -> bytes:
        made = compiled(self.folder, name, text)
        self.pool.Add(descriptor_pb2.FileDescriptorProto.FromString(made))
        return made

    def message(self, name: str) -> Any:
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "protos")


def registered(registry: RegistryServer, files: Files, subject: str = "orders-value") -> int:
    """The order's schema, which refers to two others, of which one refers to the other one."""
    registry.register_proto("money", MONEY, files.add("types/money.proto", MONEY))
    more = [reference("types/money.proto", "money")]
    registry.register_proto("buyer", BUYER, files.add("buyer.proto", BUYER), references=more)
    both = [reference("buyer.proto", "buyer"), *more]
    return registry.register_proto(subject, ORDER, files.add("order.proto", ORDER), references=both)


def decoder(registry: RegistryServer, id: int, message: str = "", kind: str = "protobuf") -> RegisteredDecoder:
    declared = Registry(registry.url).schema(id)
    fields = fields_of(kind, declared, message)
    return RegisteredDecoder(
        registry=Registry(registry.url), format=kind, declared=declared, fields=fields, message=message
    )


def test_every_kind_of_field_is_a_column_as_the_library_writes_it(registry: RegistryServer, files: Files) -> None:
    id = registered(registry, files)
    order = files.message("shop.Order")(
        id=-5, name="", buyer={"name": "ada", "credit": {"currency": "EUR", "units": -3}, "level": 7},
        prices=[{"units": 1}, {"currency": "X"}], counts={"b": 2, "a": 1}, cash=0,
        at={"seconds": 1_700_000_000, "nanos": 123_456_789}, word={"value": "w"}, raw=b"\xff", big=2**64 - 1,
        small=2**32 - 1, f=0.5, d=1e300, yes=True, fix=2**63, level=7, levels=[0, 7, 9], lines=[{"number": 4}],
    )  # fmt: skip
    reading = decoder(registry, id, "shop.Order")
    payloads = [framed(id, indexed(1) + each.SerializeToString()) for each in (order, files.message("shop.Order")())]
    decoded = reading.decode(payloads)
    assert decoded.bad == ()
    full, empty = decoded.rows.to_pylist()
    moment = datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=datetime.UTC)
    assert full == {
        "id": -5, "name": "", "buyer": {"name": "ada", "credit": {"currency": "EUR", "units": -3}, "level": "HIGH"},
        "prices": [{"currency": "", "units": 1}, {"currency": "X", "units": 0}], "counts": [("a", 1), ("b", 2)],
        "card": None, "cash": 0, "at": moment, "word": "w", "raw": b"\xff", "big": Decimal(2**64 - 1),
        "small": 2**32 - 1, "f": 0.5, "d": 1e300, "yes": True, "fix": Decimal(2**63), "level": "HIGH",
        "levels": ["NONE", "HIGH", "9"], "lines": [{"number": 4}],
    }  # fmt: skip
    assert [name for name, value in empty.items() if value is None] == ["name", "buyer", "card", "cash", "at", "word"]
    assert [each.name for each in reading.fields if each.nullable] == ["name", "buyer", "card", "cash", "at", "word"]


def test_indexes_say_which_message_a_payload_is_of(registry: RegistryServer, files: Files) -> None:
    id = registered(registry, files)
    inner, note = (files.message(f"shop.{name}") for name in ("Note.Inner", "Note"))
    first = note(text="t").SerializeToString()
    bad = b"\x0a\x7f"
    payloads = [
        framed(id, indexed(0) + first), framed(id, varint(1) + varint(0) + first), framed(id, indexed(1) + first),
        framed(id, indexed(5) + first), framed(id, indexed(0, 3) + first), framed(id, b"\x80"), framed(id, varint(-1)),
        framed(id, indexed(0) + bad), framed(id, indexed(*range(40)) + first), None, b"\1" + first,
    ]  # fmt: skip
    decoded = decoder(registry, id).decode(payloads)
    assert decoded.rows.to_pylist() == [{"text": "t"}] * 2
    assert [each.index for each in decoded.bad] == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert "of message shop.Order, not shop.Note" in decoded.bad[0].error
    nested = decoder(registry, id, "shop.Note.Inner")
    payload = framed(id, indexed(0, 0) + inner(n=3).SerializeToString())
    assert nested.decode([payload]).rows.to_pylist() == [{"n": 3}]
    with pytest.raises(InvalidArgument, match="no such message"):
        decoder(registry, id, "shop.Nothing")
    random.seed(3)
    for _ in range(200):
        value = random.randrange(-(1 << random.randrange(1, 40)), 1 << random.randrange(1, 40))
        assert _varint(varint(value) + b"x", 0) == (value, len(varint(value)))


def test_a_topic_goes_through_versions_of_its_schema(
    here: Location, topic: Callable[..., Topic], registry: RegistryServer, tmp_path: Path
) -> None:
    """Fields come and go: a new one is a column, one that is gone is its default, or null where that can be seen."""
    feed = topic()
    head = 'syntax = "proto3"; package shop; message Sale {'
    texts = (
        f"{head} int64 id = 1; string name = 2; optional int32 age = 3; }}",
        f"{head} int64 id = 1; string name = 2; optional int32 age = 3; double price = 4; "
        "message In { int32 n = 1; } In in = 5; }",
        f"{head} int64 id = 1; double price = 4; }}",
        f"{head} string id = 1; }}",
    )
    classes, ids = [], []
    for nth, text in enumerate(texts):
        files = Files(tmp_path / f"v{nth}")
        made = files.add("sale.proto", text)
        classes.append(files.message("shop.Sale"))
        ids.append((text, made))

    def register(nth: int) -> int:
        return registry.register_proto(f"{feed.name}-value", *ids[nth])

    def put(nth: int, number: int, **row: Any) -> None:
        feed.producer.produce(feed.name, value=framed(number, indexed(0) + classes[nth](**row).SerializeToString()))
        assert feed.producer.flush(60) == 0

    first = register(0)
    put(0, first, id=1, name="a", age=0)
    given = {"bootstrapServers": feed.server.uri, "topic": feed.name, "format": "protobuf", "key": "id"}
    create(here, "feed", "kafka", {**given, "schemaRegistry": registry.url}, interval_ms=1)
    second = register(1)
    third = register(2)
    put(1, second, id=2, name="b", price=1.5, **{"in": {"n": 4}})
    put(2, third, id=3, price=2.5)
    put(0, first, id=4)
    for _ in range(2):
        with Pipeline(here, "feed", options=OPTIONS) as pipeline:
            pipeline.step()
        shard = {row[0]: row[1:] for row in rows(here)}
        assert shard == {
            1: ("a", 0, None, None), 2: ("b", None, 1.5, {"n": 4}), 3: ("", None, 2.5, None), 4: ("", None, None, None)
        }  # fmt: skip
    fourth = register(3)
    put(3, fourth, id="x")
    with Pipeline(here, "feed", options=OPTIONS) as pipeline, pytest.raises(Exception, match="string for column id"):
        pipeline.step()


def rows(here: Location) -> list[tuple[Any, ...]]:
    shard = Records(client(here)).source("feed").shards["rows"]
    with client(here).open_reader(shard) as reader:
        found = reader.snapshot((client(here).recent_upper(shard).time or 1) - 1).to_pylist()
    return [tuple(value for name, value in row.items() if name != "diff") for row in found]


def test_a_bad_row_and_another_message_stop_or_are_put_aside(
    here: Location, topic: Callable[..., Topic], registry: RegistryServer, files: Files
) -> None:
    feed = topic()
    id = registered(registry, files, f"{feed.name}-value")
    note = files.message("shop.Note")(text="t").SerializeToString()
    given = {
        "bootstrapServers": feed.server.uri,
        "topic": feed.name,
        "format": "protobuf",
        "schemaRegistry": registry.url,
    }
    with pytest.raises(InvalidArgument, match="no such message"):
        create(here, "feed", "kafka", {**given, "key": "id", "protobufMessage": "shop.Nothing"})
    create(here, "feed", "kafka", {**given, "key": "text", "badRows": "divert"}, interval_ms=1)
    for payload in (indexed(0) + note, indexed(1) + note, b"", indexed(0) + b"\xff"):
        feed.producer.produce(feed.name, value=framed(id, payload))
    assert feed.producer.flush(60) == 0
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    assert rows(here) == [("t",)]
    assert sum(contents(here, "feed", "errors").values()) == 3


RECURSIVE = 'syntax = "proto3"; message Tree { int32 n = 1; repeated Tree children = 2; }'


def test_what_cannot_be_columns_is_refused_by_name(registry: RegistryServer, files: Files) -> None:
    tree = registry.register_proto("tree", RECURSIVE, files.add("tree.proto", RECURSIVE))
    with pytest.raises(InvalidArgument, match="inside itself"):
        decoder(registry, tree)
    alone = registry.register_proto("alone", MONEY, files.add("types/money.proto", MONEY))
    lost = registry.register_proto("lost", BUYER, files.add("buyer.proto", BUYER))
    with pytest.raises(InvalidArgument, match="what it imports is not there"):
        decoder(registry, lost)
    registry.serialized.pop(alone)
    with pytest.raises(InvalidArgument, match="format=serialized"):
        decoder(registry, alone)


CUSTOMER = record(("name", "string"), ("home", ["null", "geo.Place"], None), name="shop.Customer")
PLACE = {
    **record(("lat", "double"), ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}), name="Place"),
    "namespace": "geo",
}
SALE = {
    **record(
        ("id", "long"), ("buyer", "Customer"), ("seller", ["null", "shop.Customer"], None),
        ("places", {"type": "array", "items": "geo.Place"}), ("kind", "geo.Kind"), name="Sale",
    ),
    "namespace": "shop",
}  # fmt: skip


def test_avro_that_refers_to_others_is_read_as_if_it_were_whole(registry: RegistryServer) -> None:
    registry.register("place", PLACE)
    registry.register("customer", CUSTOMER, references=[reference("geo.Place", "place")])
    refers = [reference("shop.Customer", "customer"), reference("geo.Place", "place")]
    id = registry.register("sale", SALE, references=refers)
    whole = json.loads(json.dumps(SALE))
    place = {"name": "geo.Place", **{name: each for name, each in PLACE.items() if name not in ("name", "namespace")}}
    customer = json.loads(json.dumps(CUSTOMER))
    customer["fields"][1]["type"] = ["null", place]
    whole["fields"][1]["type"] = customer
    here = {"lat": 1.5, "kind": "A"}
    row = {
        "id": 1, "buyer": {"name": "ada", "home": here}, "seller": {"name": "bob", "home": None},
        "places": [here, {"lat": 2.0, "kind": "B"}], "kind": "B",
    }  # fmt: skip
    decoded = decoder(registry, id, kind="avro").decode([avro(id, whole, row)])
    assert decoded.bad == ()
    assert decoded.rows.to_pylist() == [row]


def test_json_schema_that_refers_to_others_is_read_as_if_it_were_whole(registry: RegistryServer) -> None:
    money = {"$id": "http://x/money.json", "type": "object", "properties": {"units": {"type": "integer"}}}
    registry.register("money", money, "JSON")
    buyer = {
        "$defs": {"level": {"type": "string"}},
        "properties": {"level": {"$ref": "#/$defs/level"}, "credit": {"$ref": "money.json"}},
        "type": "object",
    }
    registry.register("buyer", buyer, "JSON", references=[reference("money.json", "money")])
    sale = {
        "type": "object",
        "required": ["id"],
        "definitions": {"ids": {"all": {"type": "integer"}}},
        "properties": {
            "id": {"$ref": "#/definitions/ids/all"},
            "definitions": {"type": "array", "items": {"$ref": "http://x/money.json"}},
            "buyer": {"oneOf": [{"type": "null"}, {"$ref": "buyer.json"}]},
            "level": {"$ref": "buyer.json#/$defs/level"},
        },
    }
    both = [reference("buyer.json", "buyer"), reference("money.json", "money")]
    id = registry.register("sale", sale, "JSON", references=both)
    row = {"id": 7, "definitions": [{"units": 1}], "buyer": {"level": "x", "credit": {"units": 2}}, "level": "y"}
    reading = decoder(registry, id, kind="json")
    assert [each.nullable for each in reading.fields] == [False, True, True, True]
    assert reading.decode([framed(id, json.dumps(row).encode())]).rows.to_pylist() == [row]
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    with pytest.raises(InvalidArgument, match="refers to itself"):
        decoder(registry, registry.register("tree", tree, "JSON"), kind="json")
    other = {"type": "object", "properties": {"next": {"$ref": "other.json"}}}
    with pytest.raises(InvalidArgument, match="no reference for"):
        decoder(registry, registry.register("lost", other, "JSON"), kind="json")


def test_references_are_bounded_and_have_to_be_there(registry: RegistryServer) -> None:
    registry.register("s0", record(("a", "int"), name="R0"))
    for nth in range(1, DEPTH_MAX + 3):
        registry.register(
            f"s{nth}",
            record(("a", f"R{nth - 1}"), name=f"R{nth}"),
            references=[reference(f"R{nth - 1}", f"s{nth - 1}")],
        )
    assert decoder(registry, DEPTH_MAX, kind="avro").fields.names == ["a"]
    with pytest.raises(InvalidArgument, match="too many"):
        decoder(registry, DEPTH_MAX + 3, kind="avro")
    around = registry.register("around", record(("a", "int")), references=[reference("x", "around")])
    with pytest.raises(InvalidArgument, match="they to each other"):
        decoder(registry, around, kind="avro")
    missing = registry.register("missing", record(("a", "int")), references=[reference("x", "nowhere", 3)])
    with pytest.raises(InvalidArgument, match="does not have"):
        decoder(registry, missing, kind="avro")
    good = decoder(registry, 1, kind="avro")
    with pytest.raises(Incompatible, match="does not have"):
        good.decode([framed(missing, b"\0")])
