"""Callers that mean no good beside some that do: a server goes on, within its memory, and takes in what can be read.

A real server, and every caller a process of its own. What others wait beside each kind of hostile callers is shown next
to what they wait alone, and beside as many honest appends as the hostile ones send requests at a time.
"""

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from client.support import Place, client_of
from forked import child_environment
from soak.servers.hostile_worker import IDLE_SESSIONS, KINDS, SECRET
from soak.support import FULL, LIMIT_SECONDS, pick

from persist.core.ids import ShardId
from persist.settings import Settings

MIB = 1 << 20
HOSTILE = [kind for kind in KINDS if kind not in ("honest", "bystander")]
SECONDS = pick(1.0, 10.0)
ROUNDS = pick(1, 2)
LOG_BYTES_PER_CALL_MAX = 16
MEMORY_MAX = Settings().request_memory_bytes + IDLE_SESSIONS * (32 << 10)
"""Beside what the server takes idle: the budget of requests, and the streams of those who only hold them open."""
SLOWER_MAX = 3.0
BYSTANDERS = {ShardId.named("bystander", number) for number in range(2)}


class Process:
    """A child that is driven by its standard input and answers by lines. Its standard error goes to a file."""

    def __init__(self, words: Sequence[str], errors: Path, **environment: str) -> None:
        self._words = words
        self._environment = environment
        self.errors = errors
        self.lines: list[str] = []

    async def __aenter__(self) -> Self:
        with self.errors.open("wb") as errors:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self._words, limit=1 << 26,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
                env=child_environment(**self._environment),
            )  # fmt: skip
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()
        await self._child.wait()

    @property
    def pid(self) -> int:
        return self._child.pid

    async def line(self) -> str:
        """The next line it says."""
        assert self._child.stdout is not None
        line = (await self._child.stdout.readline()).decode()
        assert line, self.errors.read_text()
        self.lines.append(line)
        return line

    async def told(self, what: str) -> str:
        """What it says once it was sent something."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{what}\n".encode())
        return await self.line()

    async def end(self) -> str:
        """What it says once there is nothing more to come."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        line = await self.line()
        await self._child.wait()
        return line

    async def terminate(self) -> int:
        """End it in an orderly way; its exit code."""
        self._child.terminate()
        return await self.ended()

    async def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        assert self._child.stdout is not None
        self.lines.append((await self._child.stdout.read()).decode())
        return await self._child.wait()


