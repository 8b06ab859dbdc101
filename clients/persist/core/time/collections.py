"""What has times: the kinds of objects, and which timeline a set of them is to be read in.

One walk over what objects are made of answers that for every reader: queries, views, transactions and holds.
Rules only: no service asks them yet. Source: catalog-semantics.md sections 0.11 and 6.2; design 004.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from persist.core.time.errors import MultipleTimelines
from persist.core.time.timeline import EPOCH_MILLISECONDS, Timeline
from persist.errors import InvalidArgument

NAMED_MAX: Final = 2
"""Objects that an error names for each timeline."""


class Kind(StrEnum):
    """What an object is."""

    SOURCE = "source"
    TABLE = "table"
    LOG = "log"
    INDEX = "index"
    VIEW = "view"
    MATERIALIZED_VIEW = "materialized view"
    SINK = "sink"
    HOLD = "hold"
    TYPE = "type"
    FUNCTION = "function"
    SECRET = "secret"
    CONNECTION = "connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedObject:
    """An object, as far as time is concerned.

    ``timeline``: its own; a source has one; a table has that of the source it is ``fed_by``, or its own, or else epoch
    milliseconds; all others have none. ``depends_on``: the ids of what it is defined by. ``uses_logical_time``: its
    definition asks what time is read at. ``claims_epoch``: see ``source_timeline``. ``is_system``: made by the system.
    Raises InvalidArgument for objects that cannot be.
    """

    id: str
    kind: Kind
    name: str = ""
    timeline: Timeline | None = None
    fed_by: str | None = None
    depends_on: tuple[str, ...] = ()
    uses_logical_time: bool = False
    claims_epoch: bool = False
    is_system: bool = False

    def __post_init__(self) -> None:
        if self.timeline is not None and self.kind not in (Kind.SOURCE, Kind.TABLE):
            raise InvalidArgument("only sources and tables bring a timeline", id=self.id, kind=self.kind)
        if self.timeline is None and self.kind is Kind.SOURCE:
            raise InvalidArgument("a source has a timeline", hint="take the default of its kind", id=self.id)
        if self.fed_by is not None and (self.kind is not Kind.TABLE or self.timeline is not None):
            raise InvalidArgument("only tables are fed by a source, and have its timeline", id=self.id)
        if self.claims_epoch and (self.kind is not Kind.SOURCE or self.timeline != EPOCH_MILLISECONDS):
            raise InvalidArgument("only sources claim that their times are milliseconds", id=self.id)

    @property
    def label(self) -> str:
        """What people call it."""
        return self.name or self.id

    @property
    def brings(self) -> Timeline | None:
        """The timeline that this object adds to whatever reads it, without those of what it depends on."""
        if self.kind is Kind.LOG or (self.kind is Kind.TABLE and self.fed_by is None):
            return self.timeline or EPOCH_MILLISECONDS
        return self.timeline

    @property
    def reads(self) -> tuple[str, ...]:
        """The ids of what is read when this is read, besides itself."""
        if self.fed_by is not None:
            return (self.fed_by,)
        defined = self.kind in (Kind.INDEX, Kind.VIEW, Kind.MATERIALIZED_VIEW)
        return self.depends_on if defined else ()

    @property
    def asks_time(self) -> bool:
        """What is read differs from time to time even if no data changes. A materialized view is not there always."""
        return self.kind is Kind.MATERIALIZED_VIEW or (self.kind is Kind.VIEW and self.uses_logical_time)


@dataclass(frozen=True, slots=True)
class Independent:
    """Constants: the answer is the same at every time."""


@dataclass(frozen=True, slots=True)
class TimestampDependent:
    """Some time is needed, of whatever timeline: that of the transaction, or else epoch milliseconds."""


@dataclass(frozen=True, slots=True)
class TimelineDependent:
    """A time of this timeline is needed."""

    timeline: Timeline


TimelineContext: TypeAlias = Independent | TimestampDependent | TimelineDependent


def timeline_context(objects: Mapping[str, TimedObject], roots: Iterable[str]) -> TimelineContext:
    """What time it takes to read ``roots`` together. The same for every order of roots and dependencies.

    Raises MultipleTimelines (``details['timelines']`` names each, and objects that bring it), InvalidArgument (an id
    that is not in ``objects``).
    """
    found = list(reached(objects, roots))
    brought: dict[Timeline, list[str]] = {}
    for each in found:
        if (timeline := each.brings) is not None:
            brought.setdefault(timeline, []).append(each.label)
    if len(brought) > 1:
        raise MultipleTimelines(
            "multiple timelines cannot be read together",
            hint="read the objects of each timeline apart, or give their sources one timeline",
            timelines="; ".join(sorted(f"{timeline}: {_some(labels)}" for timeline, labels in brought.items())),
        )
    for timeline in brought:
        return TimelineDependent(timeline)
    return TimestampDependent() if any(each.asks_time for each in found) else Independent()


def reached(objects: Mapping[str, TimedObject], roots: Iterable[str]) -> Iterator[TimedObject]:
    """What is read when ``roots`` are read, each once. Raises InvalidArgument for an id that is not in ``objects``."""
    waiting = list(roots)
    seen: set[str] = set()
    while waiting:
        id = waiting.pop()
        if id in seen:
            continue
        seen.add(id)
        each = objects.get(id)
        if each is None:
            raise InvalidArgument("there is no such object", id=id)
        yield each
        waiting.extend(each.reads)


def timeline_read_in(context: TimelineContext, transaction: Timeline | None = None) -> Timeline | None:
    """The timeline to take a time of, within a transaction that has one or not. None: it needs no time at all.

    Raises MultipleTimelines when the transaction reads in another timeline.
    """
    match context:
        case Independent():
            return None
        case TimestampDependent():
            return transaction or EPOCH_MILLISECONDS
        case TimelineDependent(timeline):
            if transaction not in (None, timeline):
                raise MultipleTimelines(
                    "a transaction reads in one timeline",
                    hint="read this in another transaction",
                    timelines=f"{transaction}: the transaction; {timeline}: what it reads now",
                )
            return timeline


def timedomain(objects: Mapping[str, TimedObject], first: TimelineContext, candidates: Iterable[str]) -> frozenset[str]:
    """Those of ``candidates`` that a transaction which began with ``first`` may read later: of the same timeline.

    One that began with something static keeps the objects of epoch milliseconds.
    """
    timeline = timeline_read_in(first) or EPOCH_MILLISECONDS
    return frozenset(id for id in candidates if _fits(objects, id, timeline))


def _fits(objects: Mapping[str, TimedObject], id: str, timeline: Timeline) -> bool:
    try:
        context = timeline_context(objects, [id])
    except MultipleTimelines:
        return False
    return not isinstance(context, TimelineDependent) or context.timeline == timeline


def _some(labels: list[str]) -> str:
    named = sorted(labels)[:NAMED_MAX]
    more = len(labels) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
