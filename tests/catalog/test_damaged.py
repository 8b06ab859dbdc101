"""A catalog whose rows do not sum up: it can be looked at, edited, and made whole. Catalog-semantics.md 1.2.12."""

from collections.abc import Sequence

import pytest
from catalog.conftest import LogPlace, Place
from catalog.memory_log import MemoryLog, MemoryRows
from unit.core.catalog.samples import cluster, token, user

from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.port import RowLog
from persist.client.catalog.remote import RemoteCatalog
from persist.core.catalog.errors import FencedByEpoch
from persist.core.catalog.kinds import AUDIT_LOG, CLUSTER, CONFIG, FENCE_TOKEN, SETTING
from persist.core.catalog.objects import (
    AuditLogKey,
    ClusterKey,
    Config,
    FenceTokenKey,
    Setting,
    SettingKey,
)
from persist.core.catalog.open_rules import DATA_VERSION
from persist.core.catalog.rows import Row
from persist.core.catalog.values import AuditEventType, AuditNamedV1, ObjectType, Unit
from persist.errors import CorruptData, InvalidArgument
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CODEC

KEY, OTHER = SettingKey("motto"), SettingKey("other")
ONE, TWO = ClusterKey(user(1)), ClusterKey(user(2))
EVENT = CODEC.encode(
    AUDIT_LOG.tag, AuditLogKey(1, AuditEventType.CREATE, ObjectType.TABLE, None, 5, AuditNamedV1("u1", "t")), Unit()
)
VERSION = CODEC.encode(CONFIG.tag, DATA_VERSION, Config(MIGRATIONS.current))


def row(value: str) -> Row:
    return CODEC.encode(SETTING.tag, KEY, Setting(value))


def fence(epoch: int) -> Row:
    return CODEC.encode(FENCE_TOKEN.tag, FenceTokenKey(), token(1, epoch))


async def damage(log: RowLog, *changes: Sequence[tuple[Row, int]]) -> None:
    for at in changes:
        upper = await log.upper()
        assert await log.append(at, upper, expected_upper=upper) is None


DAMAGES: dict[str, tuple[list[list[tuple[Row, int]]], str | None]] = {
    # What a transaction of a fenced leader wrote, in two ways.
    "retraction of what is not there": ([[(row("seen"), -1), (row("late"), 1)]], "late"),
    "two values of a key": ([[(row("late"), 1)]], "late"),
    "a row that is there twice": ([[(row("true"), 1)]], "true"),
    "a row that went twice": ([[(row("true"), -1)], [(row("true"), -1)]], None),
    "two tokens": ([[(row("late"), 1), (fence(9), 1)]], "late"),
    "an event that is not there went": ([[(row("late"), 1), (EVENT, -1)]], "late"),
    "a data version that is there twice": ([[(VERSION, 1)]], "true"),
}


@pytest.mark.parametrize("log", ["memory", "shard-mem", "stash-sqlite"], indirect=True)
@pytest.mark.parametrize("kind", DAMAGES)
async def test_damaged_catalog_is_looked_at_and_repaired(log: LogPlace, kind: str):
    async with log as another:
        rows = await another()
        leader = await DurableCatalog(await another()).open(1)
        await leader.set(SETTING, {KEY: Setting("true"), OTHER: Setting("x")})
        changes, value = DAMAGES[kind]
        await damage(rows, *changes)
        catalog = DurableCatalog(await another())
        for opening in (catalog.open(1), catalog.open_read_only(), catalog.upgrade_check()):
            with pytest.raises(CorruptData):
                await opening
        last = 9 if kind == "two tokens" else 2
        assert (await catalog.is_initialized(), await catalog.fence_token()) == (True, token(1, last))
        before = await catalog.dump(consolidated=False)
        planned = await catalog.repair()
        assert (planned.token, planned.left) == (None, "")
        assert planned.damages
        assert await catalog.dump(consolidated=False) == before
        done = await catalog.repair(commit=True)
        assert (done.token, done.changes, done.left) == (token(1, last + 1), planned.changes, "")
        with pytest.raises((FencedByEpoch, CorruptData)):
            await leader.confirm_leadership()
        opened = await catalog.open(1)
        assert opened.token == token(1, last + 2)
        assert (opened.get(SETTING, KEY), opened.get(SETTING, OTHER)) == (value and Setting(value), Setting("x"))
        assert {update.diff for update in (await catalog.dump()).updates} == {1}
        assert (await catalog.repair(commit=True)).damages == ()
        await opened.set(SETTING, {KEY: Setting("next")})
        assert (await (DurableCatalog(await another())).open_read_only()).get(SETTING, KEY) == Setting("next")


@pytest.mark.parametrize("value", ["edited", "late", None])
async def test_edit_makes_its_object_whole_and_leaves_other_damage(log: LogPlace, value: str | None):
    async with log as another:
        rows = await another()
        await (await DurableCatalog(await another()).open(1)).set(SETTING, {KEY: Setting("true")})
        elsewhere = CODEC.encode(CLUSTER.tag, ONE, cluster("a"))
        await damage(rows, [(row("seen"), -1), (row("late"), 1), (elsewhere, -1)])
        catalog = DurableCatalog(await another())
        assert await catalog.edit(SETTING, KEY, value and Setting(value)) in (Setting("late"), Setting("true"))
        found = await catalog.dump(kinds=[SETTING.tag])
        mine = [update for update in found.updates if update.row.key == row("").key]
        assert [(update.row.value, update.diff) for update in mine] == ([(row(value).value, 1)] if value else [])
        with pytest.raises(CorruptData):
            await catalog.open(1)
        assert await catalog.edit(CLUSTER, ONE, cluster("b")) is None
        assert (await catalog.open(1)).objects(CLUSTER) == {ONE: cluster("b")}


async def test_whole_catalog_is_left_alone(place: Place):
    async with place as another:
        catalog = await another()
        leader = await catalog.open(1)
        if isinstance(catalog, RemoteCatalog):
            with pytest.raises(InvalidArgument, match="where its rows are"):
                await catalog.repair()
            return
        found = await (await another()).repair(commit=True)
        assert (found.damages, found.changes, found.token, found.left) == ((), (), None, "")
        await leader.confirm_leadership()


async def test_catalog_of_another_release_is_mended_too():
    rows = MemoryLog(MemoryRows())
    await DurableCatalog(rows).open(1)
    newer = CODEC.encode(CONFIG.tag, DATA_VERSION, Config(99))
    unknown = Row("novelty", b"\xff", b"\xff")
    await damage(rows, [(VERSION, -1), (newer, 1), (unknown, 1)], [(unknown, 1), (row("x"), -1)])
    done = await DurableCatalog(rows).repair(commit=True)
    assert {found.row for found in done.damages} == {unknown, row("x")}
    assert (done.token, "another data version" in done.left) == (token(1, 3), True)
    assert {update.diff for update in (await rows.snapshot()).updates} == {1}


async def test_what_no_sum_mends_is_told(log: LogPlace):
    async with log as another:
        rows = await another()
        await DurableCatalog(await another()).open(1)
        same = [CODEC.encode(CLUSTER.tag, key, cluster("same")) for key in (ONE, TWO)]
        await damage(rows, [(each, 1) for each in same], [(row("x"), -1)])
        catalog = DurableCatalog(await another())
        done = await catalog.repair(commit=True)
        assert [found.row for found in done.damages] == [row("x")]
        assert "a name is unique" in done.left
        await catalog.edit(CLUSTER, TWO, None)
        assert (await catalog.repair()).left == ""
        await catalog.open(1)
