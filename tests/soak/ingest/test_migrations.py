"""A database lives, and two ingesters of it are killed: every table is what SELECT says, or its stall is named.

Sessions write and migrate at random; ingesters and the server are killed; what stops a table is put right as an
operator would. At points of time the sessions stand still, and all that follows is compared with what the tables hold.
"""

import contextlib
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from forked import Fork
from soak.ingest.migrations import MARKS, SETUP, TABLES, Session, held, plain, put_right, still
from soak.support import LIMIT_SECONDS, pick

from persist import LocationError, UsageError
from persist.testing import servers
from persist_ingest import Location, Records, add_export, create, drop_export, resnapshot, status
from persist_ingest.location import client

SECONDS = float(os.environ.get("PERSIST_MIGRATION_SECONDS", pick(16, 3_600)))
POINTS = int(os.environ.get("PERSIST_MIGRATION_POINTS", pick(3, 100)))
SEED = int(os.environ.get("PERSIST_MIGRATION_SEED", pick(7, random.randrange(10**6))))
SESSIONS = 3
KILL_SECONDS = pick(3.0, 8.0)
RESTARTS = pick(1, 20)
FOLLOW_SECONDS = 180.0
"""Within which a table follows, or says why it does not, while nothing changes."""
COLUMNS_KEPT = 40
"""An export with more columns, most of them gone upstream, is given up and taken in anew."""


@dataclass
class Seen:
    """What was found at the points."""

    equal: int = 0
    stalled: Counter[str] = field(default_factory=Counter)
    mended: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    restarts: int = 0
    rows: int = 0


class Ingester:
    """``persist source run`` as a process, that is killed and begun again."""

    def __init__(self, directory: Path, number: int) -> None:
        self._log = directory / f"ingester-{number}.log"
        where = ("--location", directory / "data", "--state-dir", directory / f"state-{number}")
        self._words = ("source", "run", "shop", "--no-spark", "--tick-ms", "100", *where)
        self.process: Fork | None = None

    def start(self) -> None:
        self.process = Fork("persist_cli", *self._words, log=self._log)

    def check(self) -> None:
        """It has not ended by itself."""
        assert self.process is not None
        assert self.process.returncode is None, self.last_words()

    def last_words(self) -> str:
        """Whether it runs, and what it wrote last."""
        assert self.process is not None
        return f"ended with {self.process.returncode}: {self._log.read_text()[-3000:]}"

    def kill(self) -> None:
        self.check()
        assert self.process is not None
        self.process.kill()
        self.process.join()


