"""HOLD by statements, over what the leader keeps: each sentence of design document 5 beside what shows it."""

import asyncio

import pytest
from client.sql.support import last, rows, sessions

from persist import Updates
from persist.client.collections.control.controller import Controller
from persist.client.sql.session import SqlSession
from persist.core.time.errors import BelowHold
from persist.errors import InvalidArgument, NotReadable

TABLE = "create table t (id bigint primary key, n bigint);"
KEPT = "create table t (id bigint primary key, n bigint) with (retain history forever);"
HELD = "select at, auto_advanced_count from persist_catalog.holds where name = 'persist.public.h'"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer about frontiers holds for a second, not for ten: sinces follow policies that much sooner."""
    monkeypatch.setitem(Controller.__init__.__kwdefaults__, "told_seconds", 1.0)


async def written(session: SqlSession, *values: str) -> list[int]:
    """The times of rows that are put in, one after the other."""
    times = [(await last(session, f"insert into t values ({each})")).ts for each in values]
    return [ts for ts in times if ts is not None]


async def since_beyond(session: SqlSession, name: str, ts: int) -> None:
    """Until the shard of an object cannot be read at a time any more, while other rows come."""
    shard = (await session.environment.resolve(name)).data
    number = 1_000_000
    async with asyncio.timeout(120):
        while (await session.environment.access.client.inspect(shard))["since"][0] <= ts:
            number += 1
            await session.execute("insert into t values (?, 0)", [number])
            await asyncio.sleep(0.05)


async def since_of_policy_passed(session: SqlSession, ts: int) -> None:
    """Until a hold that is given no time begins beyond a time: nothing but holds and readers keeps that."""
    async with asyncio.timeout(60):
        while True:
            await session.execute("create hold g on t")
            ((at,),) = await rows(session, "select at from mz_catalog.mz_holds where name = 'g'")
            await session.execute("drop hold g")
            if at > ts:
                return
            await asyncio.sleep(0.1)


async def test_a_hold_is_created_advanced_and_dropped_by_its_user():
    """Add a new HOLD object that acquires controller read holds on listed objects at a specific timestamp. The HOLD
    must be manually advanced to newer timestamps by users which will release the previous and acquire a new read hold
    to the specified timestamp.

    The HOLD releases its current read hold and aquires a new read hold at the new time.
    """
    async with sessions() as (session,):
        await session.execute(TABLE)
        (first,) = await written(session, "1, 1")
        await asyncio.sleep(1.1)  # sinces move in steps
        (second,) = await written(session, "2, 2")
        await session.execute(f"create hold h on t at {first} with (max lag = '3h'::interval,)")
        await since_of_policy_passed(session, second)
        assert await rows(session, f"select * from t as of {first}") == [(1, 1)]
        assert await rows(session, HELD) == [(first, 0)]
        await session.execute(f"alter hold h advance to {second}")
        assert await rows(session, f"select * from t order by id as of {second}") == [(1, 1), (2, 2)]
        await since_beyond(session, "t", first)
        assert await rows(session, f"select * from t order by id as of {second}") == [(1, 1), (2, 2)]
        with pytest.raises(BelowHold):
            await session.execute(f"select * from t as of {first}")
        await session.execute("drop hold h")
        await since_beyond(session, "t", second)
        with pytest.raises(NotReadable):
            await session.execute(f"select * from t as of {second}")


async def test_a_hold_on_an_index_answers_what_the_index_satisfies():
    """If a HOLD exists for an index, the same is true if the index satisfies the query.

    An AS OF query will restrict the indexes or object it considers to those that are valid for the requested time.
    """
    async with sessions() as (session,):
        await session.execute(TABLE)
        (first,) = await written(session, "1, 7")
        await session.execute(f"create index i on t (n); create hold h on i at {first}; insert into t values (2, 8)")
        await since_beyond(session, "t", first)
        assert await rows(session, f"select id from t where n = 7 as of {first}") == [(1,)]
        assert await rows(session, f"select * from t as of {first}") == [(1, 7)]
        await session.execute("drop hold h")
        await since_beyond(session, "i", first)
        with pytest.raises(NotReadable):
            await session.execute(f"select * from t as of {first}")


async def test_one_hold_takes_the_place_of_another():
    """We want to support safe swapping out of one HOLD for another, and since we only reference a collection's
    implied_capability (which is not aware of any read holds), it is necessary to call out specifically that other
    HOLDs times are valid for new HOLDs."""
    async with sessions() as (session,):
        await session.execute(TABLE)
        (first,) = await written(session, "1, 1")
        await session.execute(f"create hold h on t at {first}")
        # What its policy allows is beyond that by now, and so is what a hold begins at that is given no time.
        await since_of_policy_passed(session, first)
        with pytest.raises(NotReadable):
            await session.execute(f"create hold early on t at {first - 1}")
        await session.execute(f"create hold wider on t at {first}; drop hold h")
        await session.execute("insert into t values (2, 2)")
        assert await rows(session, f"select * from t as of {first}") == [(1, 1)]


async def test_what_reads_goes_on_when_a_hold_is_dropped():
    """In-progress SUBSCRIBEs and transactions will not be affected after a DROP, but will continue to run as expected.
    Those will still be aquiring their own read holds in addition to the HOLD object."""
    async with sessions(2) as (one, two):
        await one.execute(TABLE)
        (first,) = await written(one, "1, 1")
        await one.execute(f"create hold h on t at {first}; begin")
        assert await rows(one, "select * from t") == [(1, 1)]
        async with await two.subscribe(f"subscribe t as of {first}") as following:
            await two.execute("drop hold h")
            # A transaction and a subscription that are under way are what keeps it now.
            for number in range(2, 30):
                await two.execute(f"insert into t values ({number}, 0)")
                await asyncio.sleep(0.05)
            assert await rows(one, "select * from t") == [(1, 1)]
            await one.execute("commit")
            seen = set[int]()
            async with asyncio.timeout(60):
                async for table in following.batches():
                    seen |= set(table["id"].to_pylist())
                    if len(seen) == 29:
                        break
        assert seen == set(range(1, 30))


async def test_what_is_held_takes_room_until_the_hold_is_advanced():
    """Creating a HOLD will increase resource consumption (mostly memory) in proportion to the amount of time it is held
    for. Users must periodically advance the HOLD to a more recent time to allow for resources to be released."""
    async with sessions() as (session,):
        await session.execute(TABLE + "insert into t values (1, 0); create hold h on t")
        shard = (await session.environment.resolve("t")).data
        client = session.environment.access.client
        held, sizes = list[int](), list[int]()
        for _ in range(3):
            for number in range(6):
                await session.execute(f"update t set n = {number} where id = 1")
            done = await last(session, "insert into t values (2, 0); delete from t where id = 2")
            await session.execute(f"select * from t as of {done.ts}")
            ((retained,),) = await rows(session, "select retained_bytes from persist_catalog.holds")
            held.append(retained)
            sizes.append((await client.inspect(shard))["rows"])
        assert held == sorted(held)
        assert held[2] > held[0] > 0
        assert sizes[2] > 2 * sizes[0]
        await session.execute(f"alter hold h advance to {done.ts}")
        assert await rows(session, "select retained_bytes from persist_catalog.holds") == [(0,)]
        async with asyncio.timeout(120):
            while (await client.inspect(shard))["rows"] >= sizes[1]:
                await session.execute("update t set n = n + 1 where id = 1; alter hold h advance")


async def test_a_hold_that_is_moved_for_its_lag_moves_no_reader():
    """(Transactions and SUBSCRIBE are not affected, as in the ALTER HOLD ADVANCE case.)"""
    async with sessions(2) as (one, two):
        await one.execute(TABLE)
        (first,) = await written(one, "1, 1")
        await one.execute(f"create hold h on t at {first} with (max lag = '1s'); begin")
        assert await rows(one, "select * from t") == [(1, 1)]
        async with await two.environment.subscribe("t", as_of=first) as subscription:
            number = 1
            async with asyncio.timeout(60):
                while not (await rows(two, HELD))[0][1]:
                    number += 1
                    await two.execute(f"insert into t values ({number}, 0)")
            await since_of_policy_passed(two, first)
            assert await rows(one, "select * from t") == [(1, 1)]
            seen = set[int]()
            async for event in subscription:
                if isinstance(event, Updates):
                    seen |= set(event.table["id"].to_pylist())
                if len(seen) == number:
                    break
        assert seen == set(range(1, number + 1))
        await one.execute("rollback")
        with pytest.raises(BelowHold):
            await one.execute(f"select * from t as of {first}")


async def test_what_is_made_over_a_long_history_is_held_where_it_begins():
    """In order to specify a HOLD on a new index or materialized view whose underlying object may have a long history,
    HOLDs support a special multi-statement DDL of the form BEGIN; CREATE INDEX i ...; CREATE HOLD ON i; COMMIT;

    In a transaction, exactly one CREATE HOLD statement is allowed to follow a CREATE statement if the HOLD names
    exactly and only the created object.
    """
    async with sessions() as (session,):
        await session.execute(KEPT)
        first, *_ = await written(session, "1, 5", "2, 6", "3, 7")
        await session.execute("BEGIN; CREATE INDEX i ON t (n); CREATE HOLD ON i; COMMIT;")
        await session.execute(
            f"begin; create materialized view m with (refresh on commit) as select count(*) as k from t;"
            f"create hold on_m on m at {first}; commit"
        )
        held = dict(await rows(session, "select name, at from mz_catalog.mz_holds"))
        assert held["on_m"] == first
        assert held["i_hold"] <= first
        assert await rows(session, f"select k from m as of {first}") == [(1,)]
        for wrong in ("create hold x on i", "create hold x on i, t", "create hold x on i; create hold y on i"):
            await session.execute("drop hold i_hold; drop index i")
            with pytest.raises(InvalidArgument, match="one CREATE HOLD"):
                await session.execute(
                    f"begin; create table a (id int); create index i on t (n); {wrong}; commit"
                    if wrong.endswith("on i") and ";" not in wrong
                    else f"begin; create index i on t (n); {wrong}; commit"
                )
            await session.execute("BEGIN; CREATE INDEX i ON t (n); CREATE HOLD ON i; COMMIT;")


async def test_what_is_built_on_a_name_that_the_same_transaction_changed_is_done_at_once():
    async with sessions() as (session,):
        await session.execute(
            "create table a (id int primary key) with (retain history for '1h'); create table b (id int primary key); "
            "create hold h1 on a; create hold h2 on b"
        )
        await session.execute("set statement_timeout = '20s'")
        for text in (
            "alter hold h1 swap with h2; alter hold h2 advance",
            "alter hold h1 rename to h9; alter hold h9 advance",
            "alter table a rename to a2; create hold ha on a2",
            "create view v as select * from b; create materialized view m as select * from v",
            "create hold hz on b; alter hold hz advance",
        ):
            await session.execute(f"begin; {text}; commit")
        held = await rows(session, "select name from mz_catalog.mz_holds order by name")
        assert held == [("h2",), ("h9",), ("ha",), ("hz",)]
