"""Differences between two states: what Consensus stores per commit.

``apply_diff(prev, diff(prev, new)) == new``. A diff holds what changed, not what is there: spine batches that are
joined only say how, removed batches only which they were, and a session only the outcomes that came and went.
Source: design 001, incremental state; reliability.md I14.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, takewhile
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from persist.core.frontier import Antichain, Description
from persist.core.shard.batch import HollowBatch, Part, Run, fingerprint, parts_fingerprint
from persist.core.shard.commands import Rollup, SchemaEntry
from persist.core.shard.state import STEPS_FORMAT, CallOutcome, CallSession, State
from persist.core.shard.table import Table
from persist.core.shard.trace import Claim, SpineBatch, Sums, Trace, of_sums
from persist.errors import check
from persist.typed import AnyValue, Record

T = TypeVar("T")

_AT_ONCE: Final = 1_024
"""Batches that are compared without a step of Python for each."""

Outcomes = tuple[CallOutcome, ...]

SCALARS: Final = (
    "format",
    "known_format",
    "walltime_ms",
    "hostname",
    "last_gc_req",
    "writers_since_ms",
    "incarnation",
    "sessions_forgotten",
    "tokens_forgotten",
    "transactions_forgotten",
    "active_rollup",
    "active_gc",
)
MAPS: Final = ("rollups", "leased_readers", "critical_readers", "writers", "tokens", "transactions")


@dataclass(frozen=True, slots=True)
class FieldChange(Generic[T]):
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
class Gone:
    """A batch that is taken out: its fingerprint, by which it is checked, and the blobs it named.

    ``bytes`` of those blobs; 0 in a diff that was read, as it is not stored.
    """

    fingerprint: bytes
    keys: tuple[str, ...]
    bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChange:
    """In a run, ``count`` parts from the place ``at`` on are replaced by ``come``."""

    run: int
    at: int
    count: int
    gone: Gone
    come: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChange:
    """The next ``count`` batches become one of ``since``: it has all their runs, in a row, with these changes.

    What is left without parts is no run of it. ``runs`` of one batch are changed at most once, in order.
    """

    count: int
    since: Antichain
    runs: tuple[RunChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Splice:
    """Pass over ``kept`` batches, then replace ``gone`` by ``come``, or change the next ones."""

    kept: int
    gone: tuple[Gone, ...]
    come: tuple[HollowBatch, ...]
    changed: BatchChange | None = None

    @property
    def released(self) -> Iterator[Gone]:
        """What it takes out, batch by batch and run by run."""
        return chain(self.gone, (each.gone for each in self.changed.runs) if self.changed else ())

    @property
    def parts(self) -> Iterator[Part]:
        """The parts it brings, some of which may have been there before."""
        whole = (part for batch in self.come for run in batch.runs for part in run.parts)
        return chain(whole, (part for each in self.changed.runs for part in each.come) if self.changed else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class SpineChange:
    """Spine batches replaced by others.

    All hollow batches of ``removed`` in a row, with ``splices`` applied one after the other, are those of ``added``: a
    batch that only moves from one spine batch to another is not repeated, and ``gone`` says which parts the
    shard no longer needs.
    """

    removed: tuple[SpineEntry, ...]
    added: tuple[SpineEntry, ...]
    splices: tuple[Splice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChange:
    """A session before and after, both without outcomes (None: not there), and the outcomes that went and came."""

    old: CallSession | None
    new: CallSession | None
    gone: Outcomes = ()
    come: Outcomes = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemasChange:
    """After the first ``kept`` schemas, ``gone`` were replaced by ``come``; going forward, nothing goes."""

    kept: int
    gone: tuple[SchemaEntry, ...]
    come: tuple[SchemaEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDiff:
    """From the state at ``seqno_from`` to the one at ``seqno_to``.

    ``latest_rollup`` is the newest rollup of the newer state: a cold open needs nothing else to begin. ``format`` is
    that of the newer state.
    """

    seqno_from: int
    seqno_to: int
    format: int
    latest_rollup: tuple[int, Rollup]
    scalars: Mapping[str, FieldChange[Any]]
    maps: Mapping[str, Mapping[Any, FieldChange[Any]]]
    sessions: Mapping[str, SessionChange]
    since: FieldChange[Antichain] | None
    upper: FieldChange[Antichain] | None
    next_id: FieldChange[int] | None
    spine: SpineChange | None
    schemas: SchemasChange | None


def diff(prev: State, new: State) -> StateDiff:
    """What leads from ``prev`` to ``new``."""
    return StateDiff(
        seqno_from=prev.seqno,
        seqno_to=new.seqno,
        format=new.format,
        latest_rollup=new.latest_rollup,
        scalars={
            name: FieldChange(getattr(prev, name), getattr(new, name)) for name in SCALARS if _differ(prev, new, name)
        },
        maps={name: _map(getattr(prev, name), getattr(new, name)) for name in MAPS if _differ(prev, new, name)},
        sessions={name: _session(*each) for name, each in prev.sessions.changes(new.sessions).items()},
        since=_changed(prev.since, new.since),
        upper=_changed(prev.upper, new.upper),
        next_id=_changed(prev.trace.next_id, new.trace.next_id),
        spine=_spine(prev.trace.spine, new.trace.spine, by_parts=new.format >= STEPS_FORMAT),
        schemas=_schemas(prev.schemas, new.schemas),
    )


def apply_diff(state: State, change: StateDiff) -> State:
    """The state that ``change`` leads to. Raises CorruptData unless it starts at ``state``."""
    check(state.seqno == change.seqno_from, "a diff fits its state", state=state.seqno, diff=change.seqno_from)
    values: Record = {name: _replaced(getattr(state, name), changed, name) for name, changed in change.scalars.items()}
    for name, entries in change.maps.items():
        values[name] = _map_applied(getattr(state, name), entries, name)
    if change.sessions:
        values["sessions"] = _sessions_applied(state.sessions, change.sessions)
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
    applied = replace(state, seqno=change.seqno_to, trace=trace, **values)
    check(applied.format == change.format, "a diff is in the format of its state", found=change.format)
    return applied


def gone(batch: HollowBatch) -> Gone:
    """What a diff says of a batch that it takes out: little, however much the batch names."""
    keys = tuple([part.key for run in batch.runs for part in run.parts if part.key is not None])
    return Gone(fingerprint=fingerprint(batch), keys=keys, bytes=batch.encoded_bytes - batch.inline_bytes)


def gone_parts(parts: Sequence[Part]) -> Gone:
    """What a diff says of parts that it takes out."""
    return Gone(
        fingerprint=parts_fingerprint(parts),
        keys=tuple([part.key for part in parts if part.key is not None]),
        bytes=sum([part.encoded_bytes - part.inline_bytes for part in parts]),
    )


def _differ(prev: State, new: State, name: str) -> bool:
    before, after = getattr(prev, name), getattr(new, name)
    return before is not after and before != after


def _changed(old: T, new: T) -> FieldChange[T] | None:
    return None if old == new else FieldChange(old, new)


def _replaced(value: AnyValue, changed: FieldChange[AnyValue] | None, name: str) -> AnyValue:
    if changed is None:
        return value
    check(value == changed.old, "a diff fits its state", field=name)
    return changed.new


def _map(prev: Mapping[AnyValue, T], new: Mapping[AnyValue, T]) -> dict[AnyValue, FieldChange[T]]:
    if prev is new:
        return {}
    if isinstance(prev, Table) and isinstance(new, Table):
        return {key: FieldChange(*both) for key, both in prev.changes(new).items()}
    changes: dict[Any, FieldChange[T]] = {}
    for key, value in new.items():
        before = prev.get(key)
        if before is not value and before != value:
            changes[key] = FieldChange(before, value)
    for key, value in prev.items():
        if key not in new:
            changes[key] = FieldChange(value, None)
    return changes


def _map_applied(
    values: Mapping[AnyValue, AnyValue], changes: Mapping[AnyValue, FieldChange[AnyValue]], name: str
) -> Mapping[AnyValue, AnyValue]:
    if isinstance(values, Table):
        for key, changed in changes.items():
            check(values.get(key) == changed.old, "a diff fits its state", field=name, key=key)
            values = values.without([key]) if changed.new is None else values.with_entry(key, changed.new)
        return values
    applied = dict(values)
    for key, changed in changes.items():
        check(applied.get(key) == changed.old, "a diff fits its state", field=name, key=key)
        if changed.new is None:
            del applied[key]
        else:
            applied[key] = changed.new
    return applied


def _session(old: CallSession | None, new: CallSession | None) -> SessionChange:
    before = old.outcomes if old else ()
    after = new.outcomes if new else ()
    # What became of a number never changes: outcomes come, and go when they are acknowledged.
    kept = {each.number for each in before} & {each.number for each in after}
    return SessionChange(
        old=_bare(old),
        new=_bare(new),
        gone=tuple([each for each in before if each.number not in kept]),
        come=tuple([each for each in after if each.number not in kept]),
    )


def _bare(session: CallSession | None) -> CallSession | None:
    return replace(session, outcomes=()) if session else None


def _sessions_applied(sessions: Table[CallSession], changes: Mapping[str, SessionChange]) -> Table[CallSession]:
    for name, change in changes.items():
        before = sessions.get(name)
        check(_bare(before) == change.old, "a diff fits its state", field="sessions", key=name)
        outcomes = before.outcomes if before else ()
        gone = set(change.gone)
        kept = [each for each in outcomes if each not in gone]
        check(len(kept) + len(gone) == len(outcomes), "a diff fits its state", field="outcomes", key=name)
        if change.new is None:
            check(not kept, "a diff fits its state", field="outcomes", key=name)
            sessions = sessions.without([name])
        else:
            numbered = sorted([*kept, *change.come], key=attrgetter("number"))
            sessions = sessions.with_entry(name, replace(change.new, outcomes=tuple(numbered)))
    return sessions


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


def _spine(prev: tuple[SpineBatch, ...], new: tuple[SpineBatch, ...], *, by_parts: bool) -> SpineChange | None:
    if prev is new:
        return None
    removed, added = _others(prev, new), _others(new, prev)
    if not removed and not added:
        return None
    return SpineChange(
        removed=tuple(map(_entry, removed)),
        added=tuple(map(_entry, added)),
        splices=_splices(_hollow(removed), _hollow(added), by_parts=by_parts),
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


def _splices(before: tuple[HollowBatch, ...], after: tuple[HollowBatch, ...], *, by_parts: bool) -> tuple[Splice, ...]:
    """How one sequence of batches becomes the other; both are in the order of time. ``by_parts``: also part by part."""
    start, kept = 0, 0
    splices: list[Splice] = []
    left_out: list[HollowBatch] = []
    come: list[HollowBatch] = []
    if after[: len(before)] == before:
        # Pure growth, however long: compared without a step of Python per batch.
        start = kept = len(before)
    else:
        ends = _common_end(before, after)
        before, after = before[: len(before) - ends], after[: len(after) - ends]
        start = kept = _common_begin(before, after)
    old, new = start, start
    while old < len(before) or new < len(after):
        left = before[old] if old < len(before) else None
        right = after[new] if new < len(after) else None
        if left is not None and right is not None and (left is right or left == right):
            if left_out or come:
                splices += _replacing(kept, left_out, come, by_parts=by_parts)
                kept, left_out, come = 0, [], []
            kept, old, new = kept + 1, old + 1, new + 1
        elif right is None or (left is not None and left.desc.upper.less_equal(right.desc.upper)):
            left_out.append(before[old])
            old += 1
        else:
            come.append(right)
            new += 1
    if left_out or come:
        splices += _replacing(kept, left_out, come, by_parts=by_parts)
    return tuple(splices)


def _replacing(
    kept: int, left_out: Sequence[HollowBatch], come: Sequence[HollowBatch], *, by_parts: bool
) -> Iterator[Splice]:
    """How some batches become others: those that only some parts of change by these, all others as they are."""
    old: list[HollowBatch] = []
    new: list[HollowBatch] = []
    ahead = iter(left_out)
    for batch in come:
        taken = []
        # Both are in the order of time: what ends by its end was replaced by it, or by what came before it.
        while (each := next(ahead, None)) is not None:
            taken.append(each)
            if not each.desc.upper.less_than(batch.desc.upper):
                break
        change = _batch_change(taken, batch) if by_parts else None
        if change is None:
            old, new = [*old, *taken], [*new, batch]
            continue
        if old or new:
            yield Splice(kept=kept, gone=tuple(map(gone, old)), come=tuple(new))
            kept, old, new = 0, [], []
        yield Splice(kept=kept, gone=(), come=(), changed=change)
        kept = 0
    old += ahead
    if old or new:
        yield Splice(kept=kept, gone=tuple(map(gone, old)), come=tuple(new))


def _batch_change(before: Sequence[HollowBatch], after: HollowBatch) -> BatchChange | None:
    """How adjacent batches become one that keeps parts of theirs; None when it keeps none, or covers other times."""
    if not before or after.truncated or any(batch.truncated for batch in before):
        return None
    if (before[0].desc.lower, before[-1].desc.upper) != (after.desc.lower, after.desc.upper):
        return None
    old = [run.parts for batch in before for run in batch.runs]
    new = [run.parts for run in after.runs]
    becomes = _aligned(old, new)
    if becomes is None:
        return None
    changes = [_run_change(run, parts, new[becomes[run]] if run in becomes else ()) for run, parts in enumerate(old)]
    return BatchChange(
        count=len(before), since=after.desc.since, runs=tuple([each for each in changes if each is not None])
    )


def _aligned(old: Sequence[tuple[Part, ...]], new: Sequence[tuple[Part, ...]]) -> dict[int, int] | None:
    """Which old run becomes which new one, both in order: those that share an end, then what lies between such.

    None when no two share any, or a new one has no place.
    """
    shared: list[tuple[int, int]] = []
    at = 0
    for number, parts in enumerate(new):
        found = next((run for run in range(at, len(old)) if _share_an_end(old[run], parts)), None)
        if found is not None:
            shared.append((found, number))
            at = found + 1
    if not shared:
        return None
    becomes = dict(shared)
    before_old = before_new = -1
    for run, number in [*shared, (len(old), len(new))]:
        free, wanted = range(before_old + 1, run), range(before_new + 1, number)
        if len(wanted) > len(free):
            return None
        becomes.update(zip(free, wanted, strict=False))
        before_old, before_new = run, number
    return becomes


def _share_an_end(one: tuple[Part, ...], other: tuple[Part, ...]) -> bool:
    return one[0] == other[0] or one[-1] == other[-1]


def _run_change(run: int, old: tuple[Part, ...], new: tuple[Part, ...]) -> RunChange | None:
    """What changes between what both begin and end with."""
    if old is new:
        return None
    at = sum(1 for _ in takewhile(_same_part, zip(old, new, strict=False)))
    end = sum(1 for _ in takewhile(_same_part, zip(reversed(old[at:]), reversed(new[at:]), strict=False)))
    left_out, come = old[at : len(old) - end], new[at : len(new) - end]
    if not left_out and not come:
        return None
    return RunChange(run=run, at=at, count=len(left_out), gone=gone_parts(left_out), come=come)


def _same_part(both: tuple[Part, Part]) -> bool:
    return both[0] is both[1] or both[0] == both[1]


def _common_begin(before: Sequence[HollowBatch], after: Sequence[HollowBatch]) -> int:
    """How many batches both begin with."""
    at, most = 0, min(len(before), len(after))
    while at + _AT_ONCE <= most and before[at : at + _AT_ONCE] == after[at : at + _AT_ONCE]:
        at += _AT_ONCE
    end = at + _AT_ONCE
    return at + sum(1 for _ in takewhile(_same, zip(before[at:end], after[at:end], strict=False)))


def _common_end(before: Sequence[HollowBatch], after: Sequence[HollowBatch]) -> int:
    """How many batches both end with."""
    old, new = len(before), len(after)
    while min(old, new) >= _AT_ONCE and before[old - _AT_ONCE : old] == after[new - _AT_ONCE : new]:
        old, new = old - _AT_ONCE, new - _AT_ONCE
    least = min(old, new, _AT_ONCE)
    last = zip(reversed(before[old - least : old]), reversed(after[new - least : new]), strict=True)
    return len(before) - old + sum(1 for _ in takewhile(_same, last))


def _same(both: tuple[HollowBatch, HollowBatch]) -> bool:
    return both[0] is both[1]


def _spine_applied(spine: tuple[SpineBatch, ...], change: SpineChange) -> tuple[SpineBatch, ...]:
    leaving = {entry.lo for entry in change.removed}
    removed = tuple([each for each in spine if each.lo in leaving])
    check(tuple(map(_entry, removed)) == change.removed, "a diff fits its state", field="spine")
    before = _hollow(removed)
    batches, left_out, come = _spliced(before, change.splices)
    wanted = sum([entry.count for entry in change.added])
    check(wanted == len(batches), "a diff's spine batches hold all its batches", found=wanted, wanted=len(batches))
    sums = Sums.of_all(each.sums for each in removed) + Sums.of(come) - Sums.of(left_out)
    largest = max(change.added, key=attrgetter("count"), default=None)
    ends = list(accumulate([entry.count for entry in change.added]))
    ranges = [(entry, batches[end - entry.count : end]) for entry, end in zip(change.added, ends, strict=True)]
    # Of the largest, which may have most batches of the shard, by what the others leave: few of them are looked at.
    others = {id(entry): Sums.of(inside) for entry, inside in ranges if entry is not largest}
    rest = sums - Sums.of_all(others.values())
    spine_now = [each for each in spine if each.lo not in leaving]
    spine_now += [
        of_sums(entry.lo, entry.hi, inside, others.get(id(entry), rest), level=entry.level, claim=entry.claim)
        for entry, inside in ranges
    ]
    return tuple(sorted(spine_now, key=attrgetter("lo")))


def _spliced(
    batches: tuple[HollowBatch, ...], splices: tuple[Splice, ...]
) -> tuple[tuple[HollowBatch, ...], list[HollowBatch], list[HollowBatch]]:
    """The batches after the splices, and those of them that went and came."""
    spliced, left_out, come = list[HollowBatch](), list[HollowBatch](), list[HollowBatch]()
    at = 0
    for splice in splices:
        spliced += batches[at : at + splice.kept]
        at += splice.kept
        going = batches[at : at + len(splice.gone)]
        fits = tuple(map(gone, going)) == splice.gone
        check(fits and at <= len(batches), "a diff fits its state", field="batches")
        at += len(splice.gone)
        left_out += going
        come += splice.come
        spliced += splice.come
        if splice.changed is not None:
            end = at + splice.changed.count
            check(at < end <= len(batches), "a diff fits its state", field="batches")
            changed = _batch_changed(batches[at:end], splice.changed)
            left_out += batches[at:end]
            come.append(changed)
            spliced.append(changed)
            at = end
    return (*spliced, *batches[at:]), left_out, come


def _batch_changed(batches: tuple[HollowBatch, ...], change: BatchChange) -> HollowBatch:
    runs = [run.parts for batch in batches for run in batch.runs]
    check(not any(batch.truncated for batch in batches), "a diff fits its state", field="truncated")
    numbers = [each.run for each in change.runs]
    known = numbers == sorted({*numbers}) and max(numbers, default=-1) < len(runs)
    check(known, "a diff fits its state", field="runs")
    for each in change.runs:
        parts = runs[each.run]
        left_out = parts[each.at : each.at + each.count]
        check(
            each.at <= len(parts) and len(left_out) == each.count and gone_parts(left_out) == each.gone,
            "a diff fits its state",
            field="parts",
        )
        runs[each.run] = (*parts[: each.at], *each.come, *parts[each.at + each.count :])
    desc = Description(lower=batches[0].desc.lower, upper=batches[-1].desc.upper, since=change.since)
    return HollowBatch(desc=desc, runs=tuple([Run(parts=parts) for parts in runs if parts]))


def _entry(each: SpineBatch) -> SpineEntry:
    return SpineEntry(lo=each.lo, hi=each.hi, level=each.level, claim=each.claim, count=len(each.batches))


def _hollow(spine: Iterable[SpineBatch]) -> tuple[HollowBatch, ...]:
    return tuple(chain.from_iterable(each.batches for each in spine))


def replaces(change: StateDiff) -> bool:
    """Whether a commit released blobs of batches, also one that was read: those do not say how large these were."""
    if change.spine is None:
        return False
    gone = {key for splice in change.spine.splices for each in splice.released for key in each.keys}
    return bool(gone) and not gone <= {part.key for splice in change.spine.splices for part in splice.parts}
