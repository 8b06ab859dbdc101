"""A stored collection as far as control goes, found from what the catalog says of items.

Source: collections: the controller; catalog-semantics.md section 3.2.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from persist.core.catalog.ddl.described import Described
from persist.core.catalog.values import Id, ObjectType, Refresh, Retain
from persist.core.ids import ShardId
from persist.core.time.collections import TimedObject, timeline_context, timeline_read_in
from persist.core.time.timeline import EPOCH_MILLISECONDS, Timeline
from persist.errors import UsageError

DERIVED: Final = frozenset({ObjectType.MATERIALIZED_VIEW, ObjectType.INDEX})
"""What is computed from other collections, and goes on where it ended: its inputs wait for it."""
EVERYTHING: Final = Retain(None)
"""The policy of what has none."""
EACH_COMMIT: Final = Refresh(None)
LOGGED: Final = "wal"
"""The mode of tables whose rows come through the log of their timeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controlled:
    """A collection with a shard. ``inputs``: the stored collections that it is computed from, through views.

    ``refresh``: when, if only now and then. ``held_with``: the source that feeds it; a hold on that is one on this.

    ``completes``: a table that only tables write, so that the leader may say that nothing more comes before
    a time. ``claims_epoch``: see ``core.time.collections``.
    """

    id: Id
    shard: ShardId
    timeline: Timeline = EPOCH_MILLISECONDS
    retain: Retain = EVERYTHING
    inputs: tuple[Id, ...] = ()
    refresh: Refresh = EACH_COMMIT
    held_with: Id | None = None
    completes: bool = False
    claims_epoch: bool = False


def controlled(items: Iterable[Described], timed: Mapping[str, TimedObject]) -> dict[Id, Controlled]:
    """Everything with a shard among the items, by id.

    What cannot be read in one timeline (nothing that was made since that is checked) is taken to be of clocks.
    """
    known = {each.id: each for each in items}
    return {id: _controlled(each, known, timed) for id, each in known.items() if each.data is not None}


def stored_inputs(each: Described, known: Mapping[Id, Described]) -> tuple[Id, ...]:
    """The stored collections that an item is computed from, through whatever is not stored, in order of their ids."""
    found: set[Id] = set()
    waiting, seen = list(each.depends_on), {each.id}
    while waiting:
        id = waiting.pop()
        if id in seen:
            continue
        seen.add(id)
        item = known.get(id)
        if item is None:
            continue
        if item.data is not None:
            found.add(id)
        else:
            waiting.extend(item.depends_on)
    return tuple(sorted(found))


def going_along(collections: Mapping[Id, Controlled], moving: Collection[ShardId]) -> set[ShardId]:
    """The tables, at rest or not, from which something is computed together with what moves: it shows nothing of that
    before they are complete, too.

    ``moving``: tables with rows of late. What is not completed by the leader may move at any time.
    """
    found: set[ShardId] = set()
    for each in collections.values():
        bases = _bases(each, collections)
        if any(not base.completes or base.shard in moving for base in bases):
            found.update(base.shard for base in bases if base.completes)
    return found


def _bases(each: Controlled, collections: Mapping[Id, Controlled]) -> list[Controlled]:
    """What a collection is computed from, through whatever is computed itself."""
    found: dict[Id, Controlled] = {}
    waiting, seen = list(each.inputs), {each.id}
    while waiting:
        id = waiting.pop()
        below = collections.get(id)
        if id in seen or below is None:
            continue
        seen.add(id)
        if below.inputs:
            waiting.extend(below.inputs)
        else:
            found[id] = below
    return list(found.values())


def _controlled(each: Described, known: Mapping[Id, Described], timed: Mapping[str, TimedObject]) -> Controlled:
    assert each.data is not None
    feeder = known.get(each.fed_by) if each.fed_by is not None else None
    return Controlled(
        id=each.id,
        shard=each.data,
        timeline=_timeline(each, timed),
        retain=each.retain or EVERYTHING,
        inputs=stored_inputs(each, known) if each.kind in DERIVED else (),
        refresh=each.refresh or EACH_COMMIT,
        held_with=each.fed_by,
        completes=each.kind is ObjectType.TABLE and each.mode == LOGGED,
        claims_epoch=each.claims_epoch or (feeder is not None and feeder.claims_epoch),
    )


def _timeline(each: Described, timed: Mapping[str, TimedObject]) -> Timeline:
    if each.timeline is not None:
        return each.timeline
    try:
        return timeline_read_in(timeline_context(timed, [str(each.id)])) or EPOCH_MILLISECONDS
    except UsageError:
        return EPOCH_MILLISECONDS
