"""Timelines: which times may be compared with each other. Objects of different timelines cannot be read together.

A timeline's text names it for ever: ``M``, ``E.id``, ``U.name`` or ``C.brokers/topic``.
Source: catalog-semantics.md sections 5.3, 6.1 and 6.2; design 004.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.errors import InvalidArgument

RESERVED_PREFIX: Final = "persist_"
TEXT_MAX: Final = 255
"""Characters of a timeline's text."""


@dataclass(frozen=True, slots=True)
class EpochMilliseconds:
    """Times are milliseconds since 1970, driven by clocks. The default of everything."""

    has_clock: ClassVar[bool] = True

    def __str__(self) -> str:
        return "M"


@dataclass(frozen=True, slots=True)
class ExternalTimeline:
    """Times that one source outside brings along. It is its ``id``; ``name`` is only shown, and may change."""

    id: str
    name: str = field(default="", compare=False)
    has_clock: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(str(self), self.id)

    def __str__(self) -> str:
        return f"E.{self.id}"


@dataclass(frozen=True, slots=True)
class UserTimeline:
    """A timeline that a user named. Equal to none of another kind, whatever its name."""

    name: str
    has_clock: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(str(self), self.name)
        if self.name.startswith(RESERVED_PREFIX):
            raise InvalidArgument(
                "this name of a timeline is reserved", hint=f"none that begins with {RESERVED_PREFIX}", name=self.name
            )

    def __str__(self) -> str:
        return f"U.{self.name}"


@dataclass(frozen=True, slots=True)
class CounterTimeline:
    """Times that count the transactions of one topic: ``brokers`` as they are written, and ``topic``."""

    brokers: str
    topic: str
    has_clock: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(str(self), self.brokers, self.topic)
        if "/" in self.topic:
            raise InvalidArgument("a topic's name has no slash", hint="brokers/topic", topic=self.topic)

    def __str__(self) -> str:
        return f"C.{self.brokers}/{self.topic}"


Timeline: TypeAlias = EpochMilliseconds | ExternalTimeline | UserTimeline | CounterTimeline
TimelineLike: TypeAlias = Timeline | str
"""A timeline, or its text."""

EPOCH_MILLISECONDS: Final = EpochMilliseconds()


def timeline_of(timeline: TimelineLike) -> Timeline:
    """The timeline that a text names, or the one given. Raises InvalidArgument for texts of no timeline."""
    given: object = timeline
    if isinstance(given, Timeline):
        return given
    if not isinstance(given, str):
        raise InvalidArgument("not a timeline", hint="give one or its text", got=type(given).__name__)
    kind, dot, rest = given.partition(".")
    brokers, slash, topic = rest.rpartition("/")
    if given == "M":
        return EPOCH_MILLISECONDS
    if kind == "E" and dot:
        return ExternalTimeline(rest)
    if kind == "U" and dot:
        return UserTimeline(rest)
    if kind == "C" and slash:
        return CounterTimeline(brokers, topic)
    raise InvalidArgument("this names no timeline", hint="M, E.id, U.name or C.brokers/topic", got=repr(given)[:80])


def oracle_shards(timeline: Timeline) -> tuple[ShardId, ShardId]:
    """The shards that hold a timeline's write time and its read time, the same everywhere and for ever."""
    text = str(timeline)
    return ShardId.named("persist.oracle", "write", text), ShardId.named("persist.oracle", "read", text)


def observed(uppers: Iterable[Antichain]) -> int | None:
    """What to apply on a timeline without a clock: the greatest time that is complete in all of its objects.

    None when there is nothing to apply: the timeline has no object, or one has no complete time, or all are closed.
    (Their least upper would be the end of time, and the timeline would be over for good.)
    """
    least = min((upper.elements[0] for upper in uppers if not upper.is_empty), default=0)
    return least - 1 if least else None


def _check(text: str, *parts: str) -> None:
    if not all(parts) or len(text) > TEXT_MAX or not text.isprintable():
        raise InvalidArgument(
            "malformed name of a timeline", hint=f"printable, not empty, at most {TEXT_MAX}", got=repr(text)[:80]
        )
