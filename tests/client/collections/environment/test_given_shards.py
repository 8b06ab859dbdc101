"""Shards that statements name, and those that follow from names: what has other columns is refused, or set aside."""

import pyarrow as pa
import pytest
from client.collections.environment.test_late_statements import QUICK, ROWS
from client.support import client_of, memory_place

from persist.client.collections.environment import Environment
from persist.core.catalog.ddl.planning.creating import gone_key
from persist.core.catalog.ddl.statements import (
    Adopt,
    CreateSchema,
    CreateSource,
    CreateTable,
    Export,
    QualifiedName,
    Statement,
)
from persist.core.catalog.kinds import SETTING
from persist.core.data.schema import Schema
from persist.core.ids import ShardId
from persist.core.names import new_shard
from persist.errors import SchemaMismatch
from persist.runtime import system

OTHER = Schema({"x": pa.string()})
GIVEN = ShardId.named("tests", "given")
ASKED: dict[str, Statement] = {
    "adopt": Adopt(QualifiedName("a"), GIVEN, ROWS),
    "source": CreateSource(QualifiedName("s"), "loadgen", exports=(Export("a", ROWS, GIVEN),)),
}


async def gone(environment: Environment, shard: ShardId) -> bool:
    catalog = await environment._opened()
    return catalog.get(SETTING, gone_key(shard)) is not None


@pytest.mark.parametrize("case", ASKED)
async def test_a_given_shard_with_other_columns_is_refused_at_once_and_stays_as_it_is(case: str):
    async with client_of(memory_place(), settings=QUICK) as client:
        environment = await client.environment()
        await client.open_writer(GIVEN, schema=OTHER)
        began = system().monotonic()
        with pytest.raises(SchemaMismatch, match="this shard has other columns"):
            await environment.execute(ASKED[case])
        # Half of the time for which it was tried again.
        assert system().monotonic() - began < QUICK.timeout_ms / 4_000
        await environment.strict_view()
        assert not await gone(environment, GIVEN)
        assert await client.schema(GIVEN) == OTHER
        await environment.close()


async def test_a_shard_that_follows_from_a_name_or_an_id_is_set_aside_where_it_has_other_columns():
    async with client_of(memory_place(), settings=QUICK) as client:
        environment = await client.environment()
        first = new_shard("t", "wal", "M")
        await client.open_writer(first, schema=OTHER)
        (made,) = await environment.execute(CreateTable(QualifiedName("t"), ROWS))
        assert (await environment.resolve("t")).data not in (None, first)
        assert await gone(environment, first)
        await environment.execute(CreateSchema("s"))
        assert made.id is not None
        following = ShardId.named("persist.collection", environment.name, f"u{made.id.number + 1}")
        await client.open_writer(following, schema=OTHER)
        await environment.execute(CreateTable(QualifiedName("t", "s"), ROWS))
        assert (await environment.resolve("s.t", strict=True)).data not in (None, following)
        assert await gone(environment, following)
        await environment.close()
