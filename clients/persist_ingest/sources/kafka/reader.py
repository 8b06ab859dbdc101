"""Watermarks and plans of one topic.

Source: design 003; sources.md section 3.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from persist import LocationError, Schema
from persist.sources import Point, Probe, SourceFrontier, SourceKind
from persist_ingest.sources.divert import DIVERT, errors_schema
from persist_ingest.sources.kafka.cluster import KafkaCluster, Topic, Watermarks
from persist_ingest.sources.kafka.definition import KafkaDefinition
from persist_ingest.sources.kafka.task import LEAST_PER_TASK, KafkaTask, columns_of
from persist_ingest.sources.port import ERRORS, SourceFailure, UpstreamStatus
from persist_ingest.sources.ranges import MessageRange, pieces, share

_KEYS: Final = pa.int64()


class KafkaReader:
    """Watermarks and plans of one topic."""

    def __init__(self, definition: KafkaDefinition, cluster: KafkaCluster, schema: Schema | None = None) -> None:
        """``schema``: the table's, where it may have more columns by now than at first."""
        self._definition = definition
        self._cluster = cluster
        self._topic: Topic | None = None
        self._schema = schema or definition.schema
        self._envelope = definition.envelope_made(columns_of(self._schema))
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
        return [self._task(group) for group in share(list(pieces(begin, end)), tasks, LEAST_PER_TASK)]

    def adopt(self, export: str, schema: Schema) -> None:
        if export == self._definition.export and self._definition.value.registry is not None:
            self._schema = schema
            self._envelope = self._definition.envelope_made(columns_of(schema))
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


def life(now: Watermarks, topic: str) -> str:
    """The incarnation: the cluster's id and the topic's. Where brokers report no topic's id its name stands for it."""
    return f"{now.cluster_id}/{topic if now.topic_id is None else now.topic_id}"
