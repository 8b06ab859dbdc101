"""How often a backlog is written again until it is merged: once a tier of sizes, not once a claim."""

import math
import random

import pytest

from persist.core.frontier import MINIMUM, Antichain, Description
from persist.core.shard.batch import HollowBatch, Part, Run
from persist.core.shard.compaction import BATCHES_WEIGHED_MAX, bounds_of, found, merged, most_worth, prepared
from persist.core.shard.trace import Trace, push

MEBI = 1 << 20
PART_BYTES = 128 * MEBI
CLAIM_PARTS = 200
BOUNDS = bounds_of(2, claim_parts=CLAIM_PARTS, steps=False)


def batch(number: int, lower: int, upper: int, size: int) -> HollowBatch:
    """Of as many parts as its bytes take, in key order."""
    count = math.ceil(size / PART_BYTES)
    parts = tuple(
        Part(
            inline=None,
            key=f"p{number}-{at}",
            encoded_bytes=size // count,
            decoded_bytes=size // count,
            rows=max(1, size // count // 100),
            checksum=0,
            key_lower=at.to_bytes(4, "big"),
            key_upper=at.to_bytes(4, "big") + b"\xff",
            min_ts=lower,
            max_ts=lower,
            diffs_sum=max(1, size // count // 100),
            schema_id=0,
        )
        for at in range(count)
    )
    desc = Description(lower=Antichain.of(lower), upper=Antichain.of(upper), since=MINIMUM)
    return HollowBatch(desc=desc, runs=(Run(parts=parts),))


def bytes_merged(sizes: list[int]) -> int:
    """By what merges, once nothing is due any more, of a backlog that nothing was merged of while it came."""
    trace = Trace()
    for time, size in enumerate(sizes):
        trace = push(trace, batch(time, time, time + 1, size))
    total, number = 0, len(sizes)
    while (chosen := most_worth(trace, 0, 1, BOUNDS)) is not None:
        done = prepared(trace, chosen, BOUNDS)
        if done is None:
            break
        inputs, number = done[2].batches, number + 1
        size = sum(each.encoded_bytes for each in inputs)
        lower, upper = inputs[0].desc.lower.elements[0], inputs[-1].desc.upper.elements[0]
        here = found(trace, tuple(each.fingerprint for each in inputs), inputs[0].desc.lower)
        assert here is not None, "what is claimed lies side by side"
        assert sum(each.part_count for each in inputs) <= CLAIM_PARTS
        trace = merged(trace, *here, len(inputs), batch(number, lower, upper, size))
        total += size
    parts = sum(each.parts for each in trace.spine)
    assert sum(len(each.batches) for each in trace.spine) <= 2 * parts / CLAIM_PARTS + 8
    return total


@pytest.mark.parametrize("size", [MEBI, 8 * MEBI, 64 * MEBI, 300 * MEBI])
def test_a_backlog_of_many_claims_is_written_some_three_times(size: int):
    assert bytes_merged([size] * 2_000) <= 3.5 * 2_000 * size


@pytest.mark.parametrize("seed", range(6))
def test_batches_of_all_sizes_are_written_once_a_tier(seed: int):
    entropy = random.Random(seed)
    sizes = [int(2 ** entropy.uniform(10, 33)) for _ in range(600)]
    assert bytes_merged(sizes) <= 2 * sum(sizes)


def test_a_claim_looks_at_no_more_than_a_stretch_of_very_many_batches():
    """At 100,000 batches the sizes of all of them held the loop for 130 ms."""
    trace = Trace()
    for time in range(3 * BATCHES_WEIGHED_MAX):
        trace = push(trace, batch(time, time, time + 1, MEBI))
    chosen = most_worth(trace, 0, 1, BOUNDS)
    assert chosen is not None
    assert len(chosen.batches) > BATCHES_WEIGHED_MAX
    done = prepared(trace, chosen, BOUNDS)
    assert done is not None
    assert len(done[2].batches) == CLAIM_PARTS
    weighed = [each for each in chosen.batches if "encoded_bytes" in each.__dict__]
    assert len(weighed) == BATCHES_WEIGHED_MAX


def test_a_backlog_longer_than_a_stretch_is_written_as_often_as_a_short_one(monkeypatch):
    monkeypatch.setattr("persist.core.shard.compaction.BATCHES_WEIGHED_MAX", 500)
    assert bytes_merged([8 * MEBI] * 4_000) <= 3.5 * 4_000 * 8 * MEBI
    assert bytes_merged([300 * MEBI] * 2_000) <= 3.5 * 2_000 * 300 * MEBI
