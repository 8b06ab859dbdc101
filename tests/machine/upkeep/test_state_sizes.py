"""What a process counts a shard for is what its state takes, whatever it is made of; a large one goes by pieces."""

import asyncio
import dataclasses
import gc
import tracemalloc
import weakref
from collections.abc import Callable

import pytest
from machine.support import new_shard

from persist.core.frontier import Antichain, Description
from persist.core.ids import ShardId, WriterId, part_key, rollup_key
from persist.core.shard.batch import Block, ColumnStats, HollowBatch, Part, Run
from persist.core.shard.commands import Rollup
from persist.core.shard.state import State, TokenOutcome
from persist.core.shard.table import Table
from persist.core.shard.trace import Trace, spine_batch
from persist.machine.cached import FREED_AT_ONCE, PARTED_SECONDS, SHARD_BYTES, estimated, part_with
from persist.runtime import Runtime, SystemRuntime
from persist.wire.shard.state import decode_rollup, encode_rollup

SHARD = new_shard()
WRITER = WriterId("w00000000-0000-0000-0000-000000000001")


def part(number: int, *, blocks: int = 1, stats: int = 3, inline: int = 0) -> Part:
    first = b"\x02customer" + number.to_bytes(8, "big")
    names = [f"column_{at}" for at in range(stats)]
    return Part(
        key=None if inline else part_key(SHARD, WRITER, 1, number.to_bytes(16, "big")),
        inline=bytes(inline) if inline else None,
        encoded_bytes=inline or 100_000 + number,
        decoded_bytes=400_000 + number,
        rows=10_000 + number,
        checksum=0x12345678 + number,
        key_lower=first,
        key_upper=first + b"\xff",
        min_ts=1_700_000_000_000 + number,
        max_ts=1_700_000_000_000 + number,
        diffs_sum=10_000 + number,
        schema_id=0,
        stats=tuple([ColumnStats(name=name, null_count=0, lower=first, upper=first + b"\xff") for name in names]),
        blocks=tuple(
            [
                Block(
                    first_key=first + at.to_bytes(4, "big"),
                    rows=65_000 + at,
                    row_groups=1,
                    offset=at * 2_000_000 + number,
                    length=2_000_000 + at,
                    checksum=0x12345678 + at,
                )
                for at in range(blocks)
            ]
        ),
        footer_bytes=5_000,
        footer_checksum=0x12345678 + number,
    )


def of_parts(batches: int, parts: int, make: Callable[[int], Part] = part) -> State:
    made = tuple(
        [
            HollowBatch(
                desc=Description(lower=Antichain.of(at), upper=Antichain.of(at + 1)),
                runs=(Run(parts=tuple([make(at * parts + number) for number in range(parts)])),),
            )
            for at in range(batches)
        ]
    )
    trace = Trace(upper=Antichain.of(batches), spine=(spine_batch(0, batches, made),), next_id=batches)
    return bare().evolved(trace=trace)


def bare(shard: ShardId = SHARD) -> State:
    state = State.initial(shard, now_ms=1_700_000_000_000, hostname="here")
    named = Rollup(key=rollup_key(shard, 0, bytes(16)), encoded_bytes=1, checksum=1)
    return dataclasses.replace(state, rollups={0: named})


def of_tokens(count: int) -> State:
    tokens = {
        f"t{number:032x}": TokenOutcome(
            upper=Antichain.of(number), seqno=number + 1_000, committed_ms=1_700_000_000_000 + number, body=bytes(16)
        )
        for number in range(count)
    }
    return bare().evolved(tokens=Table(tokens))


def used(state: State) -> None:
    """What is remembered with batches once a state was worked with."""
    for batch in state.trace.batches:
        assert batch.rows + batch.part_count + batch.encoded_bytes + batch.inline_bytes + batch.described_bytes
        assert batch.fingerprint
        assert batch.retractions >= 0


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: of_parts(1_000, 1), id="small"),
        pytest.param(lambda: of_parts(500, 1, lambda number: part(number, stats=12)), id="of many columns"),
        pytest.param(lambda: of_parts(4, 400), id="of many parts"),
        pytest.param(lambda: of_parts(10, 40, lambda number: part(number, blocks=64)), id="of full parts"),
        pytest.param(lambda: of_parts(1_000, 1, lambda number: part(number, blocks=0, inline=900)), id="inline"),
        pytest.param(lambda: of_tokens(5_000), id="tokens"),
    ],
)
def test_shard_is_counted_for_what_its_state_takes(make: Callable[[], State]):
    data = encode_rollup(make())
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    state = decode_rollup(data, SHARD, 0)
    used(state)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    estimate = estimated(state)[0] - SHARD_BYTES
    assert 0.8 * taken <= estimate <= 1.5 * taken, (estimate, taken, estimate / taken)


class _Counted(SystemRuntime):
    """Counts, at each turn, what is left of some batches."""

    def __init__(self, parts: list["weakref.ref[HollowBatch]"]) -> None:
        self._parts = parts
        self.left: list[int] = []

    async def sleep(self, seconds: float) -> None:
        self.left.append(sum([each() is not None for each in self._parts]))
        await super().sleep(seconds)


async def freed_by(make: Callable[[], State]) -> list[int]:
    state = make()
    runtime: Runtime = (counted := _Counted([weakref.ref(batch) for batch in state.trace.batches]))
    parting = part_with(state, runtime)
    del state
    await parting
    return counted.left


async def test_large_state_goes_from_memory_a_piece_at_a_time():
    left = await freed_by(lambda: of_parts(3 * FREED_AT_ONCE, 1))
    assert left == [2 * FREED_AT_ONCE, FREED_AT_ONCE, 0]


async def test_nor_is_it_freed_at_once_by_a_plan_that_is_sent_when_it_is_forgotten():
    """The last that referred to it freed all: 20,000 parts held up a server's loop for 140 ms at the end of a read."""
    state = of_parts(3 * FREED_AT_ONCE, 1)
    batches = [weakref.ref(batch) for batch in state.trace.batches]
    plan = tuple(state.trace.batches)
    counted = _Counted(batches)
    parting = asyncio.create_task(part_with(state, counted, patience=60))
    del state
    while len(counted.left) < 3:
        await asyncio.sleep(PARTED_SECONDS / 10)
    assert set(counted.left) == {3 * FREED_AT_ONCE}
    counted.left.clear()
    del plan
    assert sum([each() is not None for each in batches]) == 3 * FREED_AT_ONCE
    await parting
    assert [left for left in counted.left if left < 3 * FREED_AT_ONCE] == [2 * FREED_AT_ONCE, FREED_AT_ONCE, 0]


async def test_what_is_referred_to_for_longer_than_that_is_parted_with_all_the_same():
    state = of_parts(3 * FREED_AT_ONCE, 1)
    plan = tuple(state.trace.batches)
    counted = _Counted([weakref.ref(batch) for batch in plan])
    parting = part_with(state, counted, patience=2 * PARTED_SECONDS)
    del state
    await asyncio.wait_for(parting, 30)
    assert counted.left[-1] == len(plan)
