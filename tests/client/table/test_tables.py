"""Tables of both modes over every store and way: reads see writes, transactions are whole, nothing is lost."""

import asyncio
import dataclasses
import random
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pytest
from client.shard.write.test_concurrent import Lossy
from client.support import SCHEMA, Place, client_of, memory_place, rows_of, table
from sure import reached

import persist
from persist import (
    ClockAhead,
    Determinate,
    Indeterminate,
    InvalidArgument,
    NotYetAvailable,
    SchemaMismatch,
    ShardClosed,
    ShardId,
    Transaction,
    UsageError,
    aio,
)
from persist.client.table import data_shard
from persist.client.table import wal as wal_module

MODES: tuple[Literal["direct", "wal"], ...] = ("direct", "wal")
BANK = persist.Schema(key={"account": pa.int64()}, val={"amount": pa.int64()})
USER = "U.tests"


def row(key: int, name: str) -> dict[str, Any]:
    return {"id": key, "name": name}


async def found(table: aio.Table, as_of: int | None = None) -> list[tuple[Any, ...]]:
    return rows_of(await (await table.snapshot(as_of)).to_arrow())


@pytest.mark.parametrize("mode", MODES)
async def test_whoever_reads_finds_every_write_that_had_returned(place: Place, mode: Any):
    async with client_of(place) as one, client_of(place) as two:
        here = await one.table("t", schema=SCHEMA, mode=mode)
        there = await two.table("t", mode=mode)
        assert here.shard == there.shard
        assert (here.mode, here.schema, str(here.timeline)) == (mode, SCHEMA, "M")
        assert await found(there) == []
        first = await here.insert([row(1, "a"), row(2, "b")])
        assert await found(there) == [(1, "a", 1), (2, "b", 1)]
        second = await there.upsert([row(1, "c"), row(3, "d")])
        third = await here.delete([{"id": 2}])
        fourth = await there.retract([row(3, "d")])
        assert first < second < third < fourth
        assert await found(here) == await found(there) == [(1, "c", 1)]
        assert await found(here, second) == [(1, "c", 1), (2, "b", 1), (3, "d", 1)]
        assert await found(there, first) == [(1, "a", 1), (2, "b", 1)]
        assert await found(there, first - 1) == []


@pytest.mark.parametrize("mode", MODES)
async def test_many_writers_lose_nothing_and_double_nothing(place: Place, mode: Any):
    async with client_of(place) as one, client_of(place) as two:
        tables = [await client.table("t", schema=SCHEMA, mode=mode) for client in (one, two, one, two)]
        times: list[int] = []

        async def write(number: int) -> None:
            for count in range(8):
                times.append(await tables[number].insert([row(number * 100 + count, "a")]))
                assert (number * 100 + count, "a", 1) in await found(tables[number])

        await asyncio.gather(*(write(number) for number in range(4)))
        expected = sorted((number * 100 + count, "a", 1) for number in range(4) for count in range(8))
        assert await found(tables[0]) == await found(tables[1]) == expected
        assert await found(tables[0], max(times)) == expected


@pytest.mark.parametrize("mode", MODES)
async def test_upserts_at_the_same_time_are_one_after_the_other(place: Place, mode: Any):
    async with client_of(place) as one, client_of(place) as two:
        tables = [await client.table("t", schema=BANK, mode=mode) for client in (one, two)]
        names = [5, 5, 7, 7]
        times = await asyncio.gather(
            *(tables[at % 2].upsert([{"account": key, "amount": at}]) for at, key in enumerate(names))
        )
        assert len(set(times)) == len(names)
        assert [(account, diff) for account, _, diff in await found(tables[0])] == [(5, 1), (7, 1)]
        last = {key: at for _, key, at in sorted(zip(times, names, range(4), strict=True))}
        assert {account: amount for account, amount, _ in await found(tables[1])} == last


async def test_a_table_in_use_elsewhere_is_complete_at_the_read_time_of_the_timeline(place: Place):
    async with client_of(place) as client:
        tables = [await client.table(mode, schema=SCHEMA, mode=mode) for mode in MODES]
        idle = [await client.table(f"idle {mode}", schema=SCHEMA, mode=mode) for mode in MODES]
        for table in tables:
            ts = await table.insert([row(1, "a")])
            assert [await found(other) for other in idle] == [[], []]
            assert [await found(other, ts) for other in idle] == [[], []]
        oracle = await client.oracle()
        assert await found(tables[0], await oracle.read_ts()) == await found(tables[1]) == [(1, "a", 1)]


