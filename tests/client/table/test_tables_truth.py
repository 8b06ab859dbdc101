"""What is reported of a write whose time cannot be applied any more: never that nothing happened."""

from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from client.support import client_of, file_place, memory_place
from sure import put

import persist
from persist import aio
from persist.core.time.errors import ClockAhead
from persist.errors import (
    AlreadyCommitted,
    Determinate,
    Indeterminate,
    InvalidArgument,
    LeaseExpired,
    ShardClosed,
    UsageError,
)

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
AHEAD_MS = 3_600_000


def row(n: int) -> list[dict[str, Any]]:
    return [{"id": n, "name": str(n)}]


@pytest.mark.parametrize("mode", ["direct", "wal"])
async def test_time_that_is_too_far_ahead_is_in_doubt_once_written_and_refused_before(mode: Any):
    place = memory_place()
    async with client_of(place) as client, client_of(place) as rival:
        things = await client.table("things", schema=SCHEMA, mode=mode)
        await things.insert(row(0))
        shard = things.shard if things.wal is None else things.wal.writer.shard
        upper = (await rival.recent_upper(shard)).elements[0]
        await (await rival.open_writer(shard)).compare_and_append([], upper, upper + AHEAD_MS)
        with pytest.raises(Indeterminate) as told:
            await things.insert(row(1))
        assert int(told.value.details["ts"]) >= upper + AHEAD_MS
        ended = await rival.recent_upper(shard)
        for write in (things.insert, things.upsert):
            with pytest.raises(ClockAhead):
                await write(row(2))
        assert await rival.recent_upper(shard) == ended


@pytest.mark.parametrize("mode", ["direct", "wal"])
@pytest.mark.parametrize(
    "failure", [ShardClosed("over"), UsageError("the client is closed"), Determinate("away")], ids=lambda e: e.reason
)
async def test_whatever_keeps_a_write_from_being_applied_leaves_it_in_doubt(mode: Any, failure: Exception):
    async with client_of(memory_place()) as client:
        things = await client.table("things", schema=SCHEMA, mode=mode)

        async def refused(*_: object) -> None:
            raise failure

        put(things._oracle._times, "apply", refused)
        for n, write in enumerate((things.insert, things.upsert)):
            with pytest.raises(Indeterminate) as told:
                await write(row(n))
            assert int(told.value.details["ts"]) > 0
            assert told.value.details["call"]
            assert "resolve" in told.value.hint


@pytest.mark.parametrize("mode", ["direct", "wal"])
async def test_client_that_is_closed_between_write_and_time_leaves_it_in_doubt(mode: Any, tmp_path):
    place = file_place(tmp_path)
    async with client_of(place) as client:
        things = await client.table("things", schema=SCHEMA, mode=mode)
        right = things._oracle.apply_write

        async def late(ts: int, *, timeout: float | None = None) -> None:
            await client.close()
            await right(ts, timeout=timeout)

        things._oracle.apply_write = late  # type: ignore[method-assign]
        with pytest.raises(Indeterminate):
            await things.insert(row(1))
    async with client_of(place) as client:
        things = await client.table("things", schema=SCHEMA, mode=mode)
        await things.insert(row(2))
        assert sorted(each["id"] for each in (await (await things.snapshot()).to_arrow()).to_pylist()) == [1, 2]


@pytest.mark.parametrize("mode", ["direct", "wal"])
async def test_version_of_an_application_happens_once_in_each_table_and_other_rows_under_it_are_refused(mode: Any):
    async with client_of(memory_place()) as client:
        orders = await client.table("orders", schema=SCHEMA, mode=mode)
        items = await client.table("items", schema=SCHEMA, mode=mode)
        for version in range(3):
            batch = persist.Transaction(app_id="consumer", version=version)
            for table in (orders, items):
                at = await table.insert(row(version), transaction=batch)
                assert await table.insert(row(version), transaction=batch) == at
                assert await _ids(table) == list(range(version + 1))
        newest, oldest = (persist.Transaction(app_id="consumer", version=version) for version in (2, 0))
        for other in (newest, oldest):
            with pytest.raises(InvalidArgument):
                await items.insert(row(77), transaction=other)
            with pytest.raises(InvalidArgument):
                await items.retract(row(2), transaction=other)
        assert await _ids(items) == [0, 1, 2]
        assert await _ids(orders) == [0, 1, 2]


