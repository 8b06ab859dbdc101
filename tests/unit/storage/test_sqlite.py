"""What is particular to the SQLite store: full, read-only, locked, damaged, newer. Source: reliability.md section 4."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from persist import Schema, aio
from persist.core.ids import ShardId
from persist.errors import (
    CorruptData,
    Determinate,
    Indeterminate,
    InvalidUri,
    PersistError,
    StoreFull,
    StoreReadOnly,
    VersionMismatch,
)
from persist.runtime import system
from persist.settings import Settings
from persist.storage.consensus.sqlite import SqliteConsensus
from persist.storage.engine import sqlite as engine
from persist.storage.engine.sqlite import classify
from persist.storage.layout import CONSENSUS_NAME
from persist.storage.open import open_consensus
from persist.storage.ports import Consensus, Entry

KEY = ShardId.named("sqlite")
T = 10.0


@asynccontextmanager
async def opened(uri: str) -> AsyncIterator[Consensus]:
    consensus = open_consensus(uri, settings=Settings(), runtime=system())
    try:
        yield consensus
    finally:
        await consensus.close()


async def fill(consensus: Consensus) -> None:
    for expected in range(-1, 99):
        assert await consensus.compare_and_set(KEY, expected, bytes(20_000), timeout=T)


async def test_full_database_refuses_definitely_and_goes_on_after_truncation(tmp_path: Path) -> None:
    async with opened(f"sqlite:{tmp_path}/x.db?max_pages=60") as consensus:
        with pytest.raises(StoreFull):
            await fill(consensus)
        head = await consensus.head(KEY, timeout=T)
        assert head is not None
        assert len(await consensus.scan(KEY, 0, 99, timeout=T)) == head.seqno + 1
        seqno = head.seqno
        assert await consensus.truncate(KEY, seqno, timeout=T) == seqno
        assert await consensus.compare_and_set(KEY, seqno, bytes(20_000), timeout=T)


async def test_full_database_fails_only_the_calls_that_do_not_fit(tmp_path: Path) -> None:
    async with opened(f"sqlite:{tmp_path}/x.db?max_pages=60") as consensus:
        small = [consensus.compare_and_set(ShardId.named(n), -1, b"small", timeout=T) for n in range(10)]
        large = consensus.compare_and_set(KEY, -1, bytes(1_000_000), timeout=T)
        *done, refused = await asyncio.gather(*small, large, return_exceptions=True)
        assert done == [True] * 10
        assert isinstance(refused, StoreFull)
        assert await consensus.head(KEY, timeout=T) is None


async def test_read_only_database_is_read_and_refuses_writes(tmp_path: Path) -> None:
    async with opened(f"sqlite:{tmp_path}/x.db") as consensus:
        assert await consensus.compare_and_set(KEY, -1, b"x", timeout=T)
        async with opened(f"sqlite:{tmp_path}/x.db?mode=ro") as reader:
            assert reader.uri.endswith("x.db?mode=ro")
            assert await reader.head(KEY, timeout=T) == Entry(seqno=0, data=b"x")
            with pytest.raises(StoreReadOnly):
                await reader.compare_and_set(KEY, 0, b"y", timeout=T)
            with pytest.raises(StoreReadOnly):
                await reader.truncate(KEY, 0, timeout=T)
        assert await consensus.head(KEY, timeout=T) == Entry(seqno=0, data=b"x")


READER = """
import asyncio, concurrent.futures.thread, os, sys
from persist.errors import Determinate
from persist.runtime import system
from persist.storage.consensus.sqlite import SqliteConsensus

path, key = sys.argv[1:]

async def seqno(consensus):
    while True:
        try:
            return (await consensus.head(key, timeout=30)).seqno
        except Determinate as error:
            print(error.message, file=sys.stderr, flush=True)

async def answer():
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    consensus = SqliteConsensus(path, system(), read_only=True)
    for _ in sys.stdin:
        print(await seqno(consensus), flush=True)
    await consensus.close()

asyncio.run(answer())
"""


@contextlib.contextmanager
def readers_of(place: Path) -> Iterator[Callable[[], int]]:
    """A process that may not write in a folder, and the newest seqno it sees there each time it is asked."""
    words = [sys.executable, "-c", READER, str(place / "x.db"), KEY]
    place.chmod(0o555)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask() -> int:
            print(file=stdin, flush=True)
            return int(stdout.readline())

        try:
            yield ask
        finally:
            place.chmod(0o755)
            stdin.close()


@pytest.mark.parametrize("in_use", [True, False], ids=["opened-first", "opened-later"])
async def test_who_may_not_write_sees_what_others_write_however_little_waits_beside_it(in_use: bool) -> None:
    """An empty log is one, too: a database beside which one lies is in use, and one may come while it is read."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as reading:
        place, mask = Path(folder), os.umask(0o022)
        place.chmod(0o755)
        try:
            async with opened(f"sqlite:{place}/x.db") as consensus:
                assert await consensus.compare_and_set(KEY, -1, b"0", timeout=T)
            (place / "x.db").chmod(0o644)
            assert not (place / "x.db-wal").exists()
            ask = None if in_use else reading.enter_context(readers_of(place))
            if ask is not None:
                assert ask() == 0
                place.chmod(0o755)
            async with opened(f"sqlite:{place}/x.db") as consensus:
                assert (await consensus.head(KEY, timeout=T)) == Entry(seqno=0, data=b"0")
                assert os.path.getsize(place / "x.db-wal") == 0
                ask = ask or reading.enter_context(readers_of(place))
                assert ask() == 0
                place.chmod(0o755)
                for seqno in range(40):
                    assert await consensus.compare_and_set(KEY, seqno, bytes(1_000), timeout=T)
                    assert ask() == seqno + 1
            # At rest again, and another file than the one that lay there.
            assert ask() == 40
        finally:
            os.umask(mask)


