"""The spine: tiers, carries, empty batches; and the named invariants, each broken once."""

import dataclasses

import pytest
from property.core.shard.histories import first_state, part, reader
from unit.core.shard.sample import AFTER, BEFORE

from persist.core.frontier import CLOSED, Antichain, Description
from persist.core.ids import WriterId
from persist.core.shard.batch import HollowBatch, Run
from persist.core.shard.diff import apply_diff, diff, gone
from persist.core.shard.invariants import check_cheap, check_state
from persist.core.shard.state import LeasedReader, State
from persist.core.shard.table import Table
from persist.core.shard.trace import SpineBatch, Trace, level_of, push
from persist.errors import CorruptData, InvalidBounds

WRITER = WriterId.of(bytes(16))


def batch(lower: int, rows: int, width: int = 1) -> HollowBatch:
    runs = (Run(parts=(part(WRITER, lower, rows=rows, lower=lower, upper=lower + width),)),) if rows else ()
    return HollowBatch(desc=Description(lower=Antichain.of(lower), upper=Antichain.of(lower + width)), runs=runs)


def grown(*rows: int) -> Trace:
    trace = Trace()
    for lower, count in enumerate(rows):
        trace = push(trace, batch(lower, count))
    return trace


def shape(trace: Trace) -> list[tuple[int, int, int, int]]:
    return [(each.lo, each.hi, each.level, len(each.batches)) for each in trace.spine]


@pytest.mark.parametrize(("rows", "level"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1 << 40, 40)])
def test_level_is_the_logarithm_rounded_up(rows, level):
    assert level_of(rows) == level


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((1,), [(0, 1, 0, 1)]),
        ((1, 1), [(0, 2, 1, 2)]),
        ((1, 1, 1), [(0, 2, 1, 2), (2, 3, 0, 1)]),
        ((1, 1, 1, 1), [(0, 4, 2, 4)]),
        ((100, 1), [(0, 1, 7, 1), (1, 2, 0, 1)]),
        ((1, 100), [(0, 2, 7, 2)]),
        ((100, 1, 1, 100), [(0, 4, 8, 4)]),
    ],
    ids=["one", "two", "three", "four", "small on large", "large on small", "large on all"],
)
def test_pushed_batches_carry_into_tiers(rows, expected):
    assert shape(grown(*rows)) == expected


def test_progress_alone_never_makes_the_trace_grow():
    for first in (0, 1, 100):
        trace = grown(first, *[0] * 50)
        assert len(list(trace.batches)) == (2 if first else 1)
        assert trace.upper == Antichain.of(51)
        assert trace.next_id == 51


def test_empty_batches_between_data_stay_one_each():
    trace = grown(*[1, 0, 0, 0] * 30)
    assert len(list(trace.batches)) == 60
    lowers = [each.desc.lower for each in trace.batches]
    assert lowers[1:] == [each.desc.upper for each in trace.batches][:-1]


def test_closing_with_an_empty_batch_joins_the_empty_one_before():
    closing = HollowBatch(desc=Description(lower=Antichain.of(2), upper=CLOSED))
    trace = push(grown(1, 0), closing)
    assert [each.desc.upper for each in trace.batches] == [Antichain.of(1), CLOSED]


def test_claimed_spine_batch_is_left_alone():
    trace = grown(1)
    claimed = dataclasses.replace(trace.spine[0], claim=BEFORE.active_gc)
    trace = push(dataclasses.replace(trace, spine=(claimed,)), batch(1, 1))
    assert trace.spine[0] is claimed
    assert len(trace.spine) == 2


def test_claimed_progress_is_left_alone():
    trace = grown(1, 0)
    claimed = dataclasses.replace(trace.spine[1], claim=BEFORE.active_gc)
    trace = push(dataclasses.replace(trace, spine=(trace.spine[0], claimed)), batch(2, 0))
    assert trace.spine[1] is claimed
    assert len(trace.spine) == 3


@pytest.mark.parametrize("lower", [0, 2], ids=["overlap", "gap"])
def test_batch_that_does_not_fit_on_top_is_refused(lower):
    with pytest.raises(InvalidBounds):
        push(grown(1), batch(lower, 1))
    with pytest.raises(InvalidBounds):
        push(grown(1), batch(1, 0, width=0))


def test_newest_first_is_the_other_way_round():
    trace = grown(1, 100, 1, 0)
    assert list(trace.newest_first()) == list(trace.batches)[::-1]


def test_pushing_shares_what_it_does_not_change():
    before = grown(*[1] * 64)
    after = push(before, batch(64, 1))
    assert after.spine[0] is before.spine[0]


def _with_spine(*spine: SpineBatch) -> State:
    state = first_state()
    upper = spine[-1].batches[-1].desc.upper
    return dataclasses.replace(state, trace=Trace(upper=upper, spine=spine, next_id=spine[-1].hi))


