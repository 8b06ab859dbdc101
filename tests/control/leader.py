"""A leader as a process of its own: it does what lines on its standard input say, and answers each on its output.

A line is a list: number, what, and arguments; an answer: the number, and what it came to, or an error's name.
"""

import asyncio
import json
import os
import signal
import sys
from typing import Any

from control.world import Stores, World, opened, since_of
from sure import put

from persist import ShardId
from persist.client.collections.advances import Advances
from persist.core.catalog.values import Id, Retain
from persist.core.shard.commands import CompareAndDowngradeSince
from persist.core.time.hold import Interval
from persist.core.time.holds import Advance
from persist.errors import PersistError
from persist.retry.tasks import Tasks

TOLD_SECONDS = 5.0


class Process:
    """What a process answers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.commits = 0
        runtime = world.client.location.runtime
        self.advances: Any = Advances(self.flush, runtime=runtime, tasks=Tasks())

    async def flush(self, asked: Any) -> Any:
        self.commits += 1
        return await self.world.flush(asked)

    async def table(self, name: str, retain: int) -> Any:
        id = await self.world.table(name, retain=Retain(retain))
        return [str(id), str(self.world.shard(id))]

    async def hold(self, name: str, objects: list[str], at: int | None, lag: int) -> Any:
        hold = await self.world.hold(name, [Id.parse(each) for each in objects], at, max_lag=Interval(lag))
        return hold.at

    async def advance(self, name: str, to: int) -> Any:
        return (await self.advances.put(Advance(f"public.{name}", to))).at

    async def drop_hold(self, name: str) -> Any:
        await self.world.drop_hold(name)

    async def drop(self, id: str) -> Any:
        await self.world.drop(Id.parse(id))

    async def passed(self, *names: str) -> Any:
        await self.world.controller.passed(*names)

    async def counted(self) -> Any:
        return self.commits

    async def begun(self) -> Any:
        return sorted(map(str, await self.world.controller.room.begun.all()))

    async def since(self, shard: str) -> Any:
        return await since_of(self.world.client, ShardId(shard))

    async def stop_before_moving(self) -> Any:
        """The process stands still when it is about to send the next move of a handle: it was decided on before."""
        shards = self.world.client.location.shards
        apply, handles = shards.apply, self.world.controller.room.handles

        async def standing_still(shard: Any, command: Any, *, timeout: float) -> Any:
            ours = isinstance(command, CompareAndDowngradeSince) and command.critical_id == handles.name
            if ours and command.expected == command.opaque:
                put(shards, "apply", apply)
                os.kill(os.getpid(), signal.SIGSTOP)
            return await apply(shard, command, timeout=timeout)

        put(shards, "apply", standing_still)

    async def error(self) -> Any:
        return type(self.world.controller.error).__name__


async def main(blob: str, consensus: str) -> None:
    async with await Stores(blob, consensus).client() as client:
        world = await opened(client, told_seconds=TOLD_SECONDS)
        process = Process(world)
        print(json.dumps([0, "leads"]), flush=True)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        tasks = set()

        async def one(number: int, what: str, arguments: list[Any]) -> None:
            try:
                answer: Any = [number, await getattr(process, what)(*arguments)]
            except PersistError as error:
                answer = [number, None, type(error).__name__, str(error)]
            print(json.dumps(answer), flush=True)

        while line := await reader.readline():
            number, what, *arguments = json.loads(line)
            task = asyncio.create_task(one(number, what, arguments))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await world.controller.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
