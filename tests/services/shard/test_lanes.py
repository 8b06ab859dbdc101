"""Lanes: folding, bounds, deadlines, independence."""

import asyncio
import logging
from typing import Any

import pytest
from services.shard.memory_shards import MemoryShards
from services.support import READER, append, new_shard, new_token

from persist.core.frontier import MINIMUM
from persist.core.ids import ShardId
from persist.core.shard.commands import Appended, RegisterLeasedReader, UpperMismatch
from persist.errors import (
    CorruptData,
    Determinate,
    Indeterminate,
    Overloaded,
    RequestTooLarge,
    ShardClosed,
    ShardNotFound,
)
from persist.runtime import SystemRuntime, system
from persist.settings import Settings
from persist_host import Telemetry
from persist_shard import Lanes
from persist_shard import lanes as lanes_module
from persist_shard.lane import CROWD_MEMORY, TRIAL_FOLDS, Lane


def lanes_over(shards: MemoryShards, **settings: Any) -> Lanes:
    return Lanes(shards, settings=Settings(**settings), runtime=system(), telemetry=Telemetry(service="test"))


async def opened() -> tuple[MemoryShards, ShardId]:
    shards, shard = MemoryShards(), new_shard()
    await shards.open(shard, timeout=1)
    return shards, shard


