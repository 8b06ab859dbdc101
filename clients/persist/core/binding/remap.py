"""The remap collection of a source: which source frontier was complete at which time.

R maps times to source frontiers and never goes back; a message appears at the first time whose frontier lies beyond
it. Stored as updates (source time, ts, diff) that at every ts sum to one antichain, each element exactly once.
Source: catalog-semantics.md section 4.2, definition and physical form; reliability.md I18.
"""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from persist.core.frontier import MINIMUM, Antichain
from persist.core.source.source_frontier import SourceFrontier, place
from persist.core.source.source_time import Range, SourceKind, SourceTime
from persist.errors import CorruptData, InvalidArgument, InvalidBounds, NotReadable, check


class RemapUpdate(NamedTuple):
    """One row of the remap collection: an element of the source frontier appears (+1) or goes (-1) at ``ts``."""

    time: SourceTime
    ts: int
    diff: int


@dataclass(frozen=True, slots=True)
class Binding:
    """From ``ts`` on, all that lies before ``frontier`` has a time of at most ``ts``."""

    ts: int
    frontier: SourceFrontier


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapTrace:
    """What is committed of R, readable in ``[since, upper)``. Only times at which R changes have a binding.

    The first binding stands for since and everything before it: what it covers has a time that is no longer known.
    """

    kind: SourceKind
    since: Antichain = MINIMUM
    upper: Antichain = MINIMUM
    bindings: tuple[Binding, ...] = ()

    @staticmethod
    def of(kind: SourceKind, updates: Iterable[RemapUpdate], since: Antichain, upper: Antichain) -> "RemapTrace":
        """The trace these rows of a shard sum to, those up to ``since`` taken together.

        Raises InvalidBounds (since lies beyond upper, or is closed), CorruptData (the rows are no remap collection).
        """
        at = since.time
        if at is None or upper.less_than(since):
            raise InvalidBounds("nothing is readable between since and upper", since=since, upper=upper)
        moved = [update._replace(ts=max(update.ts, at)) for update in updates]
        return RemapTrace(kind=kind, since=since, upper=since).extended(moved, upper)

    @property
    def is_initialized(self) -> bool:
        """The first binding was written."""
        return bool(self.bindings)

    @property
    def frontier(self) -> SourceFrontier:
        """The newest source frontier: everything before it is bound."""
        return self.bindings[-1].frontier if self.bindings else SourceFrontier.minimum(self.kind)

    def extended(self, updates: Iterable[RemapUpdate], upper: Antichain) -> "RemapTrace":
        """The trace with what was committed in ``[self.upper, upper)``.

        Raises InvalidBounds when an update lies outside of that, CorruptData unless at every ts all elements sum to
        an antichain that tiles the source, and never goes back.
        """
        if upper.less_than(self.upper):
            raise InvalidBounds("the upper of a remap collection never goes back", upper=self.upper, got=upper)
        bindings = list(self.bindings)
        by_ts = sorted(updates, key=lambda update: update.ts)
        for ts, group in itertools.groupby(by_ts, key=lambda update: update.ts):
            if not self.upper.less_equal_time(ts) or upper.less_equal_time(ts):
                raise InvalidBounds("a binding lies outside its batch", ts=ts, lower=self.upper, upper=upper)
            if net := _net(group):
                before = bindings[-1].frontier if bindings else None
                bindings.append(Binding(ts, _after(self.kind, before, net, ts)))
        if not bindings and upper.is_empty and self.since != MINIMUM:
            # A finished source, compacted: the sum of no rows is the closed frontier.
            bindings.append(Binding(self.since.elements[0], SourceFrontier.closed(self.kind)))
        check(bool(bindings) or upper == MINIMUM, "the first batch of a remap collection binds", upper=upper)
        _check_order(self.bindings, bindings, self.since)
        return replace(self, upper=upper, bindings=tuple(bindings))

    def compacted(self, since: Antichain) -> "RemapTrace":
        """The trace that begins at ``since``, which lies before the upper: later bindings stay what they are.

        Raises InvalidBounds when nothing would stay readable. A since that lies before the present one does nothing.
        """
        at = since.time
        if at is None or self.upper.less_equal(since):
            raise InvalidBounds("a remap collection keeps one readable time", since=since, upper=self.upper)
        if since.less_equal(self.since):
            return self
        first = max(bisect_right(self.bindings, at, key=lambda binding: binding.ts) - 1, 0)
        kept = self.bindings[first:]
        if kept and kept[0].ts < at:
            kept = (Binding(at, kept[0].frontier), *kept[1:])
        return replace(self, since=since, bindings=kept)

    def at(self, ts: int) -> SourceFrontier:
        """R(ts). Raises NotReadable before since, InvalidBounds at or beyond the upper."""
        if not self.since.less_equal_time(ts):
            raise NotReadable("the source frontier of this time is forgotten", hint="read later", since=self.since)
        if self.upper.less_equal_time(ts):
            raise InvalidBounds("this time is not complete", hint="wait for the upper", ts=ts, upper=self.upper)
        after = bisect_right(self.bindings, ts, key=lambda binding: binding.ts)
        return self.bindings[after - 1].frontier if after else SourceFrontier.minimum(self.kind)

    def first(self, reached: Callable[[SourceFrontier], bool]) -> Binding | None:
        """The lowest binding whose frontier has reached what is asked; None when none has, yet.

        ``reached`` stays true once it is. Raises NotReadable when since had reached it already: the time is forgotten.
        """
        index = bisect_left(self.bindings, True, key=lambda binding: reached(binding.frontier))
        if index == len(self.bindings):
            return None
        if index == 0:
            raise NotReadable(
                "this was bound at since or before it: its time is forgotten",
                hint="read the source from the resumption frontier on",
                since=self.since,
                frontier=self.bindings[0].frontier,
            )
        return self.bindings[index]

    def updates(self) -> Iterator[RemapUpdate]:
        """The rows that sum to this trace, in order of ts."""
        before: SourceFrontier | None = None
        for binding in self.bindings:
            yield from changes(before, binding.frontier, binding.ts)
            before = binding.frontier


