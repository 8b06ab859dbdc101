"""Messages of a topic or of files, from the beginning: what sources that bring their own times are read from.

Source: sources.md sections 3 and 5.
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from persist import InvalidArgument
from persist.sources import OFFSET_MAX, Point, Probe, SourceFrontier, SourceKind, UpstreamLost, UpstreamReplaced
from persist.typed import Fields, Json
from persist_ingest.given import Given
from persist_ingest.sources.files.objects import place_of
from persist_ingest.sources.files.places import Content, Found
from persist_ingest.sources.kafka.cluster import KafkaCluster, Topic
from persist_ingest.sources.kafka.settings import divided
from persist_ingest.sources.options import required
from persist_ingest.sources.port import BadRows, SourceFailure
from persist_ingest.sources.ranges import MessageRange

Connect: TypeAlias = Callable[[str, str, tuple[tuple[str, str], ...]], KafkaCluster]
PLACES: Final = ("path", "bootstrapServers", "topic")
"""The options that say where messages are, besides settings of librdkafka."""
_HEADER_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class Message:
    """One message, decoded. ``where``: for errors."""

    where: str
    value: Json


class Messages(Protocol):
    """What a reader follows. Raises LocationError (away: again later), UpstreamLost, UpstreamReplaced, BadRows."""

    @property
    def kind(self) -> SourceKind:
        """What positions in it are made of."""
        ...

    @property
    def incarnation(self) -> str:
        """Which life of the upstream this is."""
        ...

    def new(self) -> Iterator[Message]:
        """What came since the call before, those of one partition in order."""
        ...

    def probe(self) -> Probe:
        """How far it is."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


@dataclass(frozen=True, slots=True)
class How:
    """How a message is read: ``json``, or ``avro`` with a schema as text, maybe after the header of a registry."""

    format: str = "json"
    avro: str = ""
    header: bool = False

    def decode(self, payload: bytes, where: str) -> Message:
        """Raises BadRows."""
        try:
            return Message(where, self._value(payload))
        except Exception as cause:  # fastavro raises whatever it stumbles over
            raise BadRows(
                f"a message has not the declared form: {cause}"[:500],
                hint="correct the declaration",
                at=where,
                payload=payload[:200],
            ) from cause

    def _value(self, payload: bytes) -> object:
        if self.format == "json":
            return json.loads(payload)
        from persist_ingest.decode.avro_rows import datum

        stream = io.BytesIO(payload[_HEADER_BYTES:] if self.header else payload)
        value = datum(stream, self.avro)
        if stream.read(1):
            raise ValueError("bytes are left over")
        return value


@dataclass(slots=True)
class FileMessages:
    """Files of lines (JSON), or Avro's container files, in order of their paths; one that was replaced is read again.

    ``ascending``: order counts, so a new file has the last name.
    """

    uri: str
    how: How
    ascending: bool = False
    _seen: dict[str, Found] = field(default_factory=dict)

    @property
    def kind(self) -> SourceKind:
        return SourceKind.FILES

    @property
    def incarnation(self) -> str:
        return f"files-{hashlib.sha256(self.uri.encode()).hexdigest()[:16]}"

    def new(self) -> Iterator[Message]:
        place = place_of(self.uri)
        there = {found.path: found for found in place.list(self._seen)}
        for path in sorted(there):
            found = there[path]
            if self._seen.get(path) == found:
                continue
            if self.ascending and path not in self._seen and self._seen and path < max(self._seen):
                raise SourceFailure(
                    "a file came whose name lies before that of one that was read",
                    hint="transactions are counted in order of the files' names: let those ascend",
                    path=path,
                )
            with place.open(found.key) as content:
                yield from self._messages(path, content)
            self._seen[path] = found

    def probe(self) -> Probe:
        high = tuple(Point(found.key, OFFSET_MAX) for found in self._seen.values())
        return Probe(kind=self.kind, incarnation=self.incarnation, high=high)

    def close(self) -> None:
        """Nothing is open."""

    def _messages(self, path: str, content: Content) -> Iterator[Message]:
        if self.how.format == "json":
            for number, line in enumerate(content.read().splitlines(), 1):
                if line.strip():
                    yield self.how.decode(line, f"{path}:{number}")
            return
        import fastavro

        from persist_ingest.decode.avro_rows import datum

        try:
            blocks = fastavro.block_reader(content)  # type: ignore[arg-type]  # it only reads
            # SUBTLE: the file says itself what is in it, and fastavro's own stack is as deep as that.
            schema, number = blocks.metadata["avro.schema"], 0
            for block in blocks:
                for _ in range(block.num_records):
                    number += 1
                    yield Message(f"{path}:{number}", datum(block.bytes_, schema))  # type: ignore[attr-defined]  # not in its stub
        except (ValueError, EOFError, KeyError, IndexError, RecursionError, InvalidArgument) as cause:
            raise BadRows("this is no container file of Avro", hint="remove it", at=path, cause=cause) from cause


