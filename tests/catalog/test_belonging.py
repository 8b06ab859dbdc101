"""What a transaction was made from is what it may be committed to; a commit of nothing is checked like any other.

Catalog-semantics.md sections 1.2.1 and 1.2.7.
"""

import contextlib
from pathlib import Path

import pytest
from catalog.conftest import LogPlace, Place
from catalog.memory_log import MemoryLog, MemoryRows
from unit.core.catalog.samples import cluster, user

import persist.client.catalog
import persist_catalog
from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.log.append import SnapshotMemory, append
from persist.client.catalog.port import OpenableCatalog
from persist.client.catalog.raw import RawCatalog
from persist.core.catalog.errors import Fenced, FencedByEpoch, OutOfSync
from persist.core.catalog.kinds import AUDIT_LOG, CLUSTER, SETTING
from persist.core.catalog.objects import AuditLogKey, ClusterKey, Setting, SettingKey
from persist.core.catalog.rows import Row
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.values import AuditEventType, AuditNamedV1, ObjectType
from persist.errors import InvalidArgument
from persist.wire.catalog.rows import CODEC

KEY = SettingKey("motto")
ONE = ClusterKey(user(1))


def row(name: str, value: str) -> Row:
    return CODEC.encode(SETTING.tag, SettingKey(name), Setting(value))


async def undamaged(catalog: OpenableCatalog) -> None:
    """Every process can still open it, and each row is there once."""
    rows = (await catalog.dump()).updates
    assert {update.diff for update in rows} == {1}
    await catalog.open_read_only()
    await catalog.open(1)


@pytest.mark.parametrize("there", [None, "old"])
async def test_transaction_of_a_fenced_leader_is_refused_by_the_next_one(place: Place, there: str | None):
    async with place as another:
        catalog = await another()
        first = await catalog.open(1)
        await first.set(SETTING, {KEY: Setting(there) if there else None})
        late = first.transaction()
        late.set(SETTING, KEY, Setting("late"))
        second = await (await another()).open(1)
        await second.set(SETTING, {KEY: Setting("true")})
        with pytest.raises(FencedByEpoch):
            await first.commit(late)
        third = await catalog.open(1)
        if there is not None:
            # As many changes as the fenced one had seen.
            await third.set(CLUSTER, {ONE: cluster("a")})
        before = await catalog.dump(consolidated=False)
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="another"):
                await third.commit(late)
        assert await catalog.dump(consolidated=False) == before
        assert third.get(SETTING, KEY) == Setting("true")
        await third.set(SETTING, {KEY: Setting("next")})
        await undamaged(await another())


async def test_transaction_that_only_read_is_refused_by_another_handle(place: Place):
    async with place as another:
        catalog = await another()
        first = await catalog.open(1)
        await first.set(SETTING, {KEY: Setting("seen")})
        late = first.transaction()
        assert late.get(SETTING, KEY) == Setting("seen")
        late.set(CLUSTER, ONE, cluster("a"))
        second = await (await another()).open(1)
        await second.set(SETTING, {KEY: Setting("changed")})
        third = await catalog.open(1)
        await third.set(SETTING, {SettingKey("other"): Setting("as many changes as the fenced one had seen")})
        with pytest.raises(InvalidArgument, match="another"):
            await third.commit(late)
        assert third.objects(CLUSTER) == {}


async def test_transaction_of_another_environment_is_refused():
    here = await DurableCatalog(MemoryLog(MemoryRows())).open(1)
    there = await DurableCatalog(MemoryLog(MemoryRows())).open(1)
    transaction = here.transaction()
    transaction.set(SETTING, KEY, Setting("x"))
    upper = there.upper
    with pytest.raises(InvalidArgument, match="another"):
        await there.commit(transaction)
    assert (there.upper, there.get(SETTING, KEY)) == (upper, None)
    await here.commit(transaction)


async def test_event_that_is_not_there_does_not_go(log: LogPlace):
    async with log as another:
        rows = await another()
        opened = await DurableCatalog(rows).open(1)
        transaction = opened.transaction()
        event = AuditLogKey(1, AuditEventType.CREATE, ObjectType.TABLE, None, 5, AuditNamedV1("u1", "t"))
        transaction.retract(AUDIT_LOG, event)
        upper = await rows.upper()
        with pytest.raises(OutOfSync):
            await opened.commit(transaction)
        assert await rows.upper() == upper
        await undamaged(DurableCatalog(await another()))


