"""Commits that wait while an append is under way: the next append takes all of them that depend on nothing before."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from catalog.memory_log import MemoryLog
from client.support import memory_place
from services.catalog.cataloging import catalog_server, new_token, remote_catalog
from services.catalog.test_catalog_writes import Server, leading, setting

from persist.client.catalog.durable import DurableCatalog
from persist.core.catalog.conflicts import Footprint
from persist.core.catalog.errors import FencedByEpoch, OutOfSync, UniquenessViolation
from persist.core.catalog.kinds import COMMIT, DATABASE, SETTING
from persist.core.catalog.objects import CommitKey, Database, DatabaseKey, Setting, SettingKey
from persist.core.catalog.rows import Row
from persist.core.catalog.values import Id, RoleRef, Space
from persist.core.ids import Token
from persist.errors import Determinate, Indeterminate, RequestTooLarge
from persist.wire.catalog.rows import CODEC
from persist.wire.catalog.rpc import WriteSession
from persist_catalog.writes import ReadyCommit


def database(number: int, name: str) -> Row:
    key = DatabaseKey(Id(Space.USER, 1_000 + number))
    return CODEC.encode(DATABASE.tag, key, Database(name, RoleRef(Space.USER, 1), oid=20_000 + number))


class Together:
    """Commits that come while another one is appended."""

    def __init__(self, server: Server, session: WriteSession) -> None:
        self.server = server
        self.session = session
        self.base = server.mirror.upper
        self.asked: list[tuple[bytes, ReadyCommit]] = []
        self.running: list[asyncio.Task[int]] = []

    def ask(
        self, *rows: Row, reads: tuple[str, ...] = (), kinds: Any = (), token: Token | None = None, ts: int = 0
    ) -> None:
        footprint = Footprint(keys={(SETTING, SettingKey(name)) for name in reads}, kinds=set(kinds))
        if token is not None:
            footprint.keys.add((COMMIT, CommitKey(token)))
        request_id = bytes([len(self.asked)]) * 16
        commit = ReadyCommit(self.base, [(row, 1) for row in rows], footprint, token, ts, b"b" * 16 if token else b"")
        self.asked.append((request_id, commit))

    async def told(self) -> list[int | BaseException]:
        """What each came to, the first of which is appended while the others wait."""
        self.server.log.next = ["slow", *self.server.log.next]
        left = len(self.server.log.next)
        self.running = [asyncio.create_task(self._commit(*self.asked[0]))]
        while len(self.server.log.next) == left:
            await asyncio.sleep(0)
        self.running += [asyncio.create_task(self._commit(*each)) for each in self.asked[1:]]
        while len(self.server.writes._waiting) < len(self.asked) - 1:
            await asyncio.sleep(0)
        self.server.log.gate.set()
        return await asyncio.gather(*self.running, return_exceptions=True)

    async def again(self) -> list[int | BaseException]:
        running = [self._commit(*each) for each in self.asked]
        return await asyncio.gather(*running, return_exceptions=True)

    async def _commit(self, request_id: bytes, commit: ReadyCommit) -> int:
        return await self.server.writes.commit(self.session, request_id, commit)


async def test_what_waits_is_one_append_each_at_a_time_of_its_own():
    async with leading() as server:
        group = Together(server, await server.session())
        for number in range(6):
            group.ask(setting(f"{number}", "1"), ts=group.base + 10 if number == 3 else 0)
        appends = server.rows.appends
        times = [0, 1, 2, 10, 11, 12]
        assert await group.told() == [group.base + each for each in times]
        assert server.rows.appends == appends + 2
        assert await group.again() == [group.base + each for each in times]
        came = [each for each in server.rows.updates if each.ts >= group.base and each.row.kind == SETTING.tag]
        told = {each.row.key: each.ts for each in came}
        assert sorted(told.values()) == [group.base + each for each in times]
        assert server.mirror.upper == server.rows.upper == group.base + 13
        assert server.mirror.since(group.base) == [each for each in server.rows.updates if each.ts >= group.base]


async def test_one_that_depends_on_another_of_the_same_append_is_not_in_it():
    async with leading() as server:
        group = Together(server, await server.session())
        group.ask(setting("first", "1"))
        group.ask(setting("a", "1"))
        group.ask(setting("a", "2"))
        group.ask(setting("b", "1"), reads=("a",))
        group.ask(setting("c", "1"), reads=("b",))
        group.ask(setting("d", "1"), kinds=(SETTING,))
        group.ask(setting("e", "1"))
        told = await group.told()
        assert [type(each) for each in told] == [int, int, OutOfSync, OutOfSync, int, OutOfSync, int]
        assert [each for each in told if isinstance(each, int)] == [group.base + each for each in range(4)]
        assert shown(server) == {"a": "1", "c": "1", "e": "1", "first": "1"}


def shown(server: Server) -> dict[str, str]:
    catalog = server.leadership.catalog()
    assert catalog is not None
    return {key.name: it.value for key, it in catalog.objects(SETTING).items() if len(key.name) < 7}


async def test_one_that_is_refused_takes_nobody_with_it():
    async with leading() as server:
        group = Together(server, await server.session())
        group.ask(setting("first", "1"))
        group.ask(database(1, "same"))
        group.ask(database(2, "same"))
        group.ask(setting("large", "x" * (3 << 20)))
        group.ask(setting("last", "1"))
        told = await group.told()
        assert [type(each) for each in told] == [int, int, UniquenessViolation, RequestTooLarge, int]
        assert shown(server) == {"first": "1", "last": "1"}


async def test_a_token_is_once_in_an_append_too():
    async with leading() as server:
        group, token = Together(server, await server.session()), new_token()
        group.ask(setting("first", "1"))
        for _ in range(3):
            group.ask(setting("a", "1"), token=token)
        group.ask(setting("b", "1"), token=new_token())
        told = await group.told()
        assert [told[1], told[2], told[4]] == [group.base + 1, told[1], group.base + 2]
        assert told[3] == told[1]


@pytest.mark.parametrize("how", ["lost", "failed"])
async def test_an_append_without_an_answer_is_unknown_to_each_and_found_by_each(how: str):
    async with leading() as server:
        group = Together(server, await server.session())
        group.ask(setting("first", "1"))
        for number in range(4):
            group.ask(setting(f"{number}", "1"), token=new_token() if number % 2 else None)
        server.log.next = [how]
        told = await group.told()
        kind = Indeterminate if how == "lost" else Determinate
        assert [type(each) for each in told] == [int, *[kind] * 4]
        assert sorted(set(map(str, await group.again()))) == [str(group.base + each) for each in range(5)]
        assert (
            len([each for each in server.rows.updates if each.row.kind == SETTING.tag and each.ts >= group.base]) == 5
        )


async def test_one_that_was_not_in_an_append_without_an_answer_is_not_taken_for_one_that_was():
    """Both count from nothing to 1: one of them happened, and the other one did not."""
    async with leading() as server:
        group = Together(server, await server.session())
        for name in ("first", "counter", "counter", "other"):
            group.ask(setting(name, "1"))
        server.log.next = ["lost"]
        assert [type(each) for each in await group.told()] == [int, Indeterminate, Determinate, Indeterminate]
        assert [type(each) for each in await group.again()] == [int, int, OutOfSync, int]


async def test_who_is_fenced_by_then_commits_none_of_them():
    async with leading() as server:
        group = Together(server, await server.session())
        for number in range(4):
            group.ask(setting(f"{number}", "1"))
        other = await DurableCatalog(MemoryLog(server.rows)).open(1)
        told = await group.told()
        assert [type(each) for each in told] == [FencedByEpoch] * 4
        assert not [each for each in other.objects(SETTING) if len(each.name) == 1]


async def test_many_that_count_together_lose_nothing():
    """Transactions that read what others write, over gRPC: as if each had been alone."""
    async with (
        catalog_server(memory_place(), generation=1) as server,
        remote_catalog(server.endpoint) as catalog,
    ):
        draw, done = random.Random(7), Counter[str]()

        async def count(worker: int) -> None:
            mine = await catalog.join()
            for turn in range(12):
                one, other = draw.sample("abcd", 2)
                while True:
                    transaction = mine.transaction(token=new_token() if turn % 3 else None)
                    values = [transaction.get(SETTING, SettingKey(name)) for name in (one, other)]
                    total = sum(int(it.value) for it in values if it is not None)
                    transaction.set(
                        SETTING, SettingKey(one), Setting(str(int(values[0].value if values[0] else 0) + 1))
                    )
                    transaction.set(SETTING, SettingKey(f"seen {worker} {turn}"), Setting(f"{one}{other} {total}"))
                    try:
                        await mine.commit(transaction)
                    except OutOfSync:
                        continue
                    done[one] += 1
                    break

        begin = (await catalog.open_read_only()).upper
        await asyncio.gather(*map(count, range(8)))
        reader = await catalog.open_read_only()
        assert {name: int(reader.get(SETTING, SettingKey(name)).value) for name in done} == dict(done)  # type: ignore[union-attr]
        # Each saw what there was when it happened: history is as if they came one after the other.
        serving = await server.host._services[0].serving()
        now = Counter[str]()
        for updates in serving.mirror.times_since(begin):
            came = [CODEC.decode(row) for row, _, diff in updates if diff > 0 and row.kind == SETTING.tag]
            for key, it in came:
                if key.name.startswith("seen "):
                    names, _, total = it.value.partition(" ")
                    assert int(total) == now[names[0]] + now[names[1]]
            now.update(key.name for key, _ in came if len(key.name) == 1)
        assert now == done
