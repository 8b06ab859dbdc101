"""Checking a shard: every live state is rebuilt and verified, and everything it names is looked for.

Walks from the rollup of the oldest diff to the newest state. Changes nothing; safe beside everything else: what it
misses because it was collected meanwhile is not reported. Source: reliability.md I8, I12, I13, I14 and I24.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from persist.core.data.schema import Schema
from persist.core.ids import ShardId
from persist.core.shard.batch import HollowBatch, Part
from persist.core.shard.commands import Rollup
from persist.core.shard.diff import StateDiff, apply_diff
from persist.core.shard.invariants import check_cheap, check_state
from persist.core.shard.state import State
from persist.errors import CorruptData, LocationError, PersistError, VersionMismatch
from persist.machine.garbage.inventory import BlobVerdict, Inventory, place_of
from persist.machine.garbage.sweeper import SAFE_AGE_MS
from persist.machine.intake import schemas_of
from persist.machine.parts.one_blob import NotReturned, OneByOne
from persist.machine.upkeep import next_step
from persist.machine.upkeep.next_step import NextStep
from persist.machine.upkeep.rollups import RollupRepair
from persist.retry.attempts import Attempts
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Entry
from persist.wire.checksum import crc32c
from persist.wire.columnar.verify import PartFlaw, verify_blob, verify_inline_run
from persist.wire.shard.state import decode_diff, encode_rollup

BATCHES_MAX: Final = 64
"""Live batches a shard whose compaction keeps up has, and for each tier ``BATCHES_PER_TIER`` more."""
BATCHES_PER_TIER: Final = 8
COSTS: Final = ("I12", "I13")
"""Invariants about what a shard costs: no reader misses anything where they do not hold."""
ROLLUPS_BEHIND_MAX: Final = 4
"""Rollup intervals of diffs that no reader holds."""
_PAGE_DIFFS: Final = 512

MISSING: Final = "a live state names it, and it is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong: which invariant does not hold, at which blob or seqno, and what to do next, in this order.

    ``note``: no state misses anything; it costs room, as what crashed writers and cut calls leave does.
    """

    shard: str
    invariant: str
    where: str
    what: str
    steps: tuple[NextStep, ...]
    note: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBlob:
    """What a state says about a blob; ``part``: where it is one."""

    bytes: int
    checksum: int
    part: Part | None = None


@dataclass(slots=True)
class _Walk:
    """The history as far as it could be rebuilt: its newest state, and the keys that readable states name."""

    state: State | None = None
    named: dict[str, NamedBlob] | None = None
    schemas: Sequence[Schema] = ()
    taken: bool = False


Report = Callable[[int], None]
OnProblem = Callable[..., None]
"""Called with an invariant, where it does not hold, what is wrong, and next steps."""