def test_diff_of_a_compaction_and_an_append_tells_only_what_they_touched():
    trace = grown(100, 100, 100, 100, 3, 3)
    before = dataclasses.replace(first_state(), trace=trace)
    old = trace.spine[0]
    compacted = dataclasses.replace(old.batches[1], runs=batch(1, 40).runs)
    replaced = dataclasses.replace(old, batches=(old.batches[0], compacted, *old.batches[2:]), rows=340)
    moved = push(dataclasses.replace(trace, spine=(replaced, *trace.spine[1:])), batch(6, 1))
    after = dataclasses.replace(before, seqno=1, walltime_ms=9_000, trace=moved)
    change = diff(before, after)
    assert change.spine is not None
    [swap, grow] = change.spine.splices
    assert (swap.kept, swap.gone, swap.come) == (1, (gone(old.batches[1]),), (compacted,))
    assert (grow.kept, grow.gone, len(grow.come)) == (2, (), 1)
    assert apply_diff(before, change) == after


BROKEN = {
    "tiling": _with_spine(SpineBatch(lo=0, hi=1, level=7, rows=1, inline_bytes=0, batches=(batch(1, 1),))),
    "rows": _with_spine(SpineBatch(lo=0, hi=1, level=7, rows=2, inline_bytes=0, batches=(batch(0, 1),))),
    "inline bytes": _with_spine(SpineBatch(lo=0, hi=1, level=7, rows=1, inline_bytes=5, batches=(batch(0, 1),))),
    "level": _with_spine(SpineBatch(lo=0, hi=1, level=0, rows=2, inline_bytes=0, batches=(batch(0, 2),))),
    "ids": _with_spine(SpineBatch(lo=1, hi=2, level=7, rows=1, inline_bytes=0, batches=(batch(0, 1),))),
    "next id": dataclasses.replace(first_state(), trace=Trace(next_id=1)),
    "upper": dataclasses.replace(first_state(), trace=Trace(upper=Antichain.of(1))),
    "no rollup": dataclasses.replace(first_state(), rollups={}),
    "rollup ahead": dataclasses.replace(first_state(), rollups={9: AFTER.rollups[300]}),
    "schema ids": dataclasses.replace(first_state(), schemas=AFTER.schemas[1:]),
    "since held": dataclasses.replace(
        first_state(),
        trace=Trace(since=Antichain.of(5)),
        leased_readers={reader(1): LeasedReader(since=Antichain.of(4), seqno=0, heartbeat_ms=1, lease_ms=1)},
    ),
    "seqno hold ahead": dataclasses.replace(
        first_state(),
        leased_readers={reader(1): LeasedReader(since=Antichain.of(4), seqno=5, heartbeat_ms=1, lease_ms=1)},
    ),
    "critical since": dataclasses.replace(
        first_state(), trace=Trace(since=Antichain.of(9)), critical_readers=AFTER.critical_readers
    ),
}


@pytest.mark.parametrize("state", BROKEN.values(), ids=BROKEN.keys())
def test_broken_state_fails_its_invariant(state):
    check_state(first_state())
    with pytest.raises(CorruptData):
        check_state(state)


CLOSED_STATE = dataclasses.replace(AFTER, writers=Table(), leased_readers={}, critical_readers={})
REGRESSED = {
    "seqno repeats": dataclasses.replace(AFTER, seqno=300),
    "seqno skips": dataclasses.replace(AFTER, seqno=302),
    "walltime stands": dataclasses.replace(AFTER, walltime_ms=BEFORE.walltime_ms),
    "since goes back": dataclasses.replace(AFTER, trace=dataclasses.replace(AFTER.trace, since=Antichain.of(3))),
    "upper goes back": dataclasses.replace(AFTER, trace=dataclasses.replace(AFTER.trace, upper=Antichain.of(29))),
    "ids go back": dataclasses.replace(AFTER, trace=dataclasses.replace(AFTER.trace, next_id=7)),
    "no rollup": dataclasses.replace(AFTER, rollups={}),
}


@pytest.mark.parametrize("state", REGRESSED.values(), ids=REGRESSED.keys())
def test_commit_that_goes_back_fails_its_invariant(state):
    check_cheap(BEFORE, AFTER)
    with pytest.raises(CorruptData):
        check_cheap(BEFORE, state)


def test_tombstone_that_rises_fails_its_invariant():
    gone = dataclasses.replace(CLOSED_STATE, seqno=300, trace=Trace(since=CLOSED, upper=CLOSED, next_id=9))
    risen = dataclasses.replace(gone, seqno=301, walltime_ms=gone.walltime_ms + 1, writers=AFTER.writers)
    with pytest.raises(CorruptData):
        check_cheap(gone, risen)
