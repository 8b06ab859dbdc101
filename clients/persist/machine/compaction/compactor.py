"""Carrying out compactions: claim, merge, offer the result, and delete what no state can ever name.

The claim is renewed while the merge runs; one that was taken over ends the merge. What cannot be merged is set aside:
its claim is left to grow old, so that others can still compact the rest of the shard. Works over any ``Shards``: in the
process that commits, or in a service of its own. Source: design 001, PersistCompaction; persist-semantics.md section
2.4; reliability.md I7 and I9.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from persist.core.data.splits import KeyRange
from persist.core.frontier import MINIMUM, Antichain, Description
from persist.core.ids import ShardId, WriterId
from persist.core.shard.batch import HollowBatch, Part, Run, described_bytes, fingerprint
from persist.core.shard.commands import (
    ApplyMerge,
    ClaimCompaction,
    CompactionClaimed,
    MergeApplied,
    MergeRefused,
    ReleaseCompaction,
)
from persist.core.shard.compaction import MERGED_BYTES_MAX, Wanted
from persist.core.shard.ranges import halved
from persist.digits import whole_number
from persist.errors import LeaseExpired, PersistError, RequestTooLarge, UsageError
from persist.machine.compaction.damage import Unmergeable, damaged, is_of_data
from persist.machine.parts.budget import Budget
from persist.machine.parts.merging import Merging
from persist.machine.parts.negative import TakenBack
from persist.machine.parts.place import Place
from persist.machine.parts.reading import compaction_of
from persist.machine.shards import Shards
from persist.retry.attempts import RefusedInDoubt
from persist.retry.counts import UNCOUNTED, Counts
from persist.retry.table import Refusal
from persist.retry.tasks import Tasks, ended, kind_of

TRIES_PER_TURN: Final = 4
"""So many damaged batches of one claim are found before other shards have their turn."""

_log = logging.getLogger("persist.compaction")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionProgress:
    """How far a compaction is. ``rows_written`` ends at or below ``rows``, as rows that cancel go."""

    batches: int
    rows: int
    bytes: int
    rows_written: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The result of a compaction. ``applied`` False: another process had replaced its inputs, and nothing was lost.

    ``steps_left``: it was a step by which a large batch becomes one run, and not the last. ``negative``: different rows
    that were there less than no times at since, as far as the merge could know: it began at the first time, was no
    step, and wrote the rows anew.
    """

    desc: Description
    batches: int
    runs: int
    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int
    parts_reused: int
    applied: bool
    steps_left: bool = False
    negative: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Nothing of what is claimed can be merged for now. ``desc``: the times it covers."""

    desc: Description


Report = Callable[[CompactionProgress], None]


class Compactor:
    """Compacts shards, as many at once as it is asked to."""

    def __init__(
        self,
        shards: Shards,
        place: Place,
        *,
        budget: Budget | None = None,
        described_max: int = MERGED_BYTES_MAX,
        steps: bool = True,
        counts: Counts = UNCOUNTED,
    ) -> None:
        """``budget``: how much memory each may take; that of the place's settings unless given. ``described_max``:
        bytes that describe the parts of a result. ``steps`` False: claims are of batches that are merged at once."""
        self._shards = shards
        self._place = place
        self._budget = Budget.of(place.settings) if budget is None else budget
        self._described_max = described_max
        self._steps = steps
        self._counts = counts
        self._damage = Unmergeable(place.runtime)
        self._tasks = Tasks()
        self._fence_ms = 0

    def new_owner(self) -> WriterId:
        """A new name to compact under, younger than every fence this process met: another clock may be ahead."""
        runtime = self._place.runtime
        return WriterId.born(max(runtime.now_ms(), self._fence_ms), runtime.random_bytes(16))

    async def compact(
        self,
        shard: ShardId,
        owner: WriterId,
        *,
        whole: bool = False,
        before: Antichain | None = None,
        report: Report = lambda progress: None,
    ) -> Compacted | None:
        """Claim a compaction and carry it out; None when nothing is worth it.

        ``whole``: all that no other process compacts, worth it or not. ``before``: only batches that begin before it,
        so that repeating it ends. When it fails or is cancelled the claim is released. Raises UsageError, LeaseExpired
        (the claim was taken over), CorruptData, LocationError.
        """
        wanted = Wanted(whole=whole, before=before)
        try:
            claim = await self.claim(shard, owner, wanted=wanted)
            if claim is None:
                return None
            return await self._fitting(shard, owner, claim, claim, wanted=wanted, report=report)
        except BaseException:
            # Also when claiming failed or was cancelled: the claim may have been committed all the same.
            await self.release(shard, owner)
            raise

    async def compact_due(
        self, shard: ShardId, owner: WriterId, *, report: Report = lambda progress: None
    ) -> "Compacted | SetAside | None":
        """As ``compact``, of what is due; but what cannot be merged is set aside, and all around it is merged.

        What was found damaged is logged, counted, and left alone for a while, longer each time. SetAside: nothing
        else is left at the shard. The claim stays, so that no process tries before it is old: go on under another
        owner. Raises as ``compact``, when ``TRIES_PER_TURN`` merges failed or the last one did.
        """
        wanted = Wanted(aside=self._damage.prints(shard))
        try:
            claim = await self.claim(shard, owner, wanted=wanted)
            if claim is None:
                return None
            chosen = self._damage.workable(claim.batches)
            if not chosen:
                return SetAside(desc=_span(claim.batches))
            for left in reversed(range(TRIES_PER_TURN)):
                try:
                    work = claim if claim.step else replace(claim, batches=chosen)
                    return await self._fitting(shard, owner, claim, work, wanted=wanted, report=report)
                except Exception as error:
                    if not is_of_data(error):
                        raise
                    self._set_aside(shard, damaged(chosen, error), error)
                    chosen = self._damage.workable(claim.batches)
                    if not (left and chosen):
                        raise
        except BaseException:
            await self.release(shard, owner)
            raise
        raise AssertionError("unreachable")

    def _set_aside(self, shard: ShardId, batches: Sequence[HollowBatch], error: Exception) -> None:
        self._damage.note(shard, batches)
        self._counts.count("persist_compaction_set_aside_total", by=len(batches))
        desc = _span(batches)
        fields = {"shard": shard, "lower": desc.lower, "upper": desc.upper, "kind": kind_of(error), "error": str(error)}
        _log.warning("what cannot be merged is set aside: run persist fsck --deep", extra=fields)

    async def close(self) -> None:
        """Stop background work."""
        await self._tasks.close()

    async def claim(self, shard: ShardId, owner: WriterId, *, wanted: Wanted) -> CompactionClaimed | None:
        """The compaction the owner has claimed, now or before; None when nothing is worth it. Raises LocationError."""
        takeover_ms = self._place.settings.compaction_takeover_ms
        command = ClaimCompaction(
            owner=owner,
            takeover_ms=takeover_ms,
            whole=wanted.whole,
            steps=self._steps,
            before=wanted.before,
            aside=tuple(sorted(wanted.aside)),
        )
        attempts = self._place.attempts
        try:
            outcome = await attempts.repeat(
                attempts.deadline(None), lambda seconds: self._shards.apply(shard, command, timeout=seconds)
            )
        except LeaseExpired as error:
            self._fence_ms = max(self._fence_ms, whole_number(error.details.get("fence_ms", "")) or 0)
            raise
        return outcome if isinstance(outcome, CompactionClaimed) else None

    async def _fitting(
        self,
        shard: ShardId,
        owner: WriterId,
        claim: CompactionClaimed,
        work: CompactionClaimed,
        *,
        wanted: Wanted,
        report: Report,
    ) -> Compacted:
        """Do ``work``, which is all or a part of the claim; or half of it for as long as the result is too large.

        That shows while the merge runs, as soon as its parts are too many. Raises RequestTooLarge for the least.
        """
        while True:
            try:
                return await self._carry_out(shard, owner, claim, work, wanted=wanted, report=report)
            except RequestTooLarge:
                less = _half(work)
                if less is None:
                    raise
                work = less

    async def _carry_out(
        self,
        shard: ShardId,
        owner: WriterId,
        claim: CompactionClaimed,
        work: CompactionClaimed,
        *,
        wanted: Wanted,
        report: Report,
    ) -> Compacted:
        """Merge what lies side by side among what is claimed."""
        chosen, step = work.batches, work.step
        rows = sum(batch.rows for batch in chosen)
        size = sum(batch.encoded_bytes for batch in chosen)
        written = 0

        def on_rows(count: int) -> None:
            nonlocal written
            written += count
            report(CompactionProgress(batches=len(chosen), rows=rows, bytes=size, rows_written=written))

        async def verify() -> None:
            if not await self._holds(shard, owner, claim, wanted=wanted):
                raise _lost(shard)

        report(CompactionProgress(batches=len(chosen), rows=rows, bytes=size))
        taken_back = _taken_back(work)
        merging = Merging(
            self._place,
            shard=shard,
            owner=owner,
            budget=self._budget,
            verify=verify,
            on_rows=on_rows,
            on_part=_Described(self._described_max).add,
            taken_back=taken_back,
        )
        try:
            output = await self._merged(merging, shard, owner, claim, work, wanted=wanted)
        except BaseException:
            # Nothing names the parts, as no command did.
            await merging.discard()
            raise
        applied = await self.offer(shard, owner, work, output)
        await merging.tidy()
        negative = taken_back.rows if taken_back is not None else 0
        if negative:
            self._say_taken_back(shard, negative, work.since)
        return Compacted(
            desc=output.desc,
            batches=len(chosen),
            runs=sum(len(batch.runs) for batch in chosen),
            rows_before=rows,
            rows_after=output.rows,
            bytes_before=size,
            bytes_after=output.encoded_bytes,
            parts_reused=merging.reused,
            applied=applied,
            steps_left=step is not None and step.below is not None,
            negative=negative,
        )

    def _say_taken_back(self, shard: ShardId, rows: int, since: Antichain) -> None:
        self._counts.count("persist_compaction_negative_rows_total", by=rows)
        fields = {"shard": shard, "rows": rows, "as_of": since.time}
        _log.warning("rows are there less than no times: persist fsck --deep says what to do", extra=fields)

    async def _merged(
        self,
        merging: Merging,
        shard: ShardId,
        owner: WriterId,
        claim: CompactionClaimed,
        work: CompactionClaimed,
        *,
        wanted: Wanted,
    ) -> HollowBatch:
        """What becomes of the work, made while the claim is kept fresh."""
        if work.step is None and not any(batch.rows for batch in work.batches):
            return batch_of(work, ())
        making = self._tasks.start(self._made(merging, work))
        keeping = self._tasks.start(self.keep(shard, owner, claim, wanted=wanted))
        try:
            await asyncio.wait({making, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if not making.done():
                # Keeping only ends by failing: the claim belongs to another process now.
                await keeping
            output: HollowBatch = await making
            return output
        finally:
            await ended(making, keeping)

    async def _made(self, merging: Merging, work: CompactionClaimed) -> HollowBatch:
        step, since = work.step, work.since.time or 0
        reading = compaction_of(work.batches, work.schemas, self._place.settings, since)
        if step is None or step.below is None:
            merged = await merging.run(reading)
            if step is None:
                return batch_of(work, merged)
            return step_batch(work, [merged, *[()] * (len(step.pieces) - 1)])
        merged = await merging.run(reading.narrowed(key_range=KeyRange(upper=step.below)))
        [batch] = work.batches
        runs = iter(batch.runs)
        rests: list[tuple[Part, ...]] = []
        for piece in step.pieces:
            cut = tuple(filter(step.cuts, next(runs).parts)) if piece.count else ()
            rests.append(await self._rest(merging, work, batch, cut, KeyRange(lower=step.below)) if cut else ())
        return step_batch(work, [(*merged, *rests[0]), *rests[1:]])

    async def _rest(
        self, merging: Merging, work: CompactionClaimed, batch: HollowBatch, cut: tuple[Part, ...], keys: KeyRange
    ) -> tuple[Part, ...]:
        """What parts that a step cuts hold beyond its end, as parts of their own."""
        of = replace(batch, runs=(Run(parts=cut),))
        reading = compaction_of([of], work.schemas, self._place.settings, work.since.time or 0)
        return await merging.merged(reading.narrowed(key_range=keys))

    async def keep(self, shard: ShardId, owner: WriterId, claim: CompactionClaimed, *, wanted: Wanted) -> None:
        """Renew the claim every third of the time after which it counts as abandoned."""
        while True:
            await self._place.runtime.sleep(self._place.settings.compaction_takeover_ms / 3000)
            if not await self._holds(shard, owner, claim, wanted=wanted):
                raise _lost(shard)

    async def _holds(self, shard: ShardId, owner: WriterId, claim: CompactionClaimed, *, wanted: Wanted) -> bool:
        """Whether these batches are still claimed. SUBTLE: by now the claim may be on what replaced them."""
        now = await self.claim(shard, owner, wanted=wanted)
        if now is None or now.incarnation != claim.incarnation:
            return False
        return [*map(fingerprint, now.batches)] == [*map(fingerprint, claim.batches)]

    async def offer(self, shard: ShardId, owner: WriterId, claim: CompactionClaimed, output: HollowBatch) -> bool:
        """Put the output in place of what was claimed; whether it stands there now.

        From here on the output's parts are not this process's to delete, whatever the answer is: an attempt may be
        delivered twice, the second time after everything else was answered. What no state names is left to the sweeper.
        Raises UsageError, LeaseExpired, LocationError.
        """
        step = claim.step
        inputs = tuple(map(fingerprint, claim.batches)) if step is None else ()
        command = ApplyMerge(owner=owner, inputs=inputs, output=output, incarnation=claim.incarnation, step=step)
        attempts = self._place.attempts
        outcome: MergeApplied | MergeRefused | Refusal | UsageError | None
        try:
            outcome = await attempts.repeat(
                attempts.deadline(None), lambda seconds: self._shards.apply(shard, command, timeout=seconds)
            )
        except RefusedInDoubt as error:
            # SUBTLE: an attempt without an answer may have been applied, and its output compacted further since: a
            # refusal then says what is so now, which is all that is returned.
            outcome = error.refusal
            if not isinstance(outcome, MergeRefused):
                raise
        return isinstance(outcome, MergeApplied)

    async def release(self, shard: ShardId, owner: WriterId) -> None:
        """Give the claim up if that is possible at once; otherwise it grows old."""
        timeout = self._place.settings.store_timeout_ms / 1000
        with contextlib.suppress(PersistError, TimeoutError):
            async with asyncio.timeout(timeout):
                await self._shards.apply(shard, ReleaseCompaction(owner=owner), timeout=timeout)


class _Described:
    """Counts what the parts of a merge take to describe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0

    def add(self, part: Part) -> None:
        """Count one more. Raises RequestTooLarge once they could not be committed."""
        self._bytes += described_bytes(part)
        if self._bytes > self._most:
            raise RequestTooLarge(
                "the result of this merge has too many parts to be committed", hint="merge fewer batches at once"
            )


