"""A Kafka cluster through confluent-kafka.

Source: sources.md section 3, traps and settings.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from persist import InvalidArgument, LocationError
from persist.redaction import scrub
from persist.runtime import system
from persist.sources import UpstreamLost
from persist_ingest.sources.kafka.cluster import Fetched, Watermarks
from persist_ingest.sources.kafka.complaints import Complaints, NotAdmitted
from persist_ingest.sources.kafka.settings import check_kept, resolved
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.ranges import MessageRange

ANSWER_SECONDS: Final = 10.0
STALLED_SECONDS: Final = 60.0
"""A range none of which arrives for so long is given up, to be tried again later."""
FETCH_MESSAGES: Final = 8192
_WAIT_SECONDS: Final = 0.1
_ASK_SECONDS: Final = 1.0
"""After which an answer that did not come is looked into."""
_IDLE_MAX: Final = 2

_ALWAYS: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "allow.auto.create.topics": False,
    # SUBTLE: by default a consumer whose offset is gone silently begins elsewhere.
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "check.crcs": True,
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 50,
    "fetch.message.max.bytes": 4 << 20,
    "fetch.max.bytes": 32 << 20,
    "queued.max.messages.kbytes": 64 << 10,
}
_LOST: Final = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_DAMAGED: Final = {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.INVALID_MSG}
GONE: Final = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_FORBIDDEN: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}

_SPEC: Final[Any] = kafka_admin.OffsetSpec  # type: ignore[attr-defined]  # it is public, but its stub is not
FIRST: Final[Any] = _SPEC.earliest()
LAST: Final[Any] = _SPEC.latest()

# Consumers that wait for the next task of this process: connecting anew would cost more than reading.
_idle: dict[object, list[tuple[Consumer, Complaints]]] = {}


@dataclass(frozen=True, slots=True)
class Librdkafka:
    """A topic, and the settings to reach it: those of librdkafka, secrets as ``settings.resolved`` takes them."""

    topic: str
    group: str
    settings: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        for name, text in self.settings:
            check_kept(name, text)
            if name in _ALWAYS or name in ("group.id", "group.instance.id"):
                raise InvalidArgument(f"option kafka.{name} cannot be changed", hint="drop it: reading relies on it")

    def connect(self, *, identify: bool) -> "LibrdkafkaTopic":
        return LibrdkafkaTopic(self, identify)

    def read(self, pieces: Sequence[MessageRange]) -> Iterator[Fetched]:
        # Of whatever topic: one is assigned anew each time.
        waiting = _idle.setdefault((self.group, self.settings, os.getpid()), [])
        consumer, said = waiting.pop() if waiting else self.consumer()
        try:
            yield from _read(consumer, said, self.topic, {piece.partition: piece for piece in pieces})
            consumer.resume([TopicPartition(self.topic, piece.partition) for piece in pieces])
            consumer.unassign()
        except KafkaException as cause:
            consumer.close()
            raise failure(cause.args[0], self.topic) from cause
        except BaseException:
            consumer.close()
            raise
        if len(waiting) < _IDLE_MAX:
            waiting.append((consumer, said))
        else:
            consumer.close()

    def consumer(self) -> tuple[Consumer, Complaints]:
        """A new consumer, and what it says. Raises InvalidArgument for settings librdkafka refuses."""
        said = Complaints()
        given = {**resolved(self.settings), **_ALWAYS, "group.id": self.group, "error_cb": said.error}
        try:
            return Consumer(given, logger=said), said
        except KafkaException as cause:
            raise InvalidArgument("Kafka's client refuses these settings", cause=scrub(str(cause))) from cause


class LibrdkafkaTopic:
    """The driver's connection."""

    def __init__(self, cluster: Librdkafka, identify: bool) -> None:
        self._topic = cluster.topic
        self._consumer, self._said = cluster.consumer()
        self._admin = AdminClient(resolved(cluster.settings), logger=self._said)
        self._identify = identify

    def watermarks(self) -> Watermarks:
        metadata = self._metadata()
        topic = metadata.topics.get(self._topic)
        if topic is None or topic.error is not None or not topic.partitions:
            raise failure(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART) if topic is None else topic.error, self._topic)
        places = [TopicPartition(self._topic, each) for each in topic.partitions]
        low, high = self._offsets(places, FIRST), self._offsets(places, LAST)
        bounds = {each.partition: (low[each], high[each]) for each in sorted(low) if low[each] <= high.get(each, -1)}
        if not bounds:
            raise LocationError("no partition has a leader now", hint="it is tried again later", topic=self._topic)
        return Watermarks(
            cluster_id=str(metadata.cluster_id), topic_id=self._ids([self._topic])[self._topic], bounds=bounds
        )

    def committed(self) -> Mapping[int, int]:
        metadata = self._metadata()
        try:
            asked = [TopicPartition(self._topic, each) for each in metadata.topics[self._topic].partitions]
            told = self._consumer.committed(asked, timeout=ANSWER_SECONDS)
        except KafkaException as cause:
            raise failure(cause.args[0], self._topic) from cause
        return {each.partition: each.offset for each in told if each.offset >= 0}

    def commit(self, bounds: Mapping[int, int]) -> None:
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in bounds.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as cause:
            raise failure(cause.args[0], self._topic) from cause

    def close(self) -> None:
        self._consumer.close()

    def _metadata(self) -> Any:
        """What the brokers say of the topic; of all topics, where it is of none.

        Raises NotAdmitted as soon as that is known, LocationError.
        """
        self._consumer.poll(0)
        self._said.forget()
        until = system().monotonic() + ANSWER_SECONDS
        while True:
            left = until - system().monotonic()
            try:
                patience = max(0.001, min(_ASK_SECONDS, left))
                return self._consumer.list_topics(timeout=patience, **({"topic": self._topic} if self._topic else {}))
            except KafkaException as cause:
                # It calls back with what it has to say when it is polled.
                self._consumer.poll(0)
                refusal = self._said.refusal(self._topic)
                if refusal is not None:
                    raise refusal from cause
                if left <= _ASK_SECONDS:
                    raise failure(cause.args[0], self._topic, self._said.last) from cause

    def _offsets(self, places: Iterable[TopicPartition], which: Any) -> dict[TopicPartition, int]:
        """Of the partitions that answer."""
        asked = dict.fromkeys(places, which)
        found: dict[TopicPartition, int] = {}
        try:
            answers = self._admin.list_offsets(
                asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_SECONDS
            )
        except KafkaException as cause:
            raise failure(cause.args[0], self._topic) from cause
        for place, answer in answers.items():
            try:
                found[TopicPartition(place.topic, place.partition)] = answer.result().offset
            except KafkaException:
                continue  # it has no leader now: the probe leaves it out
        return found

    def _ids(self, topics: Sequence[str]) -> dict[str, str | None]:
        """Of topics; None for brokers that cannot say, as those before 3.1."""
        found: dict[str, str | None] = dict.fromkeys(topics)
        if not self._identify:
            return found
        with contextlib.suppress(KafkaException, AttributeError):
            described = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=2.0)
            for topic, answer in described.items():
                with contextlib.suppress(KafkaException):
                    found[topic] = str(answer.result().topic_id)
        return found


