"""Stashes that are full, locked, damaged, read-only, or not where the URI says: what is reported, and what stays.

Source: design document 2; reliability.md section 4.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from catalog.stash.stash_places import Place, make_hasty, opened

from persist.client.catalog.log.stash_log import open_stash_log
from persist.core.catalog.rows import Row, RowUpdate
from persist.errors import (
    CorruptData,
    Determinate,
    Indeterminate,
    InvalidArgument,
    InvalidUri,
    StoreFull,
    StoreReadOnly,
    UnsafeConfiguration,
)
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_consensus
from persist.testing import servers

A, B, C = Row("item", b"a", b"1"), Row("item", b"b", b"2"), Row("role", b"a", b"1")


async def test_full_database_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    async with opened(Place("sqlite", f"sqlite:{tmp_path}/x.db?max_pages=60")) as place:
        log = await place.log()
        upper = 0
        full = None
        while full is None:
            try:
                row = Row("item", b"%d" % upper, bytes(9_000))
                assert await log.append([(row, 1)], upper, expected_upper=upper) is None
                upper += 1
            except StoreFull as error:
                full = error
        assert upper > 3
        assert await log.upper() == upper
        assert len((await log.snapshot()).updates) == upper


async def test_read_only_database_is_read_and_refuses_writes(tmp_path: Path) -> None:
    async with opened(Place("sqlite", f"sqlite:{tmp_path}/x.db")) as place:
        log = await place.log()
        assert await log.append([(A, 1)], 0, expected_upper=0) is None
        async with opened(Place("sqlite", f"sqlite:{tmp_path}/x.db?mode=ro")) as reading:
            reader = await reading.log()
            assert await reader.snapshot() == ([RowUpdate(A, 0, 1)], 1)
            with pytest.raises(StoreReadOnly):
                await reader.append([(B, 1)], 1, expected_upper=1)
            await reader.forget(1)
        assert await log.upper() == 1


async def test_database_that_another_process_locks_is_waited_for(tmp_path: Path) -> None:
    async with opened(Place("sqlite", f"sqlite:{tmp_path}/x.db")) as place:
        log = await place.log()
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        appending = asyncio.ensure_future(log.append([(A, 1)], 0, expected_upper=0))
        await asyncio.sleep(0.1)
        assert not appending.done()
        assert await log.upper() == 0
        other.execute("ROLLBACK")
        other.close()
        assert await appending is None


async def test_late_append_to_a_locked_database_is_resolved_or_indeterminate(tmp_path: Path) -> None:
    async with opened(Place("sqlite", f"sqlite:{tmp_path}/x.db")) as place:
        log = await place.log()
        make_hasty(log)  # once it is open
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Indeterminate):
            await log.append([(A, 1)], 0, expected_upper=0)
        other.execute("ROLLBACK")
        other.close()
        patient = await place.log()
        await patient.changed(0, 60.0)
        assert await patient.snapshot() == ([RowUpdate(A, 0, 1)], 1)


async def test_damaged_file_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"this is no database at all" * 1000)
    with pytest.raises(CorruptData):
        await open_stash_log(f"sqlite:{tmp_path}/x.db", "test")


async def test_one_file_holds_a_consensus_and_a_stash(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/x.db"
    consensus = open_consensus(uri, settings=Settings(), runtime=system())
    async with opened(Place("sqlite", uri)) as place:
        log = await place.log()
        assert await consensus.compare_and_set("key", -1, b"x", timeout=60.0)
        assert await log.append([(A, 1)], 0, expected_upper=0) is None
        assert await consensus.head("key", timeout=60.0)
    await consensus.close()


# ---- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("redis://localhost:6379/0", "stash stores: sqlite, postgres"),
        ("s3://bucket/x", "stash stores: sqlite, postgres"),
        ("mem:x", "stash stores: sqlite, postgres"),
        ("postgress://x@y/z", "did you mean postgres"),
        ("/a/path", "known: sqlite, postgres"),
        ("sqlite:", "sqlite:PATH"),
        ("sqlite::memory:", "sqlite:PATH"),
        ("sqlite:x.db?mod=ro", "did you mean mode"),
        ("postgres://u:hush@h/db?nonsense=1", "postgres://user@host:port/database"),
    ],
)
async def test_wrong_uri_is_told_with_a_hint(uri: str, hint: str) -> None:
    with pytest.raises(InvalidUri) as caught:
        await open_stash_log(uri, "test")
    assert hint in caught.value.hint
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 256, "\ud800"])
async def test_wrong_environment_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="environment"):
        await open_stash_log(f"sqlite:{tmp_path}/x.db", name)


async def test_server_that_is_not_there_is_definite() -> None:
    with pytest.raises(Determinate, match="cannot connect"):
        await open_stash_log(f"postgres://postgres@127.0.0.1:{servers.free_port()}/postgres", "test")


async def test_database_that_could_lose_appends_is_refused(fresh_postgres_uri: Callable[[], str]) -> None:
    uri = f"{fresh_postgres_uri()}%20-csynchronous_commit%3Doff"
    with pytest.raises(UnsafeConfiguration):
        await open_stash_log(uri, "test")
    accepted = Settings(allow_unsafe=("postgres-synchronous-commit",))
    log = await open_stash_log(uri, "test", settings=accepted)
    await log.close()


async def test_read_only_server_is_told(fresh_postgres_uri: Callable[[], str]) -> None:
    uri = fresh_postgres_uri()
    async with opened(Place("postgres", uri)) as place:
        log = await place.log()
        assert await log.append([(A, 1)], 0, expected_upper=0) is None
        async with opened(Place("postgres", f"{uri}%20-cdefault_transaction_read_only%3Don")) as reading:
            reader = await reading.log()
            assert await reader.snapshot() == ([RowUpdate(A, 0, 1)], 1)
            with pytest.raises(StoreReadOnly):
                await reader.append([(B, 1)], 1, expected_upper=1)
