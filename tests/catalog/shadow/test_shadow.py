"""A catalog on two implementations at once: they agree, and when one does not, that is reported at once.

That a shadow is a catalog is held by the suite of all catalogs. Source: catalog-semantics.md section 1.2.11.
"""

import asyncio
import inspect
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from catalog.memory_log import MemoryLog, MemoryRows
from unit.core.catalog.ddl.world import ME, drop, table, view
from unit.core.catalog.samples import cluster, database, token, user

from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.log.stash_log import open_stash_log
from persist.client.catalog.port import CatalogUpdates, ReadWriteCatalog, RowLog
from persist.client.catalog.shadow.catalog import ShadowCatalog
from persist.client.catalog.shadow.comparison import ShadowDiffers
from persist.client.catalog.shadow.transaction import ShadowTransaction
from persist.core.catalog.ddl.bootstrap import bootstrap
from persist.core.catalog.ddl.plan import plan
from persist.core.catalog.errors import FencedByEpoch, OutOfSync, UniquenessViolation, UnknownObject
from persist.core.catalog.kinds import CLUSTER, COMMIT, DATABASE, ITEM, STORAGE_USAGE, TIMESTAMP
from persist.core.catalog.objects import (
    ClusterKey,
    CommitKey,
    DatabaseKey,
    StorageUsageKey,
    Timestamp,
    TimestampKey,
)
from persist.core.catalog.rows import Row
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import ObjectType, Space, Unit
from persist.core.ids import Token
from persist.errors import CorruptData, Determinate, InvalidArgument, PersistError

ONE, TWO = ClusterKey(user(1)), ClusterKey(user(2))
MAIN = TimestampKey("main")


def over(first: RowLog, second: RowLog) -> ShadowCatalog:
    return ShadowCatalog(DurableCatalog(first), DurableCatalog(second))


def in_memory() -> tuple[MemoryRows, MemoryRows, ShadowCatalog]:
    first, second = MemoryRows(), MemoryRows()
    return first, second, over(MemoryLog(first), MemoryLog(second))


@asynccontextmanager
async def mixed(path: Path) -> AsyncIterator[ShadowCatalog]:
    """Memory beside SQLite."""
    shadow = over(MemoryLog(MemoryRows()), await open_stash_log(f"sqlite:{path}/x.db", "shadow"))
    try:
        yield shadow
    finally:
        await shadow.close()


# ---- they agree ------------------------------------------------------------------------------------------------------


async def random_step(draw: random.Random, catalog: ReadWriteCatalog) -> None:
    """A few operations of all sorts, many of which are refused, then a commit."""
    transaction = catalog.transaction(token=Token.of(draw.randbytes(16)) if draw.random() < 0.2 else None)
    for _ in range(draw.randrange(1, 6)):
        key, name = ClusterKey(user(draw.randrange(5))), draw.choice("abcd")
        operation = draw.choice(
            ["insert", "set", "unset", "all", "update", "delete", "ids", "oids", "use", "find", "op"]
        )
        try:
            if operation == "insert":
                transaction.insert(CLUSTER, key, cluster(name))
            elif operation in ("set", "unset"):
                transaction.set(CLUSTER, key, cluster(name) if operation == "set" else None)
            elif operation == "all":
                dbs = [(DatabaseKey(user(n)), database(f"{n}{name}", oid=20_000 + n)) for n in range(3)]
                transaction.set_all(DATABASE, iter(dbs))
            elif operation == "update":
                transaction.update(CLUSTER, lambda _, old: cluster(old.name + "x") if old.name < "c" else None)
            elif operation == "delete":
                transaction.delete(CLUSTER, lambda key, _: key.id.number % 2 == 0)
            elif operation == "ids":
                transaction.allocate("user", draw.randrange(-1, 3))
            elif operation == "oids":
                transaction.allocate_oids(2)
            elif operation == "use":
                transaction.insert(STORAGE_USAGE, StorageUsageKey(draw.randrange(9), None, 1, 5), Unit())
            elif operation == "find":
                assert transaction.find(CLUSTER, (name,)) in (None, *transaction.objects(CLUSTER))
            else:
                transaction.next_op()
        except ShadowDiffers:
            raise
        except PersistError:
            continue
    await catalog.commit(transaction, ts=draw.randrange(200))


