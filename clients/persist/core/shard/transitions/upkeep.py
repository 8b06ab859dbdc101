"""What maintenance commands do to a state: rollups, garbage, compactions, fences, the end of a shard.

Source: persist-semantics.md sections 2.3, 2.4 and 2.7; reliability.md I7, I9, I11 and I12.
"""

import dataclasses
from typing import Final

from persist.core.ids import WriterId, check_blob_key
from persist.core.shard import commands as c
from persist.core.shard import compaction as k
from persist.core.shard import ranges as r
from persist.core.shard.batch import fingerprint
from persist.core.shard.closed import not_closed
from persist.core.shard.environments import check_no_other
from persist.core.shard.ranges import Bounds
from persist.core.shard.retention import closed, is_fenced, is_forgotten, shrunk
from persist.core.shard.state import State
from persist.core.shard.trace import SpineBatch
from persist.core.shard.transitions.append import check_parts
from persist.core.shard.transitions.calls import check_incarnation, without_idle_writers
from persist.core.shard.transitions.dispatch import Context, transition
from persist.errors import InvalidArgument, InvalidId, LeaseExpired

_TAKEOVER_MS_MAX: Final = 86_400_000


@transition.register
def add_rollup(command: c.AddRollup, state: State, context: Context) -> tuple[State, c.RollupAdded]:
    """Name a rollup of a state, so that nothing before it is needed to open the shard."""
    check_incarnation(state, command.incarnation)
    check_blob_key(command.rollup.key, state.shard)
    if not command.rollup.key.startswith(f"{state.shard}/rollup/{command.seqno}-"):
        raise InvalidId("a rollup's key names its seqno", seqno=command.seqno, key=command.rollup.key)
    known = state.rollups.get(command.seqno)
    if known is not None:
        return state, c.RollupAdded(applied=known.key == command.rollup.key)
    if not 0 <= command.seqno <= state.seqno or command.seqno < min(state.rollups, default=0):
        return state, c.RollupAdded(applied=False)
    rollups = {**state.rollups, command.seqno: command.rollup}
    return state.evolved(rollups=rollups, active_rollup=None), c.RollupAdded(applied=True)


@transition.register
def remove_rollups(command: c.RemoveRollups, state: State, context: Context) -> tuple[State, c.RollupsRemoved]:
    """Forget rollups below one that is kept."""
    check_incarnation(state, command.incarnation)
    gone = {seqno for seqno in state.rollups if seqno < command.below}
    if gone and (command.below not in state.rollups or command.below > state.seqno_since):
        raise InvalidArgument(
            "a rollup from which every readable state can be rebuilt stays",
            hint="name one at or before the oldest seqno that is held",
            below=command.below,
        )
    outcome = c.RollupsRemoved(
        rollups=tuple(state.rollups[seqno] for seqno in sorted(gone)), seqno=state.seqno + 1 if gone else state.seqno
    )
    claim = state.active_gc
    # The claim may be of a later pass by a process that took over: then it belongs to that one.
    mine = claim is not None and claim.seqno <= command.below
    if not gone and not mine:
        return state, outcome
    kept = {seqno: rollup for seqno, rollup in state.rollups.items() if seqno not in gone}
    return state.evolved(rollups=kept, active_gc=None if mine else claim), outcome


# ---- compaction --------------------------------------------------------------------------------------------------


@transition.register
def claim_compaction(
    command: c.ClaimCompaction, state: State, context: Context
) -> tuple[State, c.CompactionClaimed | c.NothingToCompact]:
    """Claim a compaction for one owner at a time."""
    if not 0 <= command.takeover_ms <= _TAKEOVER_MS_MAX:
        raise InvalidArgument("a takeover time is at most a day", takeover_ms=command.takeover_ms)
    if len(command.aside) > k.ASIDE_MAX or any(len(each) != 16 for each in command.aside):
        raise InvalidArgument("what is left aside is named by fingerprints of 16 bytes", limit=k.ASIDE_MAX)
    check_alive(state, command.owner)
    trace, now_ms, bounds = state.trace, context.now_ms, context.bounds(state, steps=command.steps)
    wanted = k.Wanted(whole=command.whole, before=command.before, aside=frozenset(command.aside))
    mine = k.claimed_by(trace, command.owner)
    if mine is not None:
        return _kept(command, state, mine, bounds, wanted, now_ms)
    if state.since.is_empty:
        # It has no readers any more: finalization takes everything away, without reading it first.
        return state, c.NothingToCompact(claimed=0)
    if command.whole:
        gathered = k.gathered(trace, now_ms, command.takeover_ms, bounds, wanted)
        trace, chosen = gathered if gathered is not None else (trace, None)
    else:
        chosen = k.most_worth(trace, now_ms, command.takeover_ms, bounds, wanted)
    ready = None if chosen is None else k.prepared(trace, chosen, bounds, wanted)
    if ready is None:
        return state, c.NothingToCompact(claimed=sum(each.claim is not None for each in trace.spine))
    trace, chosen, work = ready
    claim = k.owner_of(command.owner, now_ms=now_ms, seqno=state.seqno + 1)
    return state.evolved(trace=k.claimed(trace, chosen, claim)), _claimed(state, chosen, work)


