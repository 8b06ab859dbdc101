"""Leaders as processes, as a test sees them."""

import asyncio
import itertools
import json
import signal
import sys
from typing import Any

from control.world import Stores
from forked import child_environment


class Refused(Exception):
    """The leader refused: ``args`` are the name of the error, and what it said."""


class Killed(Exception):
    """The leader is gone, and what was asked of it may have happened or not."""


class LeaderProcess:
    """One of them. Answers come in any order."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {0: asyncio.get_running_loop().create_future()}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, stores: Stores) -> "LeaderProcess":
        """It leads once this returns."""
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "control.leader", stores.blob, stores.consensus)
        began = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=child_environment())
        leader = cls(began)
        await leader._waiting[0]
        return leader

    @property
    def pid(self) -> int:
        return self._process.pid

    async def do(self, what: str, *arguments: Any) -> Any:
        """Ask, and wait for the answer. Raises Refused, Killed."""
        return await self.ask(what, *arguments)

    def ask(self, what: str, *arguments: Any) -> "asyncio.Future[Any]":
        """Ask; the answer to come."""
        number, stdin = next(self._numbers), self._process.stdin
        assert stdin is not None
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        if self._process.returncode is not None or self._reading.done():
            answer.set_exception(Killed())
        else:
            stdin.write(json.dumps([number, what, *arguments]).encode() + b"\n")
        return answer

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        await self._reading

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def stands_still(self) -> None:
        """Return once it was stopped."""
        while True:
            with open(f"/proc/{self.pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "T":
                    return
            await asyncio.sleep(0.01)

    async def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        try:
            while line := await stdout.readline():
                number, answer, *error = json.loads(line)
                future = self._waiting.pop(number)
                if error:
                    future.set_exception(Refused(*error))
                else:
                    future.set_result(answer)
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(Killed())
                    future.exception()
