"""What has times: the kinds of objects, and which timeline a set of them is to be read in.

One walk over what objects are made of answers that for every reader: queries, views, transactions and holds.
Source: catalog-semantics.md sections 0.11 and 6.2; design 004.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from persist.core.catalog.values import ObjectType
from persist.core.time.errors import MultipleTimelines
from persist.core.time.timeline import EPOCH_MILLISECONDS, Timeline
from persist.errors import InvalidArgument

NAMED_MAX: Final = 2
"""Objects that an error names for each timeline."""


STORED_ROWS: Final = frozenset({ObjectType.TABLE, ObjectType.SUBSOURCE})
"""What is written by users or by a source: with a timeline of its own, or that of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedObject:
    """An object, as far as time is concerned.

    ``timeline``: its own; a source has one; a table has that of the source it is ``fed_by``, or its own, or else epoch
    milliseconds; all others have none. ``depends_on``: the ids of what it is defined by. ``uses_logical_time``: its
    definition asks what time is read at. ``claims_epoch``: see ``source_timeline``. ``is_system``: made by the system.
    Raises InvalidArgument for objects that cannot be.
    """

    id: str
    kind: ObjectType
    name: str = ""
    timeline: Timeline | None = None
    fed_by: str | None = None
    depends_on: tuple[str, ...] = ()
    uses_logical_time: bool = False
    claims_epoch: bool = False
    is_system: bool = False

    def __post_init__(self) -> None:
        if self.timeline is not None and self.kind is not ObjectType.SOURCE and self.kind not in STORED_ROWS:
            raise InvalidArgument("only sources and tables bring a timeline", id=self.id, kind=self.kind)
        if self.timeline is None and self.kind is ObjectType.SOURCE:
            raise InvalidArgument("a source has a timeline", hint="take the default of its kind", id=self.id)
        if self.fed_by is not None and (self.kind not in STORED_ROWS or self.timeline is not None):
            raise InvalidArgument("only tables are fed by a source, and have its timeline", id=self.id)
        if self.claims_epoch and (self.kind is not ObjectType.SOURCE or self.timeline != EPOCH_MILLISECONDS):
            raise InvalidArgument("only sources claim that their times are milliseconds", id=self.id)

    @property
    def label(self) -> str:
        """What people call it."""
        return self.name or self.id

    @property
    def brings(self) -> Timeline | None:
        """The timeline that this object adds to whatever reads it, without those of what it depends on."""
        if self.kind is ObjectType.LOG or (self.kind in STORED_ROWS and self.fed_by is None):
            return self.timeline or EPOCH_MILLISECONDS
        return self.timeline

    @property
    def reads(self) -> tuple[str, ...]:
        """The ids of what is read when this is read, besides itself."""
        if self.fed_by is not None:
            return (self.fed_by,)
        defined = self.kind in (ObjectType.INDEX, ObjectType.VIEW, ObjectType.MATERIALIZED_VIEW)
        return self.depends_on if defined else ()

    @property
    def asks_time(self) -> bool:
        """What is read differs from time to time even if no data changes. A materialized view is not there always."""
        return self.kind is ObjectType.MATERIALIZED_VIEW or (self.kind is ObjectType.VIEW and self.uses_logical_time)


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

    Raises MultipleTimelines (``details['timelines']`` names each, and objects that bring it, ``details['paths']`` the
    way from a root to them), InvalidArgument (an id that is not in ``objects``).
    """
    came_by: dict[str, str | None] = {}
    brought: dict[Timeline, list[TimedObject]] = {}
    asks_time = False
    for each in _walked(objects, roots, came_by):
        asks_time = asks_time or each.asks_time
        if (timeline := each.brings) is not None:
            brought.setdefault(timeline, []).append(each)
    if len(brought) > 1:
        raise MultipleTimelines(
            "multiple timelines cannot be read together",
            hint="read the objects of each timeline apart, or give their sources one timeline",
            timelines=_listed(brought, lambda each: each.label),
            paths=_listed(brought, lambda each: " > ".join(_path(objects, came_by, each.id))),
        )
    for timeline in brought:
        return TimelineDependent(timeline)
    return TimestampDependent() if asks_time else Independent()


def reached(objects: Mapping[str, TimedObject], roots: Iterable[str]) -> Iterator[TimedObject]:
    """What is read when ``roots`` are read, each once. Raises InvalidArgument for an id that is not in ``objects``."""
    return _walked(objects, roots, {})


def _walked(
    objects: Mapping[str, TimedObject], roots: Iterable[str], came_by: dict[str, str | None]
) -> Iterator[TimedObject]:
    """What is reached, each once. ``came_by``: takes what read it first, on a shortest path; None: it is a root."""
    waiting = deque(sorted(roots))
    came_by.update(dict.fromkeys(waiting))
    seen: set[str] = set()
    while waiting:
        id = waiting.popleft()
        if id in seen:
            continue
        seen.add(id)
        each = objects.get(id)
        if each is None:
            raise InvalidArgument("there is no such object", id=id)
        yield each
        for read in sorted(each.reads):
            if read not in came_by:
                came_by[read] = id
                waiting.append(read)


def _path(objects: Mapping[str, TimedObject], came_by: Mapping[str, str | None], id: str) -> list[str]:
    """Labels from a root to what was reached."""
    labels: list[str] = []
    at: str | None = id
    while at is not None:
        labels.append(objects[at].label)
        at = came_by[at]
    return labels[::-1]


def _listed(brought: Mapping[Timeline, Sequence[TimedObject]], told: Callable[[TimedObject], str]) -> str:
    return "; ".join(sorted(f"{timeline}: {_some(map(told, those))}" for timeline, those in brought.items()))


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


def _some(labels: Iterable[str]) -> str:
    given = sorted(labels)
    named = given[:NAMED_MAX]
    more = len(given) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
