"""Several processes on one directory: one leads, the others find it, and none is deposed while it lives."""

import asyncio
import os
import signal
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from client.collections.environment.environment_worker import QUICK, ROWS
from forked import Fork, stream
from standing import stop_between_writes
from sure import sure

from persist import aio
from persist.client.collections.seat import Occupied, Seat, take_seat
from persist.core.catalog.ddl.statements import CreateTable, QualifiedName
from persist.core.catalog.errors import NotWritable
from persist.core.catalog.kinds import SETTING
from persist.core.catalog.objects import Setting, SettingKey
from persist.errors import Determinate, Indeterminate, LocationError
from persist.runtime import system
from persist.storage.layout import CONSENSUS_NAME

HOST = system().hostname


class Worker:
    def __init__(self, process: Fork, said: asyncio.StreamReader) -> None:
        self.process = process
        self._said = said

    async def says(self) -> str:
        line = await asyncio.wait_for(self._said.readline(), 60)
        return line.decode().strip()

    def ask(self, name: str) -> None:
        self.process.tell(name)

    async def make(self, name: str) -> str:
        self.ask(name)
        return await self.says()

    async def leave(self) -> None:
        """End in order."""
        sure(self.process.input).close()
        assert await asyncio.wait_for(self.process.wait(), 60) == 0


@asynccontextmanager
async def worker(place: Path) -> AsyncIterator[Worker]:
    words = ("client.collections.environment.environment_worker", place)
    process = await asyncio.to_thread(lambda: Fork(*words, heard=("input", "output")))
    try:
        it = Worker(process, await stream(process.output))
        assert await it.says() == "ready"
        yield it
    finally:
        process.kill()
        await process.wait()


async def made(place: Path) -> set[str]:
    async with await aio.embedded(place, settings=QUICK) as client:
        environment = await client.environment()
        return {item.name.item for item in await environment.items() if item.id.space == "u"}


def create(name: str) -> CreateTable:
    return CreateTable(QualifiedName(name), ROWS)


async def test_two_processes_write_through_one_leader_which_ends_in_order(tmp_path):
    async with worker(tmp_path) as first, worker(tmp_path) as second:
        assert await first.make("a") == "ok a leads"
        assert await second.make("b") == "ok b follows"
        for number in range(5):
            first.ask(f"x{number}")
            second.ask(f"y{number}")
        said = [await each.says() for each in (first, second) for _ in range(5)]
        assert all(line.startswith("ok ") for line in said), said
        await first.leave()
        assert await second.make("c") == "ok c leads"
        assert not (tmp_path / "leaders" / "nothing.sock").exists()
    wanted = {"a", "b", "c", *(f"{letter}{number}" for letter in "xy" for number in range(5))}
    assert await made(tmp_path) == wanted


async def test_after_kill_9_of_the_leader_the_next_writer_leads(tmp_path):
    async with worker(tmp_path) as first, worker(tmp_path) as second:
        assert await first.make("a") == "ok a leads"
        assert await second.make("b") == "ok b follows"
        first.process.kill()
        await first.process.wait()
        assert await second.make("c") == "ok c leads"
    assert await made(tmp_path) == {"a", "b", "c"}


async def test_kill_9_while_statements_are_under_way_loses_none_that_was_acknowledged(tmp_path):
    async with worker(tmp_path) as first, worker(tmp_path) as second:
        assert await first.make("a") == "ok a leads"
        assert await second.make("b") == "ok b follows"
        for number in range(20):
            second.ask(f"y{number}")
        assert (await second.says()).startswith("ok y0")
        first.process.kill()
        said = [await second.says() for _ in range(19)]
        # Each has its token, so that one whose answer was lost is not made twice, nor refused as there already.
        assert all(line.startswith("ok ") for line in said), said
        assert said[-1].endswith("leads")
    assert await made(tmp_path) == {"a", "b", *(f"y{number}" for number in range(20))}