def changes(before: SourceFrontier | None, after: SourceFrontier, ts: int) -> list[RemapUpdate]:
    """The rows that turn one antichain into the next at ``ts``, without those that cancel; None: the first one."""
    if before is None or before.is_closed or after.is_closed:
        old_ones = dict.fromkeys(before.elements if before is not None else ())
        new_ones = dict.fromkeys(after.elements)
    else:
        # Of many partitions few change at a time: only what is near those is looked at.
        pairs = [set(zip(each.keys, each.bounds, strict=True)) for each in (before, after)]
        keys = sorted({key for key, _ in pairs[0] ^ pairs[1]})
        look = SourceFrontier.point if before.keys == after.keys else SourceFrontier.near
        old_ones = dict.fromkeys(element for key in keys for element in look(before, key))
        new_ones = dict.fromkeys(element for key in keys for element in look(after, key))
    gone = [RemapUpdate(time, ts, -1) for time in old_ones if time not in new_ones]
    return gone + [RemapUpdate(time, ts, 1) for time in new_ones if time not in old_ones]


def _net(group: Iterable[RemapUpdate]) -> dict[SourceTime, int]:
    sums: dict[SourceTime, int] = {}
    for update in group:
        sums[update.time] = sums.get(update.time, 0) + update.diff
    return {time: diff for time, diff in sums.items() if diff}


def _after(kind: SourceKind, before: SourceFrontier | None, net: dict[SourceTime, int], ts: int) -> SourceFrontier:
    """The frontier these rows lead to. If there is one, they are exactly the changes to it."""
    for candidate in (_moved(kind, before, net), SourceFrontier.closed(kind)):
        if candidate is not None and net == {row.time: row.diff for row in changes(before, candidate, ts)}:
            return candidate
    raise CorruptData(
        "invariant violated: at every ts a source frontier is an antichain, each element once",
        hint="stop using this source and report it",
        ts=ts,
        rows=len(net),
    )


def _moved(kind: SourceKind, before: SourceFrontier | None, net: dict[SourceTime, int]) -> SourceFrontier | None:
    try:
        places = [(*place(kind, time), diff) for time, diff in net.items() if not isinstance(time, Range)]
        bounds = {key: None for key, _, _ in places} | {key: offset for key, offset, diff in places if diff > 0}
        moved = (before or SourceFrontier.minimum(kind)).replaced(bounds)
        return None if kind is SourceKind.LSN and not moved.keys else moved
    except InvalidArgument:
        return None


def _check_order(known: tuple[Binding, ...], bindings: list[Binding], since: Antichain) -> None:
    if bindings and not known:
        first = bindings[0]
        check(since.time == first.ts, "a remap collection begins at since", since=since, ts=first.ts)
        begins = since != MINIMUM or first.frontier == SourceFrontier.minimum(first.frontier.kind)
        check(begins, "the first binding is the minimum at the minimum", frontier=first.frontier)
    for before, after in itertools.pairwise(bindings[max(len(known) - 1, 0) :]):
        forward = before.frontier.less_equal(after.frontier)
        check(forward, "source frontiers never go back", ts=after.ts, before=before.frontier, after=after.frontier)
