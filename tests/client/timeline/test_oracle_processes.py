"""Several processes at one oracle, some of them killed: together they get what one oracle could have answered."""

import asyncio
import signal
from pathlib import Path

import pytest
from client.support import Place, client_of
from client.timeline.oracle_history import NEVER, calls_in, faults_in
from forked import Fork

import persist

CALLS = 40
"""Calls of each of the four tasks of a process."""


async def start(place: Place, timeline: str, seed: int, file: Path) -> Fork:
    words = (place.blob, place.consensus, timeline, seed, CALLS, file)
    return await asyncio.to_thread(Fork, "client.timeline.oracle_history", *words)


async def kill_amid(process: Fork, file: Path, lines: int) -> None:
    """kill -9 once it has recorded that many lines; calls are under way then, as its tasks always have one."""
    while not file.exists() or file.read_bytes().count(b"\n") < lines:
        assert process.returncode is None
        await asyncio.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    await process.wait()


@pytest.mark.between_processes
@pytest.mark.parametrize("timeline", ["M", "U.counted"])
async def test_processes_that_die_leave_one_linearizable_history(place: Place, timeline: str, tmp_path: Path):
    files = [tmp_path / f"history-{number}" for number in range(5)]
    processes = [await start(place, timeline, number, file) for number, file in enumerate(files[:3])]
    try:
        await asyncio.gather(*(kill_amid(processes[n], files[n], 60 + 50 * n) for n in (0, 1)))
        processes += [await start(place, timeline, n, files[n]) for n in (3, 4)]
        assert [await process.wait() for process in processes[2:]] == [0, 0, 0]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
    calls = calls_in(files)
    # The kills struck calls under way, and the others went on.
    assert [call for call in calls if call.answered == NEVER]
    assert len([call for call in calls if call.answered < NEVER]) > 3 * 4 * CALLS
    assert faults_in(calls) == []
    async with client_of(place) as client:
        oracle = await client.oracle(timeline)
        told = [call.value for call in calls if call.kind == "write" and call.value is not None]
        applied = [call.value for call in calls if call.kind == "apply" and call.answered < NEVER]
        assert await oracle.read_ts() >= max(value for value in applied if value is not None)
        assert await oracle.write_ts() > max(told)


def test_threads_share_an_oracle(tmp_path: Path):
    with persist.embedded(tmp_path) as client:
        oracle = client.oracle(persist.UserTimeline("t"))
        assert str(oracle.timeline) == "U.t"
        assert oracle.write_times(3) == [1, 2, 3]
        assert oracle.peek_write_ts() == 3
        assert oracle.read_ts() == 0
        oracle.apply_write(oracle.write_ts())
        assert oracle.read_ts() == 4
        assert oracle.observe([]) is None
