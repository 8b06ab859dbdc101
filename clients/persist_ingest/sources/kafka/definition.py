"""What a Kafka source is: its options, checked, and what they make.

Source: design 003; sources.md section 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from persist import InvalidArgument, Schema
from persist.typed import Fields
from persist_ingest.decode.avro_rows import AvroDecoder
from persist_ingest.decode.exact import Decoder
from persist_ingest.decode.json_rows import JsonDecoder
from persist_ingest.decode.raw_rows import RawDecoder
from persist_ingest.given import Given
from persist_ingest.sources.divert import DIVERT, FAIL
from persist_ingest.sources.kafka.envelopes import INCLUDED, Added, Debezium, Envelope, Upserted
from persist_ingest.sources.kafka.settings import divided
from persist_ingest.sources.options import check_options, columns, keyed, listed, one_of, required
from persist_ingest.sources.port import ERRORS

_FORMATS: Final = ("json", "avro", "text", "bytes")
_ENVELOPES: Final = ("none", "upsert", "debezium")
_OPTIONS: Final = (
    "bootstrapServers",
    "topic",
    "format",
    "schema",
    "avroSchema",
    "avroHeader",
    "avroSchemaId",
    "envelope",
    "key",
    "keyFormat",
    "keySchema",
    "keyAvroSchema",
    "include",
    "startingOffsets",
    "badRows",
    "export",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """How the value or the key of messages is read: a format, and the columns or the Avro schema as text."""

    format: str
    columns: str = ""
    avro: str = ""
    header: bool = False
    only: int | None = None

    def decoder(self) -> Decoder:
        """What reads it. Raises InvalidArgument when the declaration is no good."""
        if self.format == "avro":
            return AvroDecoder(schema=self.avro, header=self.header, only=self.only)
        if self.format == "json":
            return JsonDecoder(columns(self.columns))
        kind = pa.string() if self.format == "text" else pa.binary()
        name, _, required = self.columns.partition(" ")
        return RawDecoder(pa.schema([pa.field(name, kind, nullable=not required)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaDefinition:
    """What ``create`` fixed."""

    topic: str
    group: str
    settings: tuple[tuple[str, str], ...]
    envelope: str
    value: Payload
    message_key: Payload | None
    key: tuple[str, ...]
    include: tuple[str, ...]
    export: str
    bad_rows: str
    incarnation: str = ""
    topic_id: str | None = None

    @classmethod
    def of(cls, raw: Mapping[str, str], *, group: str) -> tuple["KafkaDefinition", bool]:
        """From options; and whether it begins with the latest messages. Raises InvalidArgument."""
        settings, rest = divided(raw)
        given = check_options(rest, _OPTIONS, "a Kafka source")
        servers = required(given, "bootstrapServers", "host:9092")
        envelope = one_of(given, "envelope", _ENVELOPES, "none")
        definition = cls(
            topic=required(given, "topic", "orders"),
            group=group,
            settings=tuple(sorted({**settings, "bootstrap.servers": servers}.items())),
            envelope=envelope,
            value=_value(given, envelope),
            message_key=_message_key(given, envelope),
            key=_key(given, envelope),
            include=_included(given),
            export=given.get("export") or "rows",
            bad_rows=one_of(given, "badRows", (FAIL, DIVERT), FAIL),
        )
        if definition.export == ERRORS:
            raise InvalidArgument("the export errors is for bad rows", hint="choose another name for export")
        if twice := set(definition.include) & set(definition.envelope_made().fields.names):
            raise InvalidArgument("a column is both in the messages and included", hint="rename it", columns=twice)
        _ = definition.schema  # refuses what shards cannot hold
        return definition, one_of(given, "startingOffsets", ("earliest", "latest"), "earliest") == "latest"

    def living(self, incarnation: str, topic_id: str | None) -> "KafkaDefinition":
        """This definition of the topic as it was found."""
        return replace(self, incarnation=incarnation, topic_id=topic_id)

    def to_json(self) -> dict[str, object]:
        """As ``from_json`` takes it."""
        named = {name: getattr(self, name) for name in self.__slots__}
        payloads = {
            name: None if named[name] is None else {slot: getattr(named[name], slot) for slot in Payload.__slots__}
            for name in ("value", "message_key")
        }
        lists = {"key": list(self.key), "include": list(self.include), "settings": dict(self.settings)}
        return {**named, **payloads, **lists}

    @classmethod
    def from_json(cls, given: Fields) -> "KafkaDefinition":
        """What ``to_json`` gave."""
        made = {
            "value": Payload(**given["value"]),
            "message_key": None if given["message_key"] is None else Payload(**given["message_key"]),
            "key": tuple(given["key"]),
            "include": tuple(given["include"]),
            "settings": tuple(sorted(given["settings"].items())),
        }
        return cls(**{**given, **made})

    def envelope_made(self) -> Envelope:
        """What reads the messages."""
        if self.envelope == "debezium":
            return Debezium(columns(self.value.columns))
        values = self.value.decoder()
        return Added(values) if self.message_key is None else Upserted(self.message_key.decoder(), values)

    @property
    def schema(self) -> Schema:
        """Of the export."""
        envelope = self.envelope_made()
        fields = pa.schema([*envelope.fields, *(INCLUDED[name] for name in self.include)])
        if not isinstance(envelope, Upserted):
            return keyed(fields, self.key)
        key = envelope.keys.fields.names
        # A key that has no value any more comes with nulls.
        nullable = [each if each.name in key else each.with_nullable(True) for each in fields]
        return keyed(pa.schema(nullable), key)


def _value(given: Given, envelope: str) -> Payload:
    kind = one_of(given, "format", _FORMATS, "json")
    if envelope == "debezium" and kind != "json":
        raise InvalidArgument("envelope debezium is read from JSON", hint="use format=json", format=kind)
    return _payload(given, kind, "schema", "avroSchema", "value")


def _message_key(given: Given, envelope: str) -> Payload | None:
    if envelope != "upsert":
        for name in ("keyFormat", "keySchema", "keyAvroSchema"):
            if name in given.values:
                raise InvalidArgument(f"option {name} is about envelope=upsert", hint="include=key has the raw key")
        return None
    kind = one_of(given, "keyFormat", _FORMATS, "text")
    names = listed(given, "key") or ("key",)
    if kind in ("text", "bytes") and len(names) != 1:
        raise InvalidArgument("a key of text or bytes is one column", hint="use keyFormat=json", key=", ".join(names))
    if kind in ("json", "avro") and "key" in given.values:
        raise InvalidArgument(f"the columns of keys are declared by {_declares(kind)}", hint="drop option key")
    return _payload(given, kind, "keySchema", "keyAvroSchema", f"{names[0]} required")


def _declares(kind: str) -> str:
    return "keySchema" if kind == "json" else "keyAvroSchema"


def _payload(given: Given, kind: str, schema: str, avro: str, raw: str) -> Payload:
    if kind == "avro":
        number = given.whole("avroSchemaId")
        header = one_of(given, "avroHeader", ("none", "confluent"), "none") == "confluent"
        if number is not None and not header:
            given.requires("avroSchemaId", "avroHeader")
        only = number if schema == "schema" else None  # keys have a schema, and a number, of their own
        text = required(given, avro, '{"type": "record", ...}')
        return Payload(format=kind, avro=text, header=header, only=only)
    if kind == "json":
        return Payload(format=kind, columns=required(given, schema, "id bigint not null, name string"))
    return Payload(format=kind, columns=raw)


def _key(given: Given, envelope: str) -> tuple[str, ...]:
    if envelope == "upsert":
        return ()
    required(given, "key", "id (or partition,offset with include=partition,offset)")
    return listed(given, "key")


def _included(given: Given) -> tuple[str, ...]:
    include = listed(given, "include")
    if unknown := [name for name in include if name not in INCLUDED]:
        raise InvalidArgument(f"option include knows {', '.join(INCLUDED)}", got=", ".join(unknown))
    return include
