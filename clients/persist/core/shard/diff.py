"""Differences between two states: what Consensus stores per commit.

``apply_diff(prev, diff(prev, new)) == new`` and ``apply_diff(new, invert(diff(prev, new))) == prev``. A diff holds what
changed, not what is there: spine batches that are joined only tell how, and a writer only the outcomes that came and
went. Source: design 001, incremental state; reliability.md I14.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from persist.core.frontier import Antichain
from persist.core.shard.batch import HollowBatch
from persist.core.shard.commands import Rollup, SchemaEntry
from persist.core.shard.state import State, TokenOutcome, Writer
from persist.core.shard.trace import Claim, SpineBatch, Trace
from persist.errors import check

T = TypeVar("T")

Outcomes = tuple[TokenOutcome, ...]

SCALARS: Final = ("walltime_ms", "hostname", "last_gc_req", "writers_since_ms", "active_rollup", "active_gc")
MAPS: Final = ("rollups", "leased_readers", "critical_readers", "transactions")


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """A value before and after; None: not there."""

    old: T | None
    new: T | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpineEntry:
    """A spine batch without its batches, of which there are ``count``."""

    lo: int
    hi: int
    level: int
    claim: Claim | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Splice:
    """Pass over ``kept`` batches, then replace ``gone`` by ``come``."""

    kept: int
    gone: tuple[HollowBatch, ...]
    come: tuple[HollowBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpineChange:
    """Spine batches replaced by others.

    All hollow batches of ``removed`` in a row, with ``splices`` applied one after the other, are those of ``added``: a
    batch that only moves from one spine batch to another is not repeated, and what is ``gone`` tells which parts the
    shard no longer needs.
    """

    removed: tuple[SpineEntry, ...]
    added: tuple[SpineEntry, ...]
    splices: tuple[Splice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterChange:
    """A writer before and after, both without outcomes (None: not there), and how its outcomes changed at the ends.

    ``front_old`` + some that stay + ``back_old`` became ``front_new`` + the same + ``back_new``.
    """

    old: Writer | None
    new: Writer | None
    front_old: Outcomes = ()
    front_new: Outcomes = ()
    back_old: Outcomes = ()
    back_new: Outcomes = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemasChange:
    """After the first ``kept`` schemas, ``gone`` were replaced by ``come``; going forward, nothing goes."""

    kept: int
    gone: tuple[SchemaEntry, ...]
    come: tuple[SchemaEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDiff:
    """From the state at ``seqno_from`` to the one at ``seqno_to``.

    ``latest_rollup`` is the newest rollup of the newer state: a cold open needs nothing else to begin.
    """

    seqno_from: int
    seqno_to: int
    latest_rollup: tuple[int, Rollup]
    scalars: Mapping[str, Changed[Any]]
    maps: Mapping[str, Mapping[Any, Changed[Any]]]
    writers: Mapping[str, WriterChange]
    since: Changed[Antichain] | None
    upper: Changed[Antichain] | None
    next_id: Changed[int] | None
    spine: SpineChange | None
    schemas: SchemasChange | None


def diff(prev: State, new: State) -> StateDiff:
    """What leads from ``prev`` to ``new``."""
    return StateDiff(
        seqno_from=prev.seqno,
        seqno_to=new.seqno,
        latest_rollup=new.latest_rollup,
        scalars={
            name: Changed(getattr(prev, name), getattr(new, name)) for name in SCALARS if _differ(prev, new, name)
        },
        maps={name: _map(getattr(prev, name), getattr(new, name)) for name in MAPS if _differ(prev, new, name)},
        writers={name: _writer(each) for name, each in _map(prev.writers, new.writers).items()},
        since=_changed(prev.since, new.since),
        upper=_changed(prev.upper, new.upper),
        next_id=_changed(prev.trace.next_id, new.trace.next_id),
        spine=_spine(prev.trace.spine, new.trace.spine),
        schemas=_schemas(prev.schemas, new.schemas),
    )


def apply_diff(state: State, change: StateDiff) -> State:
    """The state that ``change`` leads to. Raises CorruptData unless it starts at ``state``."""
    check(state.seqno == change.seqno_from, "a diff fits its state", state=state.seqno, diff=change.seqno_from)
    values: dict[str, Any] = {
        name: _replaced(getattr(state, name), changed, name) for name, changed in change.scalars.items()
    }
    for name, entries in change.maps.items():
        values[name] = _map_applied(getattr(state, name), entries, name)
    if change.writers:
        values["writers"] = _writers_applied(state.writers, change.writers)
    if change.schemas:
        values["schemas"] = _schemas_applied(state.schemas, change.schemas)
    trace = state.trace
    if change.since or change.upper or change.next_id or change.spine:
        trace = Trace(
            since=_replaced(trace.since, change.since, "since"),
            upper=_replaced(trace.upper, change.upper, "upper"),
            next_id=_replaced(trace.next_id, change.next_id, "next_id"),
            spine=_spine_applied(trace.spine, change.spine) if change.spine else trace.spine,
        )
    return replace(state, seqno=change.seqno_to, trace=trace, **values)


def invert(change: StateDiff, latest_rollup: tuple[int, Rollup] | None = None) -> StateDiff:
    """The way back. ``latest_rollup``: the older state's, where it matters."""
    spine = change.spine
    return StateDiff(
        seqno_from=change.seqno_to,
        seqno_to=change.seqno_from,
        latest_rollup=latest_rollup or change.latest_rollup,
        scalars={name: _swapped(changed) for name, changed in change.scalars.items()},
        maps={name: {key: _swapped(each) for key, each in entries.items()} for name, entries in change.maps.items()},
        writers={name: _writer_swapped(each) for name, each in change.writers.items()},
        since=_swapped(change.since) if change.since else None,
        upper=_swapped(change.upper) if change.upper else None,
        next_id=_swapped(change.next_id) if change.next_id else None,
        spine=spine and _spine_swapped(spine),
        schemas=change.schemas
        and SchemasChange(kept=change.schemas.kept, gone=change.schemas.come, come=change.schemas.gone),
    )