async def test_two_implementations_agree_over_a_random_history(tmp_path: Path) -> None:
    draw = random.Random(11)
    async with mixed(tmp_path) as shadow:
        opened = await shadow.open(1)
        committed = opened.upper
        refused = 0
        for n in range(80):
            try:
                await random_step(draw, opened)
            except CorruptData:
                raise
            except PersistError:
                refused += 1
            if n % 20 == 19:
                await opened.prune_storage_usage(0, n)
                await opened.advance_upper(opened.upper + draw.randrange(3))
                opened = await shadow.open(1)
        assert opened.upper > committed + 40
        assert refused < 40
        reader = await shadow.open_read_only()
        assert reader.objects(CLUSTER) == opened.objects(CLUSTER)
        # Both sides have the same history, as far as both keep it.
        assert (await shadow.dump(consolidated=False)).upper == opened.upper


async def test_statements_are_planned_on_both_sides(tmp_path: Path) -> None:
    async with mixed(tmp_path) as shadow:
        opened = await shadow.open(1)
        transaction = opened.transaction()
        bootstrap(transaction)
        await opened.commit(transaction)
        transaction = opened.transaction()
        plan(transaction, [table("t"), view("v", "t")], ME, {}, 0)
        with pytest.raises(UnknownObject):
            plan(transaction, [table("u"), view("w", "none")], ME, {}, 0)
        plan(transaction, [drop(ObjectType.TABLE, "t", cascade=True), table("x")], ME, {}, 0)
        await opened.commit(transaction)
        there = [item.name for key, item in opened.objects(ITEM).items() if key.id.space is Space.USER]
        assert there == ["x"]
        await opened.confirm_leadership()


async def test_a_token_that_is_kept_for_a_refusal_is_kept_on_both_sides(tmp_path: Path) -> None:
    async with mixed(tmp_path) as shadow:
        opened = await shadow.open(1)
        name, body = Token.named("tests", "refused"), b"b" * 16
        fence = opened.transaction(token=name)
        fence.told_body, fence.always = body, True
        await opened.commit(fence)
        known = opened.get(COMMIT, CommitKey(name))
        assert known is not None
        assert known.body == body
        await opened.confirm_leadership()


async def test_followers_on_both_sides_see_the_same(tmp_path: Path) -> None:
    async with mixed(tmp_path) as shadow:
        leader = await shadow.open(1)
        reader = await shadow.open_read_only()
        waiting = asyncio.ensure_future(reader.sync(leader.upper + 2, timeout=60.0))
        await leader.set(CLUSTER, {ONE: cluster("a")})
        await leader.set(CLUSTER, {ONE: cluster("b")})
        told = await waiting
        assert [change.after for _, changes in told for change in changes] == [cluster("a"), cluster("b")]
        assert reader.upper == leader.upper
        with pytest.raises(TimeoutError):
            await reader.sync(leader.upper + 1, timeout=0.02)


async def test_transactions_made_while_others_commit_are_repeated_on_the_second(tmp_path: Path) -> None:
    async with mixed(tmp_path) as shadow:
        opened = await shadow.open(1)
        late: list[Any] = []

        async def between() -> None:
            while len(late) < 30:
                transaction = opened.transaction()
                transaction.insert(DATABASE, DatabaseKey(user(len(late))), database(f"{len(late)}"))
                assert isinstance(transaction, ShadowTransaction)
                late.append((transaction, transaction.second is None))
                await asyncio.sleep(0)

        async def commits() -> None:
            for n in range(10):
                await opened.set(CLUSTER, {ONE: cluster(f"{n}")})

        await asyncio.gather(commits(), between())
        assert any(alone for _, alone in late)
        for transaction, _ in late:
            await opened.commit(transaction)
        assert opened.count(DATABASE) == 30


@pytest.mark.parametrize("late", [False, True])
async def test_both_sides_refuse_what_was_overtaken(late: bool) -> None:
    _, _, shadow = in_memory()
    opened = await shadow.open(1)
    transaction = opened.transaction()
    assert transaction.get(CLUSTER, ONE) is None
    transaction.set(CLUSTER, TWO, cluster("b"))
    assert isinstance(transaction, ShadowTransaction)
    if late:
        transaction.second = None
    await opened.set(CLUSTER, {ONE: cluster("a")})
    with pytest.raises(OutOfSync):
        await opened.commit(transaction)
    assert opened.objects(CLUSTER) == {ONE: cluster("a")}


@pytest.mark.parametrize("late", [False, True])
async def test_repeated_commit_with_a_token_is_done_once(late: bool) -> None:
    _, _, shadow = in_memory()
    opened = await shadow.open(1)
    uppers = []
    transactions = [opened.transaction(token=Token.of(bytes(16))) for _ in range(2)]
    for transaction in transactions:
        transaction.set(CLUSTER, ONE, cluster("a"))
    for transaction in transactions:
        assert isinstance(transaction, ShadowTransaction)
        if late:
            transaction.second = None
        uppers.append(await opened.commit(transaction))
    assert uppers[0] == uppers[1] == opened.upper