class Fsck:
    """Checks shards. Memory: the state, and one entry per blob of the shard that is checked."""

    def __init__(self, survey: Inventory, *, settings: Settings, runtime: Runtime) -> None:
        self._survey = survey
        self._versions = survey.versions
        self._settings = settings
        self._runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)

    async def check(
        self,
        shard: ShardId,
        *,
        deep: bool = False,
        safe_age_ms: int = SAFE_AGE_MS,
        report: Report = lambda steps: None,
    ) -> list[Problem]:
        """Everything wrong with a shard, and notes of what it costs too much; empty when it is sound.

        ``deep`` reads every blob and checks its bytes.
        ``report`` is called with each number of steps done: one per blob listed, live diff, and blob read. Raises
        LocationError.
        """
        deadline = Deadline(self._runtime, self._settings.maintenance_timeout_ms / 1000)
        sizes: dict[str, int] = {}
        async for key, size in self._survey.blobs(shard):
            sizes[key] = size
            report(1)
        problems: list[Problem] = []
        reported: set[tuple[str, str]] = set()

        def on_problem(invariant: str, where: object, what: str, *steps: NextStep) -> None:
            if (invariant, str(where)) in reported:
                return
            reported.add((invariant, str(where)))
            note = invariant in COSTS
            problems.append(
                Problem(shard=shard, invariant=invariant, where=str(where), what=what, steps=steps, note=note)
            )

        # The head is read after the listing: what was listed is of a state at or before it.
        head = await self._head(shard, deadline)
        if head is None:
            if sizes and all(place_of(key).seqno == 0 for key in sizes):
                what = f"{len(sizes)} first rollups and no state: it was about to be made when that was interrupted"
                on_problem(
                    "I12", shard, what, NextStep(text="nothing: the next open of the shard makes it; then sweep it")
                )
            elif sizes:
                what = f"{len(sizes)} blobs and no state: it was never initialised, or Consensus has lost it"
                steps = (next_step.rebuild(shard),)
                problems.append(Problem(shard=shard, invariant="I12", where=shard, what=what, steps=steps))
            return problems
        _check_rewound(sizes, head.seqno, on_problem)
        walk = await self._walk(shard, head, deadline, on_problem, report)
        rebuilt, walk.state = walk.state is not None, None
        missing = await self._check_blobs(shard, walk, sizes, deep=deep, on_problem=on_problem, report=report)
        if not rebuilt:
            for key in missing:
                on_problem("I8", key, MISSING, *await self._lost(shard, key, deadline))
        else:
            # Bytes may have been read for hours.
            deadline = Deadline(self._runtime, self._settings.maintenance_timeout_ms / 1000)
            await self._check_missing(shard, missing, deadline, on_problem)
            await self._check_leaks(shard, safe_age_ms, deadline, on_problem)
        return problems

    async def missing(self, shard: ShardId) -> list[str]:
        """Missing keys that readable states name; of an unknown shard none.

        Only the newest rollup when that is not there: once it is back, what it names can be found. Raises
        LocationError, CorruptData.
        """
        deadline = Deadline(self._runtime, self._settings.maintenance_timeout_ms / 1000)
        rollup = await self._missing_rollup(shard, deadline)
        if rollup is not None:
            return [rollup]
        names = await self._survey.names(shard, deadline)
        there = {key async for key, _ in self._survey.blobs(shard)}
        gone = sorted(names.current - there) if names is not None else []
        again = await self._survey.names(shard, deadline)
        return [key for key in gone if again is not None and key in again.current]

    async def _missing_rollup(self, shard: ShardId, deadline: Deadline) -> str | None:
        """The key of the rollup that the newest diff names, if it is not there."""
        key: str | None = None
        while (head := await self._head(shard, deadline)) is not None:
            newest = decode_diff(head.data, shard, head.seqno).latest_rollup[1].key
            if newest == key:
                return key
            if await self._is_there(newest, deadline):
                return None
            # Gone, or collected since: then a newer diff names a newer one.
            key = newest
        return None

    async def _lost(
        self, shard: ShardId, key: str, deadline: Deadline, *, readable: bool = True
    ) -> tuple[NextStep, ...]:
        """What to do about a blob that is missing."""
        steps = _damaged(shard, key, readable=readable)
        try:
            timeout = deadline.slice(self._settings.blob_timeout_ms)
            await self._versions.blob.restore(key, dry_run=True, timeout=timeout)
        except LocationError as error:
            unknown = NextStep(text=f"whether the store kept it is not known: {error.hint}")
            return (unknown, *steps) if error.hint else steps
        return (next_step.restore(shard), *steps)

    async def _is_there(self, key: str, deadline: Deadline) -> bool:
        async def call(seconds: float) -> bytes | None:
            return await self._versions.blob.get(key, byte_range=(0, 0), timeout=seconds)

        limit = self._settings.blob_timeout_ms
        return await self._attempts.read(deadline, call, limit_ms=limit) is not None

    async def _head(self, shard: ShardId, deadline: Deadline) -> Entry | None:
        async def call(seconds: float) -> Entry | None:
            return await self._versions.consensus.head(shard, timeout=seconds)

        return await self._attempts.read(deadline, call, limit_ms=self._settings.store_timeout_ms)

    async def _walk(
        self, shard: ShardId, head: Entry, deadline: Deadline, on_problem: OnProblem, report: Report
    ) -> _Walk:
        """Rebuild every live state in turn. Ends early at the first one that cannot be."""
        newest = await self._newest(shard, deadline, on_problem)
        walk = _Walk() if newest is None else _Walk(named={}, schemas=schemas_of(newest.schemas))
        before: State | None = None
        at = 0
        while True:
            entries = await self._scan(shard, at, deadline)
            for entry in entries:
                if newest is not None and entry.seqno > newest.seqno:
                    return self._ended(walk, before, newest, on_problem)
                change = _decoded(shard, entry, at, on_problem, next_step.BEYOND if newest is None else next_step.MOVE)
                report(1)
                if change is None:
                    return _of_newest(walk, newest)
                at = entry.seqno + 1
                if newest is None:
                    continue
                if before is None:
                    before = await self._first(shard, change, newest, deadline, on_problem)
                else:
                    before = _next(before, change, on_problem)
                    await self._check_rollup(before, newest, deadline, on_problem)
                if before is None:
                    return _of_newest(walk, newest)
                await self._take_names(walk, before, change, newest, on_problem)
            if len(entries) < _PAGE_DIFFS:
                return self._ended(walk, before, newest, on_problem)

    async def _newest(self, shard: ShardId, deadline: Deadline, on_problem: OnProblem) -> State | None:
        try:
            version = await self._versions.load(shard, deadline)
        except VersionMismatch as error:
            on_problem("I24", "newest state", error.message, next_step.after(error, shard))
            return None
        except CorruptData as error:
            await self._report_unreadable(shard, error, deadline, on_problem)
            return None
        return None if version is None else version.state

    async def _report_unreadable(
        self, shard: ShardId, error: CorruptData, deadline: Deadline, on_problem: OnProblem
    ) -> None:
        """The newest state cannot be read: report its missing rollup, or what is damaged."""
        with contextlib.suppress(CorruptData, VersionMismatch):
            mendable = await RollupRepair(self._versions, settings=self._settings, runtime=self._runtime).find(shard)
            if mendable is not None:
                why = f"the newest rollup cannot be read; one of seqno {mendable.origin} and the diffs after it can"
                on_problem("I8", mendable.key, why, next_step.COPY, next_step.rewrite(shard))
                return
            gone = await self._missing_rollup(shard, deadline)
            if gone is not None:
                on_problem("I8", gone, MISSING, *await self._lost(shard, gone, deadline, readable=False))
                return
        where = error.details.get("key") or (f"seqno {error.details['seqno']}" if "seqno" in error.details else shard)
        on_problem("I24", where, f"the newest state cannot be read: {error.message}", next_step.BEYOND)

    def _ended(self, walk: _Walk, last: State | None, newest: State | None, on_problem: OnProblem) -> _Walk:
        if last is None or newest is None:
            return walk
        if encode_rollup(last) != encode_rollup(newest):
            what = "the newest state differs from the one rebuilt from the start"
            on_problem("I14", f"seqno {newest.seqno}", what, next_step.WRONG_STORE)
        _check_bounds(newest, self._settings, on_problem)
        walk.state = newest
        return walk

    async def _scan(self, shard: ShardId, at: int, deadline: Deadline) -> list[Entry]:
        async def call(seconds: float) -> list[Entry]:
            return await self._versions.consensus.scan(shard, at, _PAGE_DIFFS, timeout=seconds)

        return await self._attempts.read(deadline, call, limit_ms=self._settings.store_timeout_ms)

    async def _first(
        self, shard: ShardId, change: StateDiff, newest: State, deadline: Deadline, on_problem: OnProblem
    ) -> State | None:
        """The state that the oldest diff made: it has a rollup, or is the first of all."""
        seqno = change.seqno_to
        rollup = change.latest_rollup[1] if seqno == 0 else None
        if rollup is None:
            rollup = newest.rollups.get(seqno)
        if rollup is None:
            what = "no rollup is of the oldest diff: older states than the newest cannot be rebuilt"
            on_problem("I8", f"seqno {seqno}", what, next_step.collect(shard))
            return None
        try:
            state = await self._versions.rollup(shard, seqno, rollup, deadline)
        except (CorruptData, VersionMismatch) as error:
            on_problem("I24", rollup.key, error.message, *_damaged(shard, rollup.key))
            return None
        if state is None:
            what = "the rollup of the oldest diff is missing"
            on_problem("I8", rollup.key, what, *await self._lost(shard, rollup.key, deadline))
            return None
        _check_sound(state, None, on_problem)
        return state

    async def _take_names(
        self, walk: _Walk, state: State, change: StateDiff, newest: State, on_problem: OnProblem
    ) -> None:
        """What the state names, or ``change`` has added to what those before it do.

        States before the oldest one that is held have no readers, and their blobs may be gone already.
        """
        if walk.named is None or state.seqno < newest.seqno_since:
            return
        if walk.taken:
            splices = () if change.spine is None else change.spine.splices
            batches: Iterable[HollowBatch] = (batch for splice in splices for batch in splice.come)
            for part in chain.from_iterable(splice.parts for splice in splices):
                _take_part(walk.named, part)
        else:
            batches = state.trace.batches
        walk.taken = True
        for batch in batches:
            for part in batch.parts:
                _take_part(walk.named, part)
            if batch.inline_bytes:
                flaw = await self._runtime.offload(inline_flaw, batch, walk.schemas)
                if flaw:
                    where = f"batch {batch.desc.lower} to {batch.desc.upper}"
                    on_problem("I24", where, f"an inline part is damaged: {flaw}", next_step.repair(state.shard))
        for rollup in state.rollups.values():
            _take_rollup(walk.named, rollup)

    async def _check_rollup(
        self, state: State | None, newest: State, deadline: Deadline, on_problem: OnProblem
    ) -> None:
        """Whether the rollup of this state, if there is one, is what was rebuilt."""
        rollup = None if state is None else newest.rollups.get(state.seqno)
        if state is None or rollup is None:
            return
        try:
            stored = await self._versions.rollup(state.shard, state.seqno, rollup, deadline)
        except (CorruptData, VersionMismatch) as error:
            on_problem("I24", rollup.key, error.message, *_damaged(newest.shard, rollup.key))
            return
        if stored is not None and encode_rollup(stored) != encode_rollup(state):
            on_problem("I14", rollup.key, "a rollup differs from the state rebuilt by diffs", next_step.MOVE)

    async def _check_blobs(
        self,
        shard: ShardId,
        walk: _Walk,
        sizes: dict[str, int],
        *,
        deep: bool,
        on_problem: OnProblem,
        report: Report,
    ) -> list[str]:
        """The named blobs that are not there; the damaged ones are reported."""
        missing = []
        reads = OneByOne(self._versions.blob, settings=self._settings, runtime=self._runtime)
        for key, named in sorted((walk.named or {}).items()):
            size = sizes.get(key)
            if size is None:
                missing.append(key)
                continue
            if size != named.bytes:
                what = f"it has {size:,} bytes, and must have {named.bytes:,}"
                on_problem("I8", key, what, *_damaged(shard, key))
            elif deep:
                await self._check_bytes(shard, key, named, walk.schemas, reads, on_problem)
                report(1)
        return missing

    async def _check_bytes(
        self,
        shard: ShardId,
        key: str,
        named: NamedBlob,
        schemas: Sequence[Schema],
        reads: OneByOne,
        on_problem: OnProblem,
    ) -> None:
        try:
            data = await reads.get(key)
        except NotReturned as error:
            on_problem("I8", key, error.message, NextStep(text=error.hint))
            return
        except CorruptData as error:
            on_problem("I24", key, error.message, *_damaged(shard, key, deep=True))
            return
        if data is None:
            # Gone since it was listed: collected meanwhile, or the next check reports it.
            return
        flaw = await self._runtime.offload(_flaw, named, data, schemas)
        if flaw:
            on_problem("I24", key, flaw, *_damaged(shard, key, deep=True))

    async def _check_missing(
        self, shard: ShardId, missing: list[str], deadline: Deadline, on_problem: OnProblem
    ) -> None:
        """Report those that states still name, and that are still not there."""
        names = await self._survey.names(shard, deadline) if missing else None
        for key in missing:
            there = await self._is_there(key, deadline)
            if names is not None and key in names.current | names.held and not there:
                on_problem("I8", key, MISSING, *await self._lost(shard, key, deadline))

    async def _check_leaks(self, shard: ShardId, safe_age_ms: int, deadline: Deadline, on_problem: OnProblem) -> None:
        names = await self._survey.names(shard, deadline)
        if names is None:
            return
        count = size = 0
        async for found in self._survey.found(names, fence_ms=max(0, self._runtime.now_ms() - safe_age_ms)):
            if found.verdict is BlobVerdict.LEAKED:
                count, size = count + 1, size + found.size
        if count:
            on_problem("I12", f"{shard}/", f"{count:,} leaked blobs of {size:,} bytes", next_step.sweep(shard))