def _differ(prev: State, new: State, name: str) -> bool:
    before, after = getattr(prev, name), getattr(new, name)
    return before is not after and before != after


def _changed(old: T, new: T) -> Changed[T] | None:
    return None if old == new else Changed(old, new)


def _swapped(changed: Changed[T]) -> Changed[T]:
    return Changed(changed.new, changed.old)


def _replaced(value: Any, changed: Changed[Any] | None, name: str) -> Any:
    if changed is None:
        return value
    check(value == changed.old, "a diff fits its state", field=name)
    return changed.new


def _map(prev: Mapping[Any, T], new: Mapping[Any, T]) -> dict[Any, Changed[T]]:
    if prev is new:
        return {}
    changes: dict[Any, Changed[T]] = {}
    for key, value in new.items():
        before = prev.get(key)
        if before is not value and before != value:
            changes[key] = Changed(before, value)
    for key, value in prev.items():
        if key not in new:
            changes[key] = Changed(value, None)
    return changes


def _map_applied(values: Mapping[Any, Any], changes: Mapping[Any, Changed[Any]], name: str) -> dict[Any, Any]:
    applied = dict(values)
    for key, changed in changes.items():
        check(applied.get(key) == changed.old, "a diff fits its state", field=name, key=key)
        if changed.new is None:
            del applied[key]
        else:
            applied[key] = changed.new
    return applied


def _writer(changed: Changed[Writer]) -> WriterChange:
    """Outcomes leave at the front and arrive at the back; the ring in between is not repeated."""
    before = changed.old.outcomes if changed.old else ()
    after = changed.new.outcomes if changed.new else ()
    went = 0
    while went < len(before) and before[went:] != after[: len(before) - went]:
        went += 1
    return WriterChange(
        old=_bare(changed.old),
        new=_bare(changed.new),
        front_old=before[:went],
        back_new=after[len(before) - went :],
    )


def _bare(writer: Writer | None) -> Writer | None:
    return Writer(heartbeat_ms=writer.heartbeat_ms, lease_ms=writer.lease_ms) if writer else None


def _writer_swapped(change: WriterChange) -> WriterChange:
    return WriterChange(
        old=change.new,
        new=change.old,
        front_old=change.front_new,
        front_new=change.front_old,
        back_old=change.back_new,
        back_new=change.back_old,
    )


def _writers_applied(writers: Mapping[str, Writer], changes: Mapping[str, WriterChange]) -> dict[str, Writer]:
    applied = dict(writers)
    for name, change in changes.items():
        before = applied.pop(name, None)
        check(_bare(before) == change.old, "a diff fits its state", field="writers", key=name)
        outcomes = before.outcomes if before else ()
        front, back = len(change.front_old), len(outcomes) - len(change.back_old)
        fits = outcomes[:front] == change.front_old and outcomes[back:] == change.back_old and front <= back
        check(fits, "a diff fits its state", field="outcomes", key=name)
        if change.new is not None:
            kept = (*change.front_new, *outcomes[front:back], *change.back_new)
            applied[name] = replace(change.new, outcomes=kept)
    return applied


def _schemas(prev: tuple[SchemaEntry, ...], new: tuple[SchemaEntry, ...]) -> SchemasChange | None:
    if prev is new or prev == new:
        return None
    kept = 0
    while kept < min(len(prev), len(new)) and prev[kept] == new[kept]:
        kept += 1
    return SchemasChange(kept=kept, gone=prev[kept:], come=new[kept:])


