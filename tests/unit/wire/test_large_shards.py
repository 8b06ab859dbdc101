"""Shards of many parts: what is claimed, merged or taken away fits a message and a value of Consensus, and ends."""

import dataclasses
from typing import Any

import pytest
from property.core.shard.histories import SHARD, first_state, sixteen

from persist.core.frontier import CLOSED, TIME_MAX, Antichain, Description
from persist.core.ids import WriterId, part_key
from persist.core.shard import commands as c
from persist.core.shard.batch import Block, ColumnStats, HollowBatch, Part, Run, described_bytes
from persist.core.shard.compaction import CLAIM_BYTES_MAX, MERGED_BYTES_MAX, claimed_by, compaction_due
from persist.core.shard.diff import apply_diff, diff
from persist.core.shard.invariants import check_state
from persist.core.shard.retention import BATCHES_PER_STEP, PARTS_PER_STEP, shrunk
from persist.core.shard.state import State
from persist.core.shard.trace import Claim, Trace, spine_batch
from persist.core.shard.transitions.apply import apply, finish
from persist.core.shard.transitions.dispatch import Context
from persist.runtime import system
from persist.settings import Settings
from persist.storage.ports import VALUE_BYTES_MAX
from persist.wire.rpc import method_of, request_of, response_of
from persist.wire.shard.batch import batch_to_proto
from persist.wire.shard.state import encode_diff

WRITER, OWNER = WriterId.of(sixteen(1)), WriterId.of(sixteen(2))
NOW = Context(now_ms=5_000, owner="me")
MESSAGE_MAX = Settings().max_message_bytes - (64 << 10)


def large(number: int, blocks: int = 64) -> Part:
    """A part described in as many bytes as one of five columns can take."""
    random, size = system().random_bytes, 2 << 20
    return Part(
        key=part_key(SHARD, WRITER, 1, random(16)),
        inline=None,
        encoded_bytes=blocks * size + 5_000,
        decoded_bytes=1 << 33,
        rows=blocks * (1 << 20),
        checksum=0xFFFFFFFF,
        key_lower=number.to_bytes(9, "big"),
        key_upper=number.to_bytes(9, "big"),
        min_ts=TIME_MAX - 1,
        max_ts=TIME_MAX - 1,
        diffs_sum=-(1 << 62),
        schema_id=0,
        stats=tuple(
            ColumnStats(name=f"column {n}", null_count=9, lower=random(16), upper=random(16)) for n in range(5)
        ),
        blocks=tuple(
            Block(first_key=random(18), rows=1 << 20, row_groups=20, offset=at * size, length=size, checksum=0xFFFFFFFF)
            for at in range(blocks)
        ),
        footer_bytes=5_000,
        footer_checksum=0xFFFFFFFF,
        ts_rewrite=TIME_MAX - 1,
        consolidated_since=TIME_MAX - 1,
    )


def batch(at: int, parts: int, blocks: int = 64) -> HollowBatch:
    runs = (Run(parts=tuple(large(number, blocks) for number in range(parts))),) if parts else ()
    return HollowBatch(desc=Description(lower=Antichain.of(at), upper=Antichain.of(at + 1)), runs=runs)


def at_its_time(each: HollowBatch) -> HollowBatch:
    """The batch with times that it may hold."""
    at = each.desc.lower.elements[0]
    parts = [dataclasses.replace(part, min_ts=at, max_ts=at, ts_rewrite=None) for part in each.parts]
    return dataclasses.replace(each, runs=(Run(parts=tuple(parts)),))


def holding(*batches: HollowBatch, **changes: Any) -> State:
    one = spine_batch(0, len(batches), batches, level=64)
    trace = Trace(upper=batches[-1].desc.upper, spine=(one,), next_id=len(batches))
    return first_state().evolved(trace=dataclasses.replace(trace, **changes))


def commit(state: State, command: c.Command, context: Context = NOW) -> tuple[State, object, bytes]:
    moved, outcome = apply(state, command, context)
    new = finish(state, moved, context)
    change = diff(state, new)
    assert apply_diff(state, change) == new
    check_state(new)
    return new, outcome, encode_diff(change, SHARD)


def claim(*, whole: bool = False) -> c.ClaimCompaction:
    return c.ClaimCompaction(owner=OWNER, takeover_ms=1_000, whole=whole)


@pytest.mark.parametrize("blocks", [1, 64])
def test_a_description_takes_no_more_than_it_is_counted_as(blocks: int):
    counted, takes = batch(0, 20, blocks).described_bytes, batch_to_proto(batch(0, 20, blocks)).ByteSize()
    assert takes <= counted < 1.5 * takes


