"""Reading many topics of one cluster: a partition of the source is a topic's, as ``orders/0``.

Source: design 003; sources.md section 3.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from persist import LocationError, Schema
from persist.runtime import system
from persist.sources import Point, Probe, SourceFrontier, SourceKind
from persist_ingest.sources.divert import errors_schema
from persist_ingest.sources.kafka.librdkafka import Librdkafka
from persist_ingest.sources.kafka.pattern.definition import TopicsDefinition
from persist_ingest.sources.kafka.pattern.topics import Survey, Topics
from persist_ingest.sources.kafka.task import LEAST_PER_TASK, KafkaTask, columns_of
from persist_ingest.sources.port import ERRORS, SourceFailure, UpstreamStatus
from persist_ingest.sources.ranges import MessageRange, share

GONE_SECONDS: Final = 3.0
"""A topic that no broker had for so long is gone."""


class TopicsReader:
    """Watermarks and plans of the topics that run: those that have a schema."""

    def __init__(self, definition: TopicsDefinition, schemas: Mapping[str, Schema]) -> None:
        self._definition = definition
        self._topics = {name: each for name, each in definition.topics.items() if name in schemas}
        self._schemas = {name: schemas[name] for name in self._topics}
        self._names = {each.prefix: name for name, each in self._topics.items()}
        self._errors = ERRORS in schemas
        self._gone: dict[str, float] = {}
        self._connection: Topics | None = None
        self._committed: dict[tuple[str, int], int] | None = None

    @property
    def kind(self) -> SourceKind:
        """Partitions are called, not numbered."""
        return SourceKind.FILES

    @property
    def incarnation(self) -> str:
        return self._definition.cluster_id

    def exports(self) -> Mapping[str, Schema]:
        errors = {ERRORS: errors_schema(pa.string())} if self._errors else {}
        return {**self._schemas, **errors}

    def probe(self) -> Probe:
        """Where a topic begins now is not said: what of it is gone is found when it is read, and is that table's."""
        now = self._connected().survey(self._topics)
        for name in sorted(self._topics):
            self._check(name, now)
        high = tuple(
            Point(f"{known.prefix}/{partition}", offset)
            for name, known in self._topics.items()
            for partition, offset in now.highs.get(name, {}).items()
        )
        return Probe(kind=self.kind, incarnation=now.cluster_id, high=high)

    def plan(self, begin: SourceFrontier, end: SourceFrontier, tasks: int) -> Sequence[KafkaTask]:
        wanted: dict[str, list[MessageRange]] = {}
        for key, bound in zip(end.keys, end.bounds, strict=True):
            prefix, partition = _place(str(key))
            topic = self._names.get(prefix)
            if topic is None:
                continue  # it stands aside, is not known here yet, or is of a table that was given up
            known = self._topics[topic]
            low = max(begin.bound(key) or 0, known.begin.get(partition, 0))
            if low < bound:
                wanted.setdefault(topic, []).append(MessageRange(partition, low, bound))
        total = sum(piece.length for pieces in wanted.values() for piece in pieces)
        return [
            task
            for topic, pieces in wanted.items()
            for task in self._tasks(topic, pieces, max(1, tasks * sum(each.length for each in pieces) // max(total, 1)))
        ]

    def adopt(self, export: str, schema: Schema) -> None:
        if export not in self._schemas or self._topics[export].definition.value.registry is None:
            if self.exports().get(export) != schema:
                raise SourceFailure("the columns of a topic are declared once", export=export)
            return
        self._schemas[export] = schema

    def commit(self, frontier: SourceFrontier) -> None:
        bounds = {_place(str(key)): bound for key, bound in zip(frontier.keys, frontier.bounds, strict=True)}
        mine = {
            (self._names[prefix], partition): bound
            for (prefix, partition), bound in bounds.items()
            if prefix in self._names
        }
        if self._committed is None:
            self._committed = self._connected().committed_of(mine) if mine else {}
        forward = {place: bound for place, bound in mine.items() if bound > self._committed.get(place, 0)}
        if forward:
            self._connected().commit_of(forward)
            self._committed.update(forward)

    def status(self) -> UpstreamStatus:
        now = self._connected().survey(self._topics, begin=True)
        places = [(topic, partition) for topic, highs in now.highs.items() for partition in highs]
        committed = self._connected().committed_of(places) if places else {}
        behind = sum(
            now.highs[place[0]][place[1]] - max(committed.get(place, 0), now.lows[place[0]].get(place[1], 0))
            for place in places
        )
        named = {
            f"{self._topics[topic].prefix}/{partition}": offset for (topic, partition), offset in committed.items()
        }
        return UpstreamStatus(
            committed=SourceFrontier.at(self.kind, named),
            details={"topics": len(now.highs), "partitions": len(places), "messages_behind": behind},
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _check(self, name: str, now: Survey) -> None:
        """Raise SourceFailure for a topic that is gone, or another one; LocationError while it cannot be said.

        SUBTLE: one broker may have a new topic later than the one that was asked before.
        """
        known = self._topics[name].definition.topic_id
        if name in now.highs:
            self._gone.pop(name, None)
        elif system().monotonic() - self._gone.setdefault(name, system().monotonic()) < GONE_SECONDS:
            return
        else:
            raise SourceFailure(
                "the topic does not exist any more",
                hint="persist source drop-table ends its table; what that holds stays right until then",
                export=name,
            )
        if known is None or now.ids[name] == known:
            return
        if now.ids[name] is None:
            raise LocationError("brokers do not report the topic's id now", hint="it is tried again later", topic=name)
        raise SourceFailure(
            "the topic was made anew: it is another one than the table is of",
            hint="persist source drop-table ends its table, and add-table makes one of the topic as it is now",
            export=name,
        )

    def _connected(self) -> Topics:
        if self._connection is None:
            self._connection = Topics(self._definition.group, self._definition.settings)
        return self._connection

    def _tasks(self, topic: str, pieces: list[MessageRange], tasks: int) -> list[KafkaTask]:
        definition, schema = self._topics[topic].definition, self._schemas[topic]
        envelope = definition.envelope_made(columns_of(schema))
        return [
            KafkaTask(
                cluster=Librdkafka(topic, definition.group, definition.settings),
                envelope=envelope,
                include=definition.include,
                export=topic,
                schema=schema,
                renames=definition.renames,
                bad_rows=definition.bad_rows,
                pieces=group,
                topic=self._topics[topic].prefix,
            )
            for group in share(pieces, tasks, LEAST_PER_TASK)
        ]


def _place(key: str) -> tuple[str, int]:
    prefix, _, partition = key.rpartition("/")
    return prefix, int(partition)