async def settle() -> None:
    """Let every ready task run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_lane_idle_commits_at_once_and_is_dropped():
    shards, shard = await opened()
    lanes = lanes_over(shards)
    outcome = await lanes.submit(shard, append(0, 1), timeout=5, weight=100)
    assert outcome == Appended(upper=outcome.upper, seqno=1)
    await settle()
    assert (len(lanes), shards.folds) == (0, [1])


async def test_lane_busy_folds_what_gathers_meanwhile():
    shards, shard = await opened()
    lanes = lanes_over(shards)
    shards.gate.clear()
    answers = [lanes.submit(shard, append(i, i + 1), timeout=5, weight=10) for i in range(3)]
    await settle()
    answers += [lanes.submit(shard, append(i, i + 1), timeout=5, weight=10) for i in range(3, 10)]
    shards.gate.set()
    outcomes = await asyncio.gather(*answers)
    assert [outcome.upper.time for outcome in outcomes] == list(range(1, 11))
    assert shards.folds == [3, 7]


class LaterRuntime(SystemRuntime):
    """The real runtime, some seconds later."""

    later = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.later


async def test_lane_counts_the_time_in_which_the_process_stood_still():
    shards, shard = await opened()
    runtime = LaterRuntime()
    lanes = Lanes(shards, settings=Settings(), runtime=runtime, telemetry=Telemetry(service="test"))
    await lanes.submit(shard, append(0, 1), timeout=5, weight=10)
    runtime.later += 7
    with pytest.raises(Determinate):
        await lanes.submit(shard, append(1, 2), timeout=5, weight=10)
    assert (await lanes.submit(shard, append(1, 2), timeout=8, weight=10)).upper.time == 2
    # What comes later did not wait.
    await asyncio.sleep(0)
    for _ in range(3):
        runtime.later += 0.5
        await settle()
        await lanes.submit(shard, RegisterLeasedReader(reader_id=READER), timeout=8, weight=10)
    assert (await lanes.submit(shard, append(2, 3), timeout=5, weight=10)).upper.time == 3
    await lanes.close()


async def test_lane_gives_each_command_its_own_outcome():
    shards, shard = await opened()
    lanes = lanes_over(shards)
    token = new_token()
    good, twice, mismatch, closing, late = (
        lanes.submit(shard, command, timeout=5, weight=10)
        for command in (
            append(0, 5, token=token),
            append(0, 5, token=token),
            append(3, 9),
            append(5, None),
            append(9, 10),
        )
    )
    assert (await good).already_committed is False
    assert (await twice).already_committed is True
    assert (await mismatch) == UpperMismatch(upper=(await good).upper, seqno=1)
    assert (await closing).upper.is_empty
    with pytest.raises(ShardClosed):
        await late
    assert shards.folds == [5]


async def test_appends_that_overtook_each_other_are_applied_in_order():
    shards, shard = await opened()
    lanes = lanes_over(shards)
    order = [3, 0, 2, 4, 1]
    reader = lanes.submit(shard, RegisterLeasedReader(reader_id=READER), timeout=5, weight=10)
    answers = [lanes.submit(shard, append(i, i + 1), timeout=5, weight=10) for i in order]
    assert [(await answer).upper.time for answer in answers] == [i + 1 for i in order]
    assert (await reader).upper.time == 0
    assert shards.folds == [6]


async def test_append_whose_predecessor_is_behind_it_in_the_queue_waits_for_it():
    shards, shard = await opened()
    lanes = lanes_over(shards, lane_fold_max=2)
    order = [1, 2, 3, 0]
    answers = [lanes.submit(shard, append(i, i + 1), timeout=5, weight=10) for i in order]
    outcomes = await asyncio.gather(*answers)
    assert [outcome.upper.time for outcome in outcomes] == [2, 3, 4, 1]


async def test_append_whose_predecessor_comes_a_little_later_waits_for_it():
    shards, shard = await opened()
    lanes = lanes_over(shards)
    early = [lanes.submit(shard, append(i, i + 1), timeout=5, weight=10) for i in (3, 1, 2)]
    await settle()
    assert lanes.waiting(shard) == 3
    first = await lanes.submit(shard, append(0, 1), timeout=5, weight=10)
    assert first.upper.time == 1
    assert [(await answer).upper.time for answer in early] == [4, 2, 3]
    assert shards.folds == [3, 1, 3]


async def test_append_without_a_predecessor_is_told_after_a_moment():
    shards, shard = await opened()
    lanes = lanes_over(shards)
    gap = lanes.submit(shard, append(7, 8), timeout=5, weight=10)
    closed = lanes.submit(shard, append(0, 1), timeout=5, weight=10)
    assert (await closed).upper.time == 1
    assert await gap == UpperMismatch(upper=(await closed).upper, seqno=1)
    await settle()
    assert (shards.folds, len(lanes)) == ([2, 1], 0)


async def test_append_withdrawn_while_early_is_forgotten():
    shards, shard = await opened()
    lanes = lanes_over(shards)
    early = lanes.submit(shard, append(1, 2), timeout=0.1, weight=10)
    await settle()
    early.cancel()
    assert (await lanes.submit(shard, append(0, 1), timeout=5, weight=10)).upper.time == 1
    while len(lanes):
        await asyncio.sleep(0.001)
    assert shards.folds == [1, 1]


async def test_lane_folds_are_bounded_in_commands_and_bytes():
    shards, shard = await opened()
    lanes = lanes_over(shards, lane_fold_max=4)
    answers = [lanes.submit(shard, append(i, i + 1), timeout=5, weight=10) for i in range(6)]
    answers += [lanes.submit(shard, append(i, i + 1), timeout=5, weight=700_000) for i in range(6, 9)]
    await asyncio.gather(*answers)
    assert shards.folds == [4, 3, 1, 1]


async def test_lane_full_refuses_with_a_delay_and_recovers():
    shards, shard = await opened()
    lanes = lanes_over(shards, lane_queue_max=2)
    shards.gate.clear()
    flying = lanes.submit(shard, append(0, 1), timeout=5, weight=10)
    await settle()
    waiting = [lanes.submit(shard, append(i, i + 1), timeout=5, weight=10) for i in (1, 2)]
    with pytest.raises(Overloaded) as refused:
        lanes.submit(shard, append(3, 4), timeout=5, weight=10)
    assert int(refused.value.details["retry_after_ms"]) > 0
    shards.gate.set()
    await asyncio.gather(flying, *waiting)
    assert (await lanes.submit(shard, append(3, 4), timeout=5, weight=10)).upper.time == 4


async def test_lane_busy_does_not_block_another():
    shards, shard = await opened()
    other_shards, other = await opened()
    shards.shards |= other_shards.shards
    lanes = lanes_over(shards)
    shards.gate.clear()
    stuck = lanes.submit(shard, append(0, 1), timeout=5, weight=10)
    await settle()
    free = asyncio.Event()
    free.set()
    stuck_gate, shards.gate = shards.gate, free
    assert (await lanes.submit(other, append(0, 1), timeout=5, weight=10)).seqno == 1
    assert not stuck.done()
    stuck_gate.set()
    assert (await stuck).seqno == 1


async def test_command_too_late_in_queue_is_dropped_unapplied_and_determinate():
    shards, shard = await opened()
    lanes = lanes_over(shards)
    shards.gate.clear()
    flying = lanes.submit(shard, append(0, 1), timeout=5, weight=10)
    await settle()
    late = lanes.submit(shard, append(1, 2), timeout=0.0, weight=10)
    shards.gate.set()
    assert (await flying).seqno == 1
    with pytest.raises(Determinate):
        await late
    assert shards.folds == [1]
    assert (await shards.open(shard, timeout=1)).upper.time == 1


async def test_command_too_late_in_flight_is_indeterminate_and_resolved_by_its_token():
    shards, shard = await opened()
    lanes = lanes_over(shards)
    shards.gate.clear()
    command = append(0, 1)
    patient = lanes.submit(shard, command, timeout=5, weight=10)
    hasty = lanes.submit(shard, append(1, 2, token=command.token), timeout=0.02, weight=10)
    with pytest.raises(Indeterminate):
        await hasty
    assert not patient.done()
    shards.gate.set()
    assert (await patient).already_committed is False
    again = await lanes.submit(shard, command, timeout=5, weight=10)
    assert (again.already_committed, again.seqno) == (True, 1)


async def test_command_withdrawn_in_queue_is_not_applied():
    shards, shard = await opened()
    lanes = lanes_over(shards)
    shards.gate.clear()
    flying = lanes.submit(shard, append(0, 1), timeout=5, weight=10)
    await settle()
    withdrawn = lanes.submit(shard, append(1, 2), timeout=5, weight=10)
    withdrawn.cancel()
    shards.gate.set()
    await flying
    await settle()
    assert (shards.folds, len(lanes)) == ([1], 0)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Indeterminate("answer lost"), Indeterminate),
        (Determinate("store is down"), Determinate),
        (CorruptData("bad bytes"), CorruptData),
        (ValueError("a bug"), Indeterminate),
    ],
    ids=["lost", "down", "corrupt", "bug"],
)
async def test_commit_failing_fails_every_command_of_the_fold(fault, expected, caplog):
    caplog.set_level(logging.CRITICAL)
    shards, shard = await opened()
    lanes = lanes_over(shards)
    shards.fault = fault
    answers = [lanes.submit(shard, append(i, i + 1), timeout=5, weight=10) for i in range(3)]
    failures = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(failure) for failure in failures] == [expected] * 3
    assert len({id(failure) for failure in failures}) == 3


async def test_fold_too_large_together_is_committed_in_halves():
    class Small(MemoryShards):
        async def commit(self, shard, commands, *, timeout):
            if len(commands) > 2 or any(command.batch.inline_bytes > 1000 for command in commands):
                self.folds.append(-len(commands))
                raise RequestTooLarge("value too large")
            return await super().commit(shard, commands, timeout=timeout)

    shards, shard = Small(), new_shard()
    await shards.open(shard, timeout=1)
    lanes = lanes_over(shards)
    answers = [lanes.submit(shard, append(i, i + 1), timeout=5, weight=10) for i in range(4)]
    answers.append(lanes.submit(shard, append(4, 5, size=2000), timeout=5, weight=10))
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Appended] * 4 + [RequestTooLarge]
    assert shards.folds == [-5, 2, -3, 1, -2, 1, -1]


async def test_unknown_shard_is_told_to_each_waiter():
    lanes = lanes_over(MemoryShards())
    with pytest.raises(ShardNotFound):
        await lanes.submit(new_shard(), append(0, 1), timeout=5, weight=10)


async def test_lanes_closing_answer_everyone():
    shards, shard = await opened()
    lanes = lanes_over(shards)
    shards.gate.clear()
    flying = lanes.submit(shard, append(0, 1), timeout=5, weight=10)
    await settle()
    waiting = lanes.submit(shard, append(1, 2), timeout=5, weight=10)
    await lanes.close()
    answers = await asyncio.gather(flying, waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Indeterminate, Determinate]
    with pytest.raises(Determinate):
        lanes.submit(shard, append(1, 2), timeout=5, weight=10)


async def test_mutations_are_logged_only_when_asked_for(caplog):
    shards, shard = await opened()
    lanes = lanes_over(shards)
    await lanes.submit(shard, append(0, 1), timeout=5, weight=10)
    assert caplog.records == []
    caplog.set_level(logging.INFO, logger="persist.mutations")
    command = append(1, 2)
    await lanes.submit(shard, command, timeout=5, weight=10)
    (record,) = caplog.records
    assert (record.shard, record.token, record.outcome, record.seqno) == (shard, command.token, "Appended", 2)


def fold_of(successes: int) -> list[object]:
    return [Appended(upper=MINIMUM)] * successes + [UpperMismatch(upper=MINIMUM)] * 7


def test_lane_gathers_while_several_succeed_together_and_now_and_then_to_find_out():
    lane = Lane(1.0)
    alone = [lane.crowded() for _ in range(TRIAL_FOLDS)]
    assert alone == [False] * (TRIAL_FOLDS - 1) + [True]
    lane.settle(fold_of(1))
    assert not lane.crowded()
    lane.settle(fold_of(2))
    for _ in range(CROWD_MEMORY):
        assert lane.crowded()
        lane.settle(fold_of(1))
    assert not lane.crowded()


async def test_lane_idle_in_between_keeps_its_habits(monkeypatch: pytest.MonkeyPatch):
    for name in ("GATHER_SECONDS", "QUIET_SECONDS"):
        # Until the second is there, however long a machine under load takes.
        monkeypatch.setattr(lanes_module, name, 30.0)
    shards, shard = await opened()
    lanes = lanes_over(shards, lane_fold_max=2)
    await asyncio.gather(*(lanes.submit(shard, append(i, i + 1), timeout=5, weight=10) for i in (0, 1)))
    await settle()
    assert len(lanes) == 0
    first = lanes.submit(shard, append(2, 3), timeout=5, weight=10)
    await settle()
    assert shards.folds == [2]
    second = lanes.submit(shard, append(3, 4), timeout=5, weight=10)
    assert [(await answer).upper.time for answer in (first, second)] == [3, 4]
    assert shards.folds == [2, 2]