async def test_locked_database_is_indeterminate_when_late_and_resolvable(tmp_path: Path) -> None:
    async with opened(f"sqlite:{tmp_path}/x.db") as consensus:
        assert await consensus.compare_and_set(KEY, -1, b"0", timeout=T)
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Indeterminate):
            await consensus.compare_and_set(KEY, 0, b"1", timeout=0.2)
        # Behind the one that waits for the lock this one never began.
        with pytest.raises(Determinate):
            await consensus.compare_and_set(KEY, 0, b"2", timeout=0.2)
        assert await consensus.head(KEY, timeout=T) == Entry(seqno=0, data=b"0")
        other.execute("ROLLBACK")
        other.close()
        assert await consensus.compare_and_set(KEY, 1, b"3", timeout=T)
        assert [entry.data for entry in await consensus.scan(KEY, 0, 9, timeout=T)] == [b"0", b"1", b"3"]


async def test_a_location_is_opened_and_read_while_others_write(tmp_path: Path) -> None:
    """To look how the file is opened once took the lock of writers, and opening failed after waiting for it."""
    async with await aio.embedded(tmp_path) as client:
        await client.open_writer(KEY, schema=Schema(key={"id": pa.int64()}))
    other = sqlite3.connect(tmp_path / CONSENSUS_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with contextlib.closing(other):
        async with asyncio.timeout(4.0), await aio.embedded(tmp_path) as client:
            assert [each async for each in client.list_shards()] == [KEY]


async def test_a_location_that_is_busy_when_it_is_first_opened_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_SETUP", ("PRAGMA busy_timeout=1", *engine._SETUP[1:]))
    other = sqlite3.connect(tmp_path / CONSENSUS_NAME, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    asyncio.get_running_loop().call_later(0.5, other.close)
    async with await aio.embedded(tmp_path) as client:
        assert [each async for each in client.list_shards()] == []


async def test_emptied_key_cannot_be_initialised_again(tmp_path: Path) -> None:
    async with opened(f"sqlite:{tmp_path}/x.db") as consensus:
        assert await consensus.compare_and_set(KEY, -1, b"0", timeout=T)
        with sqlite3.connect(tmp_path / "x.db") as other:
            other.execute("DELETE FROM consensus_log")
        other.close()
        assert not await consensus.compare_and_set(KEY, -1, b"again", timeout=T)
        with pytest.raises(CorruptData):
            await consensus.head(KEY, timeout=T)


async def test_database_of_a_newer_release_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "x.db") as other:
        other.execute("PRAGMA user_version=99")
    other.close()
    async with opened(f"sqlite:{tmp_path}/x.db") as consensus:
        with pytest.raises(VersionMismatch):
            await consensus.compare_and_set(KEY, -1, b"x", timeout=T)


async def test_damaged_database_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"this is no database at all" * 1000)
    async with opened(f"sqlite:{tmp_path}/x.db") as consensus:
        with pytest.raises(CorruptData):
            await consensus.head(KEY, timeout=T)
        with pytest.raises(CorruptData):
            await consensus.compare_and_set(KEY, -1, b"x", timeout=T)


async def test_folder_that_cannot_be_made_is_definite(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with opened(f"sqlite:{tmp_path}/file/x.db") as consensus:
        with pytest.raises(Determinate):
            await consensus.compare_and_set(KEY, -1, b"x", timeout=T)


async def test_pragmas_are_those_that_survive_a_power_cut(tmp_path: Path) -> None:
    consensus = SqliteConsensus(str(tmp_path / "x.db"), system())
    connection = consensus._database.open()
    try:
        got = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys", "trusted_schema")
        }
    finally:
        connection.close()
        await consensus.close()
    assert (got["journal_mode"], got["synchronous"], got["busy_timeout"]) == ("wal", 2, 5000)
    assert (got["foreign_keys"], got["trusted_schema"]) == (1, 0)


async def test_paths_with_special_characters_are_reopened_by_uri(tmp_path: Path) -> None:
    name = f"{tmp_path}/a b?c#d%20é/x.db"
    consensus = SqliteConsensus(name, system())
    assert await consensus.compare_and_set(KEY, -1, b"x", timeout=T)
    async with opened(consensus.uri) as again:
        assert await again.head(KEY, timeout=T) == Entry(seqno=0, data=b"x")
    await consensus.close()
    assert Path(name).exists()


@pytest.mark.parametrize(
    ("code", "committing", "expected"),
    [
        (sqlite3.SQLITE_BUSY, True, Determinate),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, True, Determinate),
        (sqlite3.SQLITE_FULL, True, StoreFull),
        (sqlite3.SQLITE_READONLY, True, StoreReadOnly),
        (sqlite3.SQLITE_CONSTRAINT, True, Determinate),
        (sqlite3.SQLITE_IOERR, False, Determinate),
        (sqlite3.SQLITE_IOERR, True, Indeterminate),
        (sqlite3.SQLITE_IOERR_FSYNC, True, Indeterminate),
        (sqlite3.SQLITE_ERROR, True, Indeterminate),
        (sqlite3.SQLITE_NOMEM, True, Indeterminate),
        (sqlite3.SQLITE_CORRUPT, False, CorruptData),
        (sqlite3.SQLITE_NOTADB, True, CorruptData),
    ],
    ids=str,
)
def test_classify_takes_only_listed_codes_as_definite(
    code: int, committing: bool, expected: type[PersistError]
) -> None:
    error = sqlite3.OperationalError("x")
    error.sqlite_errorcode = code
    assert type(classify(error, "cas", committing=committing)) is expected


def test_empty_path_is_refused() -> None:
    with pytest.raises(InvalidUri):
        SqliteConsensus("", system())
