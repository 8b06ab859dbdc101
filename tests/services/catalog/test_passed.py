"""What is remembered by hashes of what was touched: the same as by objects and names."""

import random

from persist.core.catalog.kinds import DATABASE, SETTING
from persist.core.catalog.objects import Database, DatabaseKey, Setting, SettingKey
from persist.core.catalog.snapshot import Change
from persist.core.catalog.values import Id, RoleRef, Space
from persist.wire.catalog.rpc_footprint import ToldFootprint, Touched, fingerprint
from persist_catalog import passed
from persist_catalog.passed import Passed


def change(choice: random.Random) -> Change:
    if choice.random() < 0.5:
        return Change(SETTING, SettingKey(str(choice.randrange(200))), None, Setting("1"))
    number = choice.randrange(200)
    key = DatabaseKey(Id(Space.USER, number))
    return Change(DATABASE, key, None, Database(f"d{choice.randrange(200)}", RoleRef(Space.USER, 1), oid=number))


def depends(choice: random.Random) -> ToldFootprint:
    footprint = ToldFootprint()
    for _ in range(choice.randrange(4)):
        of = change(choice)
        footprint.keys.add((of.kind, of.key))
        of = change(choice)
        footprint.fingerprints |= {(of.kind, fingerprint(name)) for name in of.kind.names(of.after)}
        footprint.names |= set() if choice.random() < 0.9 else {(of.kind, name) for name in of.kind.names(of.after)}
    footprint.kinds |= {SETTING} if choice.random() < 0.1 else set()
    return footprint


async def test_hashes_say_the_same_as_objects_and_names_from_any_time_on(monkeypatch):
    monkeypatch.setattr(passed, "PIECE", 40)
    monkeypatch.setattr(passed, "KEPT_MAX", 300)
    choice, it, times = random.Random(7), Passed(), dict[int, Touched]()
    it.begin(10)
    met = gone = 0
    for ts in range(10, 300):
        touched = times[ts] = Touched()
        for _ in range(choice.choice([0, 1, 1, 2, 60])):
            touched.add(change(choice))
        await it.add(ts, touched)
        it.upper = ts + 1
        footprint, lower = depends(choice), choice.randrange(max(it.since, ts - 40), ts + 2)
        upper, found = await it.met_by(footprint, lower)
        wanted = [each for at in range(lower, ts + 1) for each in times[at].met_by(footprint)]
        assert (upper, bool(found)) == (ts + 1, bool(wanted))
        assert {tag for tag, _ in found} == {tag for tag, _ in wanted}
        met, gone = met + bool(found), max(gone, it.since)
        assert it._kept <= 300 + 200
    assert met > 20
    assert gone > 100


async def test_what_one_waits_for_is_kept_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(passed, "PIECE", 10)
    monkeypatch.setattr(passed, "KEPT_MAX", 50)
    monkeypatch.setattr(passed, "HELD_MAX", 200)
    it, since = Passed(), list[int]()
    it.held.append(30)
    for ts in range(400):
        touched = Touched()
        touched.add(Change(SETTING, SettingKey(str(ts)), None, Setting("1")))
        await it.add(ts, touched)
        since.append(it.since)
    assert since[150] == since[100] == 30
    assert since[399] > 150
