"""What is particular to the file store: hostile keys, links, full and read-only folders, leftovers."""

import errno
import os
import resource
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from persist.core.ids import ShardId, WriterId, part_key
from persist.errors import CorruptData, Determinate, Indeterminate, InvalidId, PersistError, StoreFull, StoreReadOnly
from persist.runtime import system
from persist.storage.blob.file import FileBlob, classify

T = 10.0
SHARD = ShardId.named("file")
KEY = part_key(SHARD, WriterId.named("w"), 1, bytes(16))
_FOLDER = f"{SHARD}/n1-{WriterId.named('w').hex}"

HOSTILE = [
    "", ".", "..", "/", "//", "a", "../a", "../../etc/passwd", "/etc/passwd", "~/a", "a/../../b", "a/./b", "a//b",
    f"../{KEY}", f"/{KEY}", f"./{KEY}", f"{KEY}/", f"{KEY}/..", f"{KEY}/../x", f"{KEY}\0", f"{KEY}\n", f"\n{KEY}",
    f" {KEY}", f"{KEY} ", f"{KEY}%2e%2e", f"{SHARD}/../{KEY}", f"{SHARD}/..%2f{KEY}", f"{SHARD}", f"{SHARD}/",
    f"{SHARD}/n1-x/p1", f"{SHARD}\\n1", KEY.replace("/", "\\"), KEY.replace("/", "//"), KEY.replace("/", "/./"),
    KEY.upper(), KEY.replace("n1", "n"), KEY.replace("n1", "n-1"), KEY.replace("/p", "/.tmp-"), KEY + "0",
    KEY.replace("s", "\u017f", 1), KEY.replace("/n1", "/rollup"), f"{SHARD}/rollup/-1-{'0' * 32}",
    f"{SHARD}/rollup/1-{'0' * 31}", f"{SHARD}/rollup/../{'0' * 32}", f"{SHARD}/rollup/1-{'G' * 32}", "C:\\x",
    "\\\\h\\s", "CON", "a" * 5000, "\ud800", "\u202e", f"{KEY}\u0000.txt", ".tmp-00", f"{SHARD}/.tmp-00",
]  # fmt: skip


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_there_are_enough_hostile_keys() -> None:
    assert len(set(HOSTILE)) >= 40


@pytest.mark.parametrize("key", HOSTILE, ids=ascii)
async def test_hostile_key_is_refused_and_touches_nothing(tmp_path: Path, key: str) -> None:
    blob = FileBlob(str(tmp_path / "outer" / "root"), system())
    await blob.set(KEY, b"value", timeout=T)
    before = tree(tmp_path)
    for call in (
        blob.get(key, timeout=T),
        blob.set(key, b"hostile", timeout=T),
        blob.delete(key, timeout=T),
        blob.restore(key, timeout=T),
    ):
        with pytest.raises(InvalidId):
            await call
    assert tree(tmp_path) == before
    assert await blob.get(KEY, timeout=T) == b"value"


@pytest.mark.parametrize("prefix", ["../", "/etc/", "../../", "./", "a/../", f"{SHARD}/../", "\0/", ".tmp-"], ids=ascii)
async def test_hostile_prefix_lists_nothing(tmp_path: Path, prefix: str) -> None:
    blob = FileBlob(str(tmp_path / "root"), system())
    await blob.set(KEY, b"value", timeout=T)
    assert [entry async for entry in blob.list(prefix, timeout=T)] == []


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_link_inside_the_store_is_not_followed(tmp_path: Path, depth: int) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    names = KEY.split("/")
    target = outside.joinpath(*names[depth:]) if depth < 3 else outside / "secret"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"secret")
    link = root.joinpath(*names[:depth])
    link.parent.mkdir(parents=True)
    link.symlink_to(outside if depth < 3 else target)
    blob = FileBlob(str(root), system())
    with pytest.raises(CorruptData):
        await blob.get(KEY, timeout=T)
    if depth < 3:
        with pytest.raises(CorruptData):
            await blob.set(KEY, b"mine", timeout=T)
        with pytest.raises(CorruptData):
            await blob.delete(KEY, timeout=T)
    else:
        await blob.set(KEY, b"mine", timeout=T)
        assert await blob.get(KEY, timeout=T) == b"mine"
    assert target.read_bytes() == b"secret"
    assert depth == 3 or [entry async for entry in blob.list("", timeout=T)] == []