MISFITS = {
    "retraction of what is not there": [(row("a", "2"), -1)],
    "retraction of a key that is not there": [(row("b", "1"), -1)],
    "insertion over what is there": [(row("a", "2"), 1)],
    "one key twice": [(row("b", "1"), 1), (row("b", "2"), 1)],
    "a good change beside a bad one": [(row("b", "1"), 1), (row("a", "2"), -1)],
}


@pytest.mark.parametrize("changes", MISFITS.values(), ids=MISFITS)
async def test_what_misfits_is_refused_before_it_is_appended(log: LogPlace, changes: list[tuple[Row, int]]):
    async with log as another:
        rows = await another()
        assert await rows.append([(row("a", "1"), 1)], 0, expected_upper=0) is None
        raw = RawCatalog(CODEC, await rows.snapshot())
        snapshot = Snapshot.of(CODEC, (await rows.snapshot()).updates)
        for memory in (raw, SnapshotMemory(snapshot, CODEC)):
            with pytest.raises(InvalidArgument, match="do not fit"):
                await append(rows, memory, changes, 1, expected_upper=1)
        assert (await rows.upper(), raw.rows) == (1, {SETTING.tag: {row("a", "1").key: row("a", "1").value}})
        assert (snapshot.version, snapshot.get(SETTING, SettingKey("a"))) == (0, Setting("1"))
        assert await append(rows, raw, [(row("a", "2"), 1), (row("a", "1"), -1)], 1, expected_upper=1) is None


@pytest.mark.parametrize("how", ["set", "commit", "read", "nothing"])
async def test_fenced_leader_that_commits_nothing_new_is_told(place: Place, how: str):
    async with place as another:
        zombie = await (await another()).open(1)
        await zombie.set(SETTING, {KEY: Setting("mine")})
        transaction = zombie.transaction()
        if how == "commit":
            transaction.set(SETTING, KEY, Setting("mine"))
        elif how == "read":
            assert transaction.get(SETTING, KEY) == Setting("mine")
        leader = await (await another()).open(1)
        await leader.set(SETTING, {KEY: Setting("theirs")})
        with pytest.raises(Fenced):
            await (zombie.set(SETTING, {KEY: Setting("mine")}) if how == "set" else zombie.commit(transaction))
        assert leader.get(SETTING, KEY) == Setting("theirs")


async def test_commit_of_nothing_goes_on_with_what_was_confirmed(place: Place):
    async with place as another:
        leader = await (await another()).open(1)
        upper = await leader.set(SETTING, {KEY: Setting("mine")})
        assert await leader.set(SETTING, {KEY: Setting("mine")}) == upper
        assert await leader.commit(leader.transaction(), ts=10**6) == upper
        assert leader.upper == upper


async def test_who_knows_that_it_is_fenced_answers_nothing(place: Place):
    async with place as another:
        zombie = await (await another()).open(1)
        await zombie.set(SETTING, {KEY: Setting("mine")})
        begun = zombie.transaction()
        await (await another()).open(1)
        assert zombie.get(SETTING, KEY) == Setting("mine"), "it cannot know yet"
        with contextlib.suppress(Fenced):
            await zombie.confirm_leadership()
        for ask in (
            lambda: zombie.get(SETTING, KEY),
            lambda: zombie.objects(SETTING),
            lambda: zombie.count(SETTING),
            lambda: zombie.transaction().get(SETTING, KEY),
            lambda: begun.get(SETTING, KEY),
            lambda: begun.objects(SETTING),
            lambda: begun.set(SETTING, KEY, Setting("x")),
        ):
            with pytest.raises(FencedByEpoch):
                ask()


def test_rows_get_into_a_log_in_one_place():
    folders = [Path(package.__file__ or "").parent for package in (persist.client.catalog, persist_catalog)]
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    calls = {path.name for path in sources if "log.append(" in path.read_text()}
    # A log that passes it to a mirror is asked in its turn.
    assert calls == {"append.py", "mirror.py"}