def failure(error: KafkaError, topic: str, said: str = "") -> Exception:
    """What an error of the client means to a pipeline. ``said``: what it said besides, which says more."""
    code, text = error.code(), said or scrub(error.str())
    if code in _LOST:
        return UpstreamLost(
            "the topic no longer has what was to be read",
            hint="make a new source, and let the topic keep data for longer",
            topic=topic,
            cause=text,
        )
    if code in GONE:
        return SourceFailure("the topic or a partition of it does not exist", hint="check it", topic=topic, cause=text)
    if code in _FORBIDDEN:
        return NotAdmitted(
            "this user may not read the topic, or commit for the group",
            hint="grant it read and describe of the topic, and read of the group persist-SOURCE (kafka-acls.sh --add)",
            topic=topic,
            cause=text,
        )
    return LocationError("Kafka does not answer as it must", hint="it is tried again later", topic=topic, cause=text)


def _read(consumer: Consumer, complaints: Complaints, topic: str, wanted: dict[int, MessageRange]) -> Iterator[Fetched]:
    """Ranges end by position, not by count: markers, aborted and compacted messages leave holes in the offsets."""
    left = {piece.partition: piece.length for piece in wanted.values()}
    consumer.assign([TopicPartition(topic, piece.partition, piece.begin) for piece in wanted.values()])
    heard, said = system().monotonic(), ""
    complaints.forget()
    while left:
        # SUBTLE: consume waits to the end of its time unless it has as many messages as it was asked for.
        batch = consumer.consume(min(FETCH_MESSAGES, max(sum(left.values()), 1)), _WAIT_SECONDS)
        taken: dict[int, list[Any]] = {}
        for message in batch:
            partition, offset, error = message.partition(), message.offset(), message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if error.code() in _DAMAGED:
                    raise _damaged(error.str(), topic, partition, offset)
                if error.code() in _LOST | GONE | _FORBIDDEN or error.fatal():
                    raise failure(error, topic)
                said = error.str()
                continue  # a broker is away: librdkafka goes on by itself
            if partition is None or offset is None or partition not in left:
                continue
            piece = wanted[partition]
            if error is None and offset < piece.end:
                taken.setdefault(partition, []).append(message)
                left[partition] = piece.end - offset - 1
            if offset >= piece.end or left[partition] == 0:
                del left[partition]
                consumer.pause([TopicPartition(topic, partition)])
        if taken:
            heard = system().monotonic()
            yield from (_fetched(partition, messages) for partition, messages in taken.items())
            heard = system().monotonic()
        elif system().monotonic() - heard > STALLED_SECONDS:
            hint, cause = "it is tried again later", said or complaints.last or "unknown"
            raise LocationError("messages do not arrive", hint=hint, topic=topic, left=left, cause=scrub(cause))
        else:
            refusal = complaints.refusal(topic)
            if refusal is not None:
                raise refusal


def _damaged(said: str, topic: str, partition: int | None, offset: int | None) -> LocationError:
    """What came is not what was written. It may come whole the next time: from another replica, over another wire."""
    return LocationError(
        "a message came damaged",
        hint="it is tried again; if that stays so, look at the log of that partition on its brokers",
        topic=topic,
        partition=partition,
        offset=offset,
        cause=said,
    )


def _fetched(partition: int, messages: list[Any]) -> Fetched:
    return Fetched(
        partition=partition,
        offsets=[message.offset() for message in messages],
        keys=[message.key() for message in messages],
        values=[message.value() for message in messages],
        timestamps=[moment if kind else -1 for kind, moment in (message.timestamp() for message in messages)],
        headers=[message.headers() for message in messages],
    )