async def test_who_is_cancelled_leaves_both_sides_alike() -> None:
    _, _, shadow = in_memory()
    opened = await shadow.open(1)
    for steps in range(12):
        before = opened.count(CLUSTER)
        key = ClusterKey(user(steps))
        writing = asyncio.ensure_future(opened.set(CLUSTER, {key: cluster(f"{steps}")}))
        for _ in range(steps):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait({writing})
        await opened.confirm_leadership()
        # What never began did not happen on either side; what began was done on both.
        assert opened.count(CLUSTER) == before + (steps > 0)


async def test_transaction_of_another_catalog_is_refused() -> None:
    first, _, shadow = in_memory()
    opened = await shadow.open(1)
    other = await DurableCatalog(MemoryLog(first)).open_read_only()
    with pytest.raises(InvalidArgument):
        await opened.commit(other.transaction())


def test_every_operation_of_a_transaction_goes_to_both() -> None:
    public = {
        name for name, _ in inspect.getmembers(CatalogTransaction, inspect.isfunction) if not name.startswith("_")
    }
    assert public
    assert public <= ShadowTransaction.__dict__.keys()


# ---- times are repaired ----------------------------------------------------------------------------------------------


async def apart() -> tuple[MemoryRows, MemoryRows, ShadowCatalog]:
    """Two catalogs that differ in times only: opened once each, moved on by themselves."""
    first, second, shadow = in_memory()
    one = await DurableCatalog(MemoryLog(first)).open(1)
    other = await DurableCatalog(MemoryLog(second)).open(1)
    await one.set(TIMESTAMP, {MAIN: Timestamp(5, 9), TimestampKey("one"): Timestamp(1, 1)})
    await other.set(TIMESTAMP, {MAIN: Timestamp(6, 7)})
    await other.advance_upper(100)
    assert one.upper < 100
    return first, second, shadow


async def test_times_are_repaired_at_opening_by_the_greater() -> None:
    first, second, shadow = await apart()
    opened = await shadow.open(1)
    assert opened.objects(TIMESTAMP) == {MAIN: Timestamp(6, 9), TimestampKey("one"): Timestamp(1, 1)}
    assert first.upper == second.upper == opened.upper > 100
    assert opened.token == token(1, 3)
    await opened.set(CLUSTER, {ONE: cluster("a")})


async def test_a_savepoint_repairs_times_in_memory_only() -> None:
    first, second, shadow = await apart()
    uppers = first.upper, second.upper
    savepoint = await shadow.open_savepoint(1)
    assert savepoint.get(TIMESTAMP, MAIN) == Timestamp(6, 9)
    await savepoint.set(CLUSTER, {ONE: cluster("a")})
    assert (first.upper, second.upper) == uppers


async def test_a_reader_lives_with_times_that_differ() -> None:
    first, second, shadow = await apart()
    reader = await shadow.open_read_only()
    assert reader.get(TIMESTAMP, MAIN) == Timestamp(5, 9)
    assert reader.upper == first.upper
    await reader.dump()
    assert await reader.sync() == []
    assert first.upper != second.upper


# ---- they differ -----------------------------------------------------------------------------------------------------


class Faulty(MemoryLog):
    """Wrong in one way from when it is asked to be."""

    fault = ""

    async def append(self, changes: Sequence[tuple[Row, int]], ts: int, *, expected_upper: int) -> int | None:
        fault, self.fault = self.fault, ""
        if fault == "loses a row":
            changes = changes[:-1]
        elif fault == "changes a value" and changes:
            (row, diff), *rest = changes
            changes = [(row._replace(value=row.value + b"\x00"), diff), *rest]
        elif fault == "loses a commit":
            self.rows.upper = ts + 1
            return None
        elif fault == "writes twice":
            changes = [*changes, changes[-1]]
        elif fault == "fails":
            raise Determinate("out of order")
        seen = await super().append(changes, ts, expected_upper=expected_upper)
        self.rows.upper += 3 if fault == "runs ahead" else 0
        return seen

    async def updates(self, lower: int) -> CatalogUpdates:
        found = await super().updates(lower)
        return CatalogUpdates([], found.upper) if self.fault == "hides news" else found


def planted(side: str) -> tuple[Faulty, ShadowCatalog]:
    faulty, sound = Faulty(MemoryRows()), MemoryLog(MemoryRows())
    return faulty, over(faulty, sound) if side == "first" else over(sound, faulty)


