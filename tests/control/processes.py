"""Leaders as processes, as a test sees them."""

import asyncio
import itertools
import json
import signal
from typing import Any

from control.world import Stores
from forked import Fork, stream


class Refused(Exception):
    """The leader refused: ``args`` are the name of the error, and what it said."""


class Killed(Exception):
    """The leader is gone, and what was asked of it may have happened or not."""


class LeaderProcess:
    """One of them. Answers come in any order."""

    def __init__(self, process: Fork) -> None:
        self._process = process
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {0: asyncio.get_running_loop().create_future()}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, stores: Stores) -> "LeaderProcess":
        """It leads once this returns."""
        words = ("control.leader", stores.blob, stores.consensus)
        leader = cls(await asyncio.to_thread(lambda: Fork(*words, heard=("input", "output"))))
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
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        if self._process.returncode is not None or self._reading.done():
            answer.set_exception(Killed())
        else:
            self._process.tell(json.dumps([number, what, *arguments]))
        return answer

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
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
        said = await stream(self._process.output)
        try:
            while line := await said.readline():
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
