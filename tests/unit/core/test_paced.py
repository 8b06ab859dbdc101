"""Work in proportion to a shard gives way between its pieces, where what runs it says how."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from bench.simulated import hollow
from property.core.shard.histories import SHARD, first_state

from persist.core.frontier import Antichain
from persist.core.paced import PIECE, paced, pausing
from persist.core.shard.trace import Trace, spine_batch
from persist.runtime import system
from persist.wire.shard.state import decode_rollup, encode_rollup

BATCHES = 640


def rollup_of_many() -> bytes:
    many = tuple(hollow(SHARD, BATCHES, 1, blocks=1))
    trace = Trace(upper=Antichain.of(BATCHES), spine=(spine_batch(0, BATCHES, many),), next_id=BATCHES)
    return encode_rollup(first_state().evolved(trace=trace))


def test_nothing_is_done_between_pieces_unless_it_is_said() -> None:
    items = [1, 2]
    assert paced(items) is items


def test_items_come_as_they_are_with_a_pause_between_pieces() -> None:
    seen: list[object] = []
    items = range(3 * PIECE)
    assert pausing(lambda: seen.append("pause"), lambda: [*paced(items)]) == [*items]
    assert len(seen) == 2
    assert paced(items) is items, "what comes after says it anew"


def test_what_the_work_raises_is_raised_and_the_pause_forgotten() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        pausing(lambda: None, lambda: [*paced(broken())])
    assert isinstance(paced([1]), list)


def test_a_large_state_is_decoded_in_pieces() -> None:
    pauses: list[None] = []
    data = rollup_of_many()
    state = pausing(lambda: pauses.append(None), decode_rollup, data, SHARD, first_state().seqno)
    assert state == decode_rollup(data, SHARD, first_state().seqno)
    # Cut, parsed and summed: thrice.
    assert len(pauses) >= 3 * (BATCHES // PIECE - 1)


async def test_work_off_a_busy_loop_rests_between_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    rest = time.sleep

    def noted(seconds: float) -> None:
        rests.append(seconds)
        rest(seconds)

    monkeypatch.setattr(time, "sleep", noted)

    def work() -> None:
        for _ in paced(range(20 * PIECE)):
            until = time.thread_time() + 0.004 / PIECE
            while time.thread_time() < until:
                pass

    loop, spinning = asyncio.get_running_loop(), True

    def spin() -> None:
        """The loop has something to do at every turn."""
        if spinning:
            loop.call_soon(spin)

    await system().offload(work)
    assert max(rests) < 0.001, "the loop only waited"
    rests.clear()
    spin()
    await system().offload(work)
    spinning = False
    assert sum(seconds >= 0.004 for seconds in rests) >= 5, "rests are longer than the pieces before them"
