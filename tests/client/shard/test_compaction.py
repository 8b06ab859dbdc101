"""Reads beside compaction: the same rows before, during and after it, at every time that is readable.

``MANUAL`` shards are compacted by the test alone, ``BUSY`` ones by every process that commits, all the time, with
rollups and collections of garbage every few commits.
"""

import asyncio
import dataclasses
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest
from client.support import (
    SCHEMA,
    SMALL,
    Ledger,
    Place,
    client_of,
    collect,
    memory_place,
    rows_of,
    some_rows,
    table,
    total,
)
from simulation.budget import FULL, seeds
from sure import put, sure

import persist
from persist import ShardId, aio
from persist.core import ids
from persist.core.shard.commands import CompareAndAppend
from persist.machine.compaction.compactor import Compacted, Compactor
from persist.machine.parts.budget import Budget

BUSY = dataclasses.replace(SMALL, rollup_every=8)
MANUAL = dataclasses.replace(SMALL, compaction=False)
TINY = Budget(memory_bytes=1, part_bytes=1 << 16)
"""Every pass merges two runs, into parts of 64 KiB."""
TIMES = 400 if FULL else 100
"""Appends beside a listen."""
pytestmark = pytest.mark.direct
WIDER = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string(), "age": pa.int32()})


async def compact(
    client: Any, shard: ids.ShardId, *, whole: bool = True, budget: Budget | None = None
) -> Compacted | None:
    shards = client._location.shards
    compactor = Compactor(shards, shards, budget=budget)
    try:
        return await compactor.compact(shard, compactor.new_owner(), whole=whole)
    finally:
        await compactor.close()


async def batches_of(client: Any, shard: ids.ShardId) -> list[dict[str, Any]]:
    state = await client.inspect(shard)
    return [batch for each in state["spine"] for batch in each["batches"]]


async def parts_of(client: Any, shard: ids.ShardId) -> list[dict[str, Any]]:
    return [part for batch in await batches_of(client, shard) for run in batch["runs"] for part in run]


async def blobs_of(client: Any, shard: ids.ShardId) -> set[str]:
    """Keys of the parts in Blob, named or not."""
    keys = [key async for key, _ in client._location.blob.list(f"{shard}/", timeout=10)]
    return {key for key in keys if "/rollup/" not in key}


async def check(reader: Any, ledger: Ledger, as_of: int) -> None:
    assert rows_of(await (await reader.snapshot(as_of)).to_arrow()) == ledger.at(as_of), f"as_of {as_of}"


@asynccontextmanager
async def filled(place: Place, settings: Any = MANUAL, *, count: int = 12, rows: int = 100) -> AsyncIterator[Any]:
    """A client, a writer, a reader and the ledger of ``count`` batches over ten times each."""
    entropy, ledger = random.Random(7), Ledger()
    async with client_of(place, settings=settings) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        for number in range(count):
            found = some_rows(entropy, rows, number * 10, number * 10 + 10)
            ledger.updates += found
            await writer.append(table(found), number * 10 + 10)
        yield client, writer, reader, ledger


# ---- histories ---------------------------------------------------------------------------------------------------