async def test_folder_or_pipe_at_the_key_is_corrupt(tmp_path: Path) -> None:
    blob = FileBlob(str(tmp_path), system())
    place = tmp_path / KEY
    place.mkdir(parents=True)
    with pytest.raises(CorruptData):
        await blob.get(KEY, timeout=T)
    place.rmdir()
    os.mkfifo(place)
    with pytest.raises(CorruptData):
        await blob.get(KEY, timeout=T)


async def test_leftovers_of_a_crash_are_not_listed_and_can_be_cleaned(tmp_path: Path) -> None:
    blob = FileBlob(str(tmp_path), system())
    await blob.set(KEY, b"value", timeout=T)
    leftover = tmp_path / _FOLDER / ".tmp-0011223344556677"
    leftover.write_bytes(b"half")
    assert [entry async for entry in blob.list("", timeout=T)] == [(KEY, 5)]
    assert await blob.abort_uploads("", older_than_ms=3_600_000, timeout=5) == 0
    assert await blob.abort_uploads("", older_than_ms=-60_000, timeout=5) == 1
    assert not leftover.exists()
    assert await blob.get(KEY, timeout=T) == b"value"


async def test_folders_removed_behind_its_back_are_made_again(tmp_path: Path) -> None:
    blob = FileBlob(str(tmp_path / "root"), system())
    await blob.set(KEY, b"one", timeout=T)
    await blob.delete(KEY, timeout=T)
    (tmp_path / "root" / _FOLDER).rmdir()
    await blob.set(KEY, b"two", timeout=T)
    assert await blob.get(KEY, timeout=T) == b"two"


@contextmanager
def as_someone_without_rights() -> Iterator[None]:
    """Root is above permissions: act as another user meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_read_only_folder_is_read_and_refuses_writes() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        blob = FileBlob(name, system())
        await blob.set(KEY, b"value", timeout=T)
        folder = root / _FOLDER
        folder.chmod(0o555)
        try:
            with as_someone_without_rights():
                assert await blob.get(KEY, timeout=T) == b"value"
                with pytest.raises(StoreReadOnly):
                    await blob.set(KEY, b"other", timeout=T)
                with pytest.raises(StoreReadOnly):
                    await blob.delete(KEY, timeout=T)
        finally:
            folder.chmod(0o755)
        assert await blob.get(KEY, timeout=T) == b"value"
        assert tree(folder) == {KEY.rpartition("/")[2]}


async def test_full_disk_refuses_definitely_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """The limit on a file's size stands in for a full disk: the kernel refuses in the middle of a write."""
    blob = FileBlob(str(tmp_path), system())
    await blob.set(KEY, b"value", timeout=T)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StoreFull):
            await blob.set(KEY, secrets.token_bytes(300_000), timeout=T)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert tree(tmp_path / _FOLDER) == {KEY.rpartition("/")[2]}
    assert await blob.get(KEY, timeout=T) == b"value"
    await blob.set(KEY, secrets.token_bytes(300_000), timeout=T)


@pytest.mark.parametrize(
    ("code", "visible", "expected"),
    [
        (errno.ENOSPC, False, StoreFull),
        (errno.EDQUOT, False, StoreFull),
        (errno.EROFS, False, StoreReadOnly),
        (errno.EACCES, False, StoreReadOnly),
        (errno.ELOOP, False, CorruptData),
        (errno.EIO, False, Determinate),
        (errno.EIO, True, Indeterminate),
        (errno.ENOSPC, True, Indeterminate),
    ],
    ids=str,
)
def test_classify_is_indeterminate_once_the_value_may_be_seen(
    code: int, visible: bool, expected: type[PersistError]
) -> None:
    assert type(classify(OSError(code, "x"), "set", visible=visible)) is expected
