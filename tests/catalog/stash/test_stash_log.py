"""What every RowLog promises, on all that are: memory, SQLite, PostgreSQL; and what is particular to a stash.

Source: the RowLog port; design document 2; reliability.md section 4.
"""

import asyncio
import random
import secrets
import sqlite3
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from catalog.stash.stash_places import HISTORY, Place, make_hasty, opened

from persist.client.catalog.log.stash_log import FORGET_EVERY, StashLog
from persist.client.catalog.port import RowLog
from persist.core.catalog.rows import Row, RowUpdate
from persist.errors import (
    CorruptData,
    Determinate,
    HistoryRewound,
    Indeterminate,
    InvalidBounds,
    NotReadable,
    StoreFull,
    VersionMismatch,
)
from persist.runtime import system
from persist.settings import Settings
from persist.storage.stash.port import Evidence, Stash, outcome
from persist.storage.stash.sqlite import SqliteStash
from persist.testing.faults import Direction, FaultProxy, Mode

A, B, C = Row("item", b"a", b"1"), Row("item", b"b", b"2"), Row("role", b"a", b"1")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return made(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return made(request, tmp_path)


def made(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind: str = request.param
    uri = f"sqlite:{tmp_path}/made/on demand/stash.db"
    return Place(kind, request.getfixturevalue("fresh_postgres_uri")() if kind == "postgres" else uri)


def net(updates: Iterable[RowUpdate]) -> dict[Row, int]:
    sums: Counter[Row] = Counter()
    for row, _, diff in updates:
        sums[row] += diff
    return {row: diff for row, diff in sums.items() if diff}


# ---- every log -------------------------------------------------------------------------------------------------------


async def test_rows_come_and_go_at_times(place: Place) -> None:
    async with opened(place):
        log = await place.log()
        assert await log.upper() == 0
        assert await log.snapshot() == ([], 0)
        assert await log.updates(0) == ([], 0)
        assert await log.append([(A, 1), (C, 1)], 5, expected_upper=0) is None
        assert await log.append([(A, -1), (B, 1)], 9, expected_upper=6) is None
        assert await log.upper() == 10
        found = await log.updates(0)
        assert sorted(found.updates) == sorted(
            [RowUpdate(A, 5, 1), RowUpdate(C, 5, 1), RowUpdate(A, 9, -1), RowUpdate(B, 9, 1)]
        )
        assert found.upper == 10
        assert sorted((await log.updates(6)).updates) == [RowUpdate(A, 9, -1), RowUpdate(B, 9, 1)]
        assert await log.updates(10) == ([], 10)
        snapshot = await log.snapshot()
        assert sorted(snapshot.updates) == [RowUpdate(B, 9, 1), RowUpdate(C, 9, 1)]
        assert snapshot.upper == 10


async def test_snapshot_of_some_kinds_has_all_of_them(place: Place) -> None:
    async with opened(place):
        log = await place.log()
        assert await log.append([(A, 1), (B, 1), (C, 1)], 0, expected_upper=0) is None
        found = await log.snapshot(["role"])
        assert RowUpdate(C, 0, 1) in found.updates
        assert net(found.updates).items() <= {A: 1, B: 1, C: 1}.items()
        both = await log.snapshot(kind for kind in ("item", "role"))
        assert net(both.updates) == {A: 1, B: 1, C: 1}
        assert [update for update in (await log.snapshot([])).updates if update.row.kind == "none"] == []


async def test_append_at_another_upper_changes_nothing_and_tells_the_upper(place: Place) -> None:
    async with opened(place):
        log, other = await place.log(), await place.log()
        assert await log.append([(A, 1)], 3, expected_upper=0) is None
        assert await other.append([(B, 1)], 3, expected_upper=0) == 4
        assert await other.append([(B, 1)], 9, expected_upper=9) == 4
        assert net((await log.updates(0)).updates) == {A: 1}
        assert await other.append([(B, 1)], 4, expected_upper=4) is None
        assert await log.upper() == 5
        with pytest.raises(InvalidBounds):
            await log.append([(C, 1)], 4, expected_upper=5)


async def test_append_without_changes_advances_the_upper_only(place: Place) -> None:
    async with opened(place):
        log = await place.log()
        assert await log.append([], 7, expected_upper=0) is None
        assert await log.append([(A, 1), (A, -1)], 8, expected_upper=8) is None
        assert await log.upper() == 9
        assert net((await log.updates(0)).updates) == {}
        assert await log.snapshot() == ([], 9)


async def test_contended_appends_win_every_upper_once(place: Place) -> None:
    """Writers with a connection each race for every upper; the rows say who won."""
    writers, wins_wanted = 6, 60
    async with opened(place):
        logs = [await place.log() for _ in range(writers)]
        won: dict[int, list[int]] = defaultdict(list)
        lost = 0

        async def write(me: int) -> None:
            nonlocal lost
            upper = 0
            while upper < wins_wanted:
                row = Row("item", b"%d" % upper, b"%d" % me)
                seen = await logs[me].append([(row, 1)], upper, expected_upper=upper)
                if seen is None:
                    won[upper].append(me)
                    upper += 1
                else:
                    assert seen > upper
                    lost += 1
                    upper = seen

        await asyncio.gather(*(write(me) for me in range(writers)))
        assert lost > 0
        assert sorted(won) == list(range(wins_wanted))
        assert all(len(winners) == 1 for winners in won.values())
        rows = [update.row for update in (await logs[0].updates(0)).updates]
        assert sorted(rows) == sorted(Row("item", b"%d" % at, b"%d" % who) for at, [who] in won.items())


async def test_changed_returns_when_the_upper_has_moved_or_time_is_up(place: Place) -> None:
    async with opened(place):
        log, other = await place.log(), await place.log()
        await log.changed(0, 0.01)
        waiting = asyncio.ensure_future(log.changed(0, 60.0))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        assert await other.append([(A, 1)], 0, expected_upper=0) is None
        await waiting
        assert await log.upper() == 1
        await log.changed(0, 60.0)


async def test_who_follows_sees_what_a_snapshot_shows(place: Place) -> None:
    """Random rows come and go; three logs follow at their own pace, one forgets."""
    draw = random.Random(4)
    async with opened(place):
        log = await place.log()
        followers = [(await place.log(), Counter[Row]()) for _ in range(3)]
        uppers = [0] * 3
        live: set[Row] = set()
        upper = 0
        for _ in range(60):
            row = Row(draw.choice(["item", "role"]), b"%d" % draw.randrange(6), b"v")
            diff = -1 if row in live else 1
            (live.remove if diff < 0 else live.add)(row)
            ts = upper + draw.randrange(3)
            assert await log.append([(row, diff)], ts, expected_upper=upper) is None
            upper = ts + 1
            if draw.random() < 0.3:
                await log.forget(upper // 2)
            for n, (follower, state) in enumerate(followers):
                if draw.random() < 0.3 * n:
                    try:
                        found = await follower.updates(uppers[n])
                    except NotReadable:
                        state.clear()
                        found = await follower.snapshot()
                    uppers[n] = found.upper
                    for update in found.updates:
                        state[update.row] += update.diff
                    assert found.upper == upper
                    assert {each for each, count in state.items() if count} == live
        assert net((await log.snapshot()).updates) == dict.fromkeys(live, 1)
        assert net((await log.updates(0)).updates) == dict.fromkeys(live, 1)


async def test_forgotten_rows_are_gone_and_who_is_far_behind_is_told(place: Place) -> None:
    async with opened(place):
        log = await place.log(history=HISTORY)
        for upper in range(40):
            row, before = (Row("item", b"key", b"%d" % n) for n in (upper, upper - 1))
            changes = [(row, 1), *([(before, -1)] if upper else [])]
            assert await log.append(changes, upper, expected_upper=upper) is None
        assert len((await log.updates(0)).updates) == 79
        last = Row("item", b"key", b"39")
        await log.forget(30)
        found = await log.updates(0)
        assert len(found.updates) <= 21
        assert net(found.updates) == {last: 1}
        assert net((await log.snapshot()).updates) == {last: 1}
        assert net((await log.updates(31)).updates) == {last: 1, Row("item", b"key", b"30"): -1}
        with pytest.raises(NotReadable):
            await log.updates(12)


# ---- every database --------------------------------------------------------------------------------------------------


async def test_rows_are_there_after_reopening(database: Place) -> None:
    async with opened(database):
        log = await database.log()
        assert await log.append([(A, 1)], 41, expected_upper=0) is None
        await log.close()
        again = await database.log()
        assert await again.updates(0) == ([RowUpdate(A, 41, 1)], 42)


async def test_environments_do_not_meet(database: Place) -> None:
    async with opened(database):
        one, other = await database.log("one"), await database.log("other")
        assert await one.append([(A, 1)], 5, expected_upper=0) is None
        assert await other.upper() == 0
        assert await other.append([(B, 1)], 2, expected_upper=0) is None
        assert await one.updates(0) == ([RowUpdate(A, 5, 1)], 6)
        assert await other.snapshot() == ([RowUpdate(B, 2, 1)], 3)


async def test_large_and_odd_bytes_come_back(database: Place) -> None:
    async with opened(database):
        log = await database.log("ümlaut'; --")
        rows = [Row("item", random.Random(n).randbytes(n), b"\0\xff" * n) for n in (0, 1, 5_000, 200_000)]
        assert await log.append([(row, 1) for row in rows], 0, expected_upper=0) is None
        assert net((await log.snapshot()).updates) == dict.fromkeys(rows, 1)
        assert await log.append([(row, -1) for row in rows], 1, expected_upper=1) is None
        assert await log.snapshot() == ([], 2)


async def test_newest_appends_are_never_forgotten(database: Place) -> None:
    """Who is fewer than that many appends behind can follow, whatever others forget."""
    async with opened(database):
        log = await database.log(history=HISTORY)
        for upper in range(20):
            await log.append([(A, 1 if upper % 2 == 0 else -1)], upper, expected_upper=upper)
        await log.forget(20)
        assert [update.ts for update in (await log.updates(20 - HISTORY)).updates] == list(range(20 - HISTORY, 20))
        with pytest.raises(NotReadable):
            await log.updates(20 - HISTORY - 1)
        short = await database.log("short", history=HISTORY)
        for upper in range(HISTORY - 1):
            await short.append([(A, 1 if upper % 2 == 0 else -1)], upper, expected_upper=upper)
        await short.forget(HISTORY)
        assert len((await short.updates(1)).updates) == HISTORY - 2


async def test_forgetting_goes_on_in_bounded_steps(database: Place) -> None:
    async with opened(database):
        log = await database.log(history=1)
        rows = [Row("item", b"%d" % n, b"v") for n in range(600)]
        await log.append([(row, 1) for row in rows], 0, expected_upper=0)
        await log.append([(row, -1) for row in rows[1:]], 1, expected_upper=1)
        await log.append([], 2, expected_upper=2)
        stash = database.stash(1)
        try:
            more = [await stash.forget("test", 3, timeout=60.0) for _ in range(3)]
            assert more == [True, True, False]
            assert not await stash.forget("test", 3, timeout=60.0)
        finally:
            await stash.close()
        assert (await log.updates(0)).updates == [RowUpdate(rows[0], 0, 1)]


async def test_forgetters_and_writers_at_once_lose_nothing(database: Place) -> None:
    async with opened(database):
        writer = await database.log(history=HISTORY)
        forgetters = [database.stash(HISTORY) for _ in range(2)]
        upper, steps = 0, 0

        async def forget(stash: Stash) -> None:
            nonlocal steps
            done = 0
            while done < 20:
                try:
                    await stash.forget("test", upper, timeout=60.0)
                except Determinate:
                    continue
                done += upper > 3 * HISTORY
            steps += done

        async def write() -> None:
            nonlocal upper
            while steps < 40:
                row, before = (Row("item", b"%d" % (n % 3), b"%d" % (n // 3)) for n in (upper, upper - 3))
                changes = [(row, 1), *([(before, -1)] if upper >= 3 else [])]
                assert await writer.append(changes, upper, expected_upper=upper) is None
                upper += 1

        try:
            await asyncio.gather(write(), *map(forget, forgetters))
        finally:
            for stash in forgetters:
                await stash.close()
        expected = {Row("item", b"%d" % (n % 3), b"%d" % (n // 3)): 1 for n in range(upper - 3, upper)}
        assert net((await writer.snapshot()).updates) == expected
        found = (await writer.updates(0)).updates
        assert net(found) == expected
        assert len(found) < 2 * upper - 3


async def test_forgetting_is_done_once_in_many_calls(database: Place) -> None:
    async with opened(database):
        log = await database.log(history=1)
        await log.forget(0)
        for upper in range(4):
            await log.append([(A, 1 if upper % 2 == 0 else -1)], upper, expected_upper=upper)
        for _ in range(FORGET_EVERY - 1):
            await log.forget(4)
        assert len((await log.updates(0)).updates) == 4
        await log.forget(4)
        # What was appended last stays apart: its retraction is all that is left of it.
        assert net((await log.updates(0)).updates) == {}
        assert len((await log.updates(0)).updates) == 2


async def test_newer_tables_are_left_alone(database: Place) -> None:
    async with opened(database):
        await database.log()
        await execute(database, "UPDATE stash_format SET version = 99")
        with pytest.raises(VersionMismatch):
            await database.log()


async def test_damaged_rows_are_told(database: Place) -> None:
    async with opened(database):
        log = await database.log()
        assert await log.append([(A, 1)], 0, expected_upper=0) is None
        for damage in ("value = key", "ts = 7", "kind = 'other'", "crc = crc + 1"):
            await execute(database, f"UPDATE stash_row SET {damage}")
            with pytest.raises(CorruptData):
                await log.updates(0)
            if damage != "ts = 7":
                with pytest.raises(CorruptData):
                    await log.snapshot()
            await execute(database, "UPDATE stash_row SET kind = 'item', ts = 0")
            log = await again(database, log)


async def again(database: Place, log: RowLog) -> RowLog:
    """The row as it was: taken away and written anew."""
    await execute(database, "DELETE FROM stash_row")
    upper = await log.upper()
    assert await log.append([(A, 1)], upper, expected_upper=upper) is None
    return log


async def test_restored_backup_is_told(database: Place) -> None:
    async with opened(database):
        log = await database.log()
        assert await log.append([(A, 1)], 9, expected_upper=0) is None
        await execute(database, "UPDATE stash_environment SET upper = 3")
        for call in (log.upper, log.snapshot, lambda: log.updates(0)):
            with pytest.raises(HistoryRewound):
                await call()
        with pytest.raises(HistoryRewound):
            await log.append([], 10, expected_upper=10)


async def execute(place: Place, statement: str) -> None:
    if place.kind == "postgres":
        async with await psycopg.AsyncConnection.connect(place.uri, autocommit=True) as connection:
            await connection.execute(statement)
        return
    with sqlite3.connect(place.uri.removeprefix("sqlite:")) as other:
        other.execute(statement)
    other.close()


async def test_tables_hold_what_the_formats_document_says(database: Place) -> None:
    """The golden file is a database of the first release: it is read for ever, and made by hand from the document."""
    golden = sqlite3.connect(":memory:")
    golden.executescript((Path(__file__).parents[2] / "golden/catalog/stash_v1.sql").read_text())
    async with opened(database):
        log = await database.log("golden")
        assert await log.append([(A, 1), (C, 1)], 4, expected_upper=0) is None
        assert await log.append([(A, -1), (B, 1)], 9, expected_upper=5) is None
        for question in (
            "SELECT kind, ts, diff, key, value, crc FROM stash_row ORDER BY ts, kind, key",
            "SELECT name, upper, since, appends FROM stash_environment",
            "SELECT slot, ts, length(token) FROM stash_append ORDER BY ts",
            "SELECT version FROM stash_format",
        ):
            assert await fetched(database, question) == golden.execute(question).fetchall()
    golden.close()


async def test_golden_database_is_read_and_written(tmp_path: Path) -> None:
    golden = sqlite3.connect(tmp_path / "x.db")
    golden.executescript((Path(__file__).parents[2] / "golden/catalog/stash_v1.sql").read_text())
    golden.close()
    async with opened(Place("sqlite", f"sqlite:{tmp_path}/x.db")) as place:
        log = await place.log("golden")
        assert net((await log.updates(0)).updates) == {B: 1, C: 1}
        assert sorted((await log.updates(5)).updates) == [RowUpdate(A, 9, -1), RowUpdate(B, 9, 1)]
        assert await log.append([(B, -1)], 10, expected_upper=10) is None
        assert await log.snapshot() == ([RowUpdate(C, 10, 1)], 11)


async def fetched(place: Place, question: str) -> list[tuple[object, ...]]:
    if place.kind == "postgres":
        async with await psycopg.AsyncConnection.connect(place.uri) as connection:
            return await (await connection.execute(question)).fetchall()
    other = sqlite3.connect(place.uri.removeprefix("sqlite:"))
    try:
        return other.execute(question).fetchall()
    finally:
        other.close()


# ---- appends whose answer was lost -----------------------------------------------------------------------------------


async def test_repeated_append_is_done_once(database: Place) -> None:
    stash = database.stash(HISTORY)
    try:
        token = secrets.token_bytes(16)
        arguments: dict[str, Any] = {"token": token, "timeout": 10.0}
        assert await stash.append("test", [], expected=0, ts=4, **arguments) is None
        assert await stash.append("test", [], expected=5, ts=5, token=b"other", timeout=60.0) is None
        assert await stash.append("test", [], expected=0, ts=4, again=True, **arguments) is None
        assert await stash.append("test", [], expected=0, ts=4, again=True, token=b"never", timeout=60.0) == 6
        assert await stash.upper("test", timeout=60.0) == 6
        with pytest.raises(Indeterminate):
            # It may be on its way still, and happen when another one makes the upper 9.
            await stash.append("test", [], expected=9, ts=9, again=True, token=b"early", timeout=60.0)
        for upper in range(6, 6 + HISTORY):
            assert await stash.append("test", [], expected=upper, ts=upper, token=b"%d" % upper, timeout=60.0) is None
        with pytest.raises(Indeterminate):
            await stash.append("test", [], expected=0, ts=4, again=True, **arguments)
    finally:
        await stash.close()


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Evidence(9, True, 8, 20), None),
        (Evidence(9, False, 7, 20), 9),
        (Evidence(9, False, 8, 3), 9),
        (Evidence(6, False, 8, 5), 6),
        (Evidence(9, False, 0, None), 9),
    ],
)
def test_tokens_tell_what_became_of_an_append(seen: Evidence, expected: int | None) -> None:
    assert outcome(seen, expected=5, ts=5, history=8) == expected


@pytest.mark.parametrize("seen", [Evidence(4, False, 3, 0), Evidence(99, False, 8, 6)])
def test_tokens_that_tell_nothing_are_not_taken_for_an_answer(seen: Evidence) -> None:
    with pytest.raises(Indeterminate):
        outcome(seen, expected=5, ts=5, history=8)


class ThenFull(SqliteStash):
    """Loses the answer to its first append, and takes no other."""

    appends = 0

    async def append(self, *args: Any, **kwargs: Any) -> int | None:
        self.appends += 1
        if self.appends > 1:
            raise StoreFull("no room left")
        await super().append(*args, **kwargs)
        raise Indeterminate("no answer")


async def test_what_stops_the_repetition_does_not_tell_what_became_of_the_first(tmp_path: Path) -> None:
    async with opened(Place("sqlite", f"sqlite:{tmp_path}/x.db")) as place:
        stash = ThenFull(f"{tmp_path}/x.db", system())
        log = StashLog(stash, "test", settings=Settings(), runtime=system())
        place.logs.append(log)
        with pytest.raises(Indeterminate) as caught:
            await log.append([(A, 1)], 0, expected_upper=0)
        assert isinstance(caught.value.__cause__, StoreFull)
        assert await log.upper() == 1


@asynccontextmanager
async def behind_proxy(uri: str) -> AsyncIterator[tuple[FaultProxy, str]]:
    parts = urlsplit(uri)
    async with FaultProxy(str(parts.hostname), parts.port or 0, seed=1) as proxy:
        yield proxy, uri.replace(f":{parts.port}/", f":{proxy.port}/")


async def test_append_whose_answer_is_lost_is_found_done(fresh_postgres_uri: Callable[[], str]) -> None:
    async with behind_proxy(fresh_postgres_uri()) as (proxy, uri), opened(Place("postgres", uri)) as far:
        log = await far.log()
        assert await log.append([(A, 1)], 0, expected_upper=0) is None
        proxy.set(Mode.RESET, Direction.DOWN)
        appending = asyncio.ensure_future(log.append([(B, 1)], 1, expected_upper=1))
        while not proxy.fired["reset down"]:
            await asyncio.sleep(0.005)
        proxy.set(Mode.PASS)
        assert await appending is None
        assert net((await log.snapshot()).updates) == {A: 1, B: 1}
        assert (await log.updates(0)).upper == 2


async def test_append_that_nothing_answers_is_indeterminate(fresh_postgres_uri: Callable[[], str]) -> None:
    async with behind_proxy(fresh_postgres_uri()) as (proxy, uri), opened(Place("postgres", uri)) as far:
        log = await far.log()
        make_hasty(log)  # once it is connected
        assert await log.append([(A, 1)], 0, expected_upper=0) is None
        proxy.set(Mode.DROP, Direction.DOWN)
        with pytest.raises(Indeterminate):
            await log.append([(B, 1)], 1, expected_upper=1)
        proxy.set(Mode.PASS)
        near = await far.log()
        assert net((await near.snapshot()).updates) == {A: 1, B: 1}


async def test_connections_cut_at_random_lose_and_repeat_nothing(fresh_postgres_uri: Callable[[], str]) -> None:
    """What is reported as done is there once; what is reported as not done is not."""
    async with behind_proxy(fresh_postgres_uri()) as (proxy, uri), opened(Place("postgres", uri)) as far:
        logs = [await far.log() for _ in range(3)]
        told: list[tuple[Row, bool]] = []
        proxy.cut_probability = 0.05

        async def write(me: int) -> None:
            upper = 0
            for n in range(80):
                row = Row("item", b"%d" % me, b"%d" % n)
                seen = await logs[me].append([(row, 1)], upper, expected_upper=upper)
                told.append((row, seen is None))
                upper = upper + 1 if seen is None else seen

        await asyncio.gather(*map(write, range(3)))
        proxy.cut_probability = 0.0
        assert sum(proxy.fired.values()) > 10
        found = net((await logs[0].snapshot()).updates)
        assert found == {row: 1 for row, done in told if done}
        assert len(found) == await logs[0].upper()
