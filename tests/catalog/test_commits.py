"""Committing: at which time, against whom, how often. Catalog-semantics.md sections 1.2.6 to 1.2.10 and 1.3."""

import asyncio

import pytest
from catalog.conftest import LogPlace, Place
from catalog.memory_log import MemoryLog, MemoryRows
from unit.core.catalog.samples import cluster, user

from persist.client.catalog.commits import Commits
from persist.client.catalog.durable import DurableCatalog
from persist.core.catalog.ddl.asking.outcomes import made_key, made_text
from persist.core.catalog.errors import DuplicateKey, IdExhaustion, NotWritable, OutOfSync, UniquenessViolation
from persist.core.catalog.kinds import AUDIT_LOG, CLUSTER, COMMIT, ID_ALLOCATOR, SETTING, STORAGE_USAGE
from persist.core.catalog.objects import (
    AuditLogKey,
    ClusterKey,
    Commit,
    CommitKey,
    IdAllocator,
    IdAllocatorKey,
    Setting,
    StorageUsageKey,
)
from persist.core.catalog.rows import Row
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.values import U64_MAX, AuditEventType, AuditNamedV1, ObjectType, Unit
from persist.core.ids import Token
from persist.errors import InvalidArgument
from persist.wire.catalog.rows import CODEC

ONE, TWO, THREE = (ClusterKey(user(n)) for n in (1, 2, 3))
TOKEN = Token.named("once")


def event(number: int) -> AuditLogKey:
    return AuditLogKey(number, AuditEventType.CREATE, ObjectType.TABLE, None, 5, AuditNamedV1(f"u{number}", "t"))


