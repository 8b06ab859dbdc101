"""Writers and appliers of tables behind a log, killed anywhere, again and again: each transfer is whole or not there.

Every process checks at every look that it finds whole transfers only; so does the reader at the end.
"""

import asyncio
import random
import signal
from pathlib import Path

import pytest
from client.support import file_place
from client.table.table_processes import start, told, whole
from soak.support import LIMIT_SECONDS, pick

KILLS = pick(4, 100)
AT_ONCE = 2
FOR_EVER = 900
"""More transfers than a process lives to make."""


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_transfers_of_killed_processes_are_whole_or_not_there(tmp_path: Path) -> None:
    place, chance = file_place(tmp_path), random.Random(8)
    files = [tmp_path / f"told-{number}" for number in range(KILLS + AT_ONCE)]
    processes = [await start(place, number, FOR_EVER, files[number]) for number in range(AT_ONCE)]
    try:
        for killed in range(KILLS):
            wanted = chance.randrange(1, 6)
            while len(told(files[killed])) < wanted:
                assert processes[killed].returncode is None, "it found half a transfer"
                await asyncio.sleep(0.002)
            await asyncio.sleep(chance.random() * 0.05)
            processes[killed].send_signal(signal.SIGKILL)
            processes.append(await start(place, len(processes), FOR_EVER, files[len(processes)]))
        for process in processes[KILLS:]:
            process.send_signal(signal.SIGKILL)
        assert {await process.wait() for process in processes} == {-signal.SIGKILL}
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
    found, acknowledged = await whole(place), told(*files)
    assert len(acknowledged) >= KILLS
    # Of each process the transfer that was under way may have happened unreported.
    assert acknowledged <= found
    assert len(found - acknowledged) <= len(processes)
