"""The type ``loadgen``: its options, its clock-driven watermarks, and its tasks.

Source: design 003.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from persist import Schema
from persist.runtime import system
from persist.sources import Point, Probe, SourceFrontier, SourceKind
from persist.typed import Fields
from persist_ingest.given import Given
from persist_ingest.sources.loadgen.auction import Auction
from persist_ingest.sources.loadgen.counter import Counter
from persist_ingest.sources.loadgen.generator import Generator
from persist_ingest.sources.loadgen.tpcb import TELLERS, Tpcb
from persist_ingest.sources.options import check_options, number, one_of
from persist_ingest.sources.port import Beginning, Event, SourceFailure, UpstreamStatus
from persist_ingest.sources.ranges import MessageRange, pieces, share

RATE: Final = 1000.0
"""Messages a second, by default."""
MESSAGE_BYTES: Final = 64
"""What a message counts for in the weight of a task."""
LEAST_PER_TASK: Final = 4096

_OPTIONS: Final = {
    "counter": ("maxCardinality",),
    "auction": (),
    "tpcb": ("accounts", "branches"),
}
_EVERY: Final = ("generator", "messages", "partitions", "rate", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadgenDefinition:
    """What ``create`` fixed. ``rate`` None: all messages exist at once."""

    generator: str
    seed: int
    partitions: int
    start_ms: int
    rate: float | None
    messages: int | None
    parameters: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, raw: Mapping[str, str], start_ms: int) -> "LoadgenDefinition":
        """From options. Raises InvalidArgument."""
        chosen = Given(use="a load generator", values={key.lower(): text for key, text in raw.items()})
        generator = one_of(chosen, "generator", tuple(_OPTIONS), "counter")
        given = check_options(raw, (*_EVERY, *_OPTIONS[generator]), f"generator {generator}")
        messages = given.whole("messages")
        parameters: dict[str, int] = {}
        if generator == "tpcb":
            parameters["branches"] = given.whole("branches", least=1) or 1
            parameters["accounts"] = given.whole("accounts", least=TELLERS) or 1000
        elif (cardinality := given.whole("maxCardinality", least=1)) is not None and generator == "counter":
            parameters["cardinality"] = cardinality
        return cls(
            generator=generator,
            seed=given.whole("seed") or 0,
            partitions=given.whole("partitions", least=1) or 1,
            start_ms=start_ms,
            rate=number(given, "rate", None if messages is not None else RATE),
            messages=messages,
            parameters=tuple(sorted(parameters.items())),
        )

    def to_json(self) -> dict[str, object]:
        """As ``from_json`` takes it."""
        named = {name: getattr(self, name) for name in self.__slots__ if name != "parameters"}
        return {**named, "parameters": dict(self.parameters)}

    @classmethod
    def from_json(cls, given: Fields) -> "LoadgenDefinition":
        """What ``to_json`` gave."""
        return cls(**{**given, "parameters": tuple(sorted(given["parameters"].items()))})

    def made(self) -> Generator:
        """The generator this describes."""
        parameters = dict(self.parameters)
        if self.generator == "tpcb":
            return Tpcb(seed=self.seed, partitions=self.partitions, **parameters)
        if self.generator == "auction":
            return Auction(seed=self.seed, partitions=self.partitions)
        return Counter(seed=self.seed, partitions=self.partitions, cardinality=parameters.get("cardinality"))

    @property
    def incarnation(self) -> str:
        """A name for exactly these messages."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return f"loadgen-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def existing(self, now_ms: int) -> int:
        """How many messages there are at a time, in all partitions together."""
        if self.rate is None:
            return self.messages or 0
        count = int(max(now_ms - self.start_ms, 0) * self.rate / 1000)
        return count if self.messages is None else min(count, self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadgenTask:
    """Pieces of what a generator makes."""

    generator: Generator
    pieces: tuple[MessageRange, ...]

    @property
    def weight(self) -> int:
        return sum(piece.length for piece in self.pieces) * MESSAGE_BYTES

    @property
    def ordered(self) -> bool:
        return False

    def read(self) -> Iterator[Event]:
        for piece in self.pieces:
            yield from self.generator.changes(piece.partition, piece.begin, piece.end)


class LoadgenReader:
    """Watermarks from the clock. They never fall, in one reader, even when the clock does."""

    def __init__(self, definition: LoadgenDefinition) -> None:
        self._definition = definition
        self._generator = definition.made()
        self._existing = 0
        self._committed: SourceFrontier | None = None

    @property
    def kind(self) -> SourceKind:
        return SourceKind.PARTITIONS

    @property
    def incarnation(self) -> str:
        return self._definition.incarnation

    def exports(self) -> Mapping[str, Schema]:
        return self._generator.exports()

    def probe(self) -> Probe:
        self._existing = max(self._existing, self._definition.existing(system().now_ms()))
        count = self._definition.partitions
        high = tuple(Point(each, max(0, -(-(self._existing - each) // count))) for each in range(count))
        low = tuple(Point(each, 0) for each in range(count))
        return Probe(kind=self.kind, incarnation=self.incarnation, high=high, low=low)

    def plan(self, begin: SourceFrontier, end: SourceFrontier, tasks: int) -> Sequence[LoadgenTask]:
        groups = share(list(pieces(begin, end)), tasks, LEAST_PER_TASK)
        return [LoadgenTask(generator=self._generator, pieces=group) for group in groups]

    def adopt(self, export: str, schema: Schema) -> None:
        if self.exports().get(export) != schema:
            raise SourceFailure("a load generator's columns do not change", export=export)

    def commit(self, frontier: SourceFrontier) -> None:
        self._committed = frontier

    def status(self) -> UpstreamStatus:
        existing = max(self._existing, self._definition.existing(system().now_ms()))
        return UpstreamStatus(committed=self._committed, details={"messages": existing})

    def close(self) -> None:
        """Nothing is open."""


class LoadgenType:
    """Options: ``generator``, ``seed``, ``rate`` (messages a second), ``messages`` (in all), ``partitions``.

    Message g of all goes to partition g mod partitions. With ``messages`` but no ``rate``, all of them exist at once;
    once they do, the watermarks stay where they are. ``counter``: ``maxCardinality``. ``tpcb``: ``branches``,
    ``accounts`` (of a branch).
    """

    @contextmanager
    def create(self, options: Mapping[str, str], *, source: str) -> Iterator[Beginning]:
        definition = LoadgenDefinition.of(options, system().now_ms())
        bound = SourceFrontier.at(SourceKind.PARTITIONS, dict.fromkeys(range(definition.partitions), 0))
        yield Beginning(definition=definition.to_json(), reader=LoadgenReader(definition), bound=bound)

    def open(self, definition: Fields, schemas: Mapping[str, Schema]) -> LoadgenReader:
        return LoadgenReader(LoadgenDefinition.from_json(definition))

    def drop(self, definition: Mapping[str, object]) -> None:
        """Nothing was set up."""
