"""Settings that are the library's own: no other program writes them, and what is none of its writing stops nothing."""

import logging

import pytest
from catalog.memory_log import MemoryLog, MemoryRows
from client.collections.environment.test_late_statements import QUICK, found
from client.support import client_of, memory_place
from services.catalog.cataloging import ENVIRONMENT, catalog_server, remote_catalog

from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.implementation import find_catalog
from persist.client.sql.session import SqlSession
from persist.core.catalog.ddl.asking.unreadable import READERS, unreadable
from persist.core.catalog.kept_settings import Own, own_key
from persist.core.catalog.kinds import SETTING
from persist.core.catalog.objects import Setting, SettingKey
from persist.errors import InvalidArgument

KEYS = [own_key(own, "house") for own in Own]
FORGED = {
    **dict.fromkeys(KEYS, Setting("yes")),
    SettingKey("moved 3"): Setting("never"),
    SettingKey("moved 7"): Setting("7 a:b"),
    SettingKey("moved 8"): Setting("7"),
    SettingKey("moved 256"): Setting("256"),
    SettingKey("moved 01"): Setting("1"),
    SettingKey("stalled u1"): Setting("soon"),
    SettingKey("granted table u1"): Setting("often"),
    SettingKey("made_by t00000000-0000-0000-0000-000000000000"): Setting("u1,?"),
}


def test_each_kind_has_a_form() -> None:
    assert set(READERS) == set(Own)
    assert set(unreadable(FORGED)) == set(FORGED)
    assert not list(unreadable({SettingKey("motto"): Setting("x"), SettingKey("moved"): Setting("x")}))


async def test_others_write_none_of_them() -> None:
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        writing = await catalog.join()
        for key in KEYS:
            with pytest.raises(InvalidArgument, match="the library's own"):
                await writing.set(SETTING, {key: Setting("yes")})
            with pytest.raises(InvalidArgument, match="the library's own"):
                await writing.set(SETTING, {key: None})
        await writing.set(SETTING, {SettingKey("moved"): Setting("house")})


async def test_one_is_taken_away_by_hand_but_not_made() -> None:
    log = MemoryRows()
    catalog = await DurableCatalog(MemoryLog(log)).open(1)
    forged = catalog.transaction()
    forged.keep(KEYS[0], Setting("yes"))
    await catalog.commit(forged)
    with pytest.raises(InvalidArgument, match="the library's own"):
        await DurableCatalog(MemoryLog(log)).edit(SETTING, KEYS[0], Setting("no"))
    assert await DurableCatalog(MemoryLog(log)).edit(SETTING, KEYS[0], None) == Setting("yes")


async def test_what_is_none_of_them_stops_nothing_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    place = memory_place()
    async with client_of(place, settings=QUICK) as client:
        durable = await find_catalog(client, ENVIRONMENT)
        assert isinstance(durable, DurableCatalog)
        catalog = await durable.open(1)
        forged = catalog.transaction()
        for key, setting in FORGED.items():
            forged.keep(key, setting)
        await catalog.commit(forged)
        await durable.close()
    with caplog.at_level(logging.WARNING):
        async with catalog_server(place, generation=2) as server, client_of(place, settings=QUICK) as client:
            environment = await client.environment(endpoints=server.endpoint)
            session = SqlSession(environment)
            await session.execute("create table t (id bigint) with (retain history for '1h'); create hold h on t")
            await session.execute("alter hold h advance; alter hold h advance")
            await session.execute("create role eve; grant select on table t to eve")
            assert len(await found(session, "show holds")) == 1
            await session.close()
            await environment.close()
    assert all(repr(key.name) in caplog.text for key in FORGED)