async def test_transaction_over_tables_is_not_taken_for_another_one_under_its_version():
    async with client_of(memory_place()) as client:
        things = await client.table("things", schema=SCHEMA, mode="wal")
        marker = persist.Transaction(app_id="app", version=1)
        times = []
        for _ in range(2):
            async with client.transaction(transaction=marker) as both:
                both.insert(things, row(1))
            times.append(both.ts)
        assert times[0] == times[1]
        for version in (1, 0):
            with pytest.raises(InvalidArgument):
                async with client.transaction(transaction=persist.Transaction(app_id="app", version=version)) as other:
                    other.insert(things, row(2))
            assert other.ts is None

        async def work(txn: Any) -> None:
            txn.insert(things, row(3))

        with pytest.raises(AlreadyCommitted):
            await client.transact(work, transaction=marker)
        assert await _ids(things) == [1]


async def test_transaction_takes_nothing_once_its_block_or_its_work_has_ended():
    async with client_of(memory_place()) as client:
        things = await client.table("things", schema=SCHEMA, mode="wal")
        ended: list[Any] = []

        async def work(txn: Any) -> None:
            ended.append(txn)
            raise KeyError

        with suppress(KeyError):
            async with client.transaction() as failed:
                ended.append(failed)
                raise KeyError
        async with client.transaction() as empty:
            ended.append(empty)
        with suppress(KeyError):
            await client.transact(work)
        assert len(ended) == 3
        for each in ended:
            with pytest.raises(UsageError, match="ended"):
                each.insert(things, row(1))


@pytest.mark.parametrize(
    "wrong",
    [{"version": bad} for bad in ("2", 2.0, None, True, -1, 1 << 63)] + [{"app_id": bad} for bad in (5, "", "x" * 257)],
    ids=str,
)
def test_transaction_that_is_none_is_refused_where_it_is_made(wrong: dict[str, Any]):
    with pytest.raises(InvalidArgument):
        persist.Transaction(**{"app_id": "app", "version": 1, **wrong})


async def _ids(table: Any) -> list[int]:
    return sorted((await (await table.snapshot()).to_arrow()).column("id").to_pylist())


@pytest.mark.parametrize("mode", ["direct", "wal"])
async def test_same_rows_under_the_same_version_are_a_replay_also_after_a_column_was_added(mode: Any):
    wider = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string(), "mail": pa.string(), "age": pa.int64()})
    place, marker = memory_place(), persist.Transaction(app_id="job", version=7)
    async with client_of(place) as client:
        things = await client.table("things", schema=SCHEMA, mode=mode)
        first = await things.insert(row(1), transaction=marker)
        await client.evolve_schema(things.shard, wider)
    async with client_of(place) as client:
        things = await client.table("things", mode=mode)
        assert await things.insert(row(1), transaction=marker) == first
        for other in ({"id": 1, "name": "1", "mail": "m"}, {"id": 1, "name": "1", "age": 3}, {"id": 1, "mail": "1"}):
            with pytest.raises(InvalidArgument, match="something else was committed"):
                await things.insert([other], transaction=marker)
        assert await rows_in(things) == [{"id": 1, "name": "1", "mail": None, "age": None}]


async def rows_in(table: Any) -> list[dict[str, Any]]:
    return (await (await table.snapshot()).to_arrow()).drop_columns(["diff"]).to_pylist()


async def test_older_version_of_serializable_work_is_not_said_to_be_committed():
    async with client_of(memory_place()) as client:
        things = await client.table("things", schema=SCHEMA, mode="wal")

        async def work(transaction: Any) -> None:
            transaction.insert(things, row(7))

        await client.transact(work, transaction=persist.Transaction(app_id="job", version=7))
        with pytest.raises(AlreadyCommitted):
            await client.transact(work, transaction=persist.Transaction(app_id="job", version=7))
        with pytest.raises(InvalidArgument, match="not known any more"):
            await client.transact(work, transaction=persist.Transaction(app_id="job", version=5))