def _check_rewound(sizes: Iterable[str], head: int, on_problem: OnProblem) -> None:
    for key in sizes:
        seqno = place_of(key).seqno
        if seqno is not None and seqno > head:
            what = f"a rollup of seqno {seqno} is there, and Consensus ends at {head}: its history was rewound"
            on_problem("I3", key, what, next_step.WRONG_STORE)


def _of_newest(walk: _Walk, newest: State | None) -> _Walk:
    """The walk for one that ended early: what the newest state names is looked for all the same."""
    if newest is not None and walk.named is not None:
        for batch in newest.trace.batches:
            for part in batch.parts:
                _take_part(walk.named, part)
        for rollup in newest.rollups.values():
            _take_rollup(walk.named, rollup)
    return walk


def _decoded(shard: ShardId, entry: Entry, at: int, on_problem: OnProblem, step: NextStep) -> StateDiff | None:
    if at and entry.seqno != at:
        on_problem("I1", f"seqno {at}", f"the diff is missing, the next one is {entry.seqno}", next_step.WRONG_STORE)
        return None
    try:
        return decode_diff(entry.data, shard, entry.seqno)
    except (CorruptData, VersionMismatch) as error:
        on_problem("I24", f"seqno {entry.seqno}", error.message, step)
        return None


def _next(before: State, change: StateDiff, on_problem: OnProblem) -> State | None:
    where = f"seqno {change.seqno_to}"
    try:
        state = apply_diff(before, change)
    except PersistError as error:
        on_problem("I14", where, f"the diff does not fit the state before it: {error.message}", next_step.MOVE)
        return None
    _check_sound(state, before, on_problem)
    return state


