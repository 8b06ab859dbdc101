"""What a collection's policy keeps readable, and from when on its shard must be: the implied capability, and the since.

For an object o let ic(o) be its implied capability and H(o) the times of its holds. Its shard's since is the least of
ic(o), H(o), what is about to be held, and what goes on from it. Source: catalog-semantics.md section 3.2;
collections: the controller.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from persist.core.catalog.control.controlled import EACH_COMMIT, Controlled
from persist.core.catalog.values import Id, Refresh
from persist.core.frontier import MINIMUM, Antichain
from persist.core.time.hold import NamedHold
from persist.core.time.holds import Holds
from persist.core.time.timeline import Timeline

SLACK: Final = 16
"""A since moves once it is behind by this part of what is retained: moving it is a commit."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a shard: ``given``: the controller chooses no read before it any more; its ``upper``.

    ``since``: a reader may read it from there on still, whatever the controller chooses; None: none before ``given``.
    """

    given: Antichain
    upper: Antichain
    since: Antichain | None = None


def implied(each: Controlled, known: Known, applied: int | None = None) -> Antichain:
    """The implied capability: the time of the policy, but never what was given up, and always a complete time.

    A policy counts milliseconds where times are that, and times elsewhere. A closed upper says nothing of how much time
    went by: what is there then stays. ``applied``: the read time of its timeline, or an earlier one. A collection that
    is ahead of that is kept from there on: who asks what to read gets that time, and reads a little later.
    """
    by, upper = each.retain.by, known.upper.time
    if by is None or upper is None:
        return known.given
    if applied is not None:
        upper = min(upper, applied + 1)
    return known.given.join(Antichain.of(max(0, upper - max(by, 1))))


def implied_all(
    collections: Mapping[Id, Controlled], known: Mapping[Id, Known], applied: Mapping[Timeline, int]
) -> dict[Id, Antichain]:
    """``implied`` of every collection that something is known of."""
    return {id: implied(each, known[id], applied.get(each.timeline)) for id, each in collections.items() if id in known}


def resumes_at(known: Known, refresh: Refresh = EACH_COMMIT) -> Antichain:
    """What inputs are to keep for one that is computed from them: the last time it has, from which it goes on.

    One that has nothing yet begins at its own since, and one whose since is beyond what it has goes on there: at the
    refresh time that shows at it. One that is closed needs nothing more.
    """
    upper = known.upper.time
    if upper is None:
        return known.upper
    since = known.given if known.since is None else known.since.meet(known.given)
    if since.time is not None and refresh.every is not None:
        since = Antichain.of(since.time // refresh.every * refresh.every)
    return since.join(Antichain.of(max(0, upper - 1)))


def needed_by(collections: Mapping[Id, Controlled], known: Mapping[Id, Known]) -> dict[Id, Antichain]:
    """By input: the least that what is computed from it needs. One of which nothing is known needs everything."""
    needs: dict[Id, Antichain] = {}
    for each in collections.values():
        need = resumes_at(known[each.id], each.refresh) if each.id in known else MINIMUM
        for id in each.inputs:
            needs[id] = needs[id].meet(need) if id in needs else need
    return needs


def brought_along(
    collections: Mapping[Id, Controlled], known: Mapping[Id, Known], id: Id, complete: Antichain, follow: Container[Id]
) -> dict[Id, Antichain]:
    """How far everything will be once one of them is ``complete`` up to there: itself, and then, inputs first, what is
    computed from it, those of ``follow``, as far as all of their inputs are. What stays where it is is left out.
    """
    above: dict[Id, list[Id]] = {}
    for each in collections.values():
        if each.id in follow and each.id in known and all(input in known for input in each.inputs):
            for input in each.inputs:
                above.setdefault(input, []).append(each.id)
    reached, waiting = {id: 0}, [id]
    while waiting:
        for each_id in above.get(waiting.pop(), ()):
            if each_id not in reached:
                waiting.append(each_id)
            reached[each_id] = reached.get(each_id, 0) + 1
    found, ready = {id: complete}, [id]
    while ready:
        for each_id in above.get(ready.pop(), ()):
            reached[each_id] -= 1
            if not reached[each_id]:
                ready.append(each_id)
                inputs = (found.get(input, known[input].upper) for input in collections[each_id].inputs)
                upper = reduce(Antichain.meet, inputs)
                if known[each_id].upper.less_than(upper):
                    found[each_id] = upper
    return found


class HoldsOn:
    """All holds, by what they are on: looking at a collection costs what holds it, and not all there are."""

    def __init__(self, holds: Holds) -> None:
        self._holds = holds
        self._on: dict[str, dict[str, NamedHold]] = {}
        for name, hold in holds.by_name.items():
            for id in hold.objects:
                self._on.setdefault(id, {})[name] = hold

    def of(self, each: Controlled) -> Holds:
        """Those on a collection, and on the source that feeds it."""
        found = self._on.get(str(each.id), {})
        if each.held_with is not None:
            found = {**found, **self._on.get(str(each.held_with), {})}
        return replace(self._holds, by_name=found)


def target(each: Controlled, holds: Holds, needs: Mapping[Id, Antichain], claimed: Iterable[int]) -> Antichain:
    """Where a collection's since belongs. ``claimed``: what is being made or asked for, and is in no catalog yet."""
    since = holds.since_of(str(each.id))
    if each.held_with is not None:
        since = reduce(Antichain.meet, (Antichain.of(hold.at) for hold in holds.on(str(each.held_with))), since)
    if each.id in needs:
        since = since.meet(needs[each.id])
    return reduce(Antichain.meet, map(Antichain.of, claimed), since)


def step(each: Controlled, known: Known, to: Antichain) -> Antichain | None:
    """What to move the handle to now, forward; None: where it is will do."""
    if not known.given.less_than(to):
        return None
    before, after = known.given.time, to.time
    by = each.retain.by
    if by is None or before is None or after is None:
        return to
    return to if after - before > by // SLACK else None
