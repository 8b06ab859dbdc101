"""The type ``kafka``: options, and what they make.

Source: design 003; sources.md section 3.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from persist import InvalidArgument, Schema
from persist.sources import SourceFrontier, SourceKind
from persist.typed import Fields
from persist_ingest.sources.divert import errors_schema
from persist_ingest.sources.kafka.cluster import KafkaCluster
from persist_ingest.sources.kafka.definition import OPTIONS, STARTING, KafkaDefinition
from persist_ingest.sources.kafka.pattern.definition import (
    TopicsDefinition,
    asks_for_topics,
    check_name,
    is_of_topics,
)
from persist_ingest.sources.kafka.pattern.reader import TopicsReader
from persist_ingest.sources.kafka.pattern.topics import Topics
from persist_ingest.sources.kafka.reader import KafkaReader, life
from persist_ingest.sources.kafka.settings import divided
from persist_ingest.sources.options import check_options, one_of
from persist_ingest.sources.port import ERRORS, Beginning, Joined, SourceFailure

Connect: TypeAlias = Callable[[str, str, tuple[tuple[str, str], ...]], KafkaCluster]


class KafkaType:
    """Options. ``bootstrapServers``, ``topic``; or ``topicPattern``, a regular expression: each topic it matches is a
    table, named as that is. ``kafka.NAME``: a setting of librdkafka, secrets as ``file:PATH`` or ``env:NAME``.

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
        if asks_for_topics(options):
            yield _topics(options, source)
            return
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

    def open(self, definition: Fields, schemas: Mapping[str, Schema]) -> KafkaReader | TopicsReader:
        if is_of_topics(definition):
            return TopicsReader(TopicsDefinition.from_json(definition), schemas)
        known = KafkaDefinition.from_json(definition)
        cluster = self._connect(known.topic, known.group, known.settings)
        return KafkaReader(known, cluster, schemas[known.export])

    def drop(self, definition: Mapping[str, object]) -> None:
        """Nothing was set up: the topic is not ours, and the group's offsets expire."""

    def stands_apart(self, definition: Mapping[str, object]) -> bool:
        """See StandsApart."""
        return is_of_topics(definition)

    def joined(self, definition: Mapping[str, object], name: str, *, lenient: bool = False) -> Joined:
        """See Joins. A topic begins at what it has now."""
        known = _of_topics(definition)
        if name in known.topics:
            raise InvalidArgument("the source has this topic already", hint="persist source status", export=name)
        check_name(name)
        with contextlib.closing(Topics(known.group, known.settings)) as connection:
            found = connection.survey([name], begin=True)
        if name not in found.highs:
            raise InvalidArgument("there is no such topic", hint="check its name", topic=name)
        if found.cluster_id != known.cluster_id:
            raise SourceFailure("the cluster is another one", hint="make a new source", found=found.cluster_id)
        topic = known.with_topic(name, found).topics[name]

        def renewed(now: Mapping[str, object]) -> Mapping[str, object]:
            return _of_topics(now).with_known(name, topic).to_json()

        return Joined(export=name, schema=topic.definition.schema, renewed=renewed)

    def parted(self, definition: Mapping[str, object], export: str) -> Mapping[str, object]:
        """See Joins."""
        return _of_topics(definition).without(export).to_json()

    def part(self, definition: Mapping[str, object], export: str) -> None:
        """Nothing was set up."""

    def joinable(self, definition: Mapping[str, object]) -> Sequence[str]:
        """See Joins."""
        if not is_of_topics(definition):
            return ()
        known = TopicsDefinition.from_json(definition)
        with contextlib.closing(Topics(known.group, known.settings)) as connection:
            names = connection.names()
        there = {*known.topics, *known.left_out, ERRORS}
        return [name for name in names if known.matches(name) and name not in there]


def _topics(options: Mapping[str, str], source: str) -> Beginning:
    """A source of all topics that match now."""
    definition = TopicsDefinition.of(options, group=f"persist-{source}")
    latest = one_of(check_options(divided(definition.given)[1], OPTIONS, "a Kafka source"), *STARTING) == "latest"
    with contextlib.closing(Topics(definition.group, definition.settings)) as connection:
        names = [name for name in connection.names() if definition.matches(name)]
        found = connection.survey(names, begin=True)
    definition = replace(definition, cluster_id=found.cluster_id)
    for name in sorted(found.highs):
        check_name(name)
        definition = definition.with_topic(name, found, latest=latest)
    if not definition.topics:
        raise InvalidArgument(
            "no topic matches the pattern",
            hint="it has to match whole names, such as shop\\..*",
            got=definition.pattern,
        )
    schemas = {name: each.definition.schema for name, each in definition.topics.items()}
    errors = {ERRORS: errors_schema(pa.string())} if definition.diverts else {}
    bound = SourceFrontier.minimum(SourceKind.FILES)
    return Beginning(
        definition=definition.to_json(), reader=TopicsReader(definition, {**schemas, **errors}), bound=bound
    )


def _of_topics(definition: Mapping[str, object]) -> TopicsDefinition:
    """Raises InvalidArgument for the definition of one topic."""
    if not is_of_topics(definition):
        raise InvalidArgument("this source is of one topic", hint="make one with topicPattern")
    return TopicsDefinition.from_json(definition)