def _check_sound(state: State, before: State | None, on_problem: OnProblem) -> None:
    """Report a state that breaks invariants, alone or after the one before it."""
    try:
        if before is not None:
            check_cheap(before, state)
        check_state(state, after=before)
    except PersistError as error:
        on_problem(
            "state", f"seqno {state.seqno}", error.message, NextStep(text="report it: no release writes such a state")
        )


def _damaged(shard: ShardId, key: str, *, deep: bool = False, readable: bool = True) -> tuple[NextStep, ...]:
    """What to do about a blob whose bytes are not there; ``deep``: only reading it shows that.

    A part is taken out. A rollup is not needed once a newer one is there and older states are released, if the newest
    state is ``readable`` without it.
    """
    if place_of(key).seqno is None:
        return next_step.COPY, next_step.repair(shard, deep=deep)
    return next_step.COPY, next_step.collect(shard) if readable else next_step.BEYOND


def inline_flaw(batch: HollowBatch, schemas: Sequence[Schema]) -> str:
    """What is wrong with the inline parts of a batch; empty: nothing."""
    try:
        for run in batch.runs:
            verify_inline_run(run, schemas)
    except PartFlaw as flaw:
        return str(flaw)
    return ""


def _flaw(named: NamedBlob, data: bytes, schemas: Sequence[Schema]) -> str:
    """What is wrong with the bytes of a blob; empty: nothing."""
    part = named.part
    if part is None or part.schema_id >= len(schemas):
        return "" if crc32c(data) == named.checksum else "its bytes are not those that were written"
    try:
        verify_blob(part, data, schemas[part.schema_id])
    except PartFlaw as flaw:
        return str(flaw)
    return ""