async def test_a_transaction_is_in_all_its_tables_at_one_time(place: Place):
    async with client_of(place) as client, client_of(place) as other:
        tables = [await client.table(name, schema=SCHEMA, mode="wal") for name in "ab"]
        seen = [await other.table(name, mode="wal") for name in "ab"]
        await tables[1].insert([row(9, "z")])
        async with client.transaction() as txn:
            txn.insert(tables[0], [row(1, "a")])
            txn.insert(tables[0], [row(2, "b")])
            txn.retract(tables[1], [row(9, "z")])
        assert txn.ts is not None
        assert [await found(table, txn.ts - 1) for table in seen] == [[], [(9, "z", 1)]]
        assert [await found(table, txn.ts) for table in seen] == [[(1, "a", 1), (2, "b", 1)], []]
        with pytest.raises(UsageError):
            txn.insert(tables[0], [row(3, "c")])


async def both(client: aio.Client, tables: list[aio.Table], *rows: Any) -> None:
    async with client.transaction() as txn:
        for written, given in zip(tables, rows, strict=True):
            txn.insert(written, given)


async def test_an_error_within_a_transaction_leaves_nothing_of_it():
    async with client_of(memory_place()) as client:
        tables = [await client.table(name, schema=SCHEMA, mode="wal") for name in "ab"]
        for wrong in ([{"id": 1, "wrong": "column"}], [{"id": "text", "name": "a"}]):
            with pytest.raises((SchemaMismatch, InvalidArgument)):
                await both(client, tables, [row(1, "a")], wrong)
        async with client.transaction() as txn:
            pass
        assert txn.ts is None
        assert [await found(table) for table in tables] == [[], []]


async def transfer(txn: aio.TableTransaction, accounts: list[aio.Table], amount: int) -> None:
    held = [(await (await txn.snapshot(table)).to_pylist())[0]["amount"] for table in accounts]
    for account, new in zip(accounts, (held[0] - amount, held[1] + amount), strict=True):
        await txn.upsert(account, [{"account": 1, "amount": new}])


async def test_transfers_keep_the_sum_at_every_time(place: Place):
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(place)) for _ in range(3)]
        banks = [[await client.table(name, schema=BANK, mode="wal") for name in "ab"] for client in clients]
        async with clients[0].transaction() as txn:
            for table in banks[0]:
                txn.insert(table, [{"account": 1, "amount": 100}])
        done = asyncio.Event()

        async def move(number: int) -> None:
            for step in range(6):
                await clients[number].transact(partial(transfer, accounts=banks[number], amount=step + number))

        async def look() -> int:
            oracle, looks = await clients[2].oracle(), 0
            while not done.is_set() or not looks:
                as_of = await oracle.read_ts()
                rows = [row for table in banks[2] for row in await found(table, as_of)]
                assert len(rows) == 2
                assert sum(amount for _, amount, _ in rows) == 200
                looks += 1
            return looks

        looking = asyncio.create_task(look())
        await asyncio.gather(*(move(number) for number in range(2)))
        done.set()
        assert await looking
        moved = sum(range(6)) + sum(range(1, 7))
        assert [await found(table) for table in banks[2]] == [[(1, 100 - moved, 1)], [(1, 100 + moved, 1)]]


async def test_the_log_forgets_what_is_copied_and_nothing_else(place: Place):
    async with client_of(place) as client, client_of(place) as other:
        tables = [await client.table(name, schema=SCHEMA, mode="wal") for name in "ab"]
        late = await other.table("a", mode="wal")
        assert await found(late) == []
        for count in range(5):
            async with client.transaction() as txn:
                for table in tables:
                    txn.insert(table, [row(count, table.shard)])
        await asyncio.gather(client.settle(), other.settle(), client.settle())
        log = await client.transaction_log()
        await late.insert([row(7, "late")])
        await client.settle()
        await other.settle()
        shard = ShardId.named("persist.wal", "M")
        state = await client.inspect(shard)
        assert (
            state["since"] == [state["upper"][0] - 1 - 0]
            or state["since"][0] >= await (await client.oracle()).read_ts()
        )
        reader = await client.open_reader(shard)
        held = await (await reader.snapshot((await client.recent_upper(shard)).elements[0] - 1)).to_pylist()
        # Taken back once, never twice.
        assert held == []
        fresh = await other.table("never seen", schema=SCHEMA, mode="wal")
        assert await found(fresh) == []
        assert log is await client.transaction_log()
        assert await found(late) == sorted([*((count, late.shard, 1) for count in range(5)), (7, "late", 1)])
        assert len(await found(tables[1])) == 5