async def test_a_commit_happens_as_soon_as_it_may_and_tells_the_upper(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        for requested in (0, catalog.upper + 100, 3):
            before = catalog.upper
            transaction = catalog.transaction()
            transaction.allocate("user")
            assert await catalog.commit(transaction, ts=requested) == max(requested, before) + 1 == catalog.upper


async def test_a_transaction_is_whole(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        transaction = catalog.transaction()
        transaction.insert(CLUSTER, ONE, cluster("a"))
        transaction.insert(CLUSTER, TWO, cluster("b"))
        assert catalog.objects(CLUSTER) == {}
        upper = await catalog.commit(transaction)
        found = [row for row in (await catalog.dump(consolidated=False)).updates if row.row.kind == CLUSTER.tag]
        assert [(row.ts, row.diff) for row in found] == [(upper - 1, 1)] * 2
        assert catalog.objects(CLUSTER) == {ONE: cluster("a"), TWO: cluster("b")}


async def test_without_changes_nothing_happens(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        await catalog.set(CLUSTER, {ONE: cluster("a")})
        before = await catalog.dump(consolidated=False)
        transaction = catalog.transaction(token=TOKEN)
        transaction.set(CLUSTER, ONE, cluster("a"))
        transaction.insert(CLUSTER, TWO, cluster("b"))
        transaction.set(CLUSTER, TWO, None)
        assert await catalog.commit(transaction) == before.upper
        assert await catalog.set(CLUSTER, {ONE: cluster("a")}) == before.upper
        assert await catalog.dump(consolidated=False) == before


async def test_refusals_leave_the_transaction_as_it_was(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        await catalog.set(CLUSTER, {ONE: cluster("a")})
        transaction = catalog.transaction()
        transaction.set(CLUSTER, TWO, cluster("b"))
        with pytest.raises(DuplicateKey):
            transaction.insert(CLUSTER, ONE, cluster("c"))
        with pytest.raises(UniquenessViolation):
            transaction.insert(CLUSTER, THREE, cluster("a"))
        await catalog.commit(transaction)
        assert catalog.objects(CLUSTER) == {ONE: cluster("a"), TWO: cluster("b")}
        with pytest.raises(UniquenessViolation):
            await catalog.set(CLUSTER, {THREE: cluster("b")})
        await catalog.set(CLUSTER, {ONE: cluster("b"), TWO: cluster("a")})
        assert catalog.objects(CLUSTER) == {ONE: cluster("b"), TWO: cluster("a")}


async def test_what_a_transaction_does_not_depend_on_is_no_hindrance(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        mine, theirs = catalog.transaction(), catalog.transaction()
        mine.insert(CLUSTER, ONE, cluster("a"))
        theirs.insert(CLUSTER, TWO, cluster("b"))
        first = await catalog.commit(theirs)
        assert await catalog.commit(mine) == first + 1
        assert set(catalog.objects(CLUSTER)) == {ONE, TWO}


async def test_what_it_depends_on_is_named(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        mine = catalog.transaction()
        assert mine.get(CLUSTER, ONE) is None
        mine.insert(CLUSTER, TWO, cluster("b"))
        await catalog.set(CLUSTER, {ONE: cluster("a")})
        with pytest.raises(OutOfSync) as refused:
            await catalog.commit(mine)
        assert "cluster" in refused.value.details["keys"]
        assert "number=1" in refused.value.details["keys"]
        assert set(catalog.objects(CLUSTER)) == {ONE}


async def test_time_that_goes_on_is_no_conflict(log: LogPlace):
    async with log as another:
        rows = await another()
        catalog = await DurableCatalog(await another()).open(1)
        mine = catalog.transaction()
        mine.insert(CLUSTER, ONE, cluster("a"))
        assert await rows.append([], catalog.upper + 10, expected_upper=catalog.upper) is None
        before = catalog.upper
        assert await catalog.commit(mine) == before + 12
        assert await rows.append([], catalog.upper, expected_upper=catalog.upper) is None
        await catalog.advance_upper(before + 50)
        assert catalog.upper == await rows.upper() == before + 50
        await catalog.advance_upper(3)
        assert catalog.upper == before + 50


async def test_sessions_of_one_catalog_commit_beside_each_other(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)

        async def session(number: int) -> range:
            await catalog.set(CLUSTER, {ClusterKey(user(number)): cluster(f"c{number}")})
            return await catalog.allocate("user", 3)

        ranges = await asyncio.gather(*(session(number) for number in range(8)))
        assert sorted(each for ids in ranges for each in ids) == list(range(1, 25))
        assert len(catalog.objects(CLUSTER)) == 8
        assert catalog.objects(CLUSTER) == (await (await another()).open_read_only()).objects(CLUSTER)


async def test_ids_are_given_once(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        assert await catalog.allocate("user", 2) == range(1, 3)
        assert await catalog.allocate("user", 0) == range(3, 3)
        assert await catalog.allocate("schema") == range(7, 8)
        for name in ("nobody", "system", "oid"):
            with pytest.raises(InvalidArgument):
                await catalog.allocate(name)
        await catalog.set(ID_ALLOCATOR, {IdAllocatorKey("replica"): IdAllocator(U64_MAX - 1)})
        with pytest.raises(IdExhaustion):
            await catalog.allocate("replica", 2)
        assert await catalog.allocate("replica") == range(U64_MAX - 1, U64_MAX)


async def test_a_token_commits_once_however_often_it_is_repeated(place: Place):
    async with place as another:
        first = await (await another()).open(1)
        transaction = first.transaction(token=TOKEN)
        transaction.insert(CLUSTER, ONE, cluster("a"))
        upper = await first.commit(transaction)
        assert await first.commit(transaction) == upper
        await first.set(CLUSTER, {ONE: None})
        assert await first.commit(transaction) == upper
        successor = await (await another()).open(1)
        again = successor.transaction(token=TOKEN)
        again.insert(CLUSTER, ONE, cluster("a"))
        assert await successor.commit(again) == upper
        assert successor.objects(CLUSTER) == {}
        assert successor.get(COMMIT, CommitKey(TOKEN)) == Commit(upper - 1, again.body(CODEC))


class Interrupted(Exception):
    """The process lost its connection while it appended."""


class Losing(MemoryLog):
    """Answers are lost; whether the append was done is for ``done`` to say."""

    done: bool | None = None

    async def append(self, changes: list[tuple[Row, int]], ts: int, *, expected_upper: int) -> int | None:  # type: ignore[override]  # lists are all it gets
        if self.done is None:
            return await super().append(changes, ts, expected_upper=expected_upper)
        if self.done:
            await super().append(changes, ts, expected_upper=expected_upper)
        raise Interrupted


@pytest.mark.parametrize("done", [True, False])
async def test_a_commit_whose_answer_was_lost_is_resolved_by_repeating_it(done: bool):
    log = Losing(MemoryRows())
    catalog = await DurableCatalog(log).open(1)
    transaction = catalog.transaction(token=TOKEN)
    transaction.insert(CLUSTER, ONE, cluster("a"))
    log.done = done
    with pytest.raises(Interrupted):
        await catalog.commit(transaction)
    log.done = None
    before = await log.upper()
    assert await catalog.commit(transaction) == before + (not done)
    assert (await catalog.dump(kinds=[CLUSTER.tag])).updates[0].diff == 1
    assert catalog.objects(CLUSTER) == {ONE: cluster("a")}


def test_old_tokens_go_with_later_commits_the_oldest_first():
    snapshot = Snapshot()
    commits = Commits(snapshot, CODEC, kept=3)
    for ts in range(10):
        rows = [*commits.pruned(), (CODEC.encode(COMMIT.tag, CommitKey(Token.named(ts)), Commit(ts)), 1)]
        commits.saw(snapshot.apply(CODEC, rows))
        assert [commit.ts for commit in snapshot.objects(COMMIT).values()] == list(range(max(0, ts - 2), ts + 1))


def test_too_many_tokens_go_little_by_little():
    snapshot = Snapshot()
    tokens = [(CODEC.encode(COMMIT.tag, CommitKey(Token.named(ts)), Commit(ts)), 1) for ts in range(50)]
    snapshot.apply(CODEC, reversed(tokens))
    commits = Commits(snapshot, CODEC, kept=10)
    gone = commits.pruned()
    assert [CODEC.decode(row)[1].ts for row, _ in gone] == list(range(16))


def test_requests_of_one_role_that_change_nothing_push_out_each_other():
    snapshot, kept = Snapshot(), 40
    commits = Commits(snapshot, CODEC, kept=kept)

    def commit(name: str, role: str | None) -> None:
        token, ts = Token.named(name), snapshot.version + 1
        made = made_key(token), Setting(made_text([], role))
        rows = [(CODEC.encode(COMMIT.tag, CommitKey(token), Commit(ts)), 1), (CODEC.encode(SETTING.tag, *made), 1)]
        commits.saw(snapshot.apply(CODEC, [*commits.pruned(), *rows]))

    def known() -> set[str]:
        return {key.token for key in snapshot.objects(COMMIT)}

    for number in range(30):
        commit(f"done {number}", None)
    commit("refused to another", "u1")
    for number in range(1_000):
        commit(f"refused {number}", "u2")
    mine = {Token.named(f"done {number}") for number in range(30)} | {Token.named("refused to another")}
    assert known() == mine | {Token.named(f"refused {number}") for number in range(991, 1_000)}
    assert len(snapshot.objects(SETTING)) == kept
    # Also to a process that reads the catalog now.
    commits = Commits(snapshot, CODEC, kept=kept)
    for number in range(1_000):
        commit(f"of many roles {number}", f"u{number % 20 + 3}")
    done = {Token.named(f"done {number}") for number in range(30)}
    assert len(known() & done) == 20
    # What changes something pushes out the oldest of all, as ever.
    for number in range(kept):
        commit(f"newer {number}", None)
    assert known() == {Token.named(f"newer {number}") for number in range(kept)}


async def test_a_reader_refuses_to_write(place: Place):
    async with place as another:
        await (await another()).open(1)
        reader = await (await another()).open_read_only()
        if not hasattr(reader, "commit"):
            return
        transaction = reader.transaction()
        assert await reader.commit(transaction) == reader.upper
        transaction.insert(CLUSTER, ONE, cluster("a"))
        for writing in (reader.commit(transaction), reader.advance_upper(10**6), reader.allocate("user")):
            with pytest.raises(NotWritable):
                await writing


async def test_a_savepoint_keeps_what_it_commits_to_itself(place: Place):
    async with place as another:
        catalog = await another()
        leader = await catalog.open(1)
        await leader.set(CLUSTER, {ONE: cluster("a")})
        before = {update.row for update in (await catalog.dump()).updates}
        savepoint = await (await another()).open_savepoint(1)
        transaction = savepoint.transaction(token=TOKEN)
        transaction.insert(CLUSTER, TWO, cluster("b"))
        transaction.insert(AUDIT_LOG, event(1), Unit())
        assert await savepoint.commit(transaction, ts=500) == 501 == savepoint.upper
        await leader.set(CLUSTER, {THREE: cluster("c")})
        assert await savepoint.sync() == []
        assert set(savepoint.objects(CLUSTER)) == {ONE, TWO}
        assert await savepoint.audit_logs() == [event(1)]
        assert await leader.audit_logs() == []
        after = {update.row for update in (await catalog.dump()).updates}
        assert before <= after
        # A server gives a commit without a token one of its own.
        assert {row for row in after - before if row.kind != COMMIT.tag} == {
            CODEC.encode(CLUSTER.tag, THREE, cluster("c"))
        }


async def test_audit_events_are_counted_and_read_in_order(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        transaction = catalog.transaction()
        for number in (3, 1, 2):
            transaction.insert(AUDIT_LOG, event(number), Unit())
        await catalog.commit(transaction)
        reader = await (await another()).open_read_only()
        for each in (catalog, reader):
            assert each.count(AUDIT_LOG) == 3
            assert await each.audit_logs() == [event(1), event(2), event(3)]
            for asked in (lambda it: it.objects(AUDIT_LOG), lambda it: it.get(AUDIT_LOG, event(1))):
                with pytest.raises(InvalidArgument):
                    asked(each)


async def test_old_measurements_are_pruned_when_told(place: Place):
    measured = [StorageUsageKey(n, f"s{n}", 100 * n, 1_000 * n) for n in range(1, 5)]
    async with place as another:
        catalog = await (await another()).open(1)
        transaction = catalog.transaction()
        for each in reversed(measured):
            transaction.insert(STORAGE_USAGE, each, Unit())
        await catalog.commit(transaction)
        assert await catalog.storage_usage() == measured
        assert await catalog.prune_storage_usage(None, 10**9) == measured
        # Those of 2 000 ms before boot stay, older ones go.
        assert await catalog.prune_storage_usage(2_000, 4_000) == measured[1:]
        assert await catalog.storage_usage() == measured[1:]
        assert catalog.count(STORAGE_USAGE) == 3
        upper = catalog.upper
        assert await catalog.prune_storage_usage(2_000, 4_000) == measured[1:]
        assert catalog.upper == upper
