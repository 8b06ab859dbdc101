"""Catalogs of older data versions, opened by this release. Catalog-semantics.md sections 1.2.2, 1.2.5 and 1.2.12."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from catalog.conftest import LogPlace, Logs
from catalog.memory_log import MemoryLog, MemoryRows
from golden.catalog.sample import stored
from unit.core.catalog.samples import token

from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.port import Dump, RowLog
from persist.core.catalog.errors import Fenced, FencedByEpoch, FencedByMigration, IncompatibleDataVersion
from persist.core.catalog.kinds import CONFIG, FENCE_TOKEN, ITEM, KINDS, SETTING
from persist.core.catalog.leadership.migrations import Upgrade
from persist.core.catalog.objects import Config, ConfigKey, FenceToken, FenceTokenKey, Setting
from persist.core.catalog.open_rules import CONTENT_VERSION, DATA_VERSION
from persist.core.catalog.rows import Row
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CODEC

CURRENT = MIGRATIONS.current
NAMED = {"cluster", "cluster_replica", "database", "item", "role", "schema"}


def rows_of(version: int) -> list[tuple[Row, int]]:
    """The stored catalog of a version, as a process with the first epoch left it."""
    # Stored objects are made at random, names too: of kinds with unique ones one is enough.
    one_of = {row.kind: row for row in stored(version) if row.kind in NAMED}
    rest = [row for row in stored(version) if row.kind not in (FENCE_TOKEN.tag, SETTING.tag, *NAMED)]
    kept = [*one_of.values(), *rest]
    head = CODEC.encode(FENCE_TOKEN.tag, FenceTokenKey(), FenceToken(1, 2))
    content = CODEC.encode(SETTING.tag, CONTENT_VERSION, Setting("0.1.0"))
    return [(row, 1) for row in (*kept, head, content)]


async def left(another: Logs, version: int) -> RowLog:
    log = await another()
    assert await log.append(rows_of(version), 0, expected_upper=0) is None
    # A log that has read holds what it may ask for next.
    await log.snapshot()
    return log


def net(dump: Dump) -> set[tuple[Row, int]]:
    """All rows but the token, which says how often the catalog was opened."""
    return {(update.row, update.diff) for update in dump.updates if update.row.kind != FENCE_TOKEN.tag}


@pytest.mark.parametrize("version", range(MIGRATIONS.min, CURRENT + 1))
async def test_every_step_is_an_append_of_its_own(log: LogPlace, version: int):
    async with log as another:
        rows = await left(another, version)
        opened = await DurableCatalog(await another()).open(1)
        assert opened.get(CONFIG, DATA_VERSION) == Config(CURRENT)
        updates, _ = await rows.updates(1)
        config = [
            (update.ts, CODEC.decode(update.row))
            for update in updates
            if update.diff > 0 and update.row.kind == CONFIG.tag
        ]
        came = {value.value: ts for ts, (key, value) in config if key == DATA_VERSION}
        # After the token, which is there before anything of another format is.
        first = 1 + 1
        assert {each: came[each] for each in range(version + 1, CURRENT + 1)} == {
            each: first + number for number, each in enumerate(range(version + 1, CURRENT + 1))
        }
        late = await DurableCatalog(await another()).open_read_only()
        for kind in KINDS:
            if not kind.append_only:
                assert late.objects(kind) == opened.objects(kind)
            assert late.count(kind) == opened.count(kind)


class Killed(BaseException):
    """The process is no more."""


class Dying(MemoryLog):
    """Its process is killed at one append: before it is done, or after."""

    def __init__(self, rows: MemoryRows, at: int, *, done: bool) -> None:
        super().__init__(rows)
        self._left = at
        self._done = done

    async def append(self, changes: list[tuple[Row, int]], ts: int, *, expected_upper: int) -> int | None:  # type: ignore[override]  # lists are all it gets
        self._left -= 1
        if self._left < 0 and not self._done:
            raise Killed
        found = await super().append(changes, ts, expected_upper=expected_upper)
        if self._left < 0:
            raise Killed
        return found


async def opened_at_last(make: Callable[[], MemoryLog], rows: MemoryRows) -> Dump:
    await DurableCatalog(make()).open(1)
    return await DurableCatalog(MemoryLog(rows)).dump()


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("version", range(CURRENT + 1))
async def test_wherever_a_process_dies_the_next_one_gets_the_same_catalog(version: int, done: bool):
    async def fresh() -> MemoryRows:
        rows = MemoryRows()
        if version:
            await MemoryLog(rows).append(rows_of(version), 0, expected_upper=0)
        return rows

    rows = await fresh()
    began = rows.appends
    whole = net(await opened_at_last(lambda: MemoryLog(rows), rows))
    appends = rows.appends - began
    assert appends >= 1 + (CURRENT - (version or CURRENT))
    for at in range(appends):
        dying = await fresh()
        with pytest.raises(Killed):
            await DurableCatalog(cast(Any, Dying(dying, at, done=done))).open(1)
        assert net(await opened_at_last(lambda: MemoryLog(dying), dying)) == whole  # noqa: B023  # called at once


async def test_who_only_reads_does_not_migrate(log: LogPlace):
    async with log as another:
        rows = await left(another, MIGRATIONS.min)
        catalog = DurableCatalog(await another())
        before = await rows.updates(0)
        for reading in (catalog.open_read_only(), catalog.edit(CONFIG, ConfigKey("x"), Config(1))):
            with pytest.raises(IncompatibleDataVersion) as refused:
                await reading
            assert refused.value.details["found"] == str(MIGRATIONS.min)
        assert await catalog.is_initialized()
        assert await rows.updates(0) == before


async def test_a_savepoint_and_a_check_migrate_without_effect(log: LogPlace):
    async with log as another:
        rows = await left(another, MIGRATIONS.min)
        catalog = DurableCatalog(await another())
        before = await rows.updates(0)
        savepoint = await catalog.open_savepoint(1)
        upgrade = await catalog.upgrade_check()
        assert await rows.updates(0) == before
        assert (upgrade.found, upgrade.current, len(upgrade.changed)) == (MIGRATIONS.min, CURRENT, CURRENT - 1)
        opened = await catalog.open(1)
        assert savepoint.objects(CONFIG) == opened.objects(CONFIG)
        # Items of sessions are gone from both.
        assert savepoint.objects(ITEM) == opened.objects(ITEM)
        assert await catalog.upgrade_check() == Upgrade(CURRENT, CURRENT, ())


@pytest.mark.parametrize("version", [0, CURRENT + 1])
async def test_versions_this_release_does_not_know_are_refused_before_anybody_is_fenced(log: LogPlace, version: int):
    async with log as another:
        rows = await another()
        config = CODEC.encode(CONFIG.tag, DATA_VERSION, Config(version))
        head = CODEC.encode(FENCE_TOKEN.tag, FenceTokenKey(), FenceToken(1, 2))
        await rows.append([(config, 1), (head, 1), (Row("a kind of tomorrow", b"k", b"v"), 1)], 0, expected_upper=0)
        catalog = DurableCatalog(await another())
        for opening in (catalog.open(2), catalog.open_savepoint(2), catalog.open_read_only(), catalog.upgrade_check()):
            with pytest.raises(IncompatibleDataVersion):
                await opening
        assert await catalog.fence_token() == token(1, 2)


class Moving(MemoryLog):
    """Another process appends something before one of this log's appends."""

    def __init__(self, rows: MemoryRows, at: int, theirs: list[tuple[Row, int]]) -> None:
        super().__init__(rows)
        self._left = at
        self._theirs = theirs

    async def append(self, changes: list[tuple[Row, int]], ts: int, *, expected_upper: int) -> int | None:  # type: ignore[override]  # lists are all it gets
        self._left -= 1
        if self._left == -1:
            upper = self.rows.upper
            assert await super().append(self._theirs, upper, expected_upper=upper) is None
        return await super().append(changes, ts, expected_upper=expected_upper)


@pytest.mark.parametrize("at", range(1, CURRENT))
@pytest.mark.parametrize("told", [FencedByMigration, FencedByEpoch])
async def test_who_is_moved_while_it_migrates_is_fenced_and_says_the_most_it_knows(at: int, told: type[Fenced]):
    rows = MemoryRows()
    await MemoryLog(rows).append(rows_of(MIGRATIONS.min), 0, expected_upper=0)
    mine, theirs = FenceToken(1, 3), FenceToken(1, 4)
    tokens = [(CODEC.encode(FENCE_TOKEN.tag, FenceTokenKey(), each), diff) for each, diff in ((mine, -1), (theirs, 1))]
    with pytest.raises(told):
        await DurableCatalog(cast(Any, Moving(rows, at, tokens if told is FencedByEpoch else []))).open(1)
    assert (await DurableCatalog(MemoryLog(rows)).open(1)).get(CONFIG, DATA_VERSION) == Config(CURRENT)
