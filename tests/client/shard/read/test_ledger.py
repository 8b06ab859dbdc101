"""Random histories against a model: every snapshot, every split of it, every listen, every interval."""

import itertools
import pickle
import random

import pyarrow as pa
import pytest
from client.support import SCHEMA, Ledger, Place, client_of, collect, rows_of, some_rows, table, total
from simulation.budget import FULL, seeds

from persist import Antichain, ShardId

STEP = 1 if FULL else 5
"""Between two times that are looked at."""


async def write(client, shard, ledger: Ledger, entropy: random.Random, *, batches: int, most: int) -> int:
    """Append random batches, some empty, and return the upper."""
    writer = await client.open_writer(shard, schema=SCHEMA)
    for _ in range(batches):
        lower = writer.upper.time
        upper = lower + entropy.randrange(1, 8)
        rows = some_rows(entropy, entropy.choice([0, 1, 5, most]), lower, upper)
        ledger.updates += rows
        await writer.append(table(rows), upper)
    return writer.upper.time


@pytest.mark.everywhere
@pytest.mark.timeout_s(240)
async def test_reads_equal_the_model_at_every_time(place: Place):
    entropy, ledger, shard = random.Random(f"{place.blob[:4]}{place.access}"), Ledger(), ShardId.new()
    async with client_of(place) as client:
        upper = await write(client, shard, ledger, entropy, batches=12, most=150)
        reader = await client.open_reader(shard)
        for as_of in range(entropy.randrange(STEP), upper, STEP):
            assert rows_of(await (await reader.snapshot(as_of)).to_arrow()) == ledger.at(as_of)
        for as_of in (0, upper // 3, upper - 2):
            updates, _ = await collect(await reader.listen(as_of, timeout=100), until=upper - 1)
            assert total(updates) == ledger.between(as_of + 1, upper)


@pytest.mark.parametrize("seed", seeds(4))
async def test_splits_together_are_the_snapshot_and_survive_pickling(place: Place, seed: int):
    entropy, ledger, shard = random.Random(seed), Ledger(), ShardId.new()
    async with client_of(place) as client:
        upper = await write(client, shard, ledger, entropy, batches=8, most=300)
        reader = await client.open_reader(shard)
        for n in range(1, 8):
            as_of = entropy.randrange(upper)
            snapshot = await reader.snapshot(as_of)
            splits = pickle.loads(pickle.dumps(snapshot.splits(n)))
            assert len(splits) <= n
            found = [split.read().read_all() for split in splits]
            keys = [set(piece.column("id").to_pylist()) for piece in found]
            assert sum(map(len, keys)) == len(set().union(*keys)), "a key lies in two splits"
            union = pa.concat_tables([SCHEMA.rows.empty_table(), *found])
            assert rows_of(union) == ledger.at(as_of)


@pytest.mark.parametrize("seed", seeds(3))
async def test_subscribe_is_the_snapshot_and_then_every_change(place: Place, seed: int):
    entropy, ledger, shard = random.Random(100 + seed), Ledger(), ShardId.new()
    async with client_of(place) as client:
        upper = await write(client, shard, ledger, entropy, batches=10, most=100)
        reader = await client.open_reader(shard)
        as_of = entropy.randrange(upper)
        updates, progress = await collect(await reader.subscribe(as_of, timeout=100), until=upper - 1)
        now = total((key, name, diff) for key, name, _, diff in updates)
        assert sorted((*data, diff) for data, diff in now.items()) == ledger.at(upper - 1)
        assert progress[0] == Antichain.of(as_of + 1)
        assert all(one.less_than(two) for one, two in itertools.pairwise(progress))


@pytest.mark.parametrize("seed", seeds(3))
async def test_diffs_are_the_updates_of_the_interval_sorted_by_key(place: Place, seed: int):
    entropy, ledger, shard = random.Random(200 + seed), Ledger(), ShardId.new()
    async with client_of(place) as client:
        upper = await write(client, shard, ledger, entropy, batches=9, most=120)
        reader = await client.open_reader(shard)
        for _ in range(8):
            lower = entropy.randrange(upper)
            end = entropy.randrange(lower, upper + 1)
            diffs = await reader.diffs(lower, end)
            found = await diffs.to_arrow()
            rows = [tuple(row.values()) for row in found.to_pylist()]
            assert rows == sorted(rows, key=lambda row: row[:3])
            assert total(rows) == ledger.between(lower, end)
            pieces = [split.read().read_all() for split in pickle.loads(pickle.dumps(diffs.splits(3)))]
            assert total(row for piece in pieces for row in rows_of(piece)) == ledger.between(lower, end)


@pytest.mark.parametrize(
    ("where", "keeps"),
    [
        pytest.param("id >= 30", lambda row: row[0] >= 30, id="key"),
        pytest.param("name = 'a'", lambda row: row[1] == "a", id="val"),
        pytest.param([("id", ">=", 10), ("id", "<", 13)], lambda row: 10 <= row[0] < 13, id="triples"),
        pytest.param("id >= 5 and name != 'b'", lambda row: row[0] >= 5 and row[1] != "b", id="both"),
        pytest.param("id > 1000", lambda row: False, id="none"),
    ],
)
async def test_where_keeps_exactly_the_rows_that_match(place: Place, entropy, where, keeps):
    ledger, shard = Ledger(), ShardId.new()
    async with client_of(place) as client:
        upper = await write(client, shard, ledger, entropy, batches=6, most=200)
        snapshot = await (await client.open_reader(shard)).snapshot(upper - 1)
        expected = [row for row in ledger.at(upper - 1) if keeps(row)]
        assert rows_of(await snapshot.to_arrow(where=where)) == expected
        pieces = [split.read(where=where).read_all() for split in snapshot.splits(3)]
        assert sorted(row for piece in pieces for row in rows_of(piece)) == expected
        pieces = [split.read(where="id >= 0").read_all() for split in snapshot.splits(3, where=where)]
        assert sorted(row for piece in pieces for row in rows_of(piece)) == expected


async def test_where_reads_only_the_parts_that_may_match(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table((key, "a" * 20, 0, 1) for key in range(2000)), 1)
        snapshot = await reader.snapshot(0)
        few = snapshot.splits(1, where="id < 10")
        assert 0 < sum(split.encoded_bytes for split in few) < snapshot.encoded_bytes / 4


@pytest.mark.parametrize(
    ("keys", "keeps"),
    [
        pytest.param((10, 20), lambda key: 10 <= key < 20, id="both"),
        pytest.param((None, 5), lambda key: key < 5, id="upper"),
        pytest.param(({"id": 35}, None), lambda key: key >= 35, id="lower"),
        pytest.param((20, 10), lambda key: False, id="empty"),
    ],
)
async def test_keys_keep_exactly_the_range(place: Place, entropy, keys, keeps):
    ledger, shard = Ledger(), ShardId.new()
    async with client_of(place) as client:
        upper = await write(client, shard, ledger, entropy, batches=5, most=200)
        snapshot = await (await client.open_reader(shard)).snapshot(upper - 1)
        expected = [row for row in ledger.at(upper - 1) if keeps(row[0])]
        assert rows_of(await snapshot.to_arrow(keys=keys)) == expected
        pieces = [split.read().read_all() for split in snapshot.splits(4, keys=keys)]
        assert sorted(row for piece in pieces for row in rows_of(piece)) == expected


async def test_columns_come_in_the_order_asked_and_diff_last(place: Place, entropy):
    ledger, shard = Ledger(), ShardId.new()
    async with client_of(place) as client:
        upper = await write(client, shard, ledger, entropy, batches=4, most=100)
        snapshot = await (await client.open_reader(shard)).snapshot(upper - 1)
        found = await snapshot.to_arrow(columns=["name", "id"])
        assert found.column_names == ["name", "id", "diff"]
        assert sorted((key, name, diff) for name, key, diff in rows_of(found)) == ledger.at(upper - 1)
        names = await snapshot.to_arrow(columns=["name"])
        assert total(rows_of(names)) == total((name, diff) for _, name, diff in ledger.at(upper - 1))
        only = [split.read(columns=["name"]).read_all() for split in snapshot.splits(2)]
        assert total(row for piece in only for row in rows_of(piece)) == total(rows_of(names))


async def test_changes_since_lists_batches_by_their_uppers(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        assert await reader.changes_since(0) == ()
        for upper in (3, 5, 9):
            await writer.append(table([(upper, "a", upper - 1, 1)]), upper)
        summary = await reader.changes_since(3)
        assert [(batch.upper, batch.rows, batch.parts) for batch in summary] == [
            (Antichain.of(5), 1, 1),
            (Antichain.of(9), 1, 1),
        ]
        assert all(batch.encoded_bytes > 0 for batch in summary)
        assert await reader.changes_since(9) == ()


@pytest.mark.parametrize("times", [1, 5], ids=["splits", "ahead"])
async def test_big_snapshot_is_read_side_by_side_in_key_order(place: Place, monkeypatch, times: int):
    from persist.machine.parts import stream

    monkeypatch.setattr(stream, "SPLIT_BYTES", 4096)
    monkeypatch.setattr(stream, "ALONE_BYTES_MAX", 0)
    monkeypatch.setattr(stream, "SETTLED_BYTES_MAX", 0)
    ledger = Ledger([(key % 700, f"n{key % 3}", key % times, 1) for key in range(3000)])
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table(ledger.updates), 5)
        found = await (await reader.snapshot(4)).to_arrow()
        assert [tuple(row.values()) for row in found.to_pylist()] == ledger.at(4)
