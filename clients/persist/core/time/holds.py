"""All holds, and what may be done to them: create, advance, rename, drop. A step that is refused changes nothing.

For an object o let ic(o) be its implied capability, the since its policy allows, and H(o) the times of its holds. It is
readable from the least of those on, and no hold may ask for an earlier time: what is given up cannot be brought back.
Source: design 000; catalog-semantics.md section 3.2.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final, NamedTuple

from persist.core.catalog.values import ObjectType
from persist.core.frontier import CLOSED, MINIMUM, Antichain, check_time
from persist.core.time.clock import HOLD_AHEAD_MS_MAX
from persist.core.time.collections import TimedObject, timeline_context, timeline_read_in
from persist.core.time.errors import BelowHold, DependentObjects
from persist.core.time.hold import HoldRules, MaxLag, NamedHold, OnLag
from persist.core.time.timeline import EPOCH_MILLISECONDS, Timeline
from persist.errors import InvalidArgument, NotReadable, ShardClosed, UsageError

HOLDABLE: Final = frozenset(
    {ObjectType.INDEX, ObjectType.MATERIALIZED_VIEW, ObjectType.TABLE, ObjectType.SOURCE, ObjectType.SUBSOURCE}
)


class Advance(NamedTuple):
    """A request to move a hold, by name, to a time, or without one as far as its objects allow."""

    name: str
    to: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """The holds of a catalog, by name, over its ``objects``. ``implied``: ic of every object that has a since.

    ``rules`` are the operator's. ``uppers``: as far as they are known. All steps return new Holds and raise before
    anything is changed.
    """

    objects: Mapping[str, TimedObject]
    implied: Mapping[str, Antichain]
    by_name: Mapping[str, NamedHold] = field(default_factory=dict)
    rules: HoldRules = field(default_factory=HoldRules)
    uppers: Mapping[str, Antichain] = field(default_factory=dict)
    _least: dict[str, list[tuple[int, str]]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By object the times and names of active holds on it, in order, once anything was asked. Never copied along with
    other holds."""

    def get(self, name: str) -> NamedHold:
        """The hold of this name. Raises InvalidArgument when there is none."""
        found = self.by_name.get(name)
        if found is None:
            raise InvalidArgument("there is no such hold", hint="create it first", name=name)
        return found

    def on(self, id: str) -> Iterator[NamedHold]:
        """The active holds on an object. One on a table is none on its indexes, nor the reverse."""
        return (hold for hold in self.by_name.values() if hold.is_active and id in hold.objects)

    def since_of(self, id: str) -> Antichain:
        """What the since of an object must not pass: min(ic(o), H(o)). It is readable from here on.

        Raises InvalidArgument when the object is unknown.
        """
        implied = self._implied(id)
        if not self._least and self.by_name:
            for hold in self.by_name.values():
                for each in hold.objects if hold.is_active else ():
                    self._least.setdefault(each, []).append((hold.at, hold.name))
            for times in self._least.values():
                times.sort()
        found = self._least.get(id)
        return implied.meet(Antichain.of(found[0][0])) if found else implied

    def sinces(self) -> dict[str, Antichain]:
        """``since_of`` every object."""
        return {id: self.since_of(id) for id in self.implied}

    def least_valid(self, objects: Iterable[str]) -> Antichain:
        """The least time that the policies of all these objects allow: the join of their implied capabilities."""
        return reduce(Antichain.join, (self._implied(id) for id in objects), MINIMUM)

    def create(
        self,
        *,
        id: str,
        name: str,
        objects: Sequence[str],
        now_ms: int,
        at: int | None = None,
        max_lag: MaxLag | None = None,
        on_lag: OnLag = OnLag.ADVANCE,
    ) -> "Holds":
        """CREATE HOLD name ON objects [AT at]. Without a time: the least that all objects allow, and its MAX LAG, where
        it would be moved to at once; one that ends when it lags (ON LAG ERROR) begins half its MAX LAG back.

        A time beyond an upper is allowed: reads wait. Raises MultipleTimelines, NotReadable (``at`` is before what some
        object still has), ShardClosed (an object is closed for reading), InvalidArgument (all else, also a time that is
        far ahead of the clock).
        """
        self._check_free(name)
        if id in {hold.id for hold in self.by_name.values()}:
            raise InvalidArgument("this id is in use", id=id)
        timeline = self._timeline(objects)
        lag = self.rules.lag_of(timeline, max_lag)
        hold = NamedHold(
            id=id,
            name=name,
            objects=tuple(objects),
            timeline=timeline,
            at=self._least_common(objects) if at is None else at,
            max_lag=lag,
            on_lag=on_lag,
            deadline_ms=self.rules.deadline_ms,
            last_ack_ms=now_ms,
        )
        if at is None:
            hold = self._within_lag(hold, now_ms)
        self._check_readable(objects, hold.at)
        self._check_near(timeline, objects, hold.at, now_ms)
        return self._with({**self.by_name, name: hold})

    def advance(self, name: str, *, now_ms: int, to: int | None = None) -> "Holds":
        """ALTER HOLD name ADVANCE [TO to]. Without a time: to the least its objects' policies allow, never back.

        To an earlier time only under cover of another hold or the policy, for each object. Raises NotReadable (nothing
        keeps this time), HoldOverdue (the hold had ended), ShardClosed (without a time, an object is closed for
        reading), InvalidArgument (no such hold, no such time, one that is far ahead of the clock).
        """
        hold = self.get(name)
        hold.check_active()
        if to is None:
            to = max(hold.at, self._least_common(hold.objects))
        self._check_readable(hold.objects, to)
        self._check_near(hold.timeline, hold.objects, to, now_ms)
        return self._moved(hold, hold.moved(to, now_ms))

    def advance_all(
        self, requests: Iterable[Advance], *, now_ms: int
    ) -> "tuple[Holds, tuple[NamedHold | UsageError, ...]]":
        """Every request, in order of arrival, with its own outcome: one that is refused does not fail the others."""
        holds, outcomes = self, list[NamedHold | UsageError]()
        for request in requests:
            try:
                holds = holds.advance(request.name, to=request.to, now_ms=now_ms)
                outcomes.append(holds.get(request.name))
            except UsageError as refused:
                outcomes.append(refused)
        return holds, tuple(outcomes)

    def rename(self, names: Mapping[str, str]) -> "Holds":
        """Several holds renamed at once, old name to new: two may swap theirs. Raises InvalidArgument."""
        moved = {new: replace(self.get(old), name=new) for old, new in names.items()}
        if len(moved) < len(names):
            raise InvalidArgument("two holds cannot have one name", names=", ".join(sorted(names.values())))
        rest = self._with({name: hold for name, hold in self.by_name.items() if name not in names})
        for new in moved:
            rest._check_free(new)
        return self._with({**rest.by_name, **moved})

    def drop(self, name: str) -> "Holds":
        """DROP HOLD name. What reads already has holds of its own. Raises InvalidArgument when there is none."""
        self.get(name)
        return self._with({each: hold for each, hold in self.by_name.items() if each != name})

    def drop_objects(self, ids: Iterable[str], *, cascade: bool) -> "Holds":
        """What is left when objects are dropped. With ``cascade`` every hold on one of them goes, as a whole.

        Without it raises DependentObjects as soon as one is in a hold.
        """
        gone = set(ids)
        dependent = sorted(hold.name for hold in self.by_name.values() if gone.intersection(hold.objects))
        if dependent and not cascade:
            raise DependentObjects(
                "holds depend on this", hint="drop them first, or drop with cascade", ids=", ".join(dependent)
            )
        kept = {name: hold for name, hold in self.by_name.items() if name not in dependent}
        return replace(
            self,
            objects={id: each for id, each in self.objects.items() if id not in gone},
            implied={id: since for id, since in self.implied.items() if id not in gone},
            by_name=kept,
        )

    def lagged(self, uppers: Mapping[str, Antichain], *, now_ms: int) -> "Holds":
        """The holds after uppers or the clock moved: see ``NamedHold.lagged``. Equal ones when none is overdue."""
        return self._with({name: hold.lagged(uppers, now_ms) for name, hold in self.by_name.items()})

    def check_as_of(self, id: str, as_of: int, physical_since: Antichain | None = None) -> None:
        """An object can be read at a time. ``physical_since``: that of its data, for the error.

        Raises BelowHold (a hold is on it, but from a later time on), HoldOverdue (the hold that kept this time ended),
        NotReadable (nothing keeps it).
        """
        since = self.since_of(id)
        if since.less_equal_time(as_of):
            return
        values: dict[str, object] = {"as_of": as_of, "object": self._called(id), "since": since}
        if physical_since is not None:
            values["physical_since"] = physical_since
        if first := min(self.on(id), key=lambda hold: (hold.at, hold.name), default=None):
            raise BelowHold(
                "a hold exists, but is in advance of as_of",
                hint="read from since on",
                hold=first.name,
                at=first.at,
                **values,
            )
        for hold in self.by_name.values():
            if id in hold.objects and hold.at <= as_of:
                hold.check_active()
        raise NotReadable("this time is no longer readable", hint="read from since on", **values)

    def _with(self, by_name: Mapping[str, NamedHold]) -> "Holds":
        return replace(self, by_name=by_name)

    def _moved(self, before: NamedHold, after: NamedHold) -> "Holds":
        """Another time of one hold, without looking at all others."""
        other = self._with({**self.by_name, before.name: after})
        other._least.update(self._least)
        for id in before.objects if self._least else ():
            times = list(self._least[id])
            del times[bisect_left(times, (before.at, before.name))]
            insort(times, (after.at, after.name))
            other._least[id] = times
        return other

    def _called(self, id: str) -> str:
        """An object as people name it."""
        each = self.objects.get(id)
        return (each.name if each is not None else "") or id

    def _all_called(self, ids: Iterable[str]) -> str:
        return ", ".join(map(self._called, ids))

    def _implied(self, id: str) -> Antichain:
        found = self.implied.get(id)
        if found is None:
            raise InvalidArgument("this object has no since", hint="name what can be read", id=id)
        return found

    def _check_free(self, name: str) -> None:
        if name in self.by_name:
            raise InvalidArgument("a hold of this name exists", hint="take another name, or drop it", name=name)

    def _timeline(self, objects: Iterable[str]) -> Timeline:
        for id in objects:
            each = self.objects.get(id)
            if each is None:
                raise InvalidArgument("there is no such object", id=id)
            if each.kind not in HOLDABLE or each.is_system:
                kind = f"system {each.kind.words}" if each.is_system else each.kind.words
                hint = "indexes, materialized views, tables and sources of users can"
                raise InvalidArgument("this cannot be held", hint=hint, id=id, kind=kind)
        return timeline_read_in(timeline_context(self.objects, objects)) or EPOCH_MILLISECONDS

    def _least_common(self, objects: Iterable[str]) -> int:
        objects = tuple(objects)
        at = self.least_valid(objects).time
        if at is None:
            raise ShardClosed(
                "an object is closed for reading: no time is left to hold", objects=self._all_called(objects)
            )
        return at

    def _check_readable(self, objects: Iterable[str], at: int) -> None:
        check_time(at)
        sinces = {id: self.since_of(id) for id in objects}
        blamed = [id for id, since in sinces.items() if not since.less_equal_time(at)]
        if blamed:
            raise NotReadable(
                "nothing keeps this time readable any more",
                hint="hold from since on",
                at=at,
                since=reduce(Antichain.join, sinces.values()),
                objects=self._all_called(blamed),
            )

    def _within_lag(self, hold: NamedHold, now_ms: int) -> NamedHold:
        """A new hold of no given time, where its MAX LAG lets it stay, as far as uppers are known, and believed.

        What has not begun there, as a view that was just made, is behind for now only, and holds nothing back.
        """
        known = {id: self.uppers[id] for id in hold.objects if id in self.uppers}
        begun = {id: upper if upper.beyond(hold.at) else CLOSED for id, upper in known.items()}
        upper = hold.write_frontier(begun, now_ms).time if len(known) == len(hold.objects) else None
        if upper is None or (hold.timeline.has_clock and upper > now_ms + HOLD_AHEAD_MS_MAX):
            return hold
        if hold.on_lag is OnLag.ADVANCE:
            return hold.lagged(begun, now_ms)
        return replace(hold, at=max(hold.at, upper - hold.max_lag // 2))

    def _check_near(self, timeline: Timeline, objects: Iterable[str], at: int, now_ms: int) -> None:
        """Raise InvalidArgument for a time that is far ahead: until it comes, the hold would keep nothing at all."""
        if not timeline.has_clock or at <= now_ms + HOLD_AHEAD_MS_MAX:
            return
        # A source that brings its times, or a collection that was closed, may well be there already.
        uppers = [self.uppers[id] for id in objects if id in self.uppers]
        if any(upper.is_empty or not upper.less_equal_time(at) for upper in uppers):
            return
        raise InvalidArgument(
            "this time is far ahead of the clock: until then the hold would keep nothing",
            hint="name one that has come: milliseconds since 1970, a date, now(); or without TO the least there is",
            at=at,
            now_ms=now_ms,
        )


def check_created_and_held(created: Sequence[str], held: Sequence[Sequence[str]]) -> None:
    """A transaction with CREATE HOLD has one, and creates nothing else, or before it the one object that it is on.

    ``created``: ids in order; ``held``: the objects of each hold of the transaction. Raises InvalidArgument.
    """
    alone = len(held) == 1 and (not created or (len(created) == 1 and list(held[0]) == list(created)))
    if held and not alone:
        raise InvalidArgument(
            "in a transaction one CREATE HOLD may follow one CREATE, on exactly what that created",
            hint="create the hold in a transaction of its own",
            created=", ".join(created),
            holds=len(held),
        )
