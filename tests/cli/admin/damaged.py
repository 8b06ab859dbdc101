"""A location with a sound shard and one that is damaged, in each way in which one can be."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import persist as library
from persist.core.ids import ReaderId, ShardId
from persist.core.shard.commands import Command, ExpireReader, RegisterLeasedReader
from persist.machine.local_shards import LocalShards
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus

BAD, GOOD = ShardId.named("table", "bad"), ShardId.named("table", "good")
SCHEMA = library.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
PLAIN = Settings(compaction=False, inline_part_bytes_max=0, rollup_every=4)
_HOLDER = ReaderId.of(bytes(16))


def grow(location: Path, shard: ShardId, times: range = range(12)) -> None:
    """Append one row at each time, each a part of its own."""
    with library.embedded(location, settings=PLAIN) as client:
        writer = client.open_writer(shard, schema=SCHEMA)
        for ts in times:
            rows = pa.table({"id": [ts], "name": ["ada"], "ts": pa.array([ts], pa.uint64()), "diff": [1]})
            writer.append(rows, ts + 1)


def grown(location: Path) -> Path:
    """Both shards, twelve rows each."""
    for shard in (BAD, GOOD):
        grow(location, shard)
    return location


async def hold(location: Path, shard: ShardId) -> None:
    """Make a shard and hold its first state, so that no rollup and no diff of it goes."""
    location.mkdir(parents=True, exist_ok=True)
    await _apply(location, shard, RegisterLeasedReader(reader_id=_HOLDER))


async def let_go(location: Path, shard: ShardId) -> None:
    """End what ``hold`` began."""
    await _apply(location, shard, ExpireReader(reader_id=_HOLDER))


async def _apply(location: Path, shard: ShardId, command: Command[Any]) -> None:
    settings, runtime = PLAIN, system()
    blob = open_blob(f"file:{location}/blob", settings=settings, runtime=runtime)
    consensus = open_consensus(f"sqlite:{location}/consensus.db", settings=settings, runtime=runtime)
    shards = LocalShards(blob, consensus, settings=settings, runtime=runtime)
    try:
        await shards.open(shard, create=True, timeout=10)
        await shards.apply(shard, command, timeout=10)
    finally:
        await shards.close()


def parts(location: Path, shard: ShardId = BAD) -> list[Path]:
    return sorted((location / "blob" / shard).glob("n*/p*"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rollups(location: Path, shard: ShardId = BAD) -> list[Path]:
    """Those the newest state names, oldest first."""
    with library.embedded(location, settings=PLAIN) as client:
        named = client.inspect(shard)["rollups"]
    return [location / "blob" / named[seqno]["key"] for seqno in sorted(named, key=int)]


@contextmanager
def diffs(location: Path, shard: ShardId = BAD) -> Iterator[tuple[list[int], Callable[[int], None]]]:
    """The seqnos of a shard's diffs, and how to flip a bit of one."""
    with sqlite3.connect(location / "consensus.db") as database:
        [(column,)] = database.execute("SELECT name FROM pragma_table_info('consensus_log') WHERE cid = 0").fetchall()
        found = database.execute(f"SELECT seqno FROM consensus_log WHERE {column} = ? ORDER BY seqno", (shard,))

        def damage(seqno: int) -> None:
            where = f"WHERE {column} = ? AND seqno = ?"
            [(data,)] = database.execute(f"SELECT data FROM consensus_log {where}", (shard, seqno)).fetchall()
            flipped = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
            database.execute(f"UPDATE consensus_log SET data = ? {where}", (flipped, shard, seqno))

        yield [seqno for (seqno,) in found], damage


def damage_state(location: Path, shard: ShardId = BAD) -> None:
    """Flip a bit of the newest diff: the state cannot be read."""
    with diffs(location, shard) as (seqnos, damage):
        damage(seqnos[-1])
