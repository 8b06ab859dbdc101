"""What would end a catalog is refused, and so is what makes no sense: nothing changes, and all can go on."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from catalog.conftest import Place
from unit.core.catalog.samples import cluster, database, user

from persist.client.catalog.port import OpenableCatalog
from persist.core.catalog.kinds import AUDIT_LOG, CLUSTER, CONFIG, DATABASE, FENCE_TOKEN, SETTING
from persist.core.catalog.leadership.commit_rules import TIME_LIMIT
from persist.core.catalog.objects import (
    ClusterKey,
    Config,
    ConfigKey,
    DatabaseKey,
    FenceToken,
    FenceTokenKey,
    Setting,
    SettingKey,
)
from persist.core.catalog.open_rules import CONTENT_VERSION, DATA_VERSION
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import Unit
from persist.errors import InvalidArgument, RequestTooLarge, UsageError

ONE = ClusterKey(user(1))
WHEREVER = DatabaseKey(user(1))


def update(tx: CatalogTransaction, kind: Any, key: Any, value: Any) -> None:
    tx.update(kind, lambda it, _: value if it == key else None)
    tx.insert(kind, key, value)


WRITES: dict[str, Callable[[CatalogTransaction, Any, Any, Any], object]] = {
    "set": lambda tx, kind, key, value: tx.set(kind, key, value),
    "set_all": lambda tx, kind, key, value: tx.set_all(kind, [(key, value)]),
    "delete": lambda tx, kind, key, value: tx.delete(kind, lambda it, _: it == key),
    "update": update,
}


@pytest.mark.parametrize("write", WRITES)
async def test_no_transaction_changes_the_versions(place: Place, write: str):
    async with place as another:
        catalog = await (await another()).open(1)
        upper = catalog.upper
        versions: tuple[tuple[Any, Any, tuple[Any, ...]], ...] = (
            (CONFIG, DATA_VERSION, (None, Config(99))),
            (SETTING, CONTENT_VERSION, (None, Setting("99.0.0"))),
        )
        for kind, key, values in versions:
            for value in values:
                if value is None and write == "update":
                    continue
                transaction = catalog.transaction()
                transaction.set(CONFIG, ConfigKey("other"), Config(1))
                with pytest.raises(InvalidArgument, match="version"):
                    WRITES[write](transaction, kind, key, value)
                with pytest.raises(InvalidArgument, match="version"):
                    await catalog.set(kind, {key: value})
        assert catalog.upper == upper
        assert (await (await another()).open(1)).get(CONFIG, ConfigKey("other")) is None


async def test_no_edit_changes_the_versions_nor_takes_the_last_epoch(place: Place):
    async with place as another:
        await (await another()).open(1)
        catalog = await another()
        upper = (await catalog.dump()).upper
        wrong: list[tuple[Any, Any, Any]] = [
            (CONFIG, DATA_VERSION, Config(99)),
            (CONFIG, DATA_VERSION, None),
            (SETTING, CONTENT_VERSION, Setting("99.0.0")),
            (SETTING, CONTENT_VERSION, None),
            (FENCE_TOKEN, FenceTokenKey(), FenceToken(1, 2**64 - 1)),
        ]
        for kind, key, value in wrong:
            with pytest.raises(InvalidArgument):
                await catalog.edit(kind, key, value)
        assert (await catalog.dump()).upper == upper
        await (await another()).open(1)


async def test_a_far_time_is_refused(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        upper = catalog.upper
        for time in (TIME_LIMIT, 2**64 - 2, 2**64 - 1, 2**64, -1):
            transaction = catalog.transaction()
            transaction.set(SETTING, SettingKey("a"), Setting("1"))
            with pytest.raises(InvalidArgument):
                await catalog.commit(transaction, ts=time)
            with pytest.raises(InvalidArgument):
                await catalog.advance_upper(time + 1 if time == TIME_LIMIT else time)
        assert catalog.upper == upper
        # A clock of nanoseconds is not far.
        await catalog.advance_upper(1_800_000_000 * 10**9)
        again = await (await another()).open(1)
        await again.set(SETTING, {SettingKey("a"): Setting("1")})


async def opening(catalog: OpenableCatalog, how: str, generation: Any) -> None:
    await getattr(catalog, how)(generation)


SENSELESS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "value of another kind": lambda it: it.set(DATABASE, {WHEREVER: Setting("x")}),
    "key of another kind": lambda it: it.set(DATABASE, {ONE: database("x")}),
    "key that is none": lambda it: it.set(DATABASE, {"u1": database("x")}),
    "no kind": lambda it: it.set("database", {}),
    "ts that is none": lambda it: it.commit(it.transaction(), ts="1"),
    "upper that is none": lambda it: it.advance_upper("1"),
    "count that is none": lambda it: it.allocate("user", "1"),
    "count below zero": lambda it: it.allocate("user", -1),
    "count beyond all": lambda it: it.allocate("user", 2**64),
    "allocator that is none": lambda it: it.allocate(["user"]),
}


async def named(name: str, asked: Awaitable[object]) -> None:
    await asked
    pytest.fail(f"{name} was taken")


async def test_what_makes_no_sense_is_a_usage_error_and_changes_nothing(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        upper = catalog.upper
        for name, ask in SENSELESS.items():
            with pytest.raises(UsageError):
                await named(name, ask(catalog))
        transaction: Any = catalog.transaction()
        for call in (
            lambda: transaction.insert(DATABASE, WHEREVER, Setting("x")),
            lambda: transaction.set(DATABASE, WHEREVER, cluster("x")),
            lambda: transaction.insert(AUDIT_LOG, ONE, Unit()),
            lambda: transaction.retract(AUDIT_LOG, ONE),
            lambda: transaction.get("database", WHEREVER),
            lambda: transaction.get(DATABASE, [1]),
        ):
            with pytest.raises(InvalidArgument):
                call()
        await catalog.set(CLUSTER, {ONE: cluster("a")})
        assert catalog.upper == upper + 1


async def test_a_generation_is_a_number_of_64_bits(place: Place):
    async with place as another:
        catalog = await another()
        for how in ("open", "open_savepoint"):
            for generation in ("1", -1, 2**64, 1.0, True, None):
                with pytest.raises(UsageError) as refused:
                    await opening(catalog, how, generation)
                assert type(refused.value) is InvalidArgument
        assert not await catalog.is_initialized()


async def test_an_object_that_no_answer_could_hold_is_refused(place: Place):
    async with place as another:
        catalog = await (await another()).open(1)
        upper = catalog.upper
        with pytest.raises(RequestTooLarge, match="too large"):
            await catalog.set(SETTING, {SettingKey("large"): Setting("x" * (2 << 20))})
        assert catalog.upper == upper
        await catalog.set(SETTING, {SettingKey("large"): Setting("x" * ((2 << 20) - 100))})
        assert (await (await another()).open(2)).get(SETTING, SettingKey("large")) is not None