@pytest.mark.parametrize("mode", ["direct", "wal"])
async def test_write_before_a_restore_that_cannot_be_applied_any_more_is_forgotten(mode: Any):
    async with client_of(memory_place()) as client:
        things = await client.table("things", schema=SCHEMA, mode=mode)
        failures: list[Exception] = [Determinate("away"), LeaseExpired("the location was restored")]

        async def refused(*_: object) -> None:
            raise failures[0]

        put(things._oracle._times, "apply", refused)
        with pytest.raises(Indeterminate) as raised:
            await things.insert(row(1))
        del failures[0]
        [told] = await things.resolve()
        assert (told.call, told.appended, told.forgotten) == (raised.value.details["call"], None, True)
        assert await things.resolve() == ()


@pytest.mark.parametrize("writes", [False, True])
async def test_tables_that_a_transaction_reads_are_of_one_time_also_where_that_is_kept_no_more(writes: bool):
    place = memory_place()
    async with client_of(place) as one, client_of(place) as two:
        here = [await one.table(name, schema=SCHEMA, mode="wal") for name in "ab"]
        there = [await two.table(name, schema=SCHEMA, mode="wal") for name in "ab"]
        await here[0].insert([{"id": 1, "name": "old"}])
        await here[1].insert([{"id": 1, "name": "old"}])
        runs = []

        async def work(transaction: aio.TableTransaction) -> list[list[Any]]:
            runs.append(transaction)
            names = [(await (await transaction.snapshot(here[0])).to_arrow())["name"].to_pylist()]
            if len(runs) == 1:
                async with two.transaction() as other:
                    for table in there:
                        other.retract(table, [{"id": 1, "name": "old"}])
                        other.insert(table, [{"id": 1, "name": "new"}])
                assert other.ts is not None
                await there[1].snapshot()
                await there[1].downgrade_since(other.ts)
            names.append((await (await transaction.snapshot(here[1])).to_arrow())["name"].to_pylist())
            if writes:
                transaction.insert(here[0], [{"id": 2, "name": "seen"}])
            return names

        assert await one.transact(work) == [["new"], ["new"]]
        assert len(runs) == 2


@pytest.mark.parametrize("writes", [False, True])
async def test_a_transaction_runs_again_for_rows_of_others_and_not_for_a_log_that_only_went_on(writes: bool):
    place = memory_place()
    async with client_of(place) as client, client_of(place) as other:
        things = await client.table("things", schema=SCHEMA, mode="wal")
        theirs = await other.table("things", mode="wal")
        runs = 0

        async def work(transaction: aio.TableTransaction) -> None:
            nonlocal runs
            runs += 1
            await transaction.snapshot(things)
            transaction.insert(things, row(1))
            if writes and runs == 1:
                await theirs.insert(row(2))
            # Each reader raises the upper of the log, as a leader does every second.
            if runs < 4:
                await theirs.snapshot()

        await client.transact(work)
        assert runs == 1 + writes
        assert [each["id"] for each in await (await theirs.snapshot()).to_pylist()] == [1, 2][: 1 + writes]


async def test_no_handle_says_that_a_log_was_copied_which_it_did_not_copy():
    place = memory_place()
    async with client_of(place) as client, client_of(place) as other:
        things = await client.table("things", schema=SCHEMA, mode="wal")
        written = await things.insert(row(1))
        assert things.wal is not None
        writer = await other.open_writer(things.shard)
        begin, end = writer.upper.time, written + 1
        assert begin is not None
        name = f"persist.wal:{things.wal.writer.shard}"
        with pytest.raises(InvalidArgument, match=r'begin with "persist\.wal:"'):
            await writer.compare_and_append([], begin, end, transaction=persist.Transaction(app_id=name, version=end))
        fresh = await other.table("things", mode="wal")
        assert (await (await fresh.snapshot()).to_arrow()).num_rows == 1
