"""One token names one body: repeated, it returns the first outcome; another body under it is refused."""

import pytest
from catalog.conftest import Place
from catalog.memory_log import MemoryLog, MemoryRows
from unit.core.catalog.samples import cluster, user

from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.port import ReadWriteCatalog
from persist.core.catalog.kinds import CLUSTER, COMMIT, SETTING
from persist.core.catalog.objects import ClusterKey, Commit, CommitKey, Setting, SettingKey
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.ids import Token
from persist.errors import InvalidArgument
from persist.wire.catalog.rows import CODEC

ONE, TWO = ClusterKey(user(1)), ClusterKey(user(2))
KEY = SettingKey("k")
TOKEN = Token.named("once")


def begun(catalog: ReadWriteCatalog, value: str, *, order: bool = True) -> CatalogTransaction:
    transaction = catalog.transaction(token=TOKEN)
    steps = [lambda: transaction.set(SETTING, KEY, Setting(value)), lambda: transaction.set(CLUSTER, ONE, cluster("a"))]
    for step in steps if order else reversed(steps):
        step()
    return transaction


async def test_another_body_under_a_token_is_refused(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        upper = await catalog.commit(begun(catalog, "1"))
        for number, value in enumerate(("2", "1")):
            repeated = begun(catalog, value)
            if number:
                repeated.set(CLUSTER, TWO, None)
            with pytest.raises(InvalidArgument, match="token") as refused:
                await catalog.commit(repeated)
            assert refused.value.details["ts"] == str(upper - 1)
        deleting = catalog.transaction(token=TOKEN)
        deleting.set(SETTING, KEY, None)
        deleting.set(CLUSTER, ONE, None)
        with pytest.raises(InvalidArgument):
            await catalog.commit(deleting)
        assert catalog.get(SETTING, KEY) == Setting("1")
        assert catalog.upper == upper


async def test_the_same_body_is_told_the_first_outcome_whatever_came_since(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        first = begun(catalog, "1")
        upper = await catalog.commit(first)
        for repeated in (first, begun(catalog, "1"), begun(catalog, "1", order=False)):
            assert await catalog.commit(repeated) == upper
        await catalog.set(SETTING, {KEY: Setting("3")})
        await catalog.set(CLUSTER, {ONE: None})
        assert await catalog.commit(begun(catalog, "1")) == upper
        successor = await (await another()).open(1)
        assert await successor.commit(begun(successor, "1")) == upper
        with pytest.raises(InvalidArgument, match="token"):
            await successor.commit(begun(successor, "4"))
        assert successor.get(SETTING, KEY) == Setting("3")


async def test_what_was_so_already_belongs_to_the_body(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        await catalog.set(CLUSTER, {ONE: cluster("a")})
        upper = await catalog.commit(begun(catalog, "1"))
        assert await catalog.commit(begun(catalog, "1")) == upper
        alone = catalog.transaction(token=TOKEN)
        alone.set(SETTING, KEY, Setting("1"))
        with pytest.raises(InvalidArgument):
            await catalog.commit(alone)


async def test_a_commit_whose_body_was_not_kept_is_told_as_it_was():
    """Rows of before fingerprints were kept."""
    rows = MemoryRows()
    await DurableCatalog(MemoryLog(rows)).open(1)
    row = CODEC.encode(COMMIT.tag, CommitKey(TOKEN), Commit(1))
    assert await MemoryLog(rows).append([(row, 1)], rows.upper, expected_upper=rows.upper) is None
    catalog = await DurableCatalog(MemoryLog(rows)).open(1)
    assert await catalog.commit(begun(catalog, "1")) == 2
