"""What a source of many topics is: a pattern, the options of each, and the topics it has by now.

Source: sources.md section 3.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from persist import InvalidArgument
from persist.typed import Fields
from persist_ingest.sources.divert import DIVERT
from persist_ingest.sources.kafka.definition import TOPICS, KafkaDefinition, settings_of
from persist_ingest.sources.kafka.pattern.topics import Survey
from persist_ingest.sources.port import ERRORS

_NOT_HERE: Final = ("topic", "export", "schemaSubject", "keySchemaSubject")


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic as it was when it came. ``begin``: of its partitions, what is read first; others begin at 0.

    ``prefix``: what its partitions are called after in the source, unlike those of a table that it had before.
    """

    definition: KafkaDefinition
    begin: Mapping[int, int]
    prefix: str

    def to_json(self) -> dict[str, object]:
        """As ``from_json`` takes it."""
        begin = {str(partition): offset for partition, offset in self.begin.items()}
        return {"definition": self.definition.to_json(), "begin": begin, "prefix": self.prefix}

    @classmethod
    def from_json(cls, given: Fields) -> "KnownTopic":
        """What ``to_json`` gave."""
        begin = {int(partition): int(offset) for partition, offset in given["begin"].items()}
        return cls(KafkaDefinition.from_json(given["definition"]), begin, given["prefix"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDefinition:
    """``given``: the options that are each topic's; ``topics``: those it has; ``left_out``: those it gave up.

    ``lives``: how often a topic was given up: what was bound of its partitions then is of the table it had.
    """

    pattern: str
    group: str
    given: Mapping[str, str]
    cluster_id: str
    topics: Mapping[str, KnownTopic]
    left_out: tuple[str, ...] = ()
    lives: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, raw: Mapping[str, str], *, group: str) -> "TopicsDefinition":
        """From options; without topics yet. Raises InvalidArgument."""
        given = {name: text for name, text in raw.items() if name.lower() != TOPICS.lower()}
        for name in given:
            if name.lower() in {each.lower() for each in _NOT_HERE}:
                hint = (
                    "each topic is a table of its own name" if name.lower() in ("topic", "export") else f"drop {name}"
                )
                raise InvalidArgument(f"options {TOPICS} and {name} exclude each other", hint=hint)
        (pattern,) = (text for name, text in raw.items() if name.lower() == TOPICS.lower())
        try:
            re.compile(pattern)
        except re.error as cause:
            raise InvalidArgument(
                f"option {TOPICS} is no regular expression",
                hint=f"such as {TOPICS}=shop\\..*",
                got=pattern,
                cause=cause,
            ) from cause
        return cls(pattern=pattern, group=group, given=given, cluster_id="", topics={})

    def matches(self, topic: str) -> bool:
        """Whether a topic is one of these by its name, all of which the pattern has to match."""
        return re.fullmatch(self.pattern, topic) is not None

    def with_topic(self, topic: str, survey: Survey, *, latest: bool = False) -> "TopicsDefinition":
        """With a topic as it was found; it was asked for where it begins. Raises InvalidArgument, LocationError."""
        definition, _ = KafkaDefinition.of({**self.given, "topic": topic, "export": topic}, group=self.group)
        begin = (survey.highs if latest else survey.lows)[topic]
        return self.with_known(topic, KnownTopic(definition.living(survey.cluster_id, survey.ids[topic]), begin, topic))

    def with_known(self, topic: str, known: KnownTopic) -> "TopicsDefinition":
        """With this topic."""
        left_out = tuple(each for each in self.left_out if each != topic)
        life = self.lives.get(topic, 0)
        known = replace(known, prefix=f"{topic}~{life}" if life else topic)
        return replace(self, topics={**self.topics, topic: known}, left_out=left_out)

    def without(self, topic: str) -> "TopicsDefinition":
        """The others; one that has this name does not come by itself any more."""
        topics = {name: each for name, each in self.topics.items() if name != topic}
        lives = {**self.lives, topic: self.lives.get(topic, 0) + 1}
        return replace(self, topics=topics, left_out=tuple(sorted({*self.left_out, topic})), lives=lives)

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """How to reach the cluster."""
        return settings_of(self.given)

    @property
    def diverts(self) -> bool:
        """Whether there is an export of bad rows."""
        return any(each.definition.bad_rows == DIVERT for each in self.topics.values())

    def to_json(self) -> dict[str, object]:
        """As ``from_json`` takes it."""
        topics = {name: each.to_json() for name, each in self.topics.items()}
        return {
            "pattern": self.pattern,
            "group": self.group,
            "given": dict(self.given),
            "cluster_id": self.cluster_id,
            "topics": topics,
            "left_out": list(self.left_out),
            "lives": dict(self.lives),
        }

    @classmethod
    def from_json(cls, given: Fields) -> "TopicsDefinition":
        """What ``to_json`` gave."""
        topics = {name: KnownTopic.from_json(each) for name, each in given["topics"].items()}
        return cls(**{**given, "topics": topics, "left_out": tuple(given["left_out"])})


def asks_for_topics(options: Mapping[str, str]) -> bool:
    """Whether these are options of a source of many topics."""
    return any(name.lower() == TOPICS.lower() for name in options)


def is_of_topics(definition: Mapping[str, object]) -> bool:
    """Whether this is the definition of a source of many topics, as it is recorded."""
    return "pattern" in definition


def check_name(topic: str) -> None:
    """Raise InvalidArgument for a topic that cannot be an export."""
    if topic == ERRORS:
        raise InvalidArgument(
            "the export errors is for bad rows", hint="leave this topic out of the pattern", topic=topic
        )