def _take_part(named: dict[str, NamedBlob], part: Part) -> None:
    if part.key is not None and part.key not in named:
        named[part.key] = NamedBlob(bytes=part.encoded_bytes, checksum=part.checksum, part=part)


def _take_rollup(named: dict[str, NamedBlob], rollup: Rollup) -> None:
    named[rollup.key] = NamedBlob(bytes=rollup.encoded_bytes, checksum=rollup.checksum)


def _check_bounds(state: State, settings: Settings, on_problem: OnProblem) -> None:
    batches = sum(len(each.batches) for each in state.trace.spine)
    limit = BATCHES_MAX + BATCHES_PER_TIER * state.trace.rows.bit_length()
    if batches > limit:
        what = f"{batches:,} live batches, {limit:,} at most when compaction keeps up"
        on_problem("I13", f"seqno {state.seqno}", what, next_step.compact(state.shard))
    behind = state.seqno_since - min(state.rollups)
    if behind > ROLLUPS_BEHIND_MAX * settings.rollup_every + settings.gc_versions_max:
        what = f"{behind:,} diffs that no reader holds are still there"
        on_problem("I13", f"seqno {min(state.rollups)}", what, next_step.collect(state.shard))
    if state.inline_bytes > settings.inline_total_bytes_max:
        what = f"{state.inline_bytes:,} inline bytes, at most {settings.inline_total_bytes_max:,} are allowed"
        on_problem("I13", f"seqno {state.seqno}", what, next_step.compact(state.shard))
