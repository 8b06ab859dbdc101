"""What a Kafka source is: its options, checked, and what they make.

Source: design 003; sources.md section 3.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
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
from persist_ingest.sources.kafka.envelopes import INCLUDED, Added, Debezium, DebeziumUpserted, Envelope, Upserted
from persist_ingest.sources.kafka.schemas.decoder import RegisteredDecoder, fields_of
from persist_ingest.sources.kafka.schemas.rest import Registered, Registry, UnknownSchema
from persist_ingest.sources.kafka.settings import Settings, divided
from persist_ingest.sources.options import check_options, listed, one_of, required
from persist_ingest.sources.options import columns as json_columns
from persist_ingest.sources.port import ERRORS
from persist_ingest.sources.renames import AS_THEY_ARE, OPTION, Renames

_FORMATS: Final = ("json", "avro", "protobuf", "text", "bytes")
_REGISTERED: Final = ("json", "avro", "protobuf")
DEBEZIUM_UPSERT: Final = "debezium-upsert"
_ENVELOPES: Final = ("none", "upsert", "debezium", DEBEZIUM_UPSERT)
_DEBEZIUM: Final = ("debezium", DEBEZIUM_UPSERT)
TOPICS: Final = "topicPattern"
STARTING: Final = ("startingOffsets", ("earliest", "latest"), "earliest")
OPTIONS: Final = (
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
    OPTION,
    "schemaRegistry",
    "schemaRegistryUser",
    "schemaRegistryPassword",
    "schemaRegistryCa",
    "schemaSubject",
    "keySchemaSubject",
    "protobufMessage",
    "startingOffsets",
    "badRows",
    "export",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """How the value or the key of messages is read: a format, and the columns or the Avro schema as text.

    Or a registry, and the schema that was the newest one there when the source was created; ``message``: of Protobuf.
    """

    format: str
    columns: str = ""
    avro: str = ""
    header: bool = False
    only: int | None = None
    registry: Registry | None = None
    declared: Registered | None = None
    message: str = ""

    @classmethod
    def from_json(cls, given: Fields) -> "Payload":
        """What ``to_json`` gave, in this release or an earlier one."""
        registry, declared = given.get("registry"), given.get("declared")
        made = {
            "registry": None if registry is None else Registry(**registry),
            "declared": None if declared is None else Registered.from_json(declared),
        }
        return cls(**{**given, **made})

    def to_json(self) -> dict[str, object]:
        """JSON-ready; without what earlier releases do not know, where there is nothing of it."""
        made = {name: value for name, value in asdict(self).items() if value is not None or name == "only"}
        if self.declared is not None and not self.declared.parts:
            del made["declared"]["parts"]
        return made if self.message else {name: value for name, value in made.items() if name != "message"}

    def registered(
        self,
        columns: pa.Schema | None = None,
        *,
        include: tuple[str, ...],
        passed: tuple[str, ...],
        named: tuple[str, ...],
        fixed: bool,
    ) -> Decoder | None:
        """What reads payloads of a registry's schemas; None: these are none.

        ``columns``: all that the table has. ``named``: names that columns get, which none that comes may have.
        """
        if self.registry is None or self.declared is None:
            return None
        declared = fields_of(self.format, self.declared, self.message)
        others = {*declared.names, *include, *passed}
        grown = [] if columns is None or fixed else [each for each in columns if each.name not in others]
        return RegisteredDecoder(
            registry=self.registry,
            format=self.format,
            declared=self.declared,
            fields=pa.schema([*declared, *grown]),
            message=self.message,
            taken=(*include, *(name for name in named if name not in declared.names)),
            passed=passed,
            fixed=fixed,
        )

    def decoder(self) -> Decoder:
        """What reads it. Raises InvalidArgument when the declaration is no good."""
        if self.format == "avro":
            return AvroDecoder(schema=self.avro, header=self.header, only=self.only)
        if self.format == "json":
            return JsonDecoder(json_columns(self.columns))
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
    renames: Renames = AS_THEY_ARE

    @classmethod
    def of(cls, raw: Mapping[str, str], *, group: str) -> tuple["KafkaDefinition", bool]:
        """From options; and whether it begins with the latest messages. Raises InvalidArgument."""
        _, rest = divided(raw)
        given = check_options(rest, OPTIONS, "a Kafka source")
        envelope = one_of(given, "envelope", _ENVELOPES, "none")
        definition = cls(
            topic=required(given, "topic", "orders"),
            group=group,
            settings=settings_of(raw),
            envelope=envelope,
            value=_value(given, envelope),
            message_key=_message_key(given, envelope),
            key=_key(given, envelope),
            include=_included(given),
            export=given.get("export") or "rows",
            bad_rows=one_of(given, "badRows", (FAIL, DIVERT), FAIL),
            renames=Renames.of(given),
        )
        if definition.export == ERRORS:
            raise InvalidArgument("the export errors is for bad rows", hint="choose another name for export")
        if twice := set(definition.include) & set(definition.envelope_made().fields.names):
            raise InvalidArgument("a column is both in the messages and included", hint="rename it", columns=twice)
        _ = definition.schema  # refuses what shards cannot hold
        return definition, one_of(given, *STARTING) == "latest"

    def living(self, incarnation: str, topic_id: str | None) -> "KafkaDefinition":
        """This definition of the topic as it was found."""
        return replace(self, incarnation=incarnation, topic_id=topic_id)

    def to_json(self) -> dict[str, object]:
        """As ``from_json`` takes it."""
        named = {name: getattr(self, name) for name in self.__slots__}
        payloads = {name: None if named[name] is None else named[name].to_json() for name in ("value", "message_key")}
        lists = {"key": list(self.key), "include": list(self.include), "settings": dict(self.settings)}
        return {**named, **payloads, **lists, "renames": self.renames.to_json()}

    @classmethod
    def from_json(cls, given: Fields) -> "KafkaDefinition":
        """What ``to_json`` gave."""
        made = {
            "value": Payload.from_json(given["value"]),
            "message_key": None if given["message_key"] is None else Payload.from_json(given["message_key"]),
            "key": tuple(given["key"]),
            "include": tuple(given["include"]),
            "settings": tuple(sorted(given["settings"].items())),
            "renames": Renames.from_json(given.get("renames")),
        }
        return cls(**{**given, **made})

    def envelope_made(self, columns: pa.Schema | None = None) -> Envelope:
        """What reads the messages. ``columns``: of the table, where it has more by now than at first.

        It makes columns as they are called upstream.
        """
        columns = None if columns is None else self.renames.upstream(columns)
        if self.envelope == "debezium":
            return Debezium(json_columns(self.value.columns))
        if self.envelope == DEBEZIUM_UPSERT:
            return DebeziumUpserted(json_columns(self.value.columns), self.key)
        if self.message_key is None:
            return Added(self._decoder(self.value, columns, ()))
        keys = self._decoder(self.message_key, None, (), fixed=True)
        return Upserted(keys, self._decoder(self.value, columns, tuple(keys.fields.names)))

    def _decoder(
        self, payload: Payload, columns: pa.Schema | None, passed: tuple[str, ...], *, fixed: bool = False
    ) -> Decoder:
        found = payload.registered(columns, include=self.include, passed=passed, named=self.renames.new, fixed=fixed)
        return found or payload.decoder()

    @property
    def schema(self) -> Schema:
        """Of the export."""
        envelope = self.envelope_made()
        fields = pa.schema([*envelope.fields, *(INCLUDED[name] for name in self.include)])
        if not envelope.upserts:
            return self.renames.keyed(fields, self.key)
        key = envelope.keys.fields.names if isinstance(envelope, Upserted) else list(self.key)
        # A key that has no value any more comes with nulls.
        nullable = [each if each.name in key else each.with_nullable(True) for each in fields]
        return self.renames.keyed(pa.schema(nullable), key)


def settings_of(raw: Mapping[str, str]) -> Settings:
    """How to reach the cluster, from options. Raises InvalidArgument."""
    settings, rest = divided(raw)
    given = check_options(rest, [*OPTIONS, TOPICS], "a Kafka source")
    return tuple(sorted({**settings, "bootstrap.servers": required(given, "bootstrapServers", "host:9092")}.items()))


def _value(given: Given, envelope: str) -> Payload:
    kind = one_of(given, "format", _FORMATS, "json")
    if envelope in _DEBEZIUM and kind != "json":
        raise InvalidArgument(f"envelope {envelope} is read from JSON", hint="use format=json", format=kind)
    registry = _registry(given)
    if registry is None:
        return _payload(given, kind, "schema", "avroSchema", "value")
    if envelope in _DEBEZIUM:
        raise InvalidArgument(f"envelope {envelope} is read from JSON without a registry", hint="drop schemaRegistry")
    for name in ("schema", "avroSchema", "avroHeader", "avroSchemaId"):
        if name in given.values:
            raise InvalidArgument(f"options schemaRegistry and {name} exclude each other", hint=f"drop {name}")
    return _registered(given, kind, registry, "schemaSubject", "value")


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
    if kind in _REGISTERED and "key" in given.values:
        raise InvalidArgument(f"the columns of keys are declared by {_declares(kind)}", hint="drop option key")
    registry = _registry(given)
    if registry is not None and kind in _REGISTERED and not {"keySchema", "keyAvroSchema"} & set(given.values):
        return _registered(given, kind, registry, "keySchemaSubject", "key")
    return _payload(given, kind, "keySchema", "keyAvroSchema", f"{names[0]} required")


def _registry(given: Given) -> Registry | None:
    if "schemaRegistry" not in given.values:
        for name in ("schemaRegistryUser", "schemaRegistryPassword", "schemaRegistryCa", "schemaSubject"):
            given.requires(name, "schemaRegistry")
        given.requires("keySchemaSubject", "schemaRegistry")
        given.requires("protobufMessage", "schemaRegistry")
        return None
    return Registry(
        url=required(given, "schemaRegistry", "http://registry:8081"),
        user=given.get("schemaRegistryUser") or "",
        password=given.get("schemaRegistryPassword") or "",
        ca=given.get("schemaRegistryCa") or "",
    )


def _registered(given: Given, kind: str, registry: Registry, option: str, part: str) -> Payload:
    """What is newest of a subject now. Raises InvalidArgument, LocationError."""
    if kind not in _REGISTERED:
        raise InvalidArgument(
            "a registry is for format avro, json or protobuf", hint="drop schemaRegistry", format=kind
        )
    message = (given.get("protobufMessage") or "").strip() if part == "value" else ""
    if message and kind != "protobuf":
        raise InvalidArgument("option protobufMessage goes with format=protobuf", hint="leave it out", format=kind)
    subject = given.get(option) or f"{required(given, 'topic', 'orders')}-{part}"
    try:
        declared = registry.newest(subject)
    except UnknownSchema as cause:
        raise InvalidArgument(
            "the schema registry has no such subject",
            hint=f"register a schema under it, or name another with {option}",
            subject=subject,
            registry=registry.url,
        ) from cause
    fields_of(kind, declared, message)
    return Payload(format=kind, registry=registry, declared=declared, message=message)


def _declares(kind: str) -> str:
    return "keySchema" if kind == "json" else "keyAvroSchema"


def _payload(given: Given, kind: str, schema: str, avro: str, raw: str) -> Payload:
    if kind == "protobuf":
        raise InvalidArgument("schemas of Protobuf are read from a registry", hint="give schemaRegistry", format=kind)
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
