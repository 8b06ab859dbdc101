"""Kafka sources on a topic in memory: what messages mean, and what happens to topics."""

import datetime
import io
import json
import pickle
from pathlib import Path
from typing import Any

import fastavro
import pytest
from ingest.sources.fake_kafka import FakeCluster, Log, Message
from ingest.sources.suite import check_laws, check_probe, reached, read, rows_of
from sure import as_a

from persist import InvalidArgument, LocationError
from persist.sources import Point, SourceFrontier, SourceKind, UpstreamLost
from persist_ingest.sources.kafka import KAFKA
from persist_ingest.sources.kafka.kind import KafkaType
from persist_ingest.sources.kafka.librdkafka import Librdkafka
from persist_ingest.sources.kafka.reader import KafkaReader
from persist_ingest.sources.kafka.settings import resolved
from persist_ingest.sources.port import BadRows, SourceFailure

KIND = SourceKind.PARTITIONS
START = SourceFrontier.minimum(KIND)
SCHEMA = "id bigint not null, name string"
GIVEN = {"bootstrapServers": "nowhere:9092", "topic": "orders", "schema": SCHEMA, "key": "id"}


def made(cluster: FakeCluster, options: dict[str, str] | None = None, **more: str) -> KafkaReader:
    kafka = KafkaType(lambda topic, group, settings: cluster)
    with kafka.create({**(GIVEN if options is None else options), **more}, source="test") as beginning:
        definition = json.loads(json.dumps(beginning.definition))
        return as_a(KafkaReader, kafka.open(definition, beginning.reader.exports()))


def cluster(*messages: Message | None) -> FakeCluster:
    log = Log()
    log.put(*messages)
    return FakeCluster(logs={0: log})


def plain(number: int) -> Message:
    return Message(b"k%d" % number, b'{"id":%d,"name":"n%d"}' % (number, number), 1_700_000_000_000 + number)


