"""Which versions of a shard's state are kept, who writes rollups and collects garbage, and how a closed shard empties.

Work is handed out with the commit that makes it due: the claim names the process that made the commit, and costs no
commit of its own.
Source: design 001, rollups and GC; persist-semantics.md sections 2.3 and 2.7; reliability.md I8 and I11.
"""

from dataclasses import replace
from typing import Any, Final

from persist.core.frontier import CLOSED, MINIMUM, Description
from persist.core.ids import WriterId
from persist.core.shard.batch import HollowBatch, Run
from persist.core.shard.compaction import WHOLE, claimed, claimed_by, compaction_due, most_worth
from persist.core.shard.ranges import Bounds
from persist.core.shard.state import STEPS_FORMAT, State
from persist.core.shard.table import Table
from persist.core.shard.trace import Claim, SpineBatch, Trace, free, spine_batch, spliced

ROLLUP_TAKEOVER_MS: Final = 5_000
"""A rollup that takes longer is taken over by another process."""
PARTS_PER_COMMIT: Final = 32
ROLLUP_EVERY_MAX: Final = 2_048
"""A state of many parts is rolled up after a commit for each 32 of them, and no more than so many."""
BATCHES_PER_STEP: Final = 500
PARTS_PER_STEP: Final = 2_500
"""What one step of a tombstone takes away: its commit names all of it, and then it goes from memory at once, block by
block, while others of the process wait."""
GC_TAKEOVER_MS: Final = 60_000
"""A collection of garbage that takes longer is taken over by another process. Two at once do no harm."""


def rollup_due(state: State, seqno: int, every: int) -> bool:
    """The newest rollup lies ``every`` seqnos before ``seqno`` or more; that of many parts further.

    A rollup writes all of the state: written after a number of commits that grows with it, it costs each of them the
    same. A process that opens the shard reads as many diffs more.
    """
    return seqno - max(state.rollups, default=0) >= rollup_distance(state.trace.parts, every)