class History:
    """A shard that grows, is compacted, collected and reopened, and snapshots of it compared with the ledger."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place = place
        self.entropy = random.Random(seed)
        self.ledger = Ledger()
        self.shard = ShardId.new()
        self.kept: list[tuple[int, Any]] = []
        self.compared = self.appends = 0

    async def run(self, lives: int, steps: int) -> None:
        """Several lives of the process, each beginning with nothing but what is in the stores."""
        for _ in range(lives):
            async with client_of(self.place, settings=BUSY) as client:
                writer, reader = await client.open(self.shard, schema=SCHEMA)
                for _ in range(steps):
                    await self.step(client, writer, reader)
                for as_of, snapshot in self.kept:
                    await self.compare(snapshot, as_of)
                self.kept = []

    async def step(self, client: Any, writer: Any, reader: Any) -> None:
        entropy, lower = self.entropy, writer.upper.time
        match entropy.choices(["append", "snapshot", "keep", "downgrade", "compact"], [12, 6, 2, 2, 1])[0]:
            case "append":
                upper = lower + entropy.randrange(1, 5)
                rows = some_rows(entropy, entropy.choice([0, 1, 4, 30, 90]), lower, upper)
                self.ledger.updates += rows
                await writer.append(table(rows), upper)
                self.appends += 1
            case "downgrade":
                await reader.downgrade_since(min(reader.since.time + entropy.randrange(8), max(lower - 1, 0)))
            case "compact":
                await compact(client, self.shard, whole=True)
            case what if lower > reader.since.time:
                as_of = entropy.randrange(reader.since.time, lower)
                snapshot = await reader.snapshot(as_of)
                if what == "keep":
                    self.kept.append((as_of, snapshot))
                    if len(self.kept) > 2:
                        as_of, snapshot = self.kept.pop(0)
                        await self.compare(snapshot, as_of)
                else:
                    await self.compare(snapshot, as_of)

    async def compare(self, snapshot: Any, as_of: int) -> None:
        assert rows_of(await snapshot.to_arrow()) == self.ledger.at(as_of), f"as_of {as_of}"
        self.compared += 1


@pytest.mark.timeout_s(240)
@pytest.mark.parametrize("seed", seeds(2))
async def test_snapshots_equal_the_ledger_whatever_is_compacted_collected_and_restarted(place: Place, seed: int):
    history = History(place, seed)
    await history.run(lives=3, steps=45)
    assert history.compared >= 20
    async with client_of(place, settings=BUSY) as client:
        assert len(await batches_of(client, history.shard)) < history.appends
        assert "0" not in (await client.inspect(history.shard))["rollups"], "no garbage was collected"


async def test_listen_across_compactions_neither_skips_nor_repeats(place: Place):
    entropy, ledger = random.Random(5), Ledger()
    async with client_of(place, settings=BUSY) as client, client_of(place, settings=BUSY) as other:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append([], 1)
        following = asyncio.create_task(collect(await reader.listen(0, timeout=30, downgrade=True), until=TIMES))
        slow = await (await other.open_reader(writer.shard)).listen(0, timeout=30)
        for time in range(1, TIMES + 1):
            rows = some_rows(entropy, entropy.choice([0, 1, 20]), time, time + 1)
            ledger.updates += rows
            await writer.append(table(rows), time + 1)
            if time % 50 == 0:
                await compact(client, writer.shard)
        updates, progress = await following
        assert total(updates) == ledger.between(1, TIMES + 1)
        assert all(one.less_than(two) for one, two in itertools.pairwise(progress))
        # One that begins when all is compacted, below what the other had been asked to give up.
        updates, progress = await collect(slow, until=TIMES)
        assert total(updates) == ledger.between(1, TIMES + 1)
        assert all(one.less_than(two) for one, two in itertools.pairwise(progress))


# ---- what a compaction leaves ------------------------------------------------------------------------------------


async def test_compaction_moves_inline_batches_to_blob_and_makes_one_run(place: Place):
    async with filled(place, rows=3) as (client, writer, reader, ledger):
        assert (await client.inspect(writer.shard))["inline_bytes"] > 0
        done = await compact(client, writer.shard)
        assert done is not None
        assert (done.batches, done.runs, done.applied) == (12, 12, True)
        assert (await client.inspect(writer.shard))["inline_bytes"] == 0
        [batch] = await batches_of(client, writer.shard)
        assert len(batch["runs"]) == 1
        assert {part["key"] for part in await parts_of(client, writer.shard)} == await blobs_of(client, writer.shard)
        for as_of in range(0, 120, 7):
            await check(reader, ledger, as_of)
        assert await compact(client, writer.shard) is None


async def test_since_that_moves_lets_compaction_consolidate_history():
    async with client_of(memory_place(), settings=MANUAL) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        for time in range(40):  # one row for each of ten keys, replaced again and again
            gone = [(key, f"v{time - 1}", time, -1) for key in range(10)] if time else []
            await writer.append(table([*gone, *((key, f"v{time}", time, 1) for key in range(10))]), time + 1)
        exact = sure(await compact(client, writer.shard))
        assert exact.rows_after == exact.rows_before == 790
        await reader.downgrade_since(30)
        some = sure(await compact(client, writer.shard))
        assert some.rows_after == 10 + 9 * 20
        await reader.downgrade_since(39)
        assert (sure(await compact(client, writer.shard))).rows_after == 10
        assert rows_of(await (await reader.snapshot(39)).to_arrow()) == [(key, "v39", 1) for key in range(10)]


async def test_parts_whose_keys_nothing_else_touches_are_kept_unread():
    async with client_of(memory_place(), settings=MANUAL) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        noise = random.Random(3)
        wide = [[(at * 2000 + key, noise.randbytes(40).hex(), at, 1) for key in range(2000)] for at in range(4)]
        big = dataclasses.replace(MANUAL, part_bytes_max=1 << 20, sort_rows=1 << 20, row_group_rows=4096)
        client._location.settings = big
        for at, rows in enumerate(wide):
            await writer.append(table(rows), at + 1)
        before = {part["key"]: part["rows"] for part in await parts_of(client, writer.shard)}
        await writer.append(table((key, "new", 4, 1) for key in range(2000, 2500)), 5)
        read = Counting(client._location.shards)
        done = await read.compact(writer.shard)
        after = {part["key"]: part["rows"] for part in await parts_of(client, writer.shard)}
        kept = before.keys() & after.keys()
        assert len(kept) == done.parts_reused == 3
        assert not kept & read.keys
        [batch] = await batches_of(client, writer.shard)
        assert len(batch["runs"]) == 1
        found = rows_of(await (await reader.snapshot(4)).to_arrow(columns=["id"]))
        assert len(found) == 8500


class Counting:
    """A compactor's place that remembers which blobs are read."""

    def __init__(self, shards: Any) -> None:
        self._shards = shards
        self.blob = self
        self.keys: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards.blob if name in {"uri", "set", "delete_many", "list"} else self._shards, name)

    async def get(self, key: str, **options: Any) -> bytes | None:
        self.keys.add(key)
        return await self._shards.blob.get(key, **options)

    async def compact(self, shard: ids.ShardId) -> Compacted:
        compactor = Compactor(self._shards, self, budget=TINY)
        done = await compactor.compact(shard, compactor.new_owner(), whole=True)
        await compactor.close()
        assert done is not None
        return done


