"""The type ``kafka``: options, watermarks, tasks of offset ranges.

Source: design 003; sources.md section 3.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from persist import LocationError, Schema, UsageError
from persist.arrow import ArrowArray
from persist.sources import Point, Probe, SourceFrontier, SourceKind
from persist.typed import Fields, Record
from persist_ingest.sources.divert import DIVERT, BadRow, diverted, errors_schema
from persist_ingest.sources.kafka.cluster import Fetched, KafkaCluster, Topic, Watermarks
from persist_ingest.sources.kafka.definition import KafkaDefinition
from persist_ingest.sources.kafka.envelopes import Envelope, Meaning, included
from persist_ingest.sources.kafka.schemas.decoder import ColumnsGrew, Incompatible
from persist_ingest.sources.port import (
    ERRORS,
    Beginning,
    Changes,
    Event,
    SchemaGrew,
    SourceFailure,
    Upserts,
    UpstreamStatus,
)
from persist_ingest.sources.ranges import MessageRange, pieces, share
from persist_ingest.sources.renames import Renames

MESSAGE_BYTES: Final = 200
"""What a message counts for in the weight of a task: brokers do not report sizes."""
LEAST_PER_TASK: Final = 4096
_KEYS: Final = pa.int64()

Connect: TypeAlias = Callable[[str, str, tuple[tuple[str, str], ...]], KafkaCluster]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTask:
    """Ranges of offsets of some partitions."""

    cluster: KafkaCluster
    envelope: Envelope
    include: tuple[str, ...]
    export: str
    schema: Schema
    renames: Renames
    bad_rows: str
    pieces: tuple[MessageRange, ...]

    @property
    def weight(self) -> int:
        return sum(piece.length for piece in self.pieces) * MESSAGE_BYTES

    @property
    def ordered(self) -> bool:
        return self.envelope.upserts

    def read(self) -> Iterator[Event]:
        # SUBTLE: partitions read together come in an order that is another one each time. Only Changes may do that.
        groups = [(piece,) for piece in self.pieces] if self.ordered else [self.pieces]
        for group in groups:
            for fetched in self.cluster.read(group):
                yield from self._events(fetched)

    def _events(self, fetched: Fetched) -> Iterator[Event]:
        meaning = self._meaning(fetched)
        if meaning.bad:
            yield diverted(self.export, self._bad(fetched, meaning), self.bad_rows, _KEYS)
        if not len(meaning.places):
            return
        further = {name: included(name, fetched, meaning.places) for name in self.include}
        named = self.renames.named({**meaning.columns, **further})
        fields = pa.schema([*self.schema.key, *self.schema.val])
        columns = [_plain(named[each.name], each.type) for each in fields]
        event: Record = {
            "export": self.export,
            "rows": pa.RecordBatch.from_arrays(columns, schema=fields),
            "offsets": pa.array(np.asarray(fetched.offsets, dtype=np.uint64)[meaning.places]),
            "partitions": pa.array(np.full(len(meaning.places), fetched.partition, np.int64)),
        }
        if self.envelope.upserts:
            yield Upserts(**event, present=meaning.signs)
        else:
            yield Changes(**event, diffs=meaning.signs)

    def _meaning(self, fetched: Fetched) -> Meaning:
        try:
            return self.envelope.meaning(fetched)
        except ColumnsGrew as grown:
            try:
                schema = Schema(self.schema.key, pa.schema([*self.schema.val, *grown.fields]))
            except UsageError as cause:
                raise self._no_rows(fetched, cause) from cause
            raise SchemaGrew(self.export, schema) from None
        except Incompatible as cause:
            raise self._no_rows(fetched, cause) from cause

    def _no_rows(self, fetched: Fetched, cause: Exception) -> SourceFailure:
        return SourceFailure(
            f"messages of the topic cannot be rows of this table: {cause}",
            hint="register a schema that the table's columns can hold, or make a new source",
            export=self.export,
            partition=fetched.partition,
            offsets=f"{fetched.offsets[0]} to {fetched.offsets[-1]}",
        )

    def _bad(self, fetched: Fetched, meaning: Meaning) -> list[BadRow]:
        return [
            BadRow(fetched.partition, fetched.offsets[each.index], each.error, fetched.values[each.index])
            for each in meaning.bad
        ]


class KafkaReader:
    """Watermarks and plans of one topic."""

    def __init__(self, definition: KafkaDefinition, cluster: KafkaCluster, schema: Schema | None = None) -> None:
        """``schema``: the table's, where it may have more columns by now than at first."""
        self._definition = definition
        self._cluster = cluster
        self._topic: Topic | None = None
        self._schema = schema or definition.schema
        self._envelope = definition.envelope_made(_columns(self._schema))
        self._committed: dict[int, int] | None = None

    @property
    def kind(self) -> SourceKind:
        return SourceKind.PARTITIONS

    @property
    def incarnation(self) -> str:
        return self._definition.incarnation

    def exports(self) -> Mapping[str, Schema]:
        exports = {self._definition.export: self._schema}
        return {**exports, ERRORS: errors_schema(_KEYS)} if self._definition.bad_rows == DIVERT else exports

    def probe(self) -> Probe:
        now = self._connected().watermarks()
        if self._definition.topic_id is not None and now.topic_id is None:
            raise LocationError("brokers do not report the topic's id now", hint="it is tried again later")
        return Probe(
            kind=self.kind,
            incarnation=life(now, self._definition.topic),
            high=tuple(Point(partition, high) for partition, (_, high) in now.bounds.items()),
            low=tuple(Point(partition, low) for partition, (low, _) in now.bounds.items()),
        )

    def plan(self, begin: SourceFrontier, end: SourceFrontier, tasks: int) -> Sequence[KafkaTask]:
        wanted = list(pieces(begin, end))
        groups = [tuple(wanted)] if self._envelope.upserts and wanted else share(wanted, tasks, LEAST_PER_TASK)
        return [self._task(group) for group in groups]

    def adopt(self, export: str, schema: Schema) -> None:
        if export == self._definition.export and self._definition.value.registry is not None:
            self._schema = schema
            self._envelope = self._definition.envelope_made(_columns(schema))
        elif self.exports().get(export) != schema:
            raise SourceFailure("the columns of a topic are declared once", export=export)

    def commit(self, frontier: SourceFrontier) -> None:
        topic = self._connected()
        if self._committed is None:
            self._committed = dict(topic.committed())
        bounds = dict(zip(frontier.keys, frontier.bounds, strict=True))
        forward = {key: bound for key, bound in bounds.items() if bound > self._committed.get(key, 0)}
        if forward:
            topic.commit(forward)
            self._committed.update(forward)

    def status(self) -> UpstreamStatus:
        topic = self._connected()
        committed, high = topic.committed(), topic.watermarks().bounds
        behind = sum(top - max(committed.get(each, low), low) for each, (low, top) in high.items())
        frontier = SourceFrontier.at(self.kind, committed)
        return UpstreamStatus(committed=frontier, details={"partitions": len(high), "messages_behind": behind})

    def close(self) -> None:
        if self._topic is not None:
            self._topic.close()
            self._topic = None

    def _connected(self) -> Topic:
        if self._topic is None:
            self._topic = self._cluster.connect(identify=self._definition.topic_id is not None)
        return self._topic

    def _task(self, group: tuple[MessageRange, ...]) -> KafkaTask:
        return KafkaTask(
            cluster=self._cluster,
            envelope=self._envelope,
            include=self._definition.include,
            export=self._definition.export,
            schema=self._schema,
            renames=self._definition.renames,
            bad_rows=self._definition.bad_rows,
            pieces=group,
        )


