"""A server that stands still while names are looked up: what callers get says what happened."""

import signal
from pathlib import Path
from typing import Any

import pytest
from client.support import SCHEMA
from services.process import shard_process

from persist import ShardId, aio
from persist.errors import LocationError

OF_SQL: Any = {"mode": "wal", "timeline": "M"}


async def test_lookup_of_a_name_at_a_frozen_server_is_an_error_of_this_library(tmp_path: Path):
    async with await aio.embedded(str(tmp_path)) as leader:
        await leader.sql("CREATE TABLE persons (id INT, name TEXT)")
        shard = (await leader.table("persons", **OF_SQL)).shard
        other = await leader.open_writer(ShardId.new(), schema=SCHEMA)
        await other.append([], [])
    async with shard_process(tmp_path) as process, await aio.connect(process.endpoint) as client:
        calls: list[Any] = [
            lambda timeout: client.table("persons", **OF_SQL, timeout=timeout),
            lambda timeout: client.table("persons_2", schema=SCHEMA, timeout=timeout),
            lambda timeout: client.table(shard, **OF_SQL, timeout=timeout),
            lambda timeout: client.open("persons", timeout=timeout),
            lambda timeout: client.open_reader("persons_3", timeout=timeout),
            lambda timeout: client.finalize(other.shard, timeout=timeout),
            lambda timeout: client.item_names(timeout=timeout),
        ]
        for call in calls[:1] + calls[-1:]:
            await call(60.0)  # who looks up a second name follows the environment
        process.signal(signal.SIGSTOP)
        try:
            for call in calls:
                with pytest.raises(LocationError):
                    await call(1.0)
        finally:
            process.signal(signal.SIGCONT)
        assert (await client.table("persons", **OF_SQL)).shard == shard
