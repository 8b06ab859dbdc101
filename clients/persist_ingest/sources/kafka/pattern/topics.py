"""A connection that is about many topics at once.

Source: sources.md section 3, traps and settings.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from persist_ingest.sources.kafka.librdkafka import (
    ANSWER_SECONDS,
    FIRST,
    GONE,
    LAST,
    Librdkafka,
    LibrdkafkaTopic,
    failure,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a cluster has now. ``ids``: of topics that were asked for and are there, None where brokers do not say.

    ``lows``, ``highs``: of their partitions that answered, by topic.
    """

    cluster_id: str
    ids: Mapping[str, str | None]
    lows: Mapping[str, Mapping[int, int]]
    highs: Mapping[str, Mapping[int, int]]


class Topics(LibrdkafkaTopic):
    """For a driver. Raises LocationError (away), NotAdmitted."""

    def __init__(self, group: str, settings: tuple[tuple[str, str], ...]) -> None:
        super().__init__(Librdkafka("", group, settings), identify=True)

    def names(self) -> list[str]:
        """Of all topics but the brokers' own."""
        topics = self._metadata().topics
        return sorted(name for name, each in topics.items() if each.error is None and not name.startswith("__"))

    def survey(self, topics: Collection[str], *, begin: bool = False) -> Survey:
        """How far these topics are; ``begin``: also where they begin. Those that do not exist are left out."""
        metadata = self._metadata()
        there = {each: metadata.topics[each] for each in topics if each in metadata.topics}
        for name in topics:
            if name not in there or there[name].error is not None:
                there.pop(name, None)
                self._check_gone(name)
        places = [TopicPartition(name, partition) for name, each in there.items() for partition in each.partitions]
        lows: dict[str, dict[int, int]] = {name: {} for name in there}
        highs: dict[str, dict[int, int]] = {name: {} for name in there}
        for which, found in ((LAST, highs), *(((FIRST, lows),) if begin else ())):
            for place, offset in (self._offsets(places, which) if places else {}).items():
                found[place.topic][place.partition] = offset
        return Survey(cluster_id=str(metadata.cluster_id), ids=self._ids(sorted(there)), lows=lows, highs=highs)

    def _check_gone(self, name: str) -> None:
        """A topic that the brokers did not list may be one that this user may not see: raises, unless there is none."""
        asked = self._consumer.list_topics(name, timeout=ANSWER_SECONDS).topics.get(name)
        if asked is None or asked.error is None or asked.error.code() not in GONE:
            raise failure(KafkaError(KafkaError._FAIL) if asked is None or asked.error is None else asked.error, name)

    def committed_of(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """What the group has committed, for partitions where it has."""
        try:
            answers = self._consumer.committed([TopicPartition(*each) for each in places], timeout=ANSWER_SECONDS)
        except KafkaException as cause:
            raise failure(cause.args[0], "") from cause
        return {(each.topic, each.partition): each.offset for each in answers if each.offset >= 0}

    def commit_of(self, bounds: Mapping[tuple[str, int], int]) -> None:
        """Commit these offsets for the group."""
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in bounds.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as cause:
            raise failure(cause.args[0], "") from cause