async def test_merge_in_many_passes_gives_the_same_rows_and_one_run_and_leaves_nothing_behind(place: Place):
    async with filled(place, count=15, rows=150) as (client, writer, reader, ledger):
        await reader.downgrade_since(40)
        before = await blobs_of(client, writer.shard)
        done = sure(await compact(client, writer.shard, budget=TINY))
        assert done.applied
        [batch] = await batches_of(client, writer.shard)
        assert len(batch["runs"]) == 1
        assert await compact(client, writer.shard) is None
        named = {part["key"] for part in await parts_of(client, writer.shard)}
        # What was merged away waits for the collection; nothing else is there.
        assert await blobs_of(client, writer.shard) == named | before
        for as_of in range(40, 150, 3 if FULL else 12):
            await check(reader, ledger, as_of)
        naive = total((key, name, max(ts, 40), diff) for key, name, ts, diff in ledger.updates)
        assert done.rows_after == len(naive)


async def test_older_parts_without_a_column_are_compacted_into_the_newest_schema(place: Place):
    async with filled(place, count=6) as (client, writer, reader, ledger):
        await client.evolve_schema(writer.shard, WIDER)
        wide = await client.open_writer(writer.shard, schema=WIDER)
        rows = pa.table({"id": [7, 900], "name": ["a", "b"], "age": [70, 90], "ts": [60, 61], "diff": [1, 1]})
        await wide.append(rows.cast(rows.schema.set(2, pa.field("age", pa.int32()))), 62)
        reader = await client.open_reader(writer.shard)
        want = rows_of(await (await reader.snapshot(61)).to_arrow(columns=["id", "name"]))
        aged = rows_of(await (await reader.snapshot(61)).to_arrow(where="id = 900"))
        assert (sure(await compact(client, writer.shard))).applied
        assert {part["schema_id"] for part in await parts_of(client, writer.shard)} == {1}
        assert rows_of(await (await reader.snapshot(61)).to_arrow(columns=["id", "name"])) == want
        assert rows_of(await (await reader.snapshot(61)).to_arrow(where="id = 900")) == aged == [(900, "b", 90, 1)]
        old = await (await reader.snapshot(59)).to_arrow()
        assert sorted((row[0], row[1], row[3]) for row in rows_of(old)) == ledger.at(59)
        assert {row[2] for row in rows_of(old)} == {None}


async def test_rows_that_a_truncated_batch_hides_do_not_come_back():
    async with client_of(memory_place(), settings=MANUAL) as client:
        shard, ledger = ShardId.new(), Ledger()
        slow, reader = await client.open(shard, schema=SCHEMA)
        quick = await client.open_writer(shard, schema=SCHEMA)
        rows = [(key, "a", key, 1) for key in range(30)]
        ledger.updates += rows
        await quick.append(table(rows[:12]), 12)
        await slow.append(table(rows), 30)  # the shard takes the times from 12 on
        assert [batch["truncated"] for batch in await batches_of(client, shard)] == [False, True]
        for as_of in range(30):
            await check(reader, ledger, as_of)
        done = sure(await compact(client, shard))
        assert (done.rows_before, done.rows_after) == (42, 30)
        assert [batch["truncated"] for batch in await batches_of(client, shard)] == [False]
        for as_of in range(30):
            await check(reader, ledger, as_of)