def rows(reader: KafkaReader, export: str = "rows") -> list[tuple[Any, ...]]:
    """Offset, sign and values of all messages that keep the laws."""
    end = reached(reader)
    middles = [SourceFrontier.at(KIND, {0: end.bounds[0] // part}) for part in (3, 2)]
    return rows_of(check_laws(reader, [START, *middles, end], elsewhere=False), export)


def test_readers_keep_the_laws_over_holes() -> None:
    holed = [plain(number) if number % 5 else None for number in range(9_000)]
    logs = {0: Log(), 3: Log()}
    logs[0].put(*holed)
    logs[3].put(*holed[:300], None, None)
    reader = made(FakeCluster(logs, batch=500), include="partition,offset,timestamp,headers,key")
    end = reached(reader)
    assert end.bounds == (9_000, 302)
    middle = SourceFrontier.at(KIND, {0: 4_001, 3: 5})
    found = check_laws(reader, [START, SourceFrontier.at(KIND, {0: 5}), middle, end])
    check_probe(reader)
    moment = datetime.datetime(2023, 11, 14, 22, 13, 20, 7_000, datetime.UTC)
    assert found["rows", 3][5] == (7, 1, 7, "n7", 3, 7, moment, None, b"k7")
    assert [len(each) for each in found.values()] == [7_200, 240]
    assert len(reader.plan(START, end, 2)) == 2


def test_partitions_that_are_added_are_read_from_their_beginning() -> None:
    topic = cluster(plain(0), plain(1))
    reader = made(topic)
    before = reached(reader)
    topic.logs[1] = Log()
    topic.logs[1].put(plain(2), plain(3))
    after = before.join(reached(reader))
    assert [row[2] for row in rows_of(read(reader, before, after), "rows")] == [2, 3]


def test_only_what_is_committed_is_there() -> None:
    topic = cluster(plain(0), plain(1), plain(2))
    topic.logs[0].messages[3] = plain(3)  # in a transaction that is still open
    reader = made(topic)
    assert reader.probe().high == (Point(0, 3),)
    assert len(rows(reader)) == 3


def test_a_topic_made_anew_is_another_incarnation() -> None:
    topic = cluster(plain(0))
    reader = made(topic)
    assert reader.probe().incarnation == reader.incarnation == "cluster/topic-1"
    topic.topic_id = "topic-2"
    assert reader.probe().incarnation != reader.incarnation
    topic.topic_id = "topic-1"
    topic.cluster_id = "other"
    assert reader.probe().incarnation != reader.incarnation
    topic.cluster_id, topic.tells_ids = "cluster", False
    with pytest.raises(LocationError, match="topic's id"):  # not another topic: nothing says so
        reader.probe()
    topic.logs.clear()
    with pytest.raises(SourceFailure, match="does not exist"):
        reader.probe()


def test_brokers_that_tell_no_ids_are_known_by_names() -> None:
    topic = cluster(plain(0))
    topic.tells_ids = False
    reader = made(topic)
    assert reader.probe().incarnation == reader.incarnation == "cluster/orders"


def test_a_source_begins_with_what_the_topic_still_has() -> None:
    topic = cluster(*(plain(number) for number in range(10)))
    topic.logs[0].low = 4
    kafka = KafkaType(lambda topic_name, group, settings: topic)
    with kafka.create(GIVEN, source="test") as beginning:
        assert beginning.bound == SourceFrontier.at(KIND, {0: 4})
        assert beginning.reader.probe().low == (Point(0, 4),)
        found = read(beginning.reader, beginning.bound, reached(beginning.reader))
        assert [row[2] for row in rows_of(found, "rows")] == [4, 5, 6, 7, 8, 9]
        with pytest.raises(UpstreamLost):
            read(beginning.reader, START, reached(beginning.reader))
    with kafka.create({**GIVEN, "startingOffsets": "latest"}, source="test") as beginning:
        assert beginning.bound == SourceFrontier.at(KIND, {0: 10})


def test_commits_never_go_back() -> None:
    topic = cluster(*(plain(number) for number in range(10)))
    topic.offsets[0] = 6
    reader = made(topic)
    for bound, expected in ((3, 6), (8, 8), (7, 8), (8, 8)):
        reader.commit(SourceFrontier.at(KIND, {0: bound}))
        assert topic.offsets == {0: expected}
    assert topic.commits == 1
    assert reader.status().committed == SourceFrontier.at(KIND, {0: 8})
    assert reader.status().details["messages_behind"] == 2
    reader.close()


def test_the_newest_value_of_a_key_is_what_it_is() -> None:
    topic = cluster(
        Message(b"a", b'{"id":1,"name":"x"}'),
        Message(b"b", b'{"id":2,"name":"y"}'),
        Message(b"a", None),
        Message(None, b'{"id":3}'),
        Message(b"\xff", b'{"id":4}'),
        Message(b"c", b'{"id":"five"}'),
        Message(b"b", b'{"id":6}'),
    )
    reader = made(topic, key="who", envelope="upsert", badRows="divert")
    schema = reader.exports()["rows"]
    assert schema.key.names == ["who"]
    assert schema.val.names == ["id", "name"]
    assert rows(reader) == [
        (0, True, "a", 1, "x"),
        (1, True, "b", 2, "y"),
        (2, False, "a", None, None),
        (6, True, "b", 6, None),
    ]
    bad = rows(reader, "errors")
    assert [row[0] for row in bad] == [3, 4, 5]
    assert [row[5].startswith("key: ") for row in bad] == [True, True, False]
    assert not any(task.ordered for task in reader.plan(START, reached(reader), 4))
    assert all(task.upserts for task in reader.plan(START, reached(reader), 4))
    assert len(reader.plan(START, reached(reader), 4)) == 1


def test_keys_may_be_json_with_columns_of_their_own() -> None:
    topic = cluster(Message(b'{"id":7,"part":2}', b'{"name":"x","id":99}'), Message(b'{"id":7,"part":2}', None))
    given = {name: text for name, text in GIVEN.items() if name != "key"}
    key = {"envelope": "upsert", "keyFormat": "json", "keySchema": "id bigint, part int", "include": "offset"}
    reader = made(topic, given, **key)
    assert rows(reader) == [(0, True, 7, 2, "x", 0), (1, False, 7, 2, None, 1)]


def change(op: str, before: Any, after: Any, **more: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "ts_ms": 1, "source": {"table": "t"}, **more}


ROW = [{"id": number, "name": f"n{number}", "day": f"2020-01-0{number + 1}"} for number in range(3)]


def test_changes_of_debezium_are_retractions_and_additions() -> None:
    changes = [
        change("r", None, ROW[0]),
        {"schema": {"type": "struct"}, "payload": change("c", None, ROW[1])},
        change("u", ROW[1], ROW[2]),
        None,
        change("d", ROW[0], None),
        change("u", None, ROW[1]),
        change("d", None, None),
        change("t", None, None),
        change("c", None, {"name": "no id"}),
        change("c", None, {"id": 1, "day": "someday"}),
        {"what": 1},
    ]
    topic = cluster(*(Message(b"k", each if each is None else json.dumps(each).encode()) for each in changes))
    reader = made(topic, envelope="debezium", badRows="divert", schema=SCHEMA + ", day date", include="offset")
    days = [datetime.date(2020, 1, number + 1) for number in range(3)]
    assert rows(reader) == [
        (0, 1, 0, "n0", days[0], 0),
        (1, 1, 1, "n1", days[1], 1),
        (2, -1, 1, "n1", days[1], 2),
        (2, 1, 2, "n2", days[2], 2),
        (4, -1, 0, "n0", days[0], 4),
    ]
    bad = {row[0]: row[5] for row in rows(reader, "errors")}
    assert list(bad) == [5, 6, 7, 8, 9, 10]
    assert "REPLICA IDENTITY FULL" in bad[5]
    assert "no such op: t" in bad[7]
    assert "id must have a value" in bad[8]


def test_changes_of_debezium_without_rows_before_are_the_newest_of_their_keys() -> None:
    """As connectors send them from tables whose replica identity is their key, and from what has no images before."""
    pair = b'{"schema":{},"payload":{"id":1}}'
    changes: list[tuple[bytes | None, Any]] = [
        (b"no json, which nothing asks for", change("r", None, ROW[0])),
        (pair, {"schema": {"type": "struct"}, "payload": change("c", None, ROW[1])}),
        (b'{"id":1}', change("u", None, {**ROW[1], "name": "other"})),
        (b'{"id":0}', change("d", {"id": 0, "name": None, "day": None}, None)),
        (b'{"id":0}', None),
        (pair, change("d", None, None)),
        (b"no json", change("d", None, None)),
        (None, change("u", None, {**ROW[2], "name": "__debezium_unavailable_value"})),
        (None, change("u", ROW[2], None)),
        (None, change("c", None, {"name": "no id"})),
    ]
    topic = cluster(*(Message(key, each if each is None else json.dumps(each).encode()) for key, each in changes))
    options = {"envelope": "debezium-upsert", "badRows": "divert", "schema": SCHEMA + ", day date", "include": "offset"}
    reader = made(topic, {**GIVEN, **options})
    days = [datetime.date(2020, 1, number + 1) for number in range(3)]
    assert rows(reader) == [
        (0, True, 0, "n0", days[0], 0),
        (1, True, 1, "n1", days[1], 1),
        (2, True, 1, "other", days[1], 2),
        (3, False, 0, None, None, 3),
        (5, False, 1, None, None, 5),
    ]
    bad = {row[0]: row[5] for row in rows(reader, "errors")}
    assert list(bad) == [6, 7, 8, 9]
    assert "id must have a value" in bad[6]
    assert "not sent again" in bad[7]
    with pytest.raises(InvalidArgument, match="key"):
        made(topic, {**{name: text for name, text in GIVEN.items() if name != "key"}, **options})


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}


def datum(number: int) -> bytes:
    moment = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    row = {"id": number, "name": None, "at": moment, "tags": ["t"], "inner": {"x": number}, "kind": "B"}
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(AVRO), row)
    return sink.getvalue()


@pytest.mark.parametrize("header", ["none", "confluent"])
def test_avro_is_read_without_a_registry(header: str) -> None:
    prefix = b"\0\0\0\0\x07" if header == "confluent" else b""
    values = [prefix + datum(1), prefix + datum(2)[:-1], prefix + datum(3) + b"x", b"", None, prefix + datum(6)]
    topic = cluster(*(Message(None, value) for value in values))
    options = {"format": "avro", "avroSchema": json.dumps(AVRO), "avroHeader": header, "badRows": "divert"}
    given = {name: text for name, text in GIVEN.items() if name != "schema"}
    reader = made(topic, given, **options)
    moment = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    assert rows(reader) == [
        (0, 1, 1, None, moment, ["t"], {"x": 1}, "B"),
        (5, 1, 6, None, moment, ["t"], {"x": 6}, "B"),
    ]
    assert [row[0] for row in rows(reader, "errors")] == [1, 2, 3, 4]
    if header == "confluent":
        other = made(topic, given, **options, avroSchemaId="8")
        assert [row[0] for row in rows(other, "errors")] == list(range(6))


def test_payloads_may_stay_as_they_are() -> None:
    topic = cluster(Message(None, b"\xff", -1, (("h", b"v"), ("n", None))), Message(b"k", None))
    given = {**GIVEN, "key": "partition,offset", "include": "partition,offset,headers"}
    del given["schema"]
    reader = made(topic, given, format="bytes")
    headers = [{"name": "h", "value": b"v"}, {"name": "n", "value": None}]
    assert rows(reader) == [(0, 1, 0, 0, b"\xff", headers), (1, 1, 0, 1, None, None)]
    with pytest.raises(BadRows):
        rows(made(topic, given, format="text"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topik": "x"}, r"did you mean topic\?"),
        ({"format": "jsno"}, r"did you mean json\?"),
        ({"schema": ""}, "needs option schema"),
        ({"key": ""}, "needs option key"),
        ({"bootstrapServers": ""}, "needs option bootstrapServers"),
        ({"include": "offsets"}, "include knows"),
        ({"schema": "id int, offset int", "include": "offset"}, "both in the messages"),
        ({"envelope": "debezium", "format": "text"}, "read from JSON"),
        ({"keyFormat": "json"}, "about envelope=upsert"),
        ({"envelope": "upsert", "key": "a,b"}, "one column"),
        ({"envelope": "upsert", "keyFormat": "json", "keySchema": "id int"}, "drop option key"),
        ({"format": "avro"}, "needs option avroSchema"),
        ({"format": "avro", "avroSchema": "{}"}, "no Avro schema"),
        ({"format": "avro", "avroSchema": '{"type":"record","name":"x","fields":[]}'}, "with fields"),
        ({"export": "errors"}, "another name"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        made(cluster(plain(0)), **options)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"kafka.sasl.password": "secret"}, "file:PATH"),
        ({"sasl.password": "secret"}, "env:NAME"),
        ({"kafka.sasl.password": "file:/surely/not/there"}, "cannot be read"),
        ({"kafka.sasl.password": "env:SURELY_NOT_SET"}, "not set"),
        ({"kafka.auto.offset.reset": "earliest"}, "cannot be changed"),
        ({"kafka.no.such.setting": "1"}, "refuses these settings"),
    ],
)
def test_settings_that_are_no_good_are_refused(setting: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says), KAFKA.create({**GIVEN, **setting}, source="test"):
        pass


def test_secrets_are_read_where_they_are_used_and_not_kept(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    settings = (("bootstrap.servers", "nowhere:1"), ("sasl.password", f"file:{tmp_path}/secret"))
    kept = Librdkafka("orders", "group", settings)
    assert resolved(kept.settings)["sasl.password"] == "s3cret"
    assert b"s3cret" not in pickle.dumps(kept)


def test_dropping_does_nothing() -> None:
    KAFKA.drop({})
