"""PersistShard as a real process."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.support import child_environment

from persist.client.remote import RemoteShards


class ShardProcess:
    """``python -m persist_shard`` over files and SQLite below one directory."""

    def __init__(self, directory: Path, endpoint: str = "127.0.0.1:0", **environment: str) -> None:
        self._directory = directory
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self.endpoint = endpoint

    async def start(self) -> "ShardProcess":
        """Start and wait until it listens; on the port it had before, if it had one."""
        stores = f"file:{self._directory}/blob", f"sqlite:{self._directory}/consensus.db"
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "persist_shard", self.endpoint, *stores,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=child_environment(**self._environment),
        )  # fmt: skip
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode()
        assert line.startswith("persist shard listening on "), (line, await self.end())
        self.endpoint = line.split()[-1]
        return self

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self) -> tuple[int, str]:
        """Wait for the process to end; its exit code and what it said on standard error."""
        assert self._process is not None
        _, said = await self._process.communicate()
        code = self._process.returncode
        self._process = None
        assert code is not None
        return code, said.decode()

    async def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
            await self.end()


@asynccontextmanager
async def shard_process(directory: Path, **environment: str) -> AsyncIterator[ShardProcess]:
    process = await ShardProcess(directory, **environment).start()
    try:
        yield process
    finally:
        await process.kill()


@asynccontextmanager
async def remote_to(process: ShardProcess, **options: bool) -> AsyncIterator[RemoteShards]:
    remote = RemoteShards(process.endpoint, **options)
    try:
        yield remote
    finally:
        await remote.close()
