"""What a catalog server does when its log does not answer, is slow, or returns what cannot be."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import pytest
from catalog.memory_log import MemoryLog, MemoryRows

from persist import aio
from persist.client.catalog.addresses import Addresses, KeptInShard
from persist.client.catalog.durable import DurableCatalog
from persist.core.catalog.conflicts import Footprint
from persist.core.catalog.errors import FencedByEpoch, OutOfSync
from persist.core.catalog.kinds import DATABASE, SETTING
from persist.core.catalog.objects import Database, DatabaseKey, Setting, SettingKey
from persist.core.catalog.rows import Row, RowUpdate
from persist.core.catalog.values import Id, RoleRef, Space
from persist.core.ids import Token
from persist.errors import CorruptData, Determinate, Indeterminate, InvalidArgument, NotReadable
from persist.runtime import system
from persist.wire.catalog.rows import CODEC
from persist.wire.catalog.rpc import WriteSession
from persist.wire.catalog.rpc_footprint import ToldFootprint, fingerprint
from persist_catalog.leadership import CatalogRole, Leadership
from persist_catalog.mirror import UPDATE_BYTES, Mirror, TappedLog
from persist_catalog.sessions import ServedSessions
from persist_catalog.writes import ReadyCommit, Writes

REQUEST = b"r" * 16


def setting(name: str, value: str) -> Row:
    return CODEC.encode(SETTING.tag, SettingKey(name), Setting(value))


class LossyLog(MemoryLog):
    """Appends as asked: ``lost`` ones happen without an answer, ``unsent`` ones do not happen and have none either,
    ``failed`` ones say that they do not happen, ``slow`` ones wait.

    ``late`` ones have no answer, and happen just before the next one.
    """

    def __init__(self, rows: MemoryRows) -> None:
        super().__init__(rows)
        self.next: list[str] = []
        self.gate = asyncio.Event()
        self.late: list[Callable[[], Awaitable[int | None]]] = []

    async def append_all(
        self, times: Sequence[tuple[int, Sequence[tuple[Row, int]]]], *, expected_upper: int
    ) -> int | None:
        how = self.next.pop(0) if self.next else ""
        if how == "failed":
            raise Determinate("the log is away")
        if how == "unsent":
            raise Indeterminate("the request was lost")
        if how == "slow":
            await self.gate.wait()
        for happens in [self.late.pop() for _ in self.late]:
            await happens()
        if how == "late":
            self.late.append(partial(super().append_all, times, expected_upper=expected_upper))
            raise Indeterminate("the answer was lost")
        found = await super().append_all(times, expected_upper=expected_upper)
        if how == "lost":
            raise Indeterminate("the answer was lost")
        return found


@dataclass
class Server:
    rows: MemoryRows
    log: LossyLog
    mirror: Mirror
    leadership: Leadership
    sessions: ServedSessions
    writes: Writes

    async def session(self) -> WriteSession:
        opened = self.sessions.open(await self.leadership.join(None))
        return WriteSession(opened.session_id, opened.token)

    async def put(self, session: WriteSession, request_id: bytes, row: Row, base: int) -> int:
        footprint = Footprint(keys={(SETTING, CODEC.decode(row)[0])})
        return await self.writes.commit(session, request_id, ReadyCommit(base, [(row, 1)], footprint, None, 0, b""))


@asynccontextmanager
async def leading(tail: int = 1000) -> AsyncIterator[Server]:
    rows = MemoryRows()
    log = LossyLog(rows)
    mirror = Mirror(MemoryLog(rows), CODEC, await log.snapshot(), runtime=system(), tail=tail)
    name = f"mem:{system().random_bytes(8).hex()}"
    async with await aio.embedded(blob=name, consensus=name) as client:
        durable = DurableCatalog(TappedLog(log, mirror))
        leadership = Leadership(
            durable, mirror, Addresses(KeptInShard(client, "e"), client.location.runtime), may_lead=True
        )
        await leadership.lead(1)
        sessions = ServedSessions(runtime=system())
        yield Server(rows, log, mirror, leadership, sessions, Writes(leadership, mirror, sessions, CODEC))


async def test_commit_with_an_unknown_outcome_is_found_when_it_is_asked_for_again():
    async with leading() as server:
        session, base = await server.session(), server.mirror.upper
        server.log.next = ["lost"]
        with pytest.raises(Indeterminate):
            await server.put(session, REQUEST, setting("a", "1"), base)
        appends = server.rows.appends
        for _ in range(2):
            assert await server.put(session, REQUEST, setting("a", "1"), base) == base
        assert server.rows.appends == appends
        # Another client that wants the same is too late: only the request itself gets its outcome.
        with pytest.raises(OutOfSync):
            await server.put(session, b"x" * 16, setting("a", "1"), base)


async def test_commit_in_doubt_is_not_taken_for_one_of_others_that_wanted_the_same():
    async with leading() as server:
        session, base = await server.session(), server.mirror.upper
        server.log.next = ["unsent"]
        with pytest.raises(Indeterminate):
            await server.put(session, REQUEST, setting("counter", "1"), base)
        assert await server.put(session, b"x" * 16, setting("counter", "1"), base) == base
        with pytest.raises(OutOfSync):
            await server.put(session, REQUEST, setting("counter", "1"), base)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("how", ["lost", "late"])
@pytest.mark.parametrize("sessions", [1, 2])
async def test_of_equal_commits_in_doubt_one_is_told_that_it_happened(sessions: int, how: str, first: int):
    """Both count from nothing to 1, and neither was answered; they ask again in either order."""
    async with leading() as server:
        each = [await server.session() for _ in range(sessions)]
        asked, base = [(each[0], REQUEST), (each[-1], b"x" * 16)], server.mirror.upper
        server.log.next = ["unsent", how]
        for session, request_id in asked:
            with pytest.raises(Indeterminate):
                await server.put(session, request_id, setting("counter", "1"), base)
        for session, request_id in (asked[first], asked[1 - first]):
            if request_id == REQUEST:
                with pytest.raises(OutOfSync):
                    await server.put(session, request_id, setting("counter", "1"), base)
            else:
                assert await server.put(session, request_id, setting("counter", "1"), base) == base


async def test_who_leads_later_knows_a_commit_without_a_token():
    async with leading() as server:
        session, base = await server.session(), server.mirror.upper
        server.log.next = ["lost"]
        with pytest.raises(Indeterminate):
            await server.put(session, REQUEST, setting("a", "1"), base)
        server.sessions.close(session.session_id)
        await server.mirror.sync()
        assert await server.put(session, REQUEST, setting("a", "1"), base) == base
        with pytest.raises(InvalidArgument):
            await server.put(session, REQUEST, setting("a", "2"), base)


async def test_ids_of_a_commit_in_doubt_are_not_those_that_others_were_given():
    async with leading() as server:
        session, base = await server.session(), server.mirror.upper
        catalog = server.leadership.catalog()
        assert catalog is not None
        transaction = catalog.transaction()
        transaction.allocate("schema")
        footprint, rows = transaction.footprint, transaction.batch().rows(CODEC, base)
        server.log.next = ["unsent"]
        wanted = ReadyCommit(base, rows, footprint, None, 0, b"")
        with pytest.raises(Indeterminate):
            await server.writes.commit(session, REQUEST, wanted)
        async with server.leadership.writing(session.token) as writing:
            await writing.allocate("schema")
        with pytest.raises(OutOfSync):
            await server.writes.commit(session, REQUEST, wanted)


@pytest.mark.parametrize("token", [None, Token.named("tests", "fenced")], ids=["unnamed", "named"])
@pytest.mark.parametrize("how", ["lost", "unsent"])
async def test_who_is_fenced_after_a_commit_in_doubt_is_told_whether_it_happened(how: str, token: Token | None):
    async with leading() as server:
        session, base = await server.session(), server.mirror.upper
        footprint = Footprint(keys={(SETTING, SettingKey("a"))})
        wanted = ReadyCommit(base, [(setting("a", "1"), 1)], footprint, token, 0, b"b" * 16 if token else b"")
        server.log.next = [how]
        with pytest.raises(Indeterminate):
            await server.writes.commit(session, REQUEST, wanted)
        other = await server.leadership._durable.open(1)
        await server.mirror.sync()
        server.leadership.look()
        assert server.leadership.role is CatalogRole.FENCED
        for _ in range(2):
            if how == "lost":
                assert await server.writes.commit(session, REQUEST, wanted) == base
            else:
                with pytest.raises(FencedByEpoch):
                    await server.writes.commit(session, REQUEST, wanted)
        assert (SettingKey("a") in other.objects(SETTING)) == (how == "lost")


async def test_commit_that_happens_when_it_is_asked_for_again_is_not_refused_for_itself():
    async with leading() as server:
        session, base = await server.session(), server.mirror.upper
        server.log.next = ["late"]
        with pytest.raises(Indeterminate):
            await server.put(session, REQUEST, setting("a", "1"), base)
        for _ in range(2):
            assert await server.put(session, REQUEST, setting("a", "1"), base) == base


@pytest.mark.parametrize("rows", [1, 5_000])
@pytest.mark.parametrize("how", ["lost", "late"])
async def test_what_was_read_counts_also_where_an_append_without_an_answer_changed_it(how: str, rows: int):
    async with leading() as server:
        session, base = await server.session(), server.mirror.upper
        server.log.next = [how]
        with pytest.raises(Indeterminate):
            await server.put(session, REQUEST, setting("a", "1"), base)
        reads = ToldFootprint(keys={(SETTING, SettingKey("a"))})
        wanted = [(setting(f"of none {number}", "1"), 1) for number in range(rows)]
        for _ in range(2):
            with pytest.raises(OutOfSync):
                await server.writes.commit(session, b"x" * 16, ReadyCommit(base, wanted, reads, None, 0, b""))
        after = await server.mirror.sync()
        assert after == base + 1
        assert await server.writes.commit(session, b"y" * 16, ReadyCommit(after, wanted, reads, None, 0, b"")) == after


@pytest.mark.parametrize("how", ["lost", "late"])
async def test_names_that_were_looked_at_count_there_too(how: str):
    async with leading() as server:
        session, base = await server.session(), server.mirror.upper
        row = CODEC.encode(
            DATABASE.tag, DatabaseKey(Id(Space.USER, 1_000)), Database("d", RoleRef(Space.USER, 1), oid=20_000)
        )
        server.log.next = [how]
        with pytest.raises(Indeterminate):
            await server.writes.commit(session, REQUEST, ReadyCommit(base, [(row, 1)], Footprint(), None, 0, b""))
        (name,) = DATABASE.names(CODEC.decode(row)[1])
        reads = ToldFootprint(fingerprints={(DATABASE, fingerprint(name))})
        with pytest.raises(OutOfSync):
            await server.writes.commit(
                session, b"x" * 16, ReadyCommit(base, [(setting("a", "1"), 1)], reads, None, 0, b"")
            )


async def test_commit_in_doubt_is_known_however_much_was_committed_since():
    async with leading(tail=3) as server:
        session, base = await server.session(), server.mirror.upper
        server.log.next = ["lost"]
        with pytest.raises(Indeterminate):
            await server.put(session, REQUEST, setting("a", "1"), base)
        for number in range(8):
            await server.mirror.sync()
            await server.put(session, bytes([number]) * 16, setting(str(number), "1"), server.mirror.upper)
        assert await server.put(session, REQUEST, setting("a", "1"), base) == base


async def test_commit_of_who_heard_of_more_than_the_leader_waits_for_it():
    async with leading() as server:
        session, base = await server.session(), server.mirror.upper
        assert await MemoryLog(server.rows).append([], base, expected_upper=base) is None
        assert server.mirror.upper == base
        assert await server.put(session, REQUEST, setting("a", "1"), base + 1) == base + 1


async def test_commit_that_did_not_happen_happens_when_it_is_asked_for_again():
    async with leading() as server:
        session, base = await server.session(), server.mirror.upper
        server.log.next = ["failed"]
        with pytest.raises(Determinate):
            await server.put(session, REQUEST, setting("a", "1"), base)
        assert server.rows.upper == base
        assert await server.put(session, REQUEST, setting("a", "1"), base) == base


async def test_commit_goes_on_when_its_caller_gave_up_and_is_not_begun_again():
    async with leading() as server:
        session, base = await server.session(), server.mirror.upper
        server.log.next = ["slow"]
        given_up = asyncio.create_task(server.put(session, REQUEST, setting("a", "1"), base))
        while server.log.next:
            await asyncio.sleep(0)
        given_up.cancel()
        again = asyncio.create_task(server.put(session, REQUEST, setting("a", "1"), base))
        await asyncio.sleep(0)
        server.log.gate.set()
        assert await again == base
        assert server.rows.upper == base + 1


@pytest.mark.parametrize("base", ["old", "new"])
async def test_others_get_their_turn_while_a_large_commit_is_looked_at(base: str):
    async with leading(tail=100_000) as server:
        session, before = await server.session(), server.mirror.upper
        many = [(setting(f"{number}", "1"), 1) for number in range(20_000)]
        # Not by a session, so that nothing is known yet of what it touched.
        catalog = server.leadership.catalog()
        assert catalog is not None
        await catalog.set(SETTING, {SettingKey(f"{number}"): Setting("1") for number in range(20_000)})
        wanted, upper = ([(setting("x", "1"), 1)], before) if base == "old" else (many, server.mirror.upper)
        turns = 0

        async def bystander() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        watching = asyncio.create_task(bystander())
        footprint = Footprint(kinds={SETTING})
        with pytest.raises(OutOfSync):
            await server.writes.commit(session, b"b" * 16, ReadyCommit(upper, wanted, footprint, None, 0, b""))
        watching.cancel()
        assert turns > 20


async def test_leader_that_fenced_itself_half_way_may_lead_again():
    async with leading() as server:
        session = await server.session()
        server.log.next = ["lost"]
        with pytest.raises(Indeterminate):
            await server.leadership.lead(1)
        with pytest.raises(FencedByEpoch):
            await server.put(session, REQUEST, setting("a", "1"), server.mirror.upper)
        assert server.leadership.role is CatalogRole.FOLLOWER
        assert (await server.leadership.lead(1)).epoch == 4
        base = server.mirror.upper
        assert await server.put(await server.session(), REQUEST, setting("a", "1"), base) == base


async def test_mirror_hears_what_its_process_appends_and_reads_what_others_do():
    rows = MemoryRows()
    mirror = await Mirror.open(MemoryLog(rows), CODEC, runtime=system())
    own, other = TappedLog(MemoryLog(rows), mirror), MemoryLog(rows)
    assert await own.append([(setting("a", "1"), 1)], 5, expected_upper=0) is None
    assert (mirror.upper, mirror.since(0)) == (6, [RowUpdate(setting("a", "1"), 5, 1)])
    assert await other.append([(setting("b", "1"), 1)], 6, expected_upper=6) is None
    assert await own.append([(setting("c", "1"), 1)], 7, expected_upper=7) is None
    # It missed one, so it waits until it reads both.
    assert mirror.upper == 6
    assert await mirror.sync() == 8
    assert [update.ts for update in mirror.since(6) or ()] == [6, 7]
    assert (mirror.since(8), len(mirror.since(0) or ())) == ([], 3)


async def test_mirror_remembers_so_much_and_begins_anew_when_it_was_away_for_too_long():
    rows = MemoryRows(forgetful=True)
    log = MemoryLog(rows)
    mirror = Mirror(MemoryLog(rows), CODEC, await log.snapshot(), runtime=system(), tail=3)
    for ts in range(6):
        assert await log.append([(setting(str(ts), "1"), 1)], ts, expected_upper=ts) is None
        await mirror.sync()
    assert (mirror.since(2), len(mirror.since(3) or ())) == (None, 3)
    assert [update.ts for update in (await mirror.changes(1)).updates] == [1, 2, 3, 4, 5]
    for ts in range(6, 9):
        assert await log.append([(setting(str(ts), "1"), 1)], ts, expected_upper=ts) is None
    await log.forget(8)
    assert await mirror.sync() == 9
    assert len(mirror.raw.rows["setting"]) == 9
    assert mirror.since(6) is None
    with pytest.raises(NotReadable):
        await mirror.changes(6)


async def test_mirror_remembers_so_many_bytes_however_few_changes_they_are():
    rows = MemoryRows()
    log = MemoryLog(rows)
    mirror = Mirror(MemoryLog(rows), CODEC, await log.snapshot(), runtime=system(), tail_bytes=3 * UPDATE_BYTES + 4000)
    sizes = (10, 1500, 1500, 1500, 100, 9000, 100)
    known = []
    for ts, size in enumerate(sizes):
        assert await log.append([(setting(str(ts), "x" * size), 1)], ts, expected_upper=ts) is None
        await mirror.sync()
        known.append(next(lower for lower in range(ts + 2) if mirror.since(lower) is not None))
    assert known == [1, 1, 1, 2, 2, 5, 6], "of more than fits, the newest is kept until another comes"
    assert [update.ts for update in mirror.since(6) or ()] == [6]
    assert [update.ts for update in (await mirror.changes(1)).updates] == [1, 2, 3, 4, 5, 6]
    assert len(mirror.raw.rows["setting"]) == len(sizes)


async def test_mirror_of_a_log_that_tells_what_cannot_be_says_so_for_ever():
    rows = MemoryRows()
    log = MemoryLog(rows)
    mirror = await Mirror.open(MemoryLog(rows), CODEC, runtime=system())
    assert await log.append([(setting("a", "1"), -1)], 0, expected_upper=0) is None
    waiting = asyncio.create_task(mirror.changed(0))
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(CorruptData):
            await mirror.sync()
    with pytest.raises(CorruptData):
        await waiting