def _kept(
    command: c.ClaimCompaction, state: State, mine: SpineBatch, bounds: Bounds, wanted: k.Wanted, now_ms: int
) -> tuple[State, c.CompactionClaimed | c.NothingToCompact]:
    """The claim that its owner has, renewed when it is a while old."""
    claim = mine.claim
    assert claim is not None, "it is claimed"
    ready = k.prepared(state.trace, mine, bounds, wanted)
    if ready is None:
        # Claimed by another release, or under other bounds: what is made of it could not be committed.
        return state.evolved(trace=k.released(state.trace, command.owner)), c.NothingToCompact(claimed=0)
    trace, mine, work = ready
    if trace is state.trace and claim.holds(now_ms, command.takeover_ms // 4):
        return state, _claimed(state, mine, work)
    renewed = dataclasses.replace(claim, start_ms=now_ms)
    return state.evolved(trace=k.claimed(trace, mine, renewed)), _claimed(state, mine, work)


def _claimed(state: State, each: SpineBatch, work: k.ClaimedWork) -> c.CompactionClaimed:
    return c.CompactionClaimed(
        lo=each.lo,
        hi=each.hi,
        # The rest is another compaction.
        batches=work.batches,
        since=state.since,
        schemas=state.schemas,
        incarnation=state.incarnation,
        step=work.step,
    )


@transition.register
def release_compaction(command: c.ReleaseCompaction, state: State, context: Context) -> tuple[State, c.ClaimReleased]:
    """Give up what an owner claimed."""
    trace = k.released(state.trace, command.owner)
    if trace is None:
        return state, c.ClaimReleased(existed=False)
    return state.evolved(trace=trace), c.ClaimReleased(existed=True)


@transition.register
def apply_merge(command: c.ApplyMerge, state: State, context: Context) -> tuple[State, c.MergeApplied | c.MergeRefused]:
    """Replace runs by their merge, if all of them are still there."""
    if command.step is not None:
        return _apply_step(command, command.step, state, context)
    if not command.inputs or any(len(each) != 16 for each in command.inputs):
        raise InvalidArgument("a merge names its inputs by fingerprints of 16 bytes", inputs=len(command.inputs))
    output = command.output
    place = k.found(state.trace, command.inputs, output.desc.lower)
    # SUBTLE: the same batches may stand here again. What the result was made of was read in the history that ended.
    check_incarnation(state, command.incarnation)
    if place is None:
        if k.found(state.trace, (fingerprint(output),), output.desc.lower) is not None:
            return state, c.MergeApplied(already=True)
        return state, c.MergeRefused(reason="its inputs are not there any more")
    each, at = place
    _check_publishes(state, command.owner, each)
    inputs = each.batches[at : at + len(command.inputs)]
    reused = frozenset(part.key for batch in inputs for part in batch.parts if part.key is not None)
    check_parts(state, command.owner, output, parts_max=context.parts_per_merge_max, reused=reused)
    reason = k.refusal(inputs, output, state.since)
    if reason is not None:
        raise _no_merge(reason)
    if (fingerprint(output),) == command.inputs:
        # Nothing changed: the claim goes, the batch stays.
        trace = k.released(state.trace, command.owner)
        return (state if trace is None else state.evolved(trace=trace)), c.MergeApplied(already=True)
    merged = k.merged(state.trace, each, at, len(inputs), output)
    return state.evolved(trace=merged), c.MergeApplied()


def _apply_step(
    command: c.ApplyMerge, step: r.RangeStep, state: State, context: Context
) -> tuple[State, c.MergeApplied | c.MergeRefused]:
    """Replace the pieces of a step in their batch, if all of them are still there."""
    output = command.output
    if command.inputs or not step.pieces:
        raise InvalidArgument("a step names its pieces, and no batches", inputs=len(command.inputs))
    if (reason := r.misshapen(step)) is not None:
        raise _no_merge(reason)
    place = k.placed(state.trace, output.desc.lower, output.desc.upper)
    check_incarnation(state, command.incarnation)
    if place is None or not context.bounds(state).steps:
        return state, c.MergeRefused(reason="its batch is not there any more")
    each, at = place
    batch = each.batches[at]
    if not r.stands(batch, step):
        if r.is_done(batch, step, output):
            return state, c.MergeApplied(already=True)
        return state, c.MergeRefused(reason="its pieces are not there any more")
    _check_publishes(state, command.owner, each)
    reason = r.misfit(batch, step) or r.unlike(batch, step, output, state.since)
    if reason is not None:
        raise _no_merge(reason)
    pieces = r.taken(batch, step)
    reused = frozenset(part.key for part in pieces.parts if part.key is not None)
    come = dataclasses.replace(output, runs=tuple(run for run in output.runs if run.parts))
    check_parts(state, command.owner, come, parts_max=context.parts_per_merge_max, reused=reused)
    trace = k.merged(state.trace, each, at, 1, r.stepped(batch, step, output))
    return state.evolved(trace=trace), c.MergeApplied()


def _check_publishes(state: State, owner: WriterId, each: SpineBatch) -> None:
    """Raise LeaseExpired for a writer that may have been swept away and has no claim on the spine batch."""
    mine = each.claim is not None and each.claim.owner == owner
    if not mine and is_forgotten(state, owner):
        raise _silent(state, owner)


def _no_merge(reason: str) -> InvalidArgument:
    return InvalidArgument(f"this is no merge of its inputs: {reason}", hint="stop and report it")


# ---- fences and the end ------------------------------------------------------------------------------------------


def check_alive(state: State, writer_id: WriterId) -> None:
    """Raise LeaseExpired for a writer the shard does not know, born before those it may forget were fenced off."""
    if is_fenced(state, writer_id):
        raise _silent(state, writer_id)


def _silent(state: State, writer_id: WriterId) -> LeaseExpired:
    return LeaseExpired(
        "the shard does not know this writer, and has fenced off those that began before a time",
        hint="open a new writer, which begins after that, and write again",
        writer=writer_id,
        fence_ms=state.writers_since_ms,
        began_ms=writer_id.born_ms,
    )


@transition.register
def fence_writers(command: c.FenceWriters, state: State, context: Context) -> tuple[State, c.WritersFenced]:
    """Refuse, from now on, first appends of writers born before a time."""
    if not 0 <= command.born_before_ms <= context.now_ms:
        raise InvalidArgument("only writers of the past can be fenced", born_before_ms=command.born_before_ms)
    # Known writers are not fenced off: the shard forgets silent ones only now and then.
    state = without_idle_writers(state, context.now_ms)
    if command.born_before_ms <= state.writers_since_ms:
        return state, c.WritersFenced(born_before_ms=state.writers_since_ms)
    # A claim of a process that died would keep its owner from being fenced off, and its batches from being joined.
    trace = k.unabandoned(state.trace, command.born_before_ms, context.now_ms, context.compaction_takeover_ms)
    return (
        state.evolved(trace=trace, writers_since_ms=command.born_before_ms),
        c.WritersFenced(born_before_ms=command.born_before_ms),
    )


@transition.register
def finalize(command: c.Finalize, state: State, context: Context) -> tuple[State, c.Finalized]:
    """Make the shard a tombstone, which holds nothing and takes nothing."""
    check_no_other(state.critical_readers, command.hold, state.shard)
    if not (state.upper.is_empty and state.since.is_empty):
        if not command.force:
            raise not_closed(state.shard, since=state.since, upper=state.upper)
        return state.evolved(trace=closed(state.trace), leased_readers={}, critical_readers={}), c.Finalized(done=False)
    smaller = shrunk(state)
    return smaller, c.Finalized(done=smaller is state)