class KafkaType:
    """Options. ``bootstrapServers``, ``topic``; ``kafka.NAME``: a setting of librdkafka, secrets as ``file:PATH``.

    ``format``: json, avro, text or bytes (one column ``value``). ``schema``: for JSON, columns such as
    ``id bigint, name string``. ``avroSchema``: the record's schema as JSON; ``avroHeader``: none, or confluent for
    payloads with a registry's header, and ``avroSchemaId`` the only one to accept. ``envelope``: none (each message
    adds a row), upsert (the message key's newest value), debezium (JSON with before, after, op).
    ``schemaRegistry``: where the schemas of JSON and Avro are that five bytes before each payload name, with
    ``schemaRegistryUser``, ``schemaRegistryPassword``, ``schemaRegistryCa``; the table begins with the newest one of
    ``schemaSubject`` (topic-value), and gets columns as others come. ``keySchemaSubject``: of keys (topic-key).
    ``key``: names of key columns. For upsert the message key: ``keyFormat`` json with ``keySchema``, avro with
    ``keyAvroSchema``, text or bytes (one column named by ``key``). ``include``: columns partition, offset, timestamp,
    headers, key. ``renameColumns``: names in the table, as ``name:title``. ``startingOffsets``: earliest or latest.
    ``badRows``: fail or divert. ``export``: its name.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    @contextmanager
    def create(self, options: Mapping[str, str], *, source: str) -> Iterator[Beginning]:
        definition, latest = KafkaDefinition.of(options, group=f"persist-{source}")
        cluster = self._connect(definition.topic, definition.group, definition.settings)
        topic = cluster.connect(identify=True)
        try:
            now = topic.watermarks()
        finally:
            topic.close()
        definition = definition.living(life(now, definition.topic), now.topic_id)
        bounds = {partition: high if latest else low for partition, (low, high) in now.bounds.items()}
        yield Beginning(
            definition=definition.to_json(),
            reader=KafkaReader(definition, cluster),
            bound=SourceFrontier.at(SourceKind.PARTITIONS, bounds),
        )

    def open(self, definition: Fields, schemas: Mapping[str, Schema]) -> KafkaReader:
        known = KafkaDefinition.from_json(definition)
        cluster = self._connect(known.topic, known.group, known.settings)
        return KafkaReader(known, cluster, schemas[known.export])

    def drop(self, definition: Mapping[str, object]) -> None:
        """Nothing was set up: the topic is not ours, and the group's offsets expire."""


def life(now: Watermarks, topic: str) -> str:
    """The incarnation: the cluster's id and the topic's. Where brokers report no topic's id its name stands for it."""
    return f"{now.cluster_id}/{topic if now.topic_id is None else now.topic_id}"


def _columns(schema: Schema) -> pa.Schema:
    return pa.schema([*schema.key, *schema.val])


def _plain(column: ArrowArray, kind: pa.DataType) -> ArrowArray:
    return column if column.type == kind else column.cast(kind)
