"""A disk without room under all that persist keeps, again and again: refusals that say so, and all is well with room.

A server and its client share a disk that is filled up; where none can be mounted, and once more where one can,
files may not grow. The server is also killed while there is no room. Source: reliability.md section 4 and I25.
"""

import contextlib
import random
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from client.support import SCHEMA, SMALL, Ledger, file_place, rows_of, some_rows, table
from services.process import ServeProcess, serve_process
from soak.support import LIMIT_SECONDS, pick, problems

from persist import aio
from persist.core.ids import ShardId
from persist.errors import LocationError, StoreFull

TIMES = pick(2, 30)
DISK_MIB = 8
RECOVERY_SECONDS = 50.0
# What lies in memory does not survive a power cut, and that is accepted by name.
UNSAFE = "file-filesystem", "sqlite-filesystem"


class SmallDisk:
    """A disk of its own, filled to the brim."""

    def __init__(self, path: Path) -> None:
        self.ballast = path / "ballast"

    def fill(self, server: ServeProcess) -> None:
        with self.ballast.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self, server: ServeProcess) -> None:
        self.ballast.unlink()


class SmallFiles:
    """Neither this process nor the server may write beyond the beginning of a file."""

    def fill(self, server: ServeProcess) -> None:
        for pid in (0, *server.pids):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (512, hard))

    def free(self, server: ServeProcess) -> None:
        for pid in (0, *server.pids):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


@pytest.fixture(params=["small-disk", "small-files"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk | SmallFiles]:
    # By way of a shell, as there may be no such command.
    mount = ["sh", "-c", f'mount -t tmpfs -o size={DISK_MIB}m tmpfs "$0"', str(tmp_path)]
    if request.param == "small-files" or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield SmallFiles()
        return
    try:
        yield SmallDisk(tmp_path)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_full_disk_refuses_changes_nothing_and_goes_on_once_there_is_room(
    disk: SmallDisk | SmallFiles, tmp_path: Path
):
    place, entropy, ledger = file_place(tmp_path), random.Random(7), Ledger()
    environment = {"PERSIST_ALLOW_UNSAFE": ",".join(UNSAFE), "PERSIST_ROLLUP_EVERY": "16"}
    refused = 0
    async with (
        serve_process("shard", "--blob", place.blob, "--consensus", place.consensus, **environment) as server,
        await aio.connect(server.endpoint, settings=SMALL) as client,
    ):
        writer, reader = await client.open(ShardId.of(bytes(16)), schema=SCHEMA)

        async def append(count: int, timeout: float) -> None:
            """Rows of the next time, the same however often it takes: inline when they are few, in Blob when many."""
            time = writer.upper.time or 0
            rows = some_rows(random.Random(time), count, time, time + 1)
            await writer.append(table(rows), time + 1, timeout=timeout)
            ledger.updates += rows

        for number in range(TIMES):
            for count in (3, 300, 0, 3):
                await append(count, 60)
            disk.fill(server)
            try:
                with pytest.raises(StoreFull) as full:
                    await append(1000, 30)
                assert full.value.hint
                for _ in range(10):
                    try:
                        await append(3, 1)
                    except LocationError:
                        refused += 1
                        break
                await compare(reader, ledger, entropy)
                if number % 2:
                    await server.kill()
            finally:
                disk.free(server)
            if number % 2:
                await server.start()
            await append(3, RECOVERY_SECONDS)
            await append(1000, RECOVERY_SECONDS)
            await compare(reader, ledger, entropy)
    assert refused > 0, "the state found room every time"
    assert await problems(place.blob, place.consensus, writer.shard, SMALL, sweep=True) == []


async def compare(reader: aio.ReadHandle, ledger: Ledger, entropy: random.Random) -> None:
    upper = 1 + max(ts for _, _, ts, _ in ledger.updates)
    for as_of in (upper - 1, entropy.randrange(upper)):
        assert rows_of(await (await reader.snapshot(as_of)).to_arrow()) == ledger.at(as_of)