async def test_logs_are_settled_now_and_then_by_whoever_commits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wal_module, "TIDY_COMMITS", 4)
    async with client_of(memory_place()) as client:
        written = await client.table("t", schema=SCHEMA, mode="wal")
        for count in range(4):
            await written.insert([row(count, "a")])
        while not (await client.inspect(ShardId.named("persist.wal", "M")))["since"][0]:
            await asyncio.sleep(0.01)
        assert (await client.recent_upper(written.shard)).elements[0] > 0
        assert len(await found(written)) == 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "faults", [["after"], ["before", "after"], ["before", "before"], ["determinate"]], ids="-".join
)
async def test_lost_answers_double_nothing(place: Place, mode: Any, faults: list[str]):
    async with client_of(place) as client:
        written = await client.table("t", schema=SCHEMA, mode=mode)
        for at in range(4):
            lossy = Lossy(client.location.shards, [])
            client.location.shards = lossy
            # The answers lost are the oracle's, the append's, the copy's: whichever comes first, then the next.
            lossy.faults = [""] * at + faults
            await written.insert([row(at, "a")])
            await written.upsert([row(100, str(at))])
            lossy.faults = [""] * (at // 2) + faults
            expected = [*((key, "a", 1) for key in range(at + 1)), (100, str(at), 1)]
            assert await found(written) == expected


@pytest.mark.parametrize("mode", MODES)
async def test_a_write_of_unknown_outcome_is_repeated_under_its_transaction(place: Place, mode: Any):
    async with client_of(place) as client, client_of(place) as other:
        written = await client.table("t", schema=SCHEMA, mode=mode)
        marker = Transaction(app_id="app", version=1)
        lossy = Lossy(client.location.shards, ["", *["after"] * 1000])
        client.location.shards = lossy
        with pytest.raises(Indeterminate):
            await written.insert([row(1, "a")], transaction=marker, timeout=0.3)
        lossy.faults = []
        again = await other.table("t", mode=mode)
        times = [await again.insert([row(1, "a")], transaction=marker) for _ in range(2)]
        assert times[0] == times[1]
        assert await found(written) == [(1, "a", 1)]


@pytest.mark.parametrize("mode", MODES)
async def test_a_write_that_was_overtaken_moves_behind_what_was_read(mode: Any):
    place = memory_place()
    async with client_of(place) as one, client_of(place) as two:
        slow, quick = [await client.table("t", schema=SCHEMA, mode=mode) for client in (one, two)]
        held, go = asyncio.Event(), asyncio.Event()
        oracle = await one.oracle()
        write_ts = oracle.write_ts

        async def paused(**options: Any) -> int:
            ts = await write_ts(**options)
            held.set()
            await go.wait()
            return ts

        oracle.write_ts = paused  # type: ignore[method-assign]  # between asking for a time and writing at it
        writing = asyncio.create_task(slow.insert([row(1, "slow")]))
        await reached(held, writing)
        ts = await quick.insert([row(2, "quick")])
        assert await found(quick) == [(2, "quick", 1)]
        go.set()
        assert await writing > ts
        assert await found(quick, ts) == [(2, "quick", 1)]
        assert await found(quick) == [(1, "slow", 1), (2, "quick", 1)]


@pytest.mark.parametrize("mode", MODES)
async def test_a_time_to_come_is_waited_for(mode: Any):
    async with client_of(memory_place()) as client:
        written = await client.table("t", schema=SCHEMA, timeline=USER, mode=mode)
        ts = await written.insert([row(1, "a")])
        with pytest.raises(NotYetAvailable):
            await written.snapshot(ts + 5, timeout=0.05)
        waiting = asyncio.create_task(found(written, ts + 5))
        await (await client.oracle(USER)).apply_write(ts + 5)
        assert await waiting == [(1, "a", 1)]
        assert await written.insert([row(2, "b")]) > ts + 5


@pytest.mark.parametrize("mode", MODES)
async def test_a_shard_becomes_a_table_with_what_it_has(mode: Any):
    async with client_of(memory_place()) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await writer.append(table([(1, "a", 500, 1)]), 1000)
        written = await client.table(writer.shard, timeline=USER, mode=mode)
        assert await written.insert([row(2, "b")]) >= 1000
        assert await found(written) == [(1, "a", 1), (2, "b", 1)]
        far = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await far.append([], 10**15)
        with pytest.raises(ClockAhead):
            await client.table(far.shard, mode=mode)


async def test_writing_past_the_log_is_noticed():
    async with client_of(memory_place()) as client:
        written = await client.table("t", schema=SCHEMA, timeline=USER, mode="wal")
        await written.insert([row(1, "a")])
        writer = await client.open_writer(written.shard)
        await writer.append_at_upper([], not_before=1000)
        with pytest.raises(UsageError, match="past its log"):
            await written.snapshot()


async def test_columns_added_meanwhile_are_copied_too():
    async with client_of(memory_place()) as client:
        old = await client.table("t", schema=SCHEMA, mode="wal")
        await old.insert([row(1, "a")])
        wider = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string(), "more": pa.int64()})
        await client.evolve_schema(old.shard, wider)
        new = await client.table("t", schema=wider, mode="wal")
        await new.insert([{"id": 2, "name": "b", "more": 7}])
        assert await found(old) == await found(new) == [(1, "a", None, 1), (2, "b", 7, 1)]