class Mender(threading.Thread):
    """Puts right what stops a table, and has it read anew."""

    def __init__(self, here: Location, dsn: str, seen: Seen, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self._here, self._dsn, self._seen, self._stopping = here, dsn, seen, stopping
        self._failed: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.wait(1.0):
                with contextlib.suppress(psycopg.Error, LocationError):
                    self._round()
        except BaseException as error:
            self.failure = error
            raise

    def _round(self) -> None:
        source = Records(client(self._here)).source("shop")
        wanted = [each for each in TABLES if each in source.troubles or each not in source.exports]
        wanted += [each for each in TABLES if each not in wanted and self._is_wide(source, each)]
        if not wanted:
            return
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("SET lock_timeout = '5s'")
            put_right(connection)
        for export in wanted:
            if export in source.troubles:
                self._seen.mended[str(source.troubles[export]["error"])[:60]] += 1
            try:
                if export in source.exports and (self._failed[export] > 2 or export not in source.troubles):
                    drop_export(self._here, "shop", export)
                    self._failed[export] = 0
                elif export in source.exports:
                    resnapshot(self._here, "shop", export)
                    self._failed[export] = 0
                else:
                    add_export(self._here, "shop", export)
            except UsageError as error:
                # What it needs is gone again, or is not there yet: another session was faster.
                print("not mended:", export, error)
                self._failed[export] += 1

    def _is_wide(self, source: Any, export: str) -> bool:
        return len(client(self._here).schema(source.shards[export]).updates.names) > COLUMNS_KEPT


@pytest.fixture
def upstream() -> Iterator[servers.Server]:
    with servers.start_postgres({"wal_level": "logical", "fsync": "off", "deadlock_timeout": "200ms"}) as server:
        yield server


@pytest.mark.timeout_s(LIMIT_SECONDS + SECONDS)
@pytest.mark.timeout(LIMIT_SECONDS + SECONDS)
def test_every_table_is_what_select_says_or_its_stall_is_named(
    here: Location, upstream: servers.Server, tmp_path: Path
) -> None:
    print("seed", SEED)
    dsn = f"host=127.0.0.1 port={upstream.port} user=postgres dbname=postgres"
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in SETUP:
            connection.execute(statement.encode())
    tables = ",".join([MARKS, *TABLES])
    create(here, "shop", "postgres", {"dsn": dsn, "tables": tables, "onAltered": "resnapshot"}, interval_ms=50)
    ingesters = [Ingester(tmp_path, number) for number in range(2)]
    for each in ingesters:
        each.start()
    seen, stopping = Seen(), threading.Event()
    sessions = [Session(dsn, SEED * 10 + number, time.sleep, stopping) for number in range(SESSIONS)]
    mender = Mender(here, dsn, seen, stopping)
    threads: list[Session | Mender] = [*sessions, mender]
    for thread in threads:
        thread.start()
    failures: list[BaseException] = []
    killing = threading.Thread(
        target=_guarded, args=(failures, _kill, here, ingesters, upstream, sessions, seen, stopping), daemon=True
    )
    killing.start()

    def check() -> None:
        """Nothing of what is done to the source ended by itself."""
        assert mender.failure is None, mender.failure
        assert not failures, failures

    begun = time.monotonic()
    try:
        for number in range(1, POINTS + 1):
            while time.monotonic() < begun + SECONDS * number / POINTS and not failures:
                time.sleep(0.2)
            assert not failures, failures
            with still(sessions):
                _compare(here, dsn, number, seen, check)
            assert not any(thread.failure for thread in threads), [thread.failure for thread in threads]
        counts = status(here, "shop", ask_upstream=False, count_rows=True).counts
        assert not any(each.negative for each in counts.values()), counts
    except AssertionError as error:
        for each in ingesters:
            error.add_note(each.last_words())
        raise
    finally:
        stopping.set()
        for ending in (*threads, killing):
            ending.join(60)
        for each in ingesters:
            if each.process is not None:
                each.process.close()
        print(seen)
        print("done", sum((each.done for each in sessions), Counter()).most_common())
        print("refused", sum((each.refused for each in sessions), Counter()).most_common(40))
    assert not failures, failures
    assert seen.equal > 3 * sum(seen.stalled.values()), seen
    assert seen.kills > POINTS // 4, seen


def _guarded(failures: list[BaseException], action: Any, *given: Any) -> None:
    try:
        action(*given)
    except BaseException as error:
        failures.append(error)


def _kill(
    here: Location,
    ingesters: list[Ingester],
    upstream: servers.Server,
    sessions: list[Session],
    seen: Seen,
    stopping: threading.Event,
) -> None:
    """One ingester after the other, and now and then the server: anywhere, but not before they did anything."""
    chance = random.Random(SEED)
    marks = Records(client(here)).source("shop").shards[MARKS]
    restarts = [SECONDS * (number + 0.5) / RESTARTS for number in range(RESTARTS)]
    begun = time.monotonic()
    while not stopping.wait(chance.uniform(0.2, 1.0) * KILL_SECONDS):
        before = client(here).recent_upper(marks)
        while not stopping.wait(chance.uniform(0.0, 0.3)) and client(here).recent_upper(marks) == before:
            for each in ingesters:
                each.check()
        victim = chance.choice(ingesters)
        victim.kill()
        seen.kills += 1
        if restarts and time.monotonic() - begun > restarts[0]:
            restarts.pop(0)
            with still(sessions):
                upstream.kill()
                upstream.start()
            seen.restarts += 1
        victim.start()
        for each in ingesters:
            each.check()


def _compare(here: Location, dsn: str, number: int, seen: Seen, check: Callable[[], None]) -> None:
    with _connected(dsn) as connection:
        connection.execute(f"INSERT INTO marks VALUES ({number})".encode())
        give_up = time.monotonic() + FOLLOW_SECONDS
        marked: int | None = None
        left = set(TABLES)
        named: dict[str, str] = {}
        while left and time.monotonic() < give_up:
            check()
            time.sleep(0.2)
            source = Records(client(here)).source("shop")
            assert MARKS not in source.troubles, source.troubles[MARKS]
            if marked is None:
                marked = _marked(here, source, number)
                continue
            for export in sorted(left):
                trouble = source.troubles.get(export)
                if trouble is not None or export not in source.exports:
                    named[export] = "not taken in yet" if trouble is None else str(trouble.get("error", ""))
                    continue
                upper = client(here).recent_upper(source.shards[export]).time
                if upper is not None and upper >= marked and _is_equal(here, source, export, upper, connection, number):
                    seen.equal += 1
                    left.discard(export)
        assert marked is not None, ("the mark does not arrive", status(here, "shop"))
        for export in left:
            source = Records(client(here)).source("shop")
            trouble = source.troubles.get(export)
            assert trouble is not None or export not in source.exports, (export, named.get(export))
            assert trouble is None or (trouble["error"] and trouble["hint"]), trouble
            seen.stalled[named[export][:60]] += 1


def _marked(here: Location, source: Any, number: int) -> int | None:
    """An upper at which the mark is there."""
    upper = client(here).recent_upper(source.shards[MARKS]).time
    if not upper:
        return None
    with client(here).open_reader(source.shards[MARKS]) as reader:
        there = reader.snapshot(upper - 1).to_arrow(["id"])
    return upper if number in there["id"].to_pylist() else None


def _is_equal(here: Location, source: Any, export: str, upper: int, connection: Any, number: int) -> bool:
    """Whether an export holds what its table does; False: it is just being changed, for its source. Raises."""
    names, wanted = held(connection, export)
    try:
        with client(here).open_reader(source.shards[export]) as reader:
            table = reader.snapshot(upper - 1).to_arrow()
    except UsageError:
        assert _is_changing(here, source, export)
        return False
    found: Counter[Any] = Counter()
    by_name = {name: [each for each in table.schema.names if _is_of(name, each)] for name in names}
    rest = set(table.schema.names) - {each for group in by_name.values() for each in group} - {"diff"}
    rows: dict[str, list[Any]] = {name: table[name].to_pylist() for name in table.schema.names}
    for at, diff in enumerate(rows["diff"]):
        assert not any(rows[name][at] is not None for name in rest), (export, rest, "a column that is gone is not null")
        row = []
        for name in names:
            values = [rows[each][at] for each in by_name[name] if rows[each][at] is not None]
            assert len(values) < 2, (export, name, values)
            row.append(plain(values[0]) if values else None)
        found[tuple(row)] += diff
    if found == wanted:
        assert all(count > 0 for count in found.values())
        return True
    if _is_changing(here, source, export):
        return False
    raise AssertionError(f"point {number}, {export}: too much {(found - wanted)}, missing {(wanted - found)}")


def _is_changing(here: Location, source: Any, export: str) -> bool:
    """Whether an export was stopped, or taken out, since it was looked at."""
    now = Records(client(here)).source("shop")
    return export in now.troubles or now.exports.get(export) != source.exports[export]


def _is_of(name: str, field: str) -> bool:
    """Whether a field is of that column: under its name, or one that it got with another type."""
    return re.fullmatch(rf"{name}(_\d+)?", field) is not None


@contextlib.contextmanager
def _connected(dsn: str) -> Iterator[Any]:
    """Once the server is there: it may be restarted."""
    connection = None
    while connection is None:
        with contextlib.suppress(psycopg.OperationalError):
            connection = psycopg.connect(dsn, autocommit=True)
    with connection:
        yield connection
