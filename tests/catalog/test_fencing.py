"""Who may write, and who learns that it may not any more. Catalog-semantics.md sections 1.2.1, 1.2.2 and 1.2.12."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from catalog.conftest import LogPlace, Place
from catalog.memory_log import MemoryLog, MemoryRows
from unit.core.catalog.samples import cluster, token, user

from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.port import ReadWriteCatalog
from persist.core.catalog.errors import Fenced, FencedByEpoch, FencedByGeneration
from persist.core.catalog.kinds import AUDIT_LOG, CLUSTER, FENCE_TOKEN
from persist.core.catalog.objects import AuditLogKey, ClusterKey, FenceToken, FenceTokenKey
from persist.core.catalog.values import AuditEventType, AuditNamedV1, ObjectType, Unit
from persist.errors import InvalidArgument

ONE, TWO = ClusterKey(user(1)), ClusterKey(user(2))


async def write(catalog: ReadWriteCatalog) -> int:
    """A transaction that would succeed with any leader."""
    transaction = catalog.transaction()
    transaction.allocate("user")
    return await catalog.commit(transaction)


LOOKS: dict[str, Callable[[ReadWriteCatalog], Awaitable[object]]] = {
    "commit": write,
    "set": lambda it: it.set(CLUSTER, {TWO: cluster("b")}),
    "allocate": lambda it: it.allocate("user"),
    "confirm_leadership": lambda it: it.confirm_leadership(),
    "advance_upper": lambda it: it.advance_upper(it.upper + 100),
    "advance_upper to where it is": lambda it: it.advance_upper(0),
    "sync": lambda it: it.sync(),
    "audit_logs": lambda it: it.audit_logs(),
    "storage_usage": lambda it: it.storage_usage(),
    "prune_storage_usage": lambda it: it.prune_storage_usage(None, 0),
    "dump": lambda it: it.dump(),
}


async def test_each_writable_open_takes_the_next_epoch_over_one_row(place: Place):
    async with place as another:
        for epoch in (2, 3, 4):
            assert (await (await another()).open(1)).token == token(1, epoch)
        rows = (await (await another()).dump(kinds=[FENCE_TOKEN.tag])).updates
        assert [update.diff for update in rows] == [1]


async def test_epochs_rise_over_generations(place: Place):
    async with place as another:
        await (await another()).open(1)
        assert (await (await another()).open(5)).token == token(5, 3)


@pytest.mark.parametrize("look", LOOKS)
async def test_who_is_fenced_learns_it_whatever_it_asks(place: Place, look: str):
    async with place as another:
        zombie = await (await another()).open(1)
        await (await another()).open(1)
        catalog = await another()
        before = await catalog.dump()
        for _ in range(2):
            with pytest.raises(FencedByEpoch) as fenced:
                await LOOKS[look](zombie)
            assert fenced.value.details["fenced_by_epoch"] == "3"
        assert await catalog.dump() == before


async def test_who_is_fenced_stays_so_for_ever(place: Place):
    async with place as another:
        zombie = await (await another()).open(1)
        second = await (await another()).open(1)
        with pytest.raises(FencedByEpoch):
            await zombie.confirm_leadership()
        await second.set(CLUSTER, {ONE: cluster("a")})
        for look in LOOKS.values():
            with pytest.raises(FencedByEpoch):
                await look(zombie)
        with pytest.raises(FencedByEpoch):
            zombie.get(CLUSTER, ONE)


async def test_a_newer_generation_tells_more_than_an_epoch(place: Place):
    async with place as another:
        zombie = await (await another()).open(1)
        await (await another()).open(1)
        await (await another()).open(2)
        await (await another()).open(2)
        with pytest.raises(FencedByGeneration):
            await zombie.confirm_leadership()


async def test_an_older_generation_cannot_open_and_fences_nobody(place: Place):
    async with place as another:
        leader = await (await another()).open(11)
        with pytest.raises(FencedByGeneration):
            await (await another()).open(10)
        await write(leader)


async def test_readers_and_savepoints_are_fenced_by_nobody(place: Place):
    async with place as another:
        await (await another()).open(1)
        reader = await (await another()).open_read_only()
        savepoint = await (await another()).open_savepoint(1)
        leader = await (await another()).open(2)
        await leader.set(CLUSTER, {ONE: cluster("a")})
        assert await savepoint.sync() == []
        await savepoint.confirm_leadership()
        await savepoint.set(CLUSTER, {TWO: cluster("b")})
        await savepoint.advance_upper(1000)
        assert (savepoint.objects(CLUSTER), savepoint.upper) == ({TWO: cluster("b")}, 1000)
        await reader.sync()
        assert reader.objects(CLUSTER) == {ONE: cluster("a")}


@pytest.mark.parametrize("changing", [True, False])
async def test_an_edit_fences_whoever_leads(place: Place, changing: bool):
    async with place as another:
        leader = await (await another()).open(1)
        await leader.set(CLUSTER, {ONE: cluster("a")})
        catalog = await another()
        assert await catalog.edit(CLUSTER, ONE, cluster("b" if changing else "a")) == cluster("a")
        with pytest.raises(FencedByEpoch):
            await leader.confirm_leadership()
        found = await (await another()).open_read_only()
        assert (found.get(CLUSTER, ONE), found.token) == (cluster("b" if changing else "a"), token(1, 3))


async def test_an_edit_inserts_what_was_not_there_and_deletes_what_is_gone(place: Place):
    async with place as another:
        await (await another()).open(1)
        catalog = await another()
        assert await catalog.edit(CLUSTER, ONE, cluster("a")) is None
        assert await catalog.edit(CLUSTER, ONE, None) == cluster("a")
        assert await catalog.edit(CLUSTER, ONE, None) is None
        assert (await catalog.open_read_only()).objects(CLUSTER) == {}


async def test_append_only_objects_are_edited_too(place: Place):
    event = AuditLogKey(1, AuditEventType.CREATE, ObjectType.TABLE, None, 5, AuditNamedV1("u1", "t"))
    async with place as another:
        await (await another()).open(1)
        catalog = await another()
        assert await catalog.edit(AUDIT_LOG, event, Unit()) is None
        assert await (await catalog.open_read_only()).audit_logs() == [event]
        assert await catalog.edit(AUDIT_LOG, event, Unit()) == Unit()
        assert await catalog.edit(AUDIT_LOG, event, None) == Unit()
        assert (await catalog.open_read_only()).count(AUDIT_LOG) == 0


async def test_a_token_is_edited_to_a_greater_one_only(place: Place):
    async with place as another:
        leader = await (await another()).open(3)
        catalog = await another()
        for value in (None, token(3, 2), token(2, 9)):
            with pytest.raises(InvalidArgument):
                await catalog.edit(FENCE_TOKEN, FenceTokenKey(), value)
        assert await catalog.edit(FENCE_TOKEN, FenceTokenKey(), token(9, 1)) == token(3, 2)
        with pytest.raises(FencedByGeneration):
            await leader.confirm_leadership()
        with pytest.raises(FencedByGeneration):
            await (await another()).open(8)
        assert (await (await another()).open(9)).token == token(9, 2)


async def test_of_openers_at_once_each_has_an_epoch_and_the_last_one_leads(place: Place):
    async with place as another:
        catalogs = [await another() for _ in range(6)]
        opened = await asyncio.gather(*(each.open(1) for each in catalogs), return_exceptions=True)
        # One that was fenced while it made the catalog says so.
        leaders = [each for each in opened if not isinstance(each, BaseException)]
        assert all(isinstance(each, Fenced) for each in opened if isinstance(each, BaseException))
        tokens = [each.token for each in leaders]
        assert len(set(tokens)) == len(tokens)
        last = max(leaders, key=lambda it: it.token or FenceToken(0, 0))
        for each in leaders:
            if each is last:
                await write(each)
            else:
                with pytest.raises(FencedByEpoch):
                    await write(each)
        assert await catalogs[0].fence_token() == token(1, 1 + len(catalogs))


async def test_who_was_away_for_long_is_fenced_all_the_same():
    rows = MemoryRows(forgetful=True)
    zombie, reader = DurableCatalog(MemoryLog(rows)), DurableCatalog(MemoryLog(rows))
    opened = await zombie.open(1)
    await opened.set(CLUSTER, {ONE: cluster("a")})
    following = await reader.open_read_only()
    successor = await DurableCatalog(MemoryLog(rows)).open(1)
    await successor.set(CLUSTER, {ONE: None, TWO: cluster("b")})
    with pytest.raises(FencedByEpoch):
        await write(opened)
    told = await following.sync()
    assert {(change.key, change.before, change.after) for _, changes in told for change in changes} == {
        (ONE, cluster("a"), None),
        (TWO, None, cluster("b")),
        (FenceTokenKey(), token(1, 2), token(1, 3)),
    }
    assert following.objects(CLUSTER) == {TWO: cluster("b")}
    assert following.upper == successor.upper


async def test_who_stands_still_while_it_opens_leads_in_the_end():
    rows = MemoryRows(forgetful=True)
    leader = await DurableCatalog(MemoryLog(rows)).open(1)
    counted = Counted(MemoryLog(rows), lambda: leader.set(CLUSTER, {ONE: cluster("a")}), 1)
    opened = await DurableCatalog(counted).open(1)  # type: ignore[arg-type]  # it has what a log has
    assert (opened.token, opened.objects(CLUSTER)) == (token(1, 3), {ONE: cluster("a")})
    assert counted.asked.count("snapshot") == 2


@pytest.mark.timeout_s(240)
async def test_a_leader_that_commits_without_a_pause_is_deposed(log: LogPlace):
    async with log as another:
        leader = await DurableCatalog(await another()).open(1)
        commits = 0

        async def busy() -> None:
            nonlocal commits
            while True:
                await write(leader)
                commits += 1

        at_work = asyncio.create_task(busy())
        while commits < 3:
            await asyncio.sleep(0.01)
        second = await DurableCatalog(await another()).open(1)
        with pytest.raises(FencedByEpoch):
            await at_work
        await write(second)


class Counted:
    """A log that counts what is asked of it, and lets another process be first a number of times."""

    def __init__(self, log: object, first: Callable[[], Awaitable[object]], times: int) -> None:
        self._log = log
        self._first = first
        self._times = times
        self.asked: list[str] = []
        self.told = 0

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        method = getattr(self._log, name)

        async def call(*args: object, **kwargs: object) -> object:
            self.asked.append(name)
            if name == "append" and self._times:
                self._times -= 1
                await self._first()
            found = await method(*args, **kwargs)
            self.told += len(found.updates) if name == "updates" else 0
            return found

        return call


async def test_an_attempt_to_lead_reads_what_came_since_the_last_and_nothing_else(log: LogPlace):
    async with log as another:
        leader = await DurableCatalog(await another()).open(1)
        await leader.set(CLUSTER, {ClusterKey(user(n)): cluster(f"c{n}") for n in range(1, 101)})
        counted = Counted(await another(), lambda: write(leader), 20)
        await DurableCatalog(counted).open(1)  # type: ignore[arg-type]  # it has what a log has
        assert counted.asked.count("snapshot") == 1
        # Each commit of the leader retracts one row and inserts another.
        assert (counted.asked.count("updates"), counted.told) == (20, 40)