@dataclass(slots=True)
class TopicMessages:
    """All partitions of a topic. ``begin``: the offsets from which all has to be there; None: whatever there is."""

    cluster: KafkaCluster
    name: str
    life: str
    how: How
    begin: Mapping[int, int] | None = None
    _at: dict[int, int] = field(default_factory=dict)
    _topic: Topic | None = None

    @property
    def kind(self) -> SourceKind:
        return SourceKind.PARTITIONS

    @property
    def incarnation(self) -> str:
        return self.life

    def new(self) -> Iterator[Message]:
        bounds = self._bounds()
        for partition, (low, high) in sorted(bounds.items()):
            begin = self._at.get(partition, low if self.begin is None else self.begin.get(partition, 0))
            if begin < low:
                raise UpstreamLost(
                    "the topic threw messages away that are needed",
                    hint="let it keep them, and create the source again",
                    topic=self.name,
                    partition=partition,
                    needed=begin,
                    kept=low,
                )
            if begin < high:
                yield from self._read(MessageRange(partition, begin, high))
            self._at[partition] = max(begin, high)

    def probe(self) -> Probe:
        bounds = self._bounds()
        return Probe(
            kind=self.kind,
            incarnation=self.life,
            high=tuple(Point(partition, high) for partition, (_, high) in bounds.items()),
            low=tuple(Point(partition, low) for partition, (low, _) in bounds.items()),
        )

    def position(self) -> SourceFrontier:
        """How far it was read."""
        return SourceFrontier.at(self.kind, self._at)

    def close(self) -> None:
        if self._topic is not None:
            self._topic.close()
            self._topic = None

    def _bounds(self) -> Mapping[int, tuple[int, int]]:
        if self._topic is None:
            self._topic = self.cluster.connect(identify=True)
        now = self._topic.watermarks()
        life = life_of(now.cluster_id, now.topic_id, self.name)
        if life != self.life:
            raise UpstreamReplaced(
                "the topic is another one than when the source was created",
                hint="drop the source and create it again",
                topic=self.name,
                was=self.life,
                found=life,
            )
        return now.bounds

    def _read(self, piece: MessageRange) -> Iterator[Message]:
        for fetched in self.cluster.read([piece]):
            for offset, value in zip(fetched.offsets, fetched.values, strict=True):
                # A tombstone says nothing here.
                if value is not None:
                    yield self.how.decode(value, f"{self.name}/{fetched.partition}@{offset}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where messages are, JSON-ready: a path, or a topic as it was found. ``settings`` without secrets."""

    path: str = ""
    topic: str = ""
    group: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    life: str = ""
    begin: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, given: Given, raw: Mapping[str, str], *, group: str) -> "Where":
        """From options. Raises InvalidArgument."""
        if given.exclusive("path", "bootstrapServers") == "path":
            if "topic" in given.values:
                raise InvalidArgument("options path and topic exclude each other", hint="keep one of them")
            return cls(path=required(given, "path", "/data/changes"))
        servers = required(given, "bootstrapServers", "host:9092")
        settings, _ = divided(raw)
        pairs = tuple(sorted({**settings, "bootstrap.servers": servers}.items()))
        return cls(topic=required(given, "topic", "orders"), group=group, settings=pairs)

    @property
    def brokers(self) -> str:
        """The brokers as they were written."""
        return dict(self.settings).get("bootstrap.servers", "")

    def found(self, connect: Connect) -> "Where":
        """This, with which life of a topic it is and where that begins. Raises LocationError, SourceFailure."""
        if self.path:
            list(place_of(self.path).list({}))  # raises unless it can be listed
            return self
        topic = connect(self.topic, self.group, self.settings).connect(identify=True)
        try:
            now = topic.watermarks()
        finally:
            topic.close()
        begin = tuple(sorted((partition, low) for partition, (low, _) in now.bounds.items()))
        return Where(
            topic=self.topic,
            group=self.group,
            settings=self.settings,
            life=life_of(now.cluster_id, now.topic_id, self.topic),
            begin=begin,
        )

    def messages(
        self, connect: Connect, how: How, *, whole: bool, ascending: bool = False
    ) -> FileMessages | TopicMessages:
        """What is there. ``whole``: nothing since the source was created may be missing."""
        if self.path:
            return FileMessages(self.path, how, ascending=ascending)
        cluster = connect(self.topic, self.group, self.settings)
        return TopicMessages(cluster, self.topic, self.life, how, dict(self.begin) if whole else None)

    def to_json(self) -> dict[str, object]:
        """As ``from_json`` takes it."""
        lists = {"settings": dict(self.settings), "begin": [list(each) for each in self.begin]}
        return {"path": self.path, "topic": self.topic, "group": self.group, "life": self.life, **lists}

    @classmethod
    def from_json(cls, given: Fields) -> "Where":
        """What ``to_json`` gave."""
        settings = tuple(sorted(given["settings"].items()))
        begin = tuple((int(partition), int(low)) for partition, low in given["begin"])
        return cls(**{**given, "settings": settings, "begin": begin})


def without_settings(raw: Mapping[str, str]) -> dict[str, str]:
    """The options that are not settings of librdkafka."""
    return divided(raw)[1]


def life_of(cluster_id: str, topic_id: str | None, topic: str) -> str:
    """The incarnation of a topic."""
    return f"{cluster_id}/{topic if topic_id is None else topic_id}"


def librdkafka(topic: str, group: str, settings: tuple[tuple[str, str], ...]) -> KafkaCluster:
    """A cluster through confluent-kafka, which is imported when a topic is first asked for."""
    from persist_ingest.sources.kafka.librdkafka import Librdkafka

    return Librdkafka(topic, group, settings)


def one_partition(where: Where) -> None:
    """Raise SourceFailure where a topic whose order counts has several partitions."""
    if len(where.begin) > 1:
        raise SourceFailure(
            "transactions are counted in one order, and this topic has several partitions",
            hint="a transaction topic has one",
            topic=where.topic,
            partitions=len(where.begin),
        )


def whole_numbers(values: Sequence[object], where: str) -> list[int]:
    """Times or counts. Raises BadRows for what is none."""
    found = [each for each in values if isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 1 << 64]
    if len(found) < len(values):
        raise BadRows(
            "times and counts are whole numbers, not negative", hint="correct it", at=where, got=str(values)[:200]
        )
    return found