@pytest.mark.parametrize("change", ["upsert", "delete", "transact"])
async def test_handle_that_was_open_before_columns_were_added_changes_whole_rows(change):
    async with client_of(memory_place()) as client:
        old = await client.table("t", schema=SCHEMA, mode="wal")
        await old.insert([row(1, "a")])
        wider = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string(), "more": pa.int64()})
        await client.evolve_schema(old.shard, wider)
        new = await client.table("t", mode="wal")
        await new.upsert([{"id": 1, "name": "a", "more": 7}])
        if change == "upsert":
            await old.upsert([row(1, "b")])
        elif change == "delete":
            await old.delete([{"id": 1}])
        else:

            async def work(transaction: Any) -> None:
                transaction.insert(old, [row(2, "c")])
                await transaction.upsert(old, [row(1, "b")])

            await client.transact(work)
        one, two = (1, "b", None, 1), (2, "c", None, 1)
        assert await found(new) == {"upsert": [one], "delete": [], "transact": [one, two]}[change]


@pytest.mark.parametrize("mode", MODES)
async def test_random_histories_read_as_they_were_written(mode: Any, entropy: random.Random):
    async with client_of(memory_place()) as client:
        written = await client.table("t", schema=BANK, timeline=USER, mode=mode)
        held: dict[int, int] = {}
        past: dict[Any, Any] = {}
        for step in range(60):
            keys = entropy.sample(range(12), entropy.randrange(1, 4))
            if entropy.random() < 0.7:
                held |= {key: step for key in keys}
                ts = await written.upsert([{"account": key, "amount": step} for key in keys])
            else:
                held = {key: value for key, value in held.items() if key not in keys}
                ts = await written.delete(pa.table({"account": keys}))
            rows = sorted((key, value, 1) for key, value in held.items())
            assert past.setdefault(ts, rows) == rows
            if mode == "wal" and entropy.random() < 0.2:
                await client.settle(USER)
        assert len(past) > 50
        for ts, rows in past.items():
            assert await found(written, ts) == rows


