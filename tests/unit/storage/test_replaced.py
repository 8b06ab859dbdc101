"""Files that were deleted or replaced under an open store: nothing is acknowledged into unseen files."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persist.client.connect import embedded
from persist.core.data.schema import Schema
from persist.core.ids import ShardId, WriterId, part_key
from persist.errors import LocationReplaced
from persist.runtime import system
from persist.storage.blob.file import FileBlob
from persist.storage.consensus.sqlite import SqliteConsensus
from persist.storage.ports import Entry

T = 10.0
SHARD = ShardId.named("replaced")
KEY = part_key(SHARD, WriterId.named("w"), 1, bytes(16))


def gone(folder: Path) -> None:
    shutil.rmtree(folder)


def restored(folder: Path) -> None:
    """Moved away, with an older copy in its place."""
    os.rename(folder, old := folder.with_name("old"))
    shutil.copytree(old, folder)


@pytest.mark.parametrize("change", [gone, restored])
async def test_nothing_is_committed_to_a_database_without_a_name(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder = tmp_path / "data"
    consensus = SqliteConsensus(str(folder / "consensus.db"), system())
    assert await consensus.compare_and_set(SHARD, -1, b"0", timeout=T)
    assert await consensus.head(SHARD, timeout=T)
    change(folder)
    with pytest.raises(LocationReplaced):
        await consensus.compare_and_set(SHARD, 0, b"1", timeout=T)
    with pytest.raises(LocationReplaced):
        await consensus.head(SHARD, timeout=T)
    other = SqliteConsensus(str(folder / "consensus.db"), system())
    head = await other.head(SHARD, timeout=T)
    assert (head is None) == (change is gone)
    with pytest.raises(LocationReplaced):
        await consensus.truncate(SHARD, 0, timeout=T)
    await other.close()
    await consensus.close()


@pytest.mark.parametrize("change", [gone, restored])
async def test_no_blob_goes_to_a_folder_that_replaced_the_root(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = tmp_path / "blob"
    blob = FileBlob(str(folder), system())
    await blob.set(KEY, b"1", timeout=T)
    change(folder)
    with pytest.raises(LocationReplaced):
        await blob.set(KEY, b"2", timeout=T)
    with pytest.raises(LocationReplaced):
        await blob.get(KEY, timeout=T)
    with pytest.raises(LocationReplaced):
        await blob.delete(KEY, timeout=T)
    other = FileBlob(str(folder), system())
    assert await other.get(KEY, timeout=T) == (None if change is gone else b"1")


async def test_a_folder_that_is_made_anew_is_another_one_whatever_its_inode(tmp_path: Path) -> None:
    """File systems give the number of what was deleted to what is made next: rm -r and mkdir went unnoticed."""
    folder = tmp_path / "blob"
    blob = FileBlob(str(folder), system())
    await blob.set(KEY, b"1", timeout=T)
    for _ in range(3):
        gone(folder)
        folder.mkdir()
        with pytest.raises(LocationReplaced):
            await blob.set(KEY, b"2", timeout=T)
        with pytest.raises(LocationReplaced):
            await blob.get(KEY, timeout=T)
    assert list(folder.iterdir()) == []
    await blob.close()
    assert not [
        held for held in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{held}") == str(folder)
    ]


async def test_a_folder_that_another_thread_makes_once_it_was_not_found_was_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "blob"
    blob, opening = FileBlob(str(folder), system()), os.open

    def interrupted(path: object, *given: Any, **named: Any) -> int:
        try:
            return opening(path, *given, **named)  # type: ignore[arg-type]  # passed on as they come
        except FileNotFoundError:
            monkeypatch.undo()
            blob._set(KEY, b"1")
            raise

    monkeypatch.setattr(os, "open", interrupted)
    assert [key async for key, _ in blob.list("", timeout=T)] == []
    assert [key async for key, _ in blob.list("", timeout=T)] == [KEY]


@pytest.mark.parametrize("change", [gone, restored])
async def test_a_client_acknowledges_nothing_once_its_directory_is_replaced(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder = tmp_path / "data"
    schema = Schema(key={"id": pa.int64()}, val={"name": pa.string()})
    async with await embedded(folder) as client:
        writer = await client.open_writer(SHARD, schema=schema)
        await writer.append([(({"id": 1}, {"name": "x"}), 0, 1)], 1)
        change(folder)
        with pytest.raises(LocationReplaced):
            await writer.append([(({"id": 2}, {"name": "x"}), 1, 1)], 2)
        async with await embedded(folder) as other:
            anew = await other.open_writer(SHARD, schema=schema)
            assert anew.upper.time == (0 if change is gone else 1)
            with pytest.raises(LocationReplaced):
                await writer.append([(({"id": 3}, {"name": "x"}), 1, 1)], 2)


async def test_stores_refuse_for_good_and_are_reopened_beside_themselves(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    consensus = SqliteConsensus(str(folder / "consensus.db"), system(), reopens=True)
    blob = FileBlob(str(folder / "blob"), system(), reopens=True)
    assert await consensus.compare_and_set(SHARD, -1, b"0", timeout=T)
    assert await consensus.head(SHARD, timeout=T)
    await blob.set(KEY, b"1", timeout=T)
    assert (consensus.reopened(), blob.reopened()) == (consensus, blob)
    gone(folder)
    assert (consensus.reopened(), blob.reopened()) == (None, None)
    other, there = SqliteConsensus(str(folder / "consensus.db"), system()), FileBlob(str(folder / "blob"), system())
    assert await other.compare_and_set(SHARD, -1, b"other", timeout=T)
    await there.set(KEY, b"3", timeout=T)
    again, anew = consensus.reopened(), blob.reopened()
    for _ in range(3):
        with pytest.raises(LocationReplaced):
            await consensus.head(SHARD, timeout=T)
        with pytest.raises(LocationReplaced):
            await consensus.compare_and_set(SHARD, 0, b"1", timeout=T)
        with pytest.raises(LocationReplaced):
            await blob.set(KEY, b"2", timeout=T)
        with pytest.raises(LocationReplaced):
            await blob.abort_uploads("", older_than_ms=0, timeout=T)
    assert again is not None
    assert anew is not None
    assert await again.scan(SHARD, 0, 9, timeout=T) == [Entry(seqno=0, data=b"other")]
    assert await again.compare_and_set(SHARD, 0, b"1", timeout=T)
    assert await other.head(SHARD, timeout=T) == Entry(seqno=1, data=b"1")
    assert await anew.get(KEY, timeout=T) == b"3"
    # A folder that comes later is not taken for the one that was looked at.
    gone(folder)
    (folder / "blob").mkdir(parents=True)
    with pytest.raises(LocationReplaced):
        await anew.get(KEY, timeout=T)
    # Who does not compare locations gets none but its own.
    assert (other.reopened(), there.reopened()) == (None, None)
    for store in (consensus, other, again):
        await store.close()