async def test_a_leader_that_was_stopped_is_never_deposed_and_the_error_says_what_to_do(tmp_path):
    async with worker(tmp_path) as first, await aio.embedded(tmp_path, settings=QUICK) as client:
        assert await first.make("a") == "ok a leads"
        environment = await client.environment()
        await environment.execute(create("b"))
        token = await (await client.catalog("default")).fence_token()
        stop_between_writes(first.process.pid, tmp_path / CONSENSUS_NAME)
        try:
            with pytest.raises((Determinate, Indeterminate), match="does not answer") as refused:
                await environment.execute(create("c"), timeout=2)
            assert f"process {first.process.pid} on {HOST}" in refused.value.hint
            assert "kill -CONT" in refused.value.hint
            assert not environment.leads
            # Reading needs no leader.
            assert (await environment.resolve("b", strict=True)).name.item == "b"
        finally:
            first.process.send_signal(signal.SIGCONT)
        await environment.execute(create("d"))
        assert await (await client.catalog("default")).fence_token() == token
        assert await first.make("e") == "ok e leads"
    assert {"a", "b", "d", "e"} <= await made(tmp_path)


async def test_only_the_owner_of_a_directory_reaches_its_leader(tmp_path):
    async with await aio.embedded(tmp_path, settings=QUICK) as client:
        environment = await client.environment()
        await environment.execute(create("a"))
        folder = tmp_path / "leaders"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "default.sock").stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "default.json").stat().st_mode) == 0o600
    assert not (folder / "default.sock").exists()


async def test_a_directory_whose_path_is_too_long_for_a_socket_is_led_all_the_same(tmp_path):
    deep = tmp_path / ("long" * 30) / "with ümlaut %41"
    async with worker(deep) as first, worker(deep) as second:
        assert await first.make("a") == "ok a leads"
        assert await second.make("b") == "ok b follows"
        seat = take_seat(str(deep), "default", host=HOST)
        assert isinstance(seat, Occupied)
        assert len(seat.address) < 100
        room = Path(seat.address.removeprefix("unix:")).parent
        await second.leave()
        await first.leave()
        assert not room.exists()


async def test_a_leader_that_a_tool_fenced_leads_again_under_its_seat(tmp_path):
    async with await aio.embedded(tmp_path, settings=QUICK) as client:
        environment = await client.environment()
        await environment.execute(create("a"))
        async with await aio.embedded(tmp_path, settings=QUICK) as tool:
            catalog = await tool.catalog("default")
            await catalog.edit(SETTING, SettingKey("by"), Setting("hand"))
        await environment.execute(create("b"))
        assert environment.leads


async def test_who_listens_there_for_another_environment_is_not_taken_for_the_leader(tmp_path):
    async with await aio.embedded(tmp_path / "one", settings=QUICK) as client:
        wrong = await client.environment()
        await wrong.execute(create("a"))
        there = take_seat(str(tmp_path / "one"), "default", host=HOST)
        assert isinstance(there, Occupied)
        # Another user's file says that the leader of one directory leads the other.
        seat = take_seat(str(tmp_path / "two"), "default", host=HOST)
        assert isinstance(seat, Seat)
        seat.say(there.address, host=HOST)
        async with await aio.embedded(tmp_path / "two", settings=QUICK) as other:
            environment = await other.environment()
            with pytest.raises((NotWritable, LocationError)):
                await environment.execute(create("b"), timeout=1)
            seat.leave()
            await environment.execute(create("b"))
            assert [item.name.item for item in environment.view.items() if item.id.space == "u"] == ["b"]
        assert [item.name.item for item in await wrong.items() if item.id.space == "u"] == ["a"]


async def test_a_forked_child_that_lives_longer_does_not_keep_the_seat(tmp_path):
    seat = take_seat(str(tmp_path), "default", host=HOST)
    assert isinstance(seat, Seat)
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(said)
        os.read(heard, 1)
        os._exit(0)
    try:
        assert isinstance(take_seat(str(tmp_path), "default", host=HOST), Occupied)
        seat.leave()
        again = take_seat(str(tmp_path), "default", host=HOST)
        assert isinstance(again, Seat)
        again.leave()
    finally:
        os.close(heard)
        os.close(said)
        os.waitpid(child, 0)


async def test_shared_stores_take_one_writer_and_say_what_to_do(shared_place):
    async with shared_place() as first, shared_place() as second:
        environment = await first.environment()
        await environment.execute(create("a"))
        other = await second.environment()
        with pytest.raises(NotWritable, match="another program leads") as refused:
            await other.execute(create("b"))
        assert "persist serve catalog" in refused.value.hint
        assert (await other.resolve("a")).name.item == "a"
        await environment.close()
        # It ended in order.
        await other.execute(create("b"))
        last = await first.environment(take_over=True)
        await last.execute(create("c"))
        assert [item.name.item for item in last.view.items() if item.id.space == "u"] == ["a", "b", "c"]
