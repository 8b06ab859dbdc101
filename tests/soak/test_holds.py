"""Holds under load: many clients advance them, leaders are killed, and every time that is held reads right, always.

Writers go on, policies release everything that no hold keeps. In the end nothing is left of what was dropped.
"""

import asyncio
import bisect
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from control.processes import Killed, LeaderProcess, Refused
from control.world import SCHEMA, Stores, handles_of
from soak.support import LIMIT_SECONDS, pick

from persist import aio
from persist.errors import OutcomeForgotten

HOLDS, TABLES, ADVANCES, CLIENTS, KILLS = pick((12, 4, 75, 6, 2), (200, 50, 5_000, 64, 25))
OBJECTS_MAX = 3
RETAINED = 5
LAG = 6 * 10**8


@dataclass
class Held:
    """A hold as its client knows it: ``at`` was acknowledged; ``maybe`` was asked for, and not answered."""

    name: str
    objects: tuple[int, ...]
    at: int
    maybe: int | None = None


@dataclass
class Scene:
    """What is there, and what was written: ``times`` of each table, which shows at a time the last one before it."""

    stores: Stores
    client: aio.Client
    leader: LeaderProcess
    ids: list[str] = field(default_factory=list)
    shards: list[aio.ShardId] = field(default_factory=list)
    times: list[list[int]] = field(default_factory=list)
    advanced: int = 0
    commits: int = 0
    reads: int = 0
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def do(self, what: str, *arguments: object) -> object:
        """Ask the leader, until one answers."""
        while True:
            with suppress(Killed):
                return await self.leader.do(what, *arguments)
            async with self.changing:
                pass
            await asyncio.sleep(0.01)

    async def kill(self) -> None:
        """The leader is killed, and another process leads."""
        async with self.changing:
            with suppress(Killed):
                self.commits += await asyncio.wait_for(self.leader.do("counted"), 60)
            await self.leader.kill()
            self.leader = await LeaderProcess.start(self.stores)


@asynccontextmanager
async def scene(path: Path) -> AsyncIterator[Scene]:
    stores = Stores(f"file:{path / 'blob'}", f"sqlite:{path / 'consensus.db'}")
    leader = await LeaderProcess.start(stores)
    async with await stores.client() as client:
        found = Scene(stores, client, leader)
        try:
            yield found
        finally:
            await found.leader.kill()


async def writing(scene: Scene, table: int, chance: random.Random) -> None:
    """A table's writer: a row that says when it was written takes the place of the one before, again and again."""
    writer = await scene.client.open_writer(scene.shards[table])
    times = scene.times[table]
    while True:
        time = (times[-1] if times else 0) + chance.randrange(1, 20)
        rows = [{"id": 1, "name": str(time), "ts": time, "diff": 1}]
        if times:
            rows.append({"id": 1, "name": str(times[-1]), "ts": time, "diff": -1})
        upper = times[-1] + 1 if times else 0
        with suppress(OutcomeForgotten):
            outcome = await writer.compare_and_append(pa.Table.from_pylist(rows, SCHEMA.updates), upper, time + 1)
            assert isinstance(outcome, aio.Appended)
            times.append(time)
        await asyncio.sleep(0.05 + chance.random() * pick(0.1, 1.0))


async def reads_right(scene: Scene, table: int, as_of: int) -> None:
    """The table shows at this time what was written last before it."""
    times = scene.times[table]
    at = bisect.bisect_right(times, as_of)
    wanted = [str(times[at - 1])] if at else []
    async with await scene.client.open_reader(scene.shards[table]) as reader:
        found = [row["name"] for row in await (await reader.snapshot(as_of)).to_pylist()]
    assert found == wanted, f"at {as_of}"
    scene.reads += 1


async def check(scene: Scene, hold: Held, chance: random.Random) -> None:
    """All of it is readable from its time on. What was not answered may have been done."""
    first = max(hold.at, hold.maybe or 0)
    for table in hold.objects:
        last = scene.times[table][-1]
        await reads_right(scene, table, min(first, last))
        await reads_right(scene, table, chance.randint(min(first, last), last))


async def advancing(scene: Scene, holds: list[Held], chance: random.Random) -> None:
    """A client: it advances holds of its own, and looks whether they hold."""
    while scene.advanced < ADVANCES:
        hold = chance.choice(holds)
        last = min(scene.times[table][-1] for table in hold.objects)
        to = chance.randint(hold.at, max(hold.at, last))
        hold.maybe = max(to, hold.maybe or 0)
        try:
            hold.at = int(str(await scene.do("advance", hold.name, to)))
        except Refused as refused:
            # An advance that was not answered had been done, and further.
            if refused.args[0] == "NotReadable" and hold.maybe > to:
                continue
            raise
        hold.maybe = None
        scene.advanced += 1
        if chance.random() < pick(0.5, 0.1):
            await check(scene, hold, chance)


async def killing(scene: Scene) -> None:
    """Leaders are killed at even distances."""
    for number in range(1, KILLS + 1):
        while scene.advanced < ADVANCES * number // (KILLS + 1):
            await asyncio.sleep(0.01)
        await scene.kill()


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_every_held_time_reads_right_at_all_times(tmp_path: Path) -> None:
    chance = random.Random(12)
    async with scene(tmp_path) as found:
        for table in range(TABLES):
            id, shard = await found.leader.do("table", f"t{table}", RETAINED)
            found.ids.append(id)
            found.shards.append(aio.ShardId(shard))
            found.times.append([])
        async with asyncio.TaskGroup() as group:
            writers = [group.create_task(writing(found, table, random.Random(table))) for table in range(TABLES)]
            while not all(found.times):
                await asyncio.sleep(0.01)
            holds: list[Held] = []
            for number in range(HOLDS):
                objects = tuple(chance.sample(range(TABLES), chance.randint(1, OBJECTS_MAX)))
                at = await found.leader.do("hold", f"h{number}", [found.ids[table] for table in objects], None, LAG)
                holds.append(Held(f"h{number}", objects, at))
            began = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as clients:
                for number in range(CLIENTS):
                    clients.create_task(advancing(found, holds[number::CLIENTS], random.Random(number)))
                clients.create_task(killing(found))
            took = asyncio.get_running_loop().time() - began
            for hold in holds:
                await check(found, hold, chance)
            for writer in writers:
                writer.cancel()
        found.commits += int(str(await found.do("counted")))
        print(f"{found.advanced} advances in {took:.0f} s, {found.commits} commits, {found.reads} reads, {KILLS} kills")
        assert found.commits <= 5 * took + KILLS + 1
        await nothing_is_left(found, holds)


async def nothing_is_left(scene: Scene, holds: list[Held]) -> None:
    """Once holds and half of the tables are dropped: no handle without an item, and sinces where policies have them."""
    for hold in holds:
        await scene.leader.do("drop_hold", hold.name)
    for id in scene.ids[::2]:
        await scene.leader.do("drop", id)
    await scene.leader.do("passed", "finalizer")
    async with asyncio.timeout(60):
        while not await sinces_follow(scene):
            await scene.leader.do("passed", "since")
    assert await scene.leader.do("begun") == []
    for number, shard in enumerate(scene.shards):
        state = await scene.client.inspect(shard)
        assert state["is_tombstone"] == (number % 2 == 0)
        assert len(await handles_of(scene.client, shard)) == number % 2


async def sinces_follow(scene: Scene) -> bool:
    """Every policy has what is left."""
    for shard in scene.shards[1::2]:
        state = await scene.client.inspect(shard)
        [held] = state["critical_readers"].values()
        if held["since"] != [state["upper"][0] - RETAINED]:
            return False
    return True
