"""A key whose entries were removed by hand cannot be initialised again. Source: reliability.md section 0, 3."""

from collections.abc import Callable

import psycopg
import pytest
import redis.asyncio as aioredis
from conformance.handles import T, consensuses, shard

from persist.errors import CorruptData


async def test_redis_log_removed_by_hand(fresh_redis_uri: Callable[[], str]) -> None:
    uri, key = fresh_redis_uri(), shard()
    async with consensuses(uri) as [consensus]:
        assert await consensus.compare_and_set(key, -1, b"0", timeout=T)
        client = aioredis.Redis.from_url(uri)
        assert await client.delete(f"{{{key}}}:l", f"{{{key}}}:t") == 1
        await client.aclose()
        assert not await consensus.compare_and_set(key, -1, b"again", timeout=T)
        for read in (consensus.head(key, timeout=T), consensus.scan(key, 0, 5, timeout=T)):
            with pytest.raises(CorruptData):
                await read


async def test_postgres_log_removed_by_hand(fresh_postgres_uri: Callable[[], str]) -> None:
    uri, key = fresh_postgres_uri(), shard()
    async with consensuses(uri) as [consensus]:
        assert await consensus.compare_and_set(key, -1, b"0", timeout=T)
        async with await psycopg.AsyncConnection.connect(uri, autocommit=True) as connection:
            await connection.execute("DELETE FROM consensus_log")
        assert not await consensus.compare_and_set(key, -1, b"again", timeout=T)
        with pytest.raises(CorruptData):
            await consensus.head(key, timeout=T)
