"""A fence token that went too far is set back, and no holder of one before goes on. Catalog-semantics.md 1.2.12."""

import pytest
from catalog.conftest import LogPlace
from catalog.memory_log import MemoryLog, MemoryRows
from unit.core.catalog.samples import cluster, token, user

from persist.client.catalog.durable import DurableCatalog
from persist.core.catalog.errors import Fenced, FencedByEpoch, FencedByGeneration
from persist.core.catalog.kinds import CLUSTER, CONFIG, FENCE_TOKEN
from persist.core.catalog.leadership.fencing import EPOCH_LIMIT, KEY
from persist.core.catalog.objects import ClusterKey, Config, FenceToken
from persist.core.catalog.open_rules import FENCE_INCARNATION
from persist.core.catalog.rows import Row
from persist.errors import CorruptData, InvalidArgument
from persist.wire.catalog.rows import CODEC

ONE = ClusterKey(user(1))
FAR = 2**62


async def test_a_generation_that_is_far_too_high_is_set_back(log: LogPlace):
    async with log as another:
        mistaken = await DurableCatalog(await another()).open(FAR)
        await mistaken.set(CLUSTER, {ONE: cluster("a")})
        catalog = DurableCatalog(await another())
        with pytest.raises(FencedByGeneration):
            await catalog.open(1)
        before = await catalog.dump()
        assert (await catalog.repair(token=token(1, 2))).token is None
        assert await catalog.dump() == before
        assert (await catalog.repair(token=token(1, 2), commit=True)).token == token(1, 2)
        with pytest.raises(FencedByEpoch, match="set back by hand"):
            await mistaken.set(CLUSTER, {ONE: cluster("b")})
        opened = await catalog.open(1)
        assert opened.token == token(1, 3)
        assert opened.objects(CLUSTER) == {ONE: cluster("a")}
        with pytest.raises(InvalidArgument, match="too far above"):
            await DurableCatalog(await another()).open(FAR)
        await opened.confirm_leadership()


@pytest.mark.parametrize("forgetful", [False, True])
async def test_a_former_leader_stays_fenced_where_its_own_token_comes_again(forgetful: bool):
    rows = MemoryRows(forgetful=forgetful)

    def another() -> DurableCatalog:
        return DurableCatalog(MemoryLog(rows))

    await another().open(1)
    asleep = await another().open(1)
    await asleep.set(CLUSTER, {ONE: cluster("a")})
    await another().open(5)
    await another().repair(token=token(1, 2), commit=True)
    again = await another().open(1)
    assert again.token == asleep.token
    await again.set(CLUSTER, {ONE: cluster("c")})
    # What is remembered shows the generation in between; what was consolidated, of another incarnation alone.
    with pytest.raises(FencedByEpoch if forgetful else FencedByGeneration, match="set back" if forgetful else "newer"):
        await asleep.set(CLUSTER, {ONE: cluster("b")})
    with pytest.raises(Fenced):
        asleep.objects(CLUSTER)
    assert (await another().open_read_only()).objects(CLUSTER) == {ONE: cluster("c")}


async def test_edits_and_repairs_go_on_from_the_token_that_was_set_back(log: LogPlace):
    async with log as another:
        await DurableCatalog(await another()).open(FAR)
        catalog = DurableCatalog(await another())
        await catalog.repair(token=token(3, 1), commit=True)
        await catalog.edit(CLUSTER, ONE, cluster("a"))
        assert await catalog.fence_token() == token(3, 2)
        rows = await another()
        upper = await rows.upper()
        old = CODEC.encode(FENCE_TOKEN.tag, KEY, token(FAR, 2))
        assert await rows.append([(old, -1)], upper, expected_upper=upper) is None
        assert (await catalog.repair(commit=True)).token == token(3, 3)
        await catalog.repair(token=token(2, 1), commit=True)
        opened = await catalog.open(2)
        assert (opened.token, opened.get(CONFIG, FENCE_INCARNATION)) == (token(2, 2), Config(2))


async def test_an_epoch_that_leaves_none_is_set_back():
    rows = MemoryRows()
    catalog = DurableCatalog(MemoryLog(rows))
    opened = await catalog.open(1)
    last: list[tuple[Row, int]] = [
        (CODEC.encode(FENCE_TOKEN.tag, KEY, token(1, 2)), -1),
        (CODEC.encode(FENCE_TOKEN.tag, KEY, token(1, 2**64 - 1)), 1),
    ]
    assert await MemoryLog(rows).append(last, opened.upper, expected_upper=opened.upper) is None
    for call in (catalog.open(1), catalog.edit(CLUSTER, ONE, cluster("a"))):
        with pytest.raises(InvalidArgument, match=r"no epoch left.*persist catalog repair --epoch"):
            await call
    await catalog.repair(token=token(1, 1), commit=True)
    assert (await catalog.open(1)).token == token(1, 2)


@pytest.mark.parametrize("wanted", [token(2, 3), token(1, 2), token(0, EPOCH_LIMIT), token(0, -1), token(-1, 0)])
async def test_a_token_is_set_back_and_never_on(wanted: FenceToken):
    rows = MemoryRows()
    catalog = DurableCatalog(MemoryLog(rows))
    leader = await catalog.open(1)
    before = await catalog.dump()
    with pytest.raises(InvalidArgument):
        await catalog.repair(token=wanted, commit=True)
    assert await catalog.dump() == before
    await leader.confirm_leadership()


async def test_only_a_repair_says_the_incarnation_of_the_fence():
    catalog = DurableCatalog(MemoryLog(MemoryRows()))
    leader = await catalog.open(1)
    with pytest.raises(InvalidArgument, match="by a repair only"):
        await leader.set(CONFIG, {FENCE_INCARNATION: Config(7)})
    with pytest.raises(InvalidArgument, match="by a repair only"):
        await catalog.edit(CONFIG, FENCE_INCARNATION, Config(7))


async def test_rows_that_do_not_sum_up_are_mended_and_set_back_in_one_append():
    rows = MemoryRows()
    catalog = DurableCatalog(MemoryLog(rows))
    opened = await catalog.open(FAR)
    row = CODEC.encode(CLUSTER.tag, ONE, cluster("a"))
    assert await MemoryLog(rows).append([(row, -1)], opened.upper, expected_upper=opened.upper) is None
    with pytest.raises(CorruptData):
        await catalog.open(FAR)
    upper = await MemoryLog(rows).upper()
    done = await catalog.repair(token=token(1, 1), commit=True)
    assert (len(done.damages), await MemoryLog(rows).upper()) == (1, upper + 1)
    assert (await catalog.open(1)).token == token(1, 2)