async def test_writers_wait_for_compaction_where_too_many_batches_wait_to_be_merged(place: Place):
    limited = dataclasses.replace(MANUAL, shard_batches_max=10, timeout_ms=3_000)
    async with client_of(place, settings=limited) as client:
        shard = ShardId.new()
        writer = await client.open_writer(shard, schema=SCHEMA)
        ledger, entropy = Ledger(), random.Random(7)
        for time in range(10):
            ledger.updates += (rows := some_rows(entropy, 8, time, time + 1))
            await writer.append(table(rows), time + 1)
        more = some_rows(entropy, 8, 10, 11)
        with pytest.raises(persist.Overloaded, match="batches that wait to be merged"):
            await writer.append(table(more), 11)
        waiting = asyncio.create_task(writer.append(table(more), 11))
        await asyncio.sleep(0.2)
        assert await compact(client, shard)
        await waiting
        ledger.updates += more
        reader = await client.open_reader(shard)
        assert rows_of(await (await reader.snapshot(10)).to_arrow()) == ledger.at(10)


async def test_what_a_full_shard_refused_leaves_no_parts_behind(place: Place):
    """Each try left its upload for a sweep to find."""
    limited = dataclasses.replace(MANUAL, shard_batches_max=3, timeout_ms=500, inline_part_bytes_max=0)
    async with client_of(place, settings=limited) as client:
        shard = ShardId.new()
        writer = await client.open_writer(shard, schema=SCHEMA)
        for time in range(4):
            await writer.append(table([(time, "row", time, 1)]), time + 1)
        before = await keys_of(client, shard)
        kept = await writer.keep(table([(9, "row", 0, 1)]))
        many = table([(key, "x" * 40, 4, 1) for key in range(1000)])  # several parts
        for _ in range(2):
            with pytest.raises(persist.Overloaded):
                await writer.append(many, 5)
            with pytest.raises(persist.Overloaded):
                await writer.append_at_upper(table([(4, "row", 0, 1)]))
            with pytest.raises(persist.Overloaded):
                await writer.compare_and_append_kept(kept, 4, 4)
        assert await keys_of(client, shard) == before | {part.key for run in kept.runs for part in run.parts}
        # What was kept can still be appended.
        assert await compact(client, shard)
        assert isinstance(await writer.compare_and_append_kept(kept, 4, 4), persist.Appended)
        await kept.release()
        reader = await client.open_reader(shard)
        found = rows_of(await (await reader.snapshot(4)).to_arrow())
        assert found == [(0, "row", 1), (1, "row", 1), (2, "row", 1), (3, "row", 1), (9, "row", 1)]


async def test_what_a_full_shard_refused_is_kept_while_an_earlier_attempt_is_in_doubt(place: Place):
    limited = dataclasses.replace(MANUAL, shard_batches_max=3, timeout_ms=1_000, inline_part_bytes_max=0)
    async with client_of(place, settings=limited) as client:
        shard = ShardId.new()
        writer, reader = await client.open(shard, schema=SCHEMA)
        for time in range(2):
            await writer.append(table([(time, "row", time, 1)]), time + 1)
        right, lost = client.location.shards.apply, False

        async def lossy(shard: ShardId, command: Any, *, timeout: float) -> Any:
            nonlocal lost
            if lost or not isinstance(command, CompareAndAppend):
                if isinstance(command, CompareAndAppend):
                    raise persist.Overloaded("the shard has too many batches")
                return await right(shard, command, timeout=timeout)
            lost = True
            await right(shard, command, timeout=timeout)
            raise persist.Indeterminate("no answer")

        put(client.location.shards, "apply", lossy)
        with pytest.raises(persist.Indeterminate):
            await writer.append_at_upper(table([(2, "row", 0, 1)]))
        put(client.location.shards, "apply", right)
        assert rows_of(await (await reader.snapshot(2)).to_arrow()) == [(key, "row", 1) for key in range(3)]


async def keys_of(client: aio.Client, shard: ShardId) -> set[str]:
    found = {key async for key, _ in client.location.blob.list(f"{shard}/", timeout=10)}
    return {key for key in found if "/rollup/" not in key}


async def test_a_process_that_refuses_appends_compacts_what_they_wait_for(place: Place):
    limited = dataclasses.replace(MANUAL, shard_batches_max=10)
    shard = ShardId.new()
    async with client_of(place, settings=limited) as client:
        writer = await client.open_writer(shard, schema=SCHEMA)
        for time in range(10):
            await writer.append(table([(time, "row", time, 1)]), time + 1)
    # No process commits anything from here on but what is refused.
    async with client_of(place, settings=dataclasses.replace(limited, compaction=True, timeout_ms=60_000)) as client:
        writer = await client.open_writer(shard, schema=SCHEMA)
        await writer.append(table([(10, "row", 10, 1)]), 11)