async def test_what_is_wrong_is_refused():
    async with client_of(memory_place()) as client, client_of(memory_place()) as foreign:
        for name in ("", 5, None):
            with pytest.raises(InvalidArgument):
                await client.table(name, schema=SCHEMA)  # type: ignore[arg-type]  # that is the point
        with pytest.raises(InvalidArgument):
            await client.table("t", schema=SCHEMA, mode="quick")  # type: ignore[arg-type]  # that is the point
        direct = await client.table("d", schema=SCHEMA)
        logged = await client.table("l", schema=SCHEMA, mode="wal")
        elsewhere = await foreign.table("l", schema=SCHEMA, mode="wal")
        other = await client.table("o", schema=SCHEMA, timeline=USER, mode="wal")
        assert len({direct.shard, logged.shard, other.shard}) == 3
        async with client.transaction() as txn:
            for wrong in (direct, elsewhere, other):
                with pytest.raises(InvalidArgument):
                    txn.insert(wrong, [row(1, "a")])
            with pytest.raises(UsageError):
                await txn.snapshot(logged)
        for kept in (direct, logged):
            with pytest.raises(InvalidArgument):
                await kept.upsert([row(1, "a"), row(1, "b")])
            with pytest.raises(SchemaMismatch):
                await kept.delete([{"name": "a"}])
            with pytest.raises(SchemaMismatch):
                await kept.insert([{"id": 1, "name": "a", "more": 1}])
            with pytest.raises(InvalidArgument):
                await kept.snapshot(-1)
            assert await found(kept) == []


async def test_transaction_that_was_committed_is_not_run_again_and_its_answer_is_not_made_up():
    place, marker = memory_place(), Transaction(app_id="shop", version=7)
    runs = 0
    async with client_of(place) as client, client_of(place) as rival:
        bank = await client.table("bank", schema=BANK, mode="wal")
        await bank.insert([{"account": 1, "amount": 100}])

        async def withdraw(txn: aio.TableTransaction) -> int:
            nonlocal runs
            runs += 1
            [there] = (await (await txn.snapshot(bank)).to_arrow()).to_pylist()
            await txn.upsert(bank, [{"account": 1, "amount": there["amount"] - 30}])
            return int(there["amount"]) - 30

        assert await client.transact(withdraw, transaction=marker) == 70
        for who in (client, rival):
            with pytest.raises(persist.AlreadyCommitted) as told:
                await who.transact(withdraw, transaction=marker)
            assert told.value.details["version"] == "7"
        assert runs == 1
        assert await found(bank, int(told.value.details["ts"])) == [(1, 70, 1)]
        later = dataclasses.replace(marker, version=8)
        assert await client.transact(withdraw, transaction=later) == 40


async def test_run_that_another_one_under_its_marker_was_ahead_of_answers_nothing():
    place, marker = memory_place(), Transaction(app_id="shop", version=7)
    async with client_of(place) as client, client_of(place) as rival:
        bank = await client.table("bank", schema=BANK, mode="wal")
        theirs = await rival.table("bank", mode="wal")

        async def overtaken(txn: aio.TableTransaction) -> str:
            txn.insert(bank, [{"account": 1, "amount": 1}])
            async with rival.transaction(transaction=marker) as ahead:
                ahead.insert(theirs, [{"account": 2, "amount": 2}])
            return "mine"

        with pytest.raises(persist.AlreadyCommitted):
            await client.transact(overtaken, transaction=marker)
        assert await found(bank) == [(2, 2, 1)]


async def test_log_of_processes_that_commit_once_stays_short(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wal_module, "TIDY_COMMITS", 8)
    place = memory_place()
    many = 4 * wal_module.TIDY_COMMITS
    held: list[int] = []
    async with client_of(place) as keeper:
        await keeper.table("t", schema=SCHEMA, mode="wal")
        log = (await keeper.transaction_log()).writer.shard
        for number in range(many):
            async with client_of(place) as client:
                await (await client.table("t", mode="wal")).insert([row(number, "a")])
            if number % 8 == 7:
                reader = await keeper.open_reader(log)
                entries = (await (await reader.snapshot()).to_arrow()).to_pylist()
                held.append(sum(entry["diff"] for entry in entries))
                await reader.expire()
    assert max(held) < 3 * wal_module.TIDY_COMMITS


def test_turns_come_evenly_in_whatever_steps_seqnos_are_taken():
    for step in (*range(1, 70), 128, 1000):
        turns = [number for number in range(2_000) if wal_module.is_turn(number * step + 7)]
        assert 0.5 < len(turns) * wal_module.TIDY_COMMITS / 2_000 < 2, step


@pytest.mark.parametrize("mode", MODES)
async def test_nothing_is_a_write_too(mode: Any):
    async with client_of(memory_place()) as client:
        written = await client.table("t", schema=SCHEMA, timeline=USER, mode=mode)
        times = [await written.insert([]), await written.upsert([]), await written.delete([{"id": 4}])]
        assert times == sorted(times)
        assert await found(written) == []
        await written.downgrade_since(times[-1])
        await written.expire()
        assert await found(written) == []