def _taken_back(work: CompactionClaimed) -> TakenBack | None:
    """What counts rows that are there less than no times, where the work has all up to its since."""
    first, last, since = work.batches[0].desc, work.batches[-1].desc, work.since
    if work.step is not None or since.time is None or first.lower != MINIMUM or last.upper.less_equal(since):
        return None
    return TakenBack(since.time)


def _half(work: CompactionClaimed) -> CompactionClaimed | None:
    """The first half of the batches, or of the step; None when there is no less."""
    if work.step is None:
        return replace(work, batches=work.batches[: (len(work.batches) + 1) // 2]) if len(work.batches) > 2 else None
    less = halved(work.batches[0], work.step)
    return None if less is None else replace(work, batches=(less[0],), step=less[1])


def step_batch(claim: CompactionClaimed, runs: Sequence[tuple[Part, ...]]) -> HollowBatch:
    """What takes the place of the pieces of a step: a run for each of them, which may be empty."""
    desc = replace(claim.batches[0].desc, since=claim.since)
    return HollowBatch(desc=desc, runs=tuple([Run(parts=parts) for parts in runs]))


def batch_of(claim: CompactionClaimed, parts: tuple[Part, ...]) -> HollowBatch:
    """What the claimed batches become: one run of these parts."""
    desc = replace(_span(claim.batches), since=claim.since)
    return HollowBatch(desc=desc, runs=(Run(parts=parts),) if parts else ())


def _span(batches: Sequence[HollowBatch]) -> Description:
    return Description(lower=batches[0].desc.lower, upper=batches[-1].desc.upper)


def _lost(shard: ShardId) -> LeaseExpired:
    return LeaseExpired("the claim on this compaction was taken over", hint="claim another", shard=shard)