@pytest.mark.parametrize("side", ["first", "second"])
@pytest.mark.parametrize("fault", ["loses a row", "changes a value", "loses a commit", "writes twice"])
async def test_planted_difference_is_told_by_the_commit_it_comes_with(side: str, fault: str) -> None:
    faulty, shadow = planted(side)
    opened = await shadow.open(1)
    await opened.set(CLUSTER, {ONE: cluster("a"), TWO: cluster("b")})
    faulty.fault = fault
    with pytest.raises(ShadowDiffers) as told:
        await opened.set(CLUSTER, {ONE: cluster("c")})
    assert told.value.details["what"].startswith("rows after set")
    assert "cluster" in told.value.details["what"]
    assert told.value.details["first"] != told.value.details["second"]
    with pytest.raises(ShadowDiffers):
        await shadow.dump()


@pytest.mark.parametrize("side", ["first", "second"])
async def test_log_that_runs_ahead_is_told(side: str) -> None:
    faulty, shadow = planted(side)
    opened = await shadow.open(1)
    faulty.fault = "runs ahead"
    with pytest.raises(ShadowDiffers, match="upper"):
        await opened.set(CLUSTER, {ONE: cluster("c")})


@pytest.mark.parametrize("side", ["first", "second"])
async def test_news_that_one_side_hides_is_told(side: str) -> None:
    faulty, shadow = planted(side)
    leader, reader = await shadow.open(1), await shadow.open_read_only()
    await leader.set(CLUSTER, {ONE: cluster("a")})
    faulty.fault = "hides news"
    with pytest.raises(ShadowDiffers, match="sync"):
        await reader.sync()


async def test_one_side_that_was_written_alone_is_told() -> None:
    first, second, shadow = in_memory()
    opened = await shadow.open(1)
    await opened.set(CLUSTER, {ONE: cluster("a")})
    alone = await DurableCatalog(MemoryLog(second)).open(1)
    with pytest.raises(ShadowDiffers, match="fence_token"):
        await shadow.fence_token()
    with pytest.raises(ShadowDiffers) as told:
        await opened.set(CLUSTER, {ONE: cluster("b")})
    assert told.value.details["first"].startswith("returned")
    assert "FencedByEpoch" in told.value.details["second"]
    assert isinstance(told.value.__cause__, FencedByEpoch)
    await alone.close()
    assert first.upper > 0


async def test_objects_that_differ_are_told_at_opening() -> None:
    first, second, shadow = in_memory()
    for rows, name in ((first, "a"), (second, "b")):
        await (await DurableCatalog(MemoryLog(rows)).open(1)).set(CLUSTER, {ONE: cluster(name)})
    for opening in (shadow.open_read_only, lambda: shadow.open_savepoint(1), lambda: shadow.open(1)):
        with pytest.raises(ShadowDiffers) as told:
            await opening()
        assert told.value.details["what"].startswith("cluster after open")
        assert "'a'" in told.value.details["first"]
        assert "'b'" in told.value.details["second"]


async def test_sides_that_decide_otherwise_are_told() -> None:
    """Objects that one side only has in memory: what it reads and refuses is its own."""
    _, _, shadow = in_memory()
    opened: Any = await shadow.open(1)
    await opened.set(CLUSTER, {ONE: cluster("a")})
    objects = opened._second._snapshot._objects[CLUSTER]
    objects[ONE] = cluster("z")
    for look in (lambda: opened.get(CLUSTER, ONE), lambda: opened.objects(CLUSTER)):
        with pytest.raises(ShadowDiffers):
            look()
    transaction = opened.transaction()
    with pytest.raises(ShadowDiffers, match="get cluster"):
        transaction.get(CLUSTER, ONE)
    objects[ONE] = cluster("a")
    opened._second._snapshot._names[CLUSTER].clear()
    transaction = opened.transaction()
    with pytest.raises(ShadowDiffers) as told:
        transaction.insert(CLUSTER, TWO, cluster("a"))
    assert "UniquenessViolation" in told.value.details["first"]
    late = opened.transaction()
    late.second = None
    with pytest.raises(UniquenessViolation):
        late.insert(CLUSTER, TWO, cluster("a"))
    with pytest.raises(ShadowDiffers):
        await opened.commit(late)


async def test_a_store_that_fails_is_no_difference() -> None:
    faulty, shadow = planted("second")
    opened = await shadow.open(1)
    faulty.fault = "fails"
    with pytest.raises(Determinate):
        await opened.set(CLUSTER, {ONE: cluster("a")})


def test_the_error_is_corrupt_data_and_does_not_hide_it_from_others() -> None:
    assert issubclass(ShadowDiffers, CorruptData)
    assert PersistError.by_reason["CORRUPT_DATA"] is CorruptData