def _schemas_applied(schemas: tuple[SchemaEntry, ...], change: SchemasChange) -> tuple[SchemaEntry, ...]:
    check(schemas[change.kept :] == change.gone, "a diff fits its state", field="schemas")
    return (*schemas[: change.kept], *change.come)


def _spine(prev: tuple[SpineBatch, ...], new: tuple[SpineBatch, ...]) -> SpineChange | None:
    if prev is new:
        return None
    removed, added = _others(prev, new), _others(new, prev)
    if not removed and not added:
        return None
    return SpineChange(
        removed=tuple(map(_entry, removed)),
        added=tuple(map(_entry, added)),
        splices=_splices(_hollow(removed), _hollow(added)),
    )


def _others(spine: tuple[SpineBatch, ...], than: tuple[SpineBatch, ...]) -> list[SpineBatch]:
    """The spine batches that the other spine lacks."""
    known = {each.lo: each for each in than}
    others = []
    for each in spine:
        twin = known.get(each.lo)
        if twin is not each and twin != each:
            others.append(each)
    return others


def _splices(before: tuple[HollowBatch, ...], after: tuple[HollowBatch, ...]) -> tuple[Splice, ...]:
    """How one sequence of batches becomes the other; both are in the order of time."""
    start, kept, splices = 0, 0, []
    gone: list[HollowBatch] = []
    come: list[HollowBatch] = []
    if after[: len(before)] == before:
        # Pure growth, however long: compared without a step of Python per batch.
        start = kept = len(before)
    old, new = start, start
    while old < len(before) or new < len(after):
        left = before[old] if old < len(before) else None
        right = after[new] if new < len(after) else None
        if left is not None and right is not None and (left is right or left == right):
            if gone or come:
                splices.append(Splice(kept=kept, gone=tuple(gone), come=tuple(come)))
                kept, gone, come = 0, [], []
            kept, old, new = kept + 1, old + 1, new + 1
        elif right is None or (left is not None and left.desc.upper.less_equal(right.desc.upper)):
            gone.append(before[old])
            old += 1
        else:
            come.append(right)
            new += 1
    if gone or come:
        splices.append(Splice(kept=kept, gone=tuple(gone), come=tuple(come)))
    return tuple(splices)


def _spine_applied(spine: tuple[SpineBatch, ...], change: SpineChange) -> tuple[SpineBatch, ...]:
    leaving = {entry.lo for entry in change.removed}
    removed = tuple([each for each in spine if each.lo in leaving])
    check(tuple(map(_entry, removed)) == change.removed, "a diff fits its state", field="spine")
    batches = _spliced(_hollow(removed), change.splices)
    spine_now, at = [each for each in spine if each.lo not in leaving], 0
    for entry in change.added:
        spine_now.append(_filled(entry, batches[at : at + entry.count]))
        at += entry.count
    check(at == len(batches), "a diff's spine batches hold all its batches", found=at, wanted=len(batches))
    return tuple(sorted(spine_now, key=attrgetter("lo")))


def _spliced(batches: tuple[HollowBatch, ...], splices: tuple[Splice, ...]) -> tuple[HollowBatch, ...]:
    spliced: list[HollowBatch] = []
    at = 0
    for splice in splices:
        spliced += batches[at : at + splice.kept]
        at += splice.kept
        fits = batches[at : at + len(splice.gone)] == splice.gone
        check(fits and at <= len(batches), "a diff fits its state", field="batches")
        at += len(splice.gone)
        spliced += splice.come
    return (*spliced, *batches[at:])


def _spine_swapped(change: SpineChange) -> SpineChange:
    splices = tuple([Splice(kept=each.kept, gone=each.come, come=each.gone) for each in change.splices])
    return SpineChange(removed=change.added, added=change.removed, splices=splices)


def _entry(each: SpineBatch) -> SpineEntry:
    return SpineEntry(lo=each.lo, hi=each.hi, level=each.level, claim=each.claim, count=len(each.batches))


def _filled(entry: SpineEntry, batches: tuple[HollowBatch, ...]) -> SpineBatch:
    return SpineBatch(
        lo=entry.lo,
        hi=entry.hi,
        level=entry.level,
        rows=sum(batch.rows for batch in batches),
        inline_bytes=sum(batch.inline_bytes for batch in batches),
        batches=batches,
        claim=entry.claim,
    )


def _hollow(spine: Iterable[SpineBatch]) -> tuple[HollowBatch, ...]:
    return tuple(chain.from_iterable(each.batches for each in spine))
