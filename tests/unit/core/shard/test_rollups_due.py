"""When a state is written as a whole: after so many commits, and more of them the more there is to write."""

import pytest
from property.core.shard.histories import first_state
from unit.wire.test_large_shards import batch

from persist.core.frontier import Antichain
from persist.core.shard.retention import ROLLUP_EVERY_MAX, rollup_due
from persist.core.shard.state import State
from persist.core.shard.trace import Trace, spine_batch


def of_parts(count: int) -> State:
    batches = tuple(batch(at, 1, 1) for at in range(count))
    trace = Trace(upper=Antichain.of(count), spine=(spine_batch(0, count, batches),), next_id=count)
    return first_state().evolved(trace=trace)


@pytest.mark.parametrize(("parts", "after"), [(1, 128), (4_000, 128), (32_000, 1_000), (80_000, ROLLUP_EVERY_MAX)])
def test_a_rollup_costs_each_commit_the_same_however_large_the_state(parts: int, after: int):
    state = of_parts(parts)
    newest = max(state.rollups)
    assert not rollup_due(state, newest + after - 1, 128)
    assert rollup_due(state, newest + after, 128)