def rollup_distance(parts: int, every: int) -> int:
    """After how many commits a rollup of so many parts is due, where small ones are after ``every``."""
    return max(every, min(parts // PARTS_PER_COMMIT, ROLLUP_EVERY_MAX))


def gc_boundary(state: State, *, versions_max: int) -> int | None:
    """The rollup before which nothing needs to be kept, at most about ``versions_max`` beyond the oldest; or None."""
    readable = sorted(seqno for seqno in state.rollups if seqno <= state.seqno_since)
    if len(readable) < 2:
        return None
    oldest = readable[0]
    near = [seqno for seqno in readable[1:] if seqno - oldest <= versions_max]
    return max(near, default=readable[1])


def with_work(state: State, *, seqno: int, now_ms: int, owner: str, rollup_every: int, versions_max: int) -> State:
    """The state with what is due claimed by ``owner``, for the commit at ``seqno``. The same object if nothing is."""
    if rollup_due(state, seqno, rollup_every) and free(state.active_rollup, now_ms, ROLLUP_TAKEOVER_MS):
        state = state.evolved(active_rollup=Claim(start_ms=now_ms, seqno=seqno, owner=owner))
    boundary = gc_boundary(state, versions_max=versions_max)
    if boundary is not None and free(state.active_gc, now_ms, GC_TAKEOVER_MS):
        state = state.evolved(active_gc=Claim(start_ms=now_ms, seqno=boundary, owner=owner), last_gc_req=boundary)
    return state


def with_compaction(
    state: State, *, seqno: int, now_ms: int, compactor: str, takeover_ms: int, bounds: Bounds = WHOLE
) -> State:
    """The state with the compaction that is most worth it claimed by ``compactor``, unless it has one."""
    trace = state.trace
    if state.since.is_empty or claimed_by(trace, compactor) or not compaction_due(trace, now_ms, takeover_ms, bounds):
        return state
    # SUBTLE: a fenced one that got a claim again could publish parts that were swept meanwhile.
    if is_fenced(state, WriterId.parse(compactor)):
        return state
    chosen = most_worth(trace, now_ms, takeover_ms, bounds)
    assert chosen is not None, "what is due is worth it"
    return state.evolved(trace=claimed(trace, chosen, Claim(start_ms=now_ms, seqno=seqno, owner=compactor)))


def is_fenced(state: State, writer_id: WriterId) -> bool:
    """Whether this writer is forgotten and has no claim: it can publish nothing."""
    return is_forgotten(state, writer_id) and claimed_by(state.trace, writer_id) is None


def is_forgotten(state: State, writer_id: WriterId) -> bool:
    """Whether the shard does not know this writer and has fenced off those of its age."""
    born_ms = writer_id.born_ms
    return born_ms is not None and born_ms < state.writers_since_ms and writer_id not in state.writers


def shrunk(state: State) -> State:
    """A tombstone with one thing less in it; the same object when nothing is left to take away."""
    tables = state.writers or state.sessions or state.tokens or state.transactions
    if state.leased_readers or state.critical_readers or tables:
        empty: Table[Any] = Table()
        return state.evolved(
            leased_readers={},
            critical_readers={},
            writers=empty,
            sessions=empty,
            tokens=empty,
            transactions=empty,
        )
    full = next((each for each in state.trace.spine if any(not batch.is_empty for batch in each.batches)), None)
    if full is not None:
        emptied = _less(full, by_parts=state.format >= STEPS_FORMAT)
        spine = tuple(emptied if each is full else each for each in state.trace.spine)
        return state.evolved(trace=replace(state.trace, spine=spine))
    if len(state.trace.spine) > 1 or _is_several(state.trace):
        desc = Description(lower=MINIMUM, upper=CLOSED, since=CLOSED)
        last = spine_batch(0, state.trace.next_id, (HollowBatch(desc=desc),))
        return state.evolved(trace=replace(state.trace, spine=(last,)))
    return state


def closed(trace: Trace) -> Trace:
    """The trace closed for reading and writing."""
    if not trace.upper.is_empty:
        final = HollowBatch(desc=Description(lower=trace.upper, upper=CLOSED))
        each = spine_batch(trace.next_id, trace.next_id + 1, (final,))
        trace = Trace(since=trace.since, upper=CLOSED, spine=(*trace.spine, each), next_id=trace.next_id + 1)
    return replace(trace, since=CLOSED)


def _less(full: SpineBatch, *, by_parts: bool) -> SpineBatch:
    """The spine batch with as many of its first batches empty as one commit may name.

    ``by_parts``: a commit can take some of a batch's parts away, so one with too many is emptied by and by.
    """
    batches = full.batches
    first = next(at for at, batch in enumerate(batches) if not batch.is_empty)
    if by_parts and batches[first].part_count > PARTS_PER_STEP:
        return spliced(full, first, 1, (_with_fewer(batches[first]),), level=full.level)
    taken = parts = 0
    while taken < len(batches) and (parts == 0 or parts + batches[taken].part_count <= PARTS_PER_STEP):
        parts, taken = parts + batches[taken].part_count, taken + 1
        if taken == BATCHES_PER_STEP:
            break
    lower, upper = batches[0].desc.lower, batches[taken - 1].desc.upper
    emptied = HollowBatch(desc=Description(lower=lower, upper=upper))
    return spliced(full, 0, taken, (emptied,), level=full.level)


def _with_fewer(batch: HollowBatch) -> HollowBatch:
    """The batch without its first parts: no reader of a tombstone is left."""
    runs, left = [], PARTS_PER_STEP
    for run in batch.runs:
        runs.append(Run(parts=run.parts[left:]))
        left = max(0, left - len(run.parts))
    return replace(batch, runs=tuple([run for run in runs if run.parts]))


def _is_several(trace: Trace) -> bool:
    return any(len(each.batches) > 1 for each in trace.spine)
