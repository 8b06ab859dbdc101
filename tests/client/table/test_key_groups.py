"""Rows of keys that lie far apart are found by reading the blocks that may hold one, and no row is missed."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persist import Schema, Settings, aio
from persist.client.table import key_groups as grouping
from persist.client.table.key_groups import key_groups
from persist.client.table.keyed import rows_with_keys
from persist.client.table.rows import key_range, keys_of
from persist.core.data.splits import KeyRange, blocks_in
from persist.runtime import system
from persist.storage.blob.file import FileBlob

SETTINGS = Settings(row_group_rows=64, inline_part_bytes_max=0, compaction=False)
SCHEMA = Schema(key={"name": pa.string(), "n": pa.int64()}, val={"value": pa.int64()})


def table(name: Callable[[int], tuple[str, int]], numbers: list[int], value: int) -> pa.Table:
    names, rest = zip(*map(name, numbers), strict=True)
    return pa.table({"name": names, "n": pa.array(rest, pa.int64()), "value": [value] * len(numbers)})


@pytest.mark.parametrize(
    ("beginning", "groups_seen"),
    [
        ("", {1, 2, 3}),
        # Descriptions of blocks have the beginnings of keys only: here those of some digits, and here of none.
        ("customers ", {1, 2, 3}),
        ("customers of the shop " * 4, {1}),
    ],
    ids=["short", "cut", "alike"],
)
async def test_what_is_found_is_what_is_there_and_blocks_between_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beginning: str, groups_seen: set[int]
) -> None:
    def named(number: int) -> tuple[str, int]:
        return f"{beginning}{number // 3:06d}", number % 3

    monkeypatch.setattr(grouping, "ROWS_MIN", 64)
    random.seed(5)
    async with await aio.embedded(tmp_path / "data", settings=SETTINGS) as client:
        rows = await client.table("rows", schema=SCHEMA, mode="direct")
        expected: dict[tuple[str, int], int] = {}
        for value in range(4):
            numbers = sorted(random.sample(range(0, 12_000, 2), 3_000 if not value else 300))
            await rows.upsert(table(named, numbers, value))
            expected |= {named(number): value for number in numbers}
        snapshot = await rows.snapshot()
        seen = set()
        for count in (1, 2, 2, 2, 5, 20, 200, 3_000):
            numbers = random.sample(range(-10, 12_010), count)
            keys = keys_of(table(named, numbers, 0), SCHEMA)
            found = (await rows_with_keys(system(), snapshot, keys, SCHEMA)).to_pylist()
            wanted = {named(number): expected[named(number)] for number in numbers if named(number) in expected}
            assert {(row["name"], row["n"]): row["value"] for row in found} == wanted
            assert len(found) == len(wanted)
            parts = [part for split in snapshot.splits(1, keys=key_range(keys)) for part in split.parts]
            ordered: list[bytes] = sorted(filter(None, keys.to_pylist()))
            groups = key_groups(parts, ordered)
            assert [place for begin, end in groups for place in range(begin, end)] == list(range(count))
            seen.add(min(len(groups), 3))
            apart = sum(_rows(snapshot, keys_in) for keys_in in (ordered[begin:end] for begin, end in groups))
            together = _rows(snapshot, ordered)
            assert apart <= together - 64 * (len(groups) - 1)
        assert seen == groups_seen
        # The ends of the table, through what users call.
        last = max(expected)
        number = next(each for each in range(12_000) if named(each) == last)
        await rows.upsert(table(named, [0, number], 9))
        again = {
            (row["name"], row["n"]): row["value"] for row in (await (await rows.snapshot()).to_arrow()).to_pylist()
        }
        assert again == {**expected, named(0): 9, last: 9}


async def test_changes_of_two_distant_keys_read_nothing_of_what_lies_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bytes that the store gives, through what users call: of a table of sixty blocks two are read, and not all."""
    count, settings = 60_000, Settings(row_group_rows=1024, inline_part_bytes_max=0, compaction=False)
    schema = Schema(key={"n": pa.int64()}, val={"value": pa.binary()})
    chance, read, get = random.Random(5), list[int](), FileBlob._get

    def wide(*numbers: int) -> pa.Table:
        return pa.table({"n": numbers, "value": [chance.randbytes(60) for _ in numbers]})

    def counted(*given: Any) -> bytes | None:
        found = get(*given)
        read.append(len(found or b""))
        return found

    monkeypatch.setattr(FileBlob, "_get", counted)
    async with await aio.embedded(tmp_path / "data", settings=settings) as client:
        rows = await client.table("rows", schema=schema, mode="direct")
        await rows.upsert(wide(*range(count)))
        assert len(await (await rows.snapshot()).to_arrow()) == count
        whole = sum(read)
        for change in (rows.upsert, rows.delete):
            read.clear()
            await change(wide(0, count - 1))
            assert 0 < sum(read) < whole / 10


def _rows(snapshot: aio.Snapshot, keys: list[bytes]) -> int:
    """Rows in blocks that are read for the range of these keys."""
    wanted = KeyRange(lower=keys[0], upper=keys[-1] + b"\0")
    found = 0
    for part in (part for split in snapshot.splits(1, keys=wanted) for part in split.parts):
        found += sum(part.blocks[each].rows for each in blocks_in(part, wanted)) if part.blocks else part.rows
    return found