class Server(Process):
    """A server over files and SQLite, with a secret it must keep."""

    def __init__(self, name: str, place: Path) -> None:
        stores = ("--blob", f"file:{place}/blob", "--consensus", f"sqlite:{place}/consensus.db")
        words = {"dev": ("dev", "--data", str(place)), "shard": ("serve", "shard", *stores)}[name]
        place.mkdir()
        super().__init__(
            ("persist_cli", *words, "--listen", "127.0.0.1:0"),
            place.with_suffix(".log"),
            PGPASSWORD=SECRET,
        )

    async def endpoint(self) -> str:
        found = re.search(r"127\.0\.0\.1:\d+", await self.line())
        assert found is not None
        return found.group()

    def peak(self) -> int:
        """The most memory it had since ``forget_peak``."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found.group(1)) << 10

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    @property
    def resident(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    @property
    def cpu_seconds(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


class Stage:
    """A server, a caller that asks it all the time, and those who come and go."""

    def __init__(self, server: Server, endpoint: str, bystander: Process, folder: Path) -> None:
        self.server = server
        self.endpoint = endpoint
        self.bystander = bystander
        self._folder = folder
        self.idle = server.resident

    @contextlib.asynccontextmanager
    async def callers(self, kinds: Sequence[str]) -> AsyncIterator[Process]:
        """One process that is all of them."""
        words = ("soak.servers.hostile_worker", self.endpoint, *kinds)
        async with Process(words, self._folder / "callers.err") as process:
            assert await process.line() == "ready\n"
            yield process
            assert process.errors.read_text() == ""

    async def beside(self, kinds: Sequence[str], seconds: float) -> None:
        """Let the bystander ask beside some kinds of callers; return what that cost the server, and judge it."""
        name = " + ".join(kinds)
        if not kinds:
            await self._hear("nobody")
            await asyncio.sleep(seconds)
            return
        async with self.callers(kinds) as callers:
            self.server.forget_peak()
            cpu, log = self.server.cpu_seconds, self.server.errors.stat().st_size
            await self._hear(name)
            await asyncio.sleep(seconds)
            await self._hear("-")
            cpu, peak = self.server.cpu_seconds - cpu, self.server.peak() - self.idle
            log = self.server.errors.stat().st_size - log
            told = json.loads(await callers.end())
        del told["took"]
        print(f"  {name}: {told}")
        print(f"    {peak // MIB} MiB more at most, {cpu:.1f} s of CPU in {seconds:.0f} s, {log} bytes of log")
        assert told["secrets"] == told["failures"] == []
        assert told["lies_taken"] == 0
        assert peak <= MEMORY_MAX
        assert log <= LOG_BYTES_PER_CALL_MAX * told["calls"]

    async def _hear(self, what: str) -> None:
        assert await self.bystander.told(what) == "heard\n"


@contextlib.asynccontextmanager
async def stage(name: str, tmp_path: Path) -> AsyncIterator[Stage]:
    async with Server(name, tmp_path / "location") as server:
        endpoint = await server.endpoint()
        words = ("soak.servers.hostile_worker", endpoint, "bystander")
        async with Process(words, tmp_path / "bystander.err") as bystander:
            assert await bystander.line() == "ready\n"
            yield Stage(server, endpoint, bystander, tmp_path)


def at(took: list[float], share: float) -> float:
    """A quantile, in milliseconds."""
    return 1000 * sorted(took)[int(share * (len(took) - 1))]


def show(took: dict[str, dict[str, list[float]]]) -> None:
    """Print what calls took, beside whom."""
    for beside, by_what in took.items():
        for what, seconds in by_what.items():
            alone = took["nobody"][what]
            print(
                f"  {what} beside {beside}: {len(seconds)}, p50 {at(seconds, 0.5):.1f} ms "
                f"({at(seconds, 0.5) / at(alone, 0.5):.1f} x), p99 {at(seconds, 0.99):.1f} ms "
                f"({at(seconds, 0.99) / at(alone, 0.99):.1f} x), most {at(seconds, 1):.0f} ms"
            )


async def read_all(place: Place, told: dict[str, Any]) -> None:
    """Everything that was acknowledged can be read, at every shard's since and newest time.

    What was under way when the bystander was asked to end may be there, too.
    """
    rows = 0
    async with client_of(place) as client:
        for shard in [shard async for shard in client.list_shards()]:
            upper = (await client.recent_upper(shard)).time
            if not upper:
                continue
            reader = await client.open_reader(shard)
            for time in {reader.since.time or 0, upper - 1}:
                found = await (await reader.snapshot(time)).to_arrow()
            rows += found.num_rows if shard in BYSTANDERS else 0
            await reader.expire()
    assert told["appended"] <= rows <= told["begun"]


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
@pytest.mark.parametrize("name", pick(["dev"], ["shard", "dev"]))
async def test_hostile_callers_harm_nobody(name: str, tmp_path: Path) -> None:
    async with stage(name, tmp_path) as there:
        print(f"\n{name}: {there.idle // MIB} MiB idle")
        for _ in range(ROUNDS):
            for kinds in pick([HOSTILE], [[kind] for kind in HOSTILE]):
                await there.beside([], SECONDS / 2)
                await there.beside(kinds, SECONDS)
                if FULL:
                    await there.beside([], SECONDS / 2)
                    await there.beside(["honest"], SECONDS)
        told = json.loads(await there.bystander.end())
        assert await there.server.terminate() == 0
        assert SECRET not in there.server.errors.read_text() + "".join(there.server.lines)
    show(told["took"])
    assert told["failures"] == []
    stores = f"file:{tmp_path}/location/blob", f"sqlite:{tmp_path}/location/consensus.db"
    words = ("persist_cli", "fsck", "--deep", "--blob", stores[0], "--consensus", stores[1])
    async with Process(words, tmp_path / "fsck.err") as fsck:
        assert await fsck.ended() == 0, fsck.lines
    await read_all(Place(*stores), told)
    for kind in HOSTILE if FULL else ():
        for what, honest in told["took"]["honest"].items():
            assert at(told["took"][kind][what], 0.99) <= SLOWER_MAX * at(honest, 0.99), (kind, what)
