"""Several writers and readers at once, lost answers, tokens and what is left in Blob."""

import asyncio
import random
from typing import Any

import pytest
from client.support import SCHEMA, Ledger, Place, client_of, rows_of, some_rows, table
from sure import as_a, sure

from persist import Antichain, Appended, ShardId, Token, UpperMismatch
from persist.core.shard.commands import CompareAndAppend
from persist.errors import Determinate, Indeterminate


async def test_compare_and_append_race_of_four_writers_takes_each_time_once(place: Place):
    async with client_of(place) as one, client_of(place) as two:
        shard = ShardId.new()
        writers = [await client.open_writer(shard, schema=SCHEMA) for client in (one, two, one, two)]
        done: list[tuple[int, str, int, int]] = []

        async def run(number: int) -> None:
            writer = writers[number]
            for count in range(10):
                while True:
                    at = sure(writer.upper.time)
                    row = (number * 100 + count, "a", at, 1)
                    outcome = await writer.compare_and_append(table([row]), at, at + 1)
                    if isinstance(outcome, Appended):
                        done.append(row)
                        break
                    assert isinstance(outcome, UpperMismatch)

        await asyncio.gather(*(run(number) for number in range(4)))
        assert (await one.recent_upper(shard)) == Antichain.of(40)
        reader = await one.open_reader(shard)
        assert rows_of(await (await reader.snapshot(39)).to_arrow()) == Ledger(done).at(39)
        assert len(done) == len({row[2] for row in done}) == 40


async def test_concurrent_appenders_of_the_same_history_write_it_once(place: Place):
    history = some_rows(random.Random(5), 500, 0, 50)
    async with client_of(place) as one, client_of(place) as two:
        shard = ShardId.new()

        async def run(client: Any, step: int) -> None:
            writer = await client.open_writer(shard, schema=SCHEMA)
            while (begin := writer.upper.time) < 50:
                upper = min(50, begin + step)
                await writer.append(table(row for row in history if begin <= row[2] < upper), upper)

        await asyncio.gather(run(one, 3), run(two, 4), run(one, 7), run(two, 50))
        reader = await one.open_reader(shard)
        for as_of in (0, 13, 49):
            assert rows_of(await (await reader.snapshot(as_of)).to_arrow()) == Ledger(history).at(as_of)


class Lossy:
    """The machine, whose answers to some appends are lost: before or after they took effect."""

    def __init__(self, shards: Any, faults: list[str]) -> None:
        self._shards = shards
        self.faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)

    async def apply(self, shard: Any, command: Any, *, timeout: float) -> Any:
        fault = self.faults.pop(0) if isinstance(command, CompareAndAppend) and self.faults else ""
        if fault == "before":
            raise Indeterminate("no answer")
        # What is to take effect without an answer does so, however little time is left.
        outcome = await self._shards.apply(shard, command, timeout=30 if fault == "after" else timeout)
        if fault == "after":
            raise Indeterminate("no answer")
        if fault == "determinate":
            raise Determinate("not now")
        return outcome


@pytest.mark.parametrize("faults", [["after"], ["before", "after", "after"], ["before", "before"]], ids="-".join)
async def test_lost_answers_are_resolved_by_the_token(place: Place, faults: list[str]):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        client._location.shards = Lossy(client._location.shards, list(faults))
        rows = [(key, "x" * 40, 0, 1) for key in range(100)]
        outcome = await writer.compare_and_append(table(rows), 0, 1)
        assert isinstance(outcome, Appended)
        assert outcome.already_committed is ("after" in faults)
        assert (await (await reader.snapshot(0)).to_arrow()).num_rows == 100


async def test_append_in_doubt_never_deletes_its_blobs(place: Place):
    """The first attempt took effect without an answer; another writer moves on; the retry must not delete the data."""
    rows = [(key, "x" * 40, 0, 1) for key in range(100)]
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        machine = client._location.shards
        client._location.shards = Lossy(machine, ["after", *["before"] * 10_000])
        with pytest.raises(Indeterminate):
            await writer.compare_and_append(table(rows), 0, 1, timeout=1)
        client._location.shards = machine
        assert (await (await reader.snapshot(0)).to_arrow()).num_rows == 100


async def test_indeterminate_stays_so_when_later_attempts_fail_for_certain(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        client._location.shards = Lossy(client._location.shards, ["before", *["determinate"] * 50])
        with pytest.raises(Indeterminate):
            await writer.append(table([(1, "a", 0, 1)]), 1, timeout=0.05)


async def test_same_token_in_another_process_is_the_same_append(place: Place):
    token = Token.of(b"s" * 16)
    rows = [(key, "x" * 40, 0, 1) for key in range(100)]
    async with client_of(place) as one, client_of(place) as two:
        shard = ShardId.new()
        first = await one.open_writer(shard, schema=SCHEMA)
        second = await two.open_writer(shard, schema=SCHEMA, writer_id=first.writer_id)
        outcomes = await asyncio.gather(
            first.compare_and_append(table(rows), 0, 1, token=token),
            second.compare_and_append(table(rows), 0, 1, token=token),
        )
        assert sorted(as_a(Appended, outcome).already_committed for outcome in outcomes) == [False, True]
        reader = await one.open_reader(shard)
        assert (await (await reader.snapshot(0)).to_arrow()).num_rows == 100


async def test_snapshot_waits_for_a_commit_of_another_client(place: Place):
    async with client_of(place) as one, client_of(place) as two:
        writer = await one.open_writer(ShardId.new(), schema=SCHEMA)
        reader = await two.open_reader(writer.shard, schema=SCHEMA)
        waiting = asyncio.create_task(reader.snapshot(5, timeout=20))
        await writer.append(table([(1, "a", 5, 1)]), 6)
        assert rows_of(await (await waiting).to_arrow()) == [(1, "a", 1)]


async def test_critical_since_is_fenced_by_its_token(place: Place):
    from persist import CriticalDowngraded, OpaqueMismatch

    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append([], 10)
        old = await client.open_since("controller", writer.shard, opaque=b"1")
        new = await client.open_since("controller", writer.shard, opaque=b"2")
        assert new.opaque == b"1"
        assert isinstance(await new.compare_and_downgrade(b"1", 4, opaque=b"2"), CriticalDowngraded)
        refused = await old.compare_and_downgrade(b"1", 6)
        assert refused == OpaqueMismatch(since=Antichain.of(4), opaque=b"2")
        await reader.downgrade_since(8)
        late = await client.open_reader(writer.shard)
        assert late.since == Antichain.of(4)
        assert await new.expire() is True
        assert await new.expire() is False


async def test_reader_may_start_at_the_critical_since(place: Place):
    async with client_of(place) as client:
        writer, _ = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append([], 10)
        hold = await client.open_since("controller", writer.shard)
        await hold.compare_and_downgrade(b"", 7)
        assert (await client.open_reader(writer.shard, use_critical_since=True)).since == Antichain.of(7)
        assert (await client.open_reader(writer.shard)).since == Antichain.of(0)
