"""Invariants of every state, as named checks. Source: persist-semantics.md section 2.1; reliability.md I3, I5, I13."""

import itertools

from persist.core.frontier import MINIMUM
from persist.core.shard.state import State
from persist.core.shard.trace import level_of
from persist.errors import check


def check_cheap(prev: State, new: State) -> None:
    """What every commit checks: frontiers, seqno and walltime only move forward, and a rollup is there."""
    check(new.seqno == prev.seqno + 1, "seqnos follow each other", prev=prev.seqno, new=new.seqno)
    check(new.walltime_ms > prev.walltime_ms, "walltime strictly increases", prev=prev.walltime_ms, new=new.walltime_ms)
    check(prev.since.less_equal(new.since), "since never regresses", prev=prev.since, new=new.since)
    check(prev.upper.less_equal(new.upper), "upper never regresses", prev=prev.upper, new=new.upper)
    check(prev.trace.next_id <= new.trace.next_id, "spine ids are never reused")
    check(bool(new.rollups), "a state has a rollup", seqno=new.seqno)
    check(not prev.is_tombstone or new.is_tombstone, "a tombstone stays one", seqno=new.seqno)


def check_state(state: State, *, after: State | None = None) -> None:
    """Check everything that one state alone shows. Costs the size of the state.

    ``after``: a state that was checked already. Spine batches the two share are not looked into again, so that checking
    a whole history costs what changed in it.
    """
    known = frozenset() if after is None else frozenset(map(id, after.trace.spine))
    _check_tiling(state, known)
    _check_spine(state, known)
    _check_holders(state)
    check(min(state.rollups, default=-1) >= 0, "a state has a rollup", seqno=state.seqno)
    check(max(state.rollups) <= state.seqno, "rollups lie in the past", seqno=state.seqno)
    check(min(state.rollups) <= state.seqno_since, "every state still read can be rebuilt", since=state.seqno_since)
    ids = [entry.schema_id for entry in state.schemas]
    check(ids == list(range(len(ids))), "schema ids count up", ids=ids)


def _check_tiling(state: State, known: frozenset[int]) -> None:
    reached = MINIMUM
    for each in state.trace.spine:
        for batch in (each,) if id(each) in known else each.batches:
            lower, upper = batch.desc.lower, batch.desc.upper
            check(lower == reached, "batches tile the past", reached=reached, lower=lower)
            check(lower.less_than(upper), "batches are not empty intervals", lower=lower)
            reached = upper
    check(reached == state.upper, "batches reach the upper", reached=reached, upper=state.upper)


def _check_spine(state: State, known: frozenset[int]) -> None:
    reached = 0
    for each in state.trace.spine:
        check(each.lo == reached and each.lo < each.hi, "spine ids tile", lo=each.lo, reached=reached)
        reached = each.hi
        if id(each) in known:
            continue
        check(each.rows == sum(batch.rows for batch in each.batches), "spine rows add up", lo=each.lo)
        check(all(run.parts for batch in each.batches for run in batch.runs), "runs have parts", lo=each.lo)
        inline = sum(batch.inline_bytes for batch in each.batches)
        check(each.inline_bytes == inline, "spine inline bytes add up", lo=each.lo)
        check(each.level >= level_of(each.rows), "a spine batch fits its tier", lo=each.lo, level=each.level)
    check(reached == state.trace.next_id, "spine ids reach the next one", reached=reached)
    for older, newer in itertools.pairwise(state.trace.spine):
        apart = older.claim or newer.claim or older.level > newer.level or newer.rows == 0
        check(bool(apart), "older spine batches are of higher tiers", lo=older.lo, level=older.level)


def _check_holders(state: State) -> None:
    for name, reader in state.leased_readers.items():
        check(state.since.less_equal(reader.since), "since is held by readers", reader=name, since=state.since)
        check(reader.seqno <= state.seqno, "seqno holds lie in the past", reader=name, seqno=reader.seqno)
    for name, critical in state.critical_readers.items():
        check(state.since.less_equal(critical.since), "since is held by critical readers", reader=name)
