"""Background work: failures are logged and counted, or raised where the work is awaited."""

import asyncio
import gc

import pytest
from sure import reached

from persist.errors import Determinate
from persist.retry.tasks import FAILURES, Tasks, ended, finished, outcome_of
from persist_host import Telemetry


async def fails() -> None:
    raise Determinate("the store is away")


async def stirred() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_failure_of_work_for_nobody_is_logged_and_counted(unseen: list[str]):
    telemetry = Telemetry(service="test")
    tasks = Tasks(telemetry)
    tasks.spawn(fails(), "looking")
    await stirred()
    [told] = unseen
    unseen.clear()
    assert "background work failed" in told
    assert "the store is away" in told
    assert telemetry.value(FAILURES, (("work", "looking"),)) == 1
    await tasks.close()


async def test_failure_that_is_awaited_is_logged_nowhere(unseen: list[str]):
    tasks = Tasks()
    with pytest.raises(Determinate):
        await tasks.start(fails())
    await tasks.close()
    gc.collect()
    assert not unseen


async def test_failure_of_work_that_was_dropped_is_logged(unseen: list[str]):
    tasks = Tasks()
    tasks.start(fails())
    await stirred()
    gc.collect()
    [told] = unseen
    unseen.clear()
    assert "the store is away" in told
    await tasks.close()


async def test_failure_before_the_owner_closes_is_nobodys_business(unseen: list[str]):
    tasks = Tasks()
    kept = tasks.start(fails())
    await stirred()
    await tasks.close()
    del kept
    gc.collect()
    assert not unseen


async def test_work_that_is_ended_early_fails_in_silence(unseen: list[str]):
    tasks = Tasks()
    done, late = tasks.start(fails()), tasks.start(asyncio.Event().wait())
    await stirred()
    await ended(done, late)
    assert late.cancelled()
    del done, late
    gc.collect()
    assert not unseen


async def test_failure_of_what_a_caller_went_away_from_is_logged_nowhere(unseen: list[str]):
    tasks, begun, goes_on = Tasks(), asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await goes_on.wait()
        await fails()

    caller = asyncio.ensure_future(outcome_of(tasks.start(slow()), "the process is closing"))
    await reached(begun, caller)
    await ended(caller)
    del caller
    goes_on.set()
    await stirred()
    gc.collect()
    await stirred()
    assert unseen == []
    await tasks.close()


async def test_who_is_cancelled_waits_for_what_is_not_left_in_the_middle_whose_failure_is_logged_nowhere(
    unseen: list[str],
):
    tasks, begun, goes_on = Tasks(), asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await goes_on.wait()
        await fails()

    caller = asyncio.ensure_future(finished(tasks.start(slow())))
    await reached(begun, caller)
    caller.cancel()
    await stirred()
    assert not caller.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    del caller
    gc.collect()
    await stirred()
    assert unseen == []
