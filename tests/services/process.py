"""Services as real processes, forked from one that has imported them."""

import asyncio
import functools
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from forked import Fork, child_environment, stream
from services.support import asking


class ServiceProcess:
    """``python -m`` and what ``arguments`` says for an endpoint. ``line``: what it said when it was ready."""

    def __init__(
        self, arguments: Callable[[str], Sequence[str]], endpoint: str, environment: Mapping[str, str]
    ) -> None:
        self._arguments = arguments
        self._environment = environment
        self._process: Fork | None = None
        self._said: list[asyncio.StreamReader] = []
        self.endpoint = endpoint
        self.line = ""

    async def start(self) -> Self:
        """Start and wait until it listens; on the port it had before, if it had one."""
        fork = functools.partial(Fork, environment=child_environment(**self._environment), heard=("output", "errors"))
        self._process = process = await asyncio.to_thread(fork, *self._arguments(self.endpoint))
        self._said = [await stream(file) for file in (process.output, process.errors) if file is not None]
        self.line = (await self._said[0].readline()).decode()
        found = re.search(r"127\.0\.0\.1:\d+", self.line)
        assert found is not None, (self.line, await self.end())
        self.endpoint = found.group()
        return self

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the process, while it is there."""
        return () if self._process is None else (self._process.pid,)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self) -> tuple[int, str]:
        """Wait for the process to end; its exit code and what it said on standard error."""
        assert self._process is not None
        _, said = await asyncio.gather(*(said.read() for said in self._said))
        code, self._process = await self._process.wait(), None
        return code, said.decode()

    async def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
            await self.end()


class ShardProcess(ServiceProcess):
    """``python -m persist_shard`` over files and SQLite below one directory."""

    def __init__(self, directory: Path, endpoint: str = "127.0.0.1:0", **environment: str) -> None:
        stores = f"file:{directory}/blob", f"sqlite:{directory}/consensus.db"
        super().__init__(lambda listen: ("persist_shard", listen, *stores), endpoint, environment)


class ServeProcess(ServiceProcess):
    """``persist serve SERVICE``."""

    def __init__(self, service: str, *options: str, **environment: str) -> None:
        command = ("persist_cli", "serve", service, *options, "--listen")
        super().__init__(lambda listen: (*command, listen), "127.0.0.1:0", environment)


@asynccontextmanager
async def shard_process(directory: Path, **environment: str) -> AsyncIterator[ShardProcess]:
    process = await ShardProcess(directory, **environment).start()
    try:
        yield process
    finally:
        await process.kill()


@asynccontextmanager
async def serve_process(service: str, *options: str, **environment: str) -> AsyncIterator[ServeProcess]:
    process = ServeProcess(service, *options, **environment)
    try:
        yield await process.start()
    finally:
        await process.kill()


@asynccontextmanager
async def remote_to(process: ShardProcess, **options: bool) -> AsyncIterator[Any]:
    """Its shards, as handles ask them. Few enough appends are under way that it forgets no token."""
    remote = asking(process.endpoint, trusting=True, **options)
    try:
        yield remote
    finally:
        await remote.close()
