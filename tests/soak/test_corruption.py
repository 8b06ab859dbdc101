"""Stored bytes damaged in thousands of ways, each time with one look at the shard: no row is ever silently wrong.

Parts and rollups in Blob and diffs in Consensus (with parts inline) are flipped, cut, zeroed, and put in each other's
place, also across shards and from earlier times. A reader gets an error, or the right answer; and what reading did
not need, a deep check reports. Source: reliability.md B25 and I24.
"""

import dataclasses
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from client.support import SCHEMA, SMALL, Ledger, rows_of, some_rows, table, total
from soak.support import LIMIT_SECONDS, named, pick, problems

from persist import aio
from persist.core.ids import ShardId
from persist.errors import CorruptData

DAMAGES = pick(36, 5_000)
APPENDS = 40
GROWING = dataclasses.replace(SMALL, rollup_every=8, inline_part_bytes_max=600)
LOOKING = dataclasses.replace(GROWING, compaction=False, rollup_every=100_000, timeout_ms=20_000)
KINDS = ("part", "rollup", "diff")
WAYS = ("flip", "cut", "zeros", "swap", "earlier", "foreign")

Item = tuple[str, str, str]
"""Kind, shard, and the blob's key or the diff's seqno."""


@dataclass
class Stores:
    """Files and SQLite below one directory, as they were when they were sound."""

    path: Path
    sound: dict[Item, bytes]

    @classmethod
    def of(cls, path: Path, named: frozenset[str]) -> "Stores":
        """``named``: blobs that are in use; the others are about to be collected."""
        with closing(sqlite3.connect(path / "consensus.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            rows = connection.execute("SELECT shard, seqno, data FROM consensus_log").fetchall()
        shutil.copyfile(path / "consensus.db", path / "sound.db")
        sound: dict[Item, bytes] = {("diff", shard, str(seqno)): data for shard, seqno, data in rows}
        for file in (path / "blob").rglob("*"):
            key = str(file.relative_to(path / "blob"))
            if key in named:
                sound["rollup" if "/rollup/" in key else "part", key.partition("/")[0], key] = file.read_bytes()
        return cls(path, sound)

    def damage(self, items: dict[Item, bytes]) -> None:
        """Put these bytes where others were."""
        diffs = [(data, shard, int(name)) for (kind, shard, name), data in items.items() if kind == "diff"]
        if diffs:
            with closing(sqlite3.connect(self.path / "consensus.db")) as connection:
                connection.execute("PRAGMA synchronous=OFF")
                connection.executemany("UPDATE consensus_log SET data=? WHERE shard=? AND seqno=?", diffs)
                connection.commit()
        for (kind, _, name), data in items.items():
            if kind != "diff":
                (self.path / "blob" / name).write_bytes(data)

    def heal(self, items: dict[Item, bytes]) -> None:
        """Undo all of it, and whatever looking changed."""
        for suffix in ("-wal", "-shm"):
            (self.path / f"consensus.db{suffix}").unlink(missing_ok=True)
        shutil.copyfile(self.path / "sound.db", self.path / "consensus.db")
        blobs = {name: data for (kind, _, name), data in self.sound.items() if kind != "diff"}
        damaged = {name for _, _, name in items}
        for name, data in blobs.items():
            if name in damaged or not (self.path / "blob" / name).exists():
                (self.path / "blob" / name).write_bytes(data)


async def grown(path: Path, shard: ShardId, seed: int) -> Ledger:
    """A shard with parts of many sizes, in Blob and inline, merged and not, and with several rollups."""
    entropy, ledger = random.Random(seed), Ledger()
    async with await aio.embedded(path, settings=GROWING) as client:
        writer, reader = await client.open(shard, schema=SCHEMA)
        for time in range(APPENDS):
            rows = some_rows(entropy, entropy.choice([3, 10, 60]), time, time + 1, keys=400)
            ledger.updates += rows
            await writer.append(table(rows), time + 1)
        assert reader.since.time == 0
    return ledger


def damaged(entropy: random.Random, stores: Stores, shard: ShardId, kind: str, way: str) -> dict[Item, bytes]:
    """Other bytes for one item of the shard, or for two that are swapped."""
    own = [item for item in stores.sound if item[:2] == (kind, shard)]
    item = entropy.choice(own)
    data = stores.sound[item]
    match way:
        case "flip":
            bits = bytearray(data)
            for _ in range(entropy.choice([1, 1, 1, 2, 8])):
                bits[entropy.randrange(len(bits))] ^= 1 << entropy.randrange(8)
            return {item: bytes(bits)}
        case "cut":
            return {item: data[: entropy.choice([0, 1, len(data) - 1, entropy.randrange(len(data))])]}
        case "zeros":
            start = entropy.randrange(len(data))
            end = entropy.randrange(start, len(data)) + 1
            return {item: data[:start] + bytes(end - start) + data[end:]}
        case "swap":
            other = entropy.choice(own)
            return {item: stores.sound[other], other: data}
        case "earlier":
            return {item: stores.sound[entropy.choice(own[: own.index(item) + 1])]}
        case _:
            others = [each for each in stores.sound if each[0] == kind and each[1] != shard]
            same = (kind, others[0][1], item[2])
            return {item: stores.sound[same if same in stores.sound else entropy.choice(others)]}


def changed(stores: Stores, items: dict[Item, bytes]) -> dict[Item, bytes]:
    return {item: data for item, data in items.items() if data != stores.sound[item]}


async def told_by_reading(path: Path, shard: ShardId, ledger: Ledger, as_of: int) -> bool:
    """Whether a process that starts now gets CorruptData when it reads; otherwise all it reads is right."""
    try:
        async with await aio.embedded(path, settings=LOOKING) as client:
            upper = (await client.recent_upper(shard)).time
            reader = await client.open_reader(shard)
            changes = rows_of(await (await reader.diffs(0, APPENDS)).to_arrow())
            rows = rows_of(await (await reader.snapshot(as_of)).to_arrow())
    except CorruptData:
        return True
    assert upper == APPENDS
    assert total(changes) == ledger.between(0, APPENDS)
    assert rows == ledger.at(as_of)
    return False


def ways(entropy: random.Random) -> Iterator[tuple[str, str]]:
    """Every way for every kind as often, in any order."""
    while True:
        every = [(kind, way) for kind in KINDS for way in WAYS]
        entropy.shuffle(every)
        yield from every


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_no_damage_to_stored_bytes_is_silently_read(tmp_path: Path):
    entropy, shard = random.Random(25), ShardId.of(bytes(16))
    other = ShardId.of(bytes(15) + b"\1")
    ledger = await grown(tmp_path, shard, 1)
    await grown(tmp_path, other, 2)
    place = f"file:{tmp_path}/blob", f"sqlite:{tmp_path}/consensus.db"
    in_use = await named(*place, shard, LOOKING) | await named(*place, other, LOOKING)
    stores, told, done = Stores.of(tmp_path, in_use), Counter[tuple[str, str]](), 0
    for kind, way in ways(entropy):
        items = changed(stores, damaged(entropy, stores, shard, kind, way))
        if not items:
            continue
        stores.damage(items)
        by = "reading"
        if not await told_by_reading(tmp_path, shard, ledger, entropy.randrange(APPENDS)):
            # Who reads may also collect garbage, the damaged blob with it.
            stores.heal(items)
            stores.damage(items)
            by = "a check" if await problems(*place, shard, LOOKING) else "nobody"
        told[kind, by] += 1
        assert by != "nobody", (way, {item: len(data) for item, data in items.items()})
        stores.heal(items)
        done += 1
        if done == DAMAGES:
            break
    print(f"\n{done} damages: {dict(sorted(told.items()))}")
    assert not await told_by_reading(tmp_path, shard, ledger, APPENDS - 1)
    assert not await problems(*place, shard, LOOKING)
    # Which of few damages lies where the newest state is read from is chance.
    ways_told = ("reading",) if pick(False, True) else ("reading", "a check")
    assert all(any(told[kind, by] for by in ways_told) for kind in KINDS)