@pytest.mark.parametrize("whole", [False, True])
def test_a_claim_names_what_fits_a_message_and_its_merge_what_fits_a_commit(whole: bool):
    state = holding(*[batch(at, 100) for at in range(30)])
    command = claim(whole=whole)
    state, claimed, _ = commit(state, command)
    assert isinstance(claimed, c.CompactionClaimed)
    assert 2 <= len(claimed.batches) < 30
    assert response_of(method_of(command), claimed).ByteSize() < MESSAGE_MAX
    parts: list[Part] = []
    size = 0
    while size + described_bytes(new := large(len(parts))) < MERGED_BYTES_MAX:
        parts.append(dataclasses.replace(new, key=part_key(SHARD, OWNER, 1, sixteen(len(parts))), ts_rewrite=None))
        size += described_bytes(new)
    desc = Description(lower=claimed.batches[0].desc.lower, upper=claimed.batches[-1].desc.upper)
    output = HollowBatch(desc=desc, runs=(Run(parts=tuple(parts)),))
    merge = c.ApplyMerge(owner=OWNER, inputs=tuple(each.fingerprint for each in claimed.batches), output=output)
    assert request_of(SHARD, merge).ByteSize() < MESSAGE_MAX
    [spine] = state.trace.spine
    merged = spine_batch(spine.lo, spine.hi, (output, *spine.batches[len(claimed.batches) :]), level=64)
    after = state.evolved(seqno=state.seqno + 1, trace=dataclasses.replace(state.trace, spine=(merged,)))
    assert len(encode_diff(diff(state, after), SHARD)) < VALUE_BYTES_MAX


@pytest.mark.parametrize("whole", [False, True])
def test_batches_too_large_to_become_one_stay_apart_and_what_follows_is_merged(whole: bool):
    two = (batch(0, 600), batch(1, 600))
    assert all(each.described_bytes < CLAIM_BYTES_MAX for each in two)
    few = tuple(batch(2 + at, 1) for at in range(8))
    state = holding(*two, *few)
    assert compaction_due(state.trace, 5_000, 1_000)
    _, claimed, _ = commit(state, claim(whole=whole))
    assert isinstance(claimed, c.CompactionClaimed)
    assert claimed.batches[-8:] == few
    assert len(claimed.batches) < 10
    apart = holding(*two)
    assert not compaction_due(apart.trace, 5_000, 1_000)
    assert apply(apart, claim(whole=whole), NOW)[1] == c.NothingToCompact(claimed=0)


def test_batches_too_large_to_become_one_do_so_by_steps_of_bounded_messages_and_commits():
    """Parts of one number have one key; merging them is left out, so a step only moves them."""
    state = holding(*[at_its_time(batch(at, 600)) for at in range(2)]).evolved(format=3)
    command = dataclasses.replace(claim(whole=True), steps=True)
    context = dataclasses.replace(NOW, format=3)
    steps = 0
    while True:
        state, claimed, data = commit(state, command, context)
        if not isinstance(claimed, c.CompactionClaimed):
            break
        steps += 1
        assert claimed.step is not None
        # A claim says that batches are joined, and no more.
        assert len(data) < 500
        assert response_of(method_of(command), claimed).ByteSize() < MESSAGE_MAX / 10
        [view] = claimed.batches
        desc = dataclasses.replace(view.desc, since=claimed.since)
        moved = Run(parts=tuple(sorted(view.parts, key=lambda part: part.key_lower)))
        output = HollowBatch(desc=desc, runs=(moved, *[Run(parts=())] * (len(claimed.step.pieces) - 1)))
        merge = c.ApplyMerge(owner=OWNER, inputs=(), output=output, step=claimed.step)
        assert request_of(SHARD, merge).ByteSize() < MESSAGE_MAX / 10
        state, applied, data = commit(state, merge, context)
        assert applied == c.MergeApplied()
        assert len(data) < VALUE_BYTES_MAX / 10
    assert 1_200 / 64 <= steps <= 1_200 / 60
    [whole] = state.trace.batches
    assert [len(run.parts) for run in whole.runs] == [1_200]


def test_a_claim_of_an_earlier_release_on_what_cannot_be_merged_is_given_up():
    state = holding(batch(0, 600), batch(1, 600))
    [spine] = state.trace.spine
    held = dataclasses.replace(spine, claim=Claim(start_ms=5_000, seqno=1, owner=OWNER))
    state = state.evolved(trace=dataclasses.replace(state.trace, spine=(held,)))
    state, outcome, _ = commit(state, claim())
    assert outcome == c.NothingToCompact(claimed=0)
    assert claimed_by(state.trace, OWNER) is None


@pytest.mark.parametrize(("batches", "parts"), [(3, 30_000), (10_000, 1), (3, 0)])
def test_a_tombstone_of_many_parts_or_batches_empties_step_by_step(batches: int, parts: int):
    one = dataclasses.replace(large(0, 1), blocks=(), stats=())
    run = (
        Run(parts=tuple(dataclasses.replace(one, key=part_key(SHARD, WRITER, 1, sixteen(n))) for n in range(parts))),
    )
    many = tuple(dataclasses.replace(batch(at, 0), runs=run if parts else ()) for at in range(batches))
    last = dataclasses.replace(many[-1], desc=Description(lower=many[-1].desc.lower, upper=CLOSED))
    state = holding(*many[:-1], last, since=CLOSED)
    steps = 0
    while (smaller := shrunk(state)) is not state:
        new = smaller.evolved(seqno=state.seqno + 1)
        change = diff(state, new)
        assert apply_diff(state, change) == new
        assert len(encode_diff(change, SHARD)) < VALUE_BYTES_MAX
        if change.spine is not None:
            gone = [each for splice in change.spine.splices for each in splice.gone]
            assert len(gone) <= BATCHES_PER_STEP
            assert len(gone) == 1 or sum(len(each.keys) for each in gone) <= max(PARTS_PER_STEP, parts)
        state, steps = new, steps + 1
        check_state(state)
    assert not state.trace.rows
    assert len(list(state.trace.batches)) == 1
    assert steps <= 2 + max(batches * parts // PARTS_PER_STEP, batches // BATCHES_PER_STEP) + 1