async def test_a_time_up_within_transact_is_told():
    async with client_of(memory_place()) as client:
        logged = await client.table("t", schema=SCHEMA, timeline=USER, mode="wal")

        async def overtaken(txn: aio.TableTransaction) -> None:
            txn.insert(logged, [row(1, "mine")])
            await logged.insert([row(2, "theirs")])

        with pytest.raises(Determinate):
            await client.transact(overtaken, USER, timeout=0.2)
        assert {name for _, name, _ in await found(logged)} == {"theirs"}
        # Only reading: what was found is applied before it is returned.
        rows = await client.transact(lambda txn: txn.snapshot(logged), USER)
        assert await (await client.oracle(USER)).read_ts() >= rows.as_of


async def past_the_log(client: aio.Client, written: aio.Table) -> None:
    """Append to a logged table's shard behind everything, as a program that only knows its id."""
    writer = await client.open_writer(written.shard)
    now = await (await client.oracle()).write_ts()
    await writer.append_at_upper([(({"id": 50}, {"name": "raw"}), 0, 1)], not_before=now)


@pytest.mark.parametrize("between", ["read", "settle"])
async def test_a_write_past_the_log_loses_no_acknowledged_row(place: Place, between: str):
    async with client_of(place) as client, client_of(place) as other:
        written = await client.table("t", schema=SCHEMA, mode="wal")
        await written.insert([row(1, "acknowledged")])
        await past_the_log(other, written)
        await written.insert([row(2, "later")])
        if between == "settle":
            await client.settle()
        expected = [(1, "acknowledged", 1), (2, "later", 1), (50, "raw", 1)]
        assert await found(written) == expected
        assert await found(await other.table("t", mode="wal")) == expected
        await client.settle()
        assert await found(written) == expected
        assert await found(await other.table("t", mode="wal")) == expected


async def test_a_table_of_a_log_is_not_opened_directly(place: Place):
    async with client_of(place) as client, client_of(place) as other:
        written = await client.table("t", schema=SCHEMA, mode="wal")
        await written.insert([row(1, "a")])
        with pytest.raises(InvalidArgument, match="through a log"):
            await other.table(written.shard)
        by_id = await other.table(written.shard, mode="wal")
        await by_id.insert([row(2, "b")])
        assert await found(written) == [(1, "a", 1), (2, "b", 1)]


async def test_writes_past_the_log_at_random_lose_and_double_nothing(entropy: random.Random):
    place = memory_place()
    async with client_of(place) as one, client_of(place) as two:
        tables = [await client.table("t", schema=SCHEMA, mode="wal") for client in (one, two)]
        expected = []
        for key in range(40):
            at = entropy.randrange(2)
            await tables[at].insert([row(key, "a")])
            expected.append((key, "a", 1))
            if entropy.random() < 0.3:
                writer = await two.open_writer(tables[0].shard)
                await writer.append_at_upper([(({"id": 1000 + key}, {"name": "raw"}), 0, 1)])
                expected.append((1000 + key, "raw", 1))
            if entropy.random() < 0.3:
                await [one, two][at].settle()
            if entropy.random() < 0.3:
                assert await found(tables[1 - at]) == sorted(expected)
        assert await found(tables[0]) == await found(tables[1]) == sorted(expected)


async def test_log_takes_no_rows_of_a_table_that_was_dropped(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data_shard, "OPEN_SECONDS", 0.0)
    async with client_of(place) as one, client_of(place) as two:
        gone, there = [await one.table(name, schema=SCHEMA, mode="wal") for name in ("gone", "there")]
        await gone.insert([row(1, "a")])
        await two.finalize(gone.shard, force=True)

        async def both(transaction: Any) -> None:
            for each in (there, gone):
                transaction.insert(each, [row(2, "b")])

        async def block() -> None:
            async with one.transaction() as transaction:
                await both(transaction)

        for write in (gone.insert, gone.retract):
            with pytest.raises(ShardClosed):
                await write([row(2, "b")])
        for work in (block, lambda: one.transact(both)):
            with pytest.raises(ShardClosed):
                await work()
        assert await found(there) == []
        await there.insert([row(3, "c")])
        assert await found(there) == [(3, "c", 1)]
