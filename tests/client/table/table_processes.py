"""Processes that make transfers between tables, what they reported, and what is there after them."""

import asyncio
from pathlib import Path

from client.support import Place, client_of
from client.table.table_worker import tables_of, transfer, transfers_at
from forked import Fork

from persist import ShardId


async def start(place: Place, number: int, count: int, file: Path, where: str = "-") -> Fork:
    words = (place.blob, place.consensus, number, count, file, where)
    return await asyncio.to_thread(Fork, "client.table.table_worker", *words)


def told(*files: Path) -> set[int]:
    return {int(line) for file in files if file.exists() for line in file.read_text().splitlines()}


async def whole(place: Place) -> set[int]:
    """The transfers that a later reader finds, and that are still there once the log is settled."""
    async with client_of(place) as client:
        tables, oracle = await tables_of(client), await client.oracle()
        # Whatever was in the log without being applied is applied with the next write.
        ts = await transfer(client, tables, 999_999)
        found = await transfers_at(tables, ts)
        await client.settle()
        assert await transfers_at(tables, await oracle.read_ts()) == found
        log = ShardId.named("persist.wal", "M")
        reader = await client.open_reader(log)
        held = await (await reader.snapshot((await client.recent_upper(log)).elements[0] - 1)).to_pylist()
        assert held == []
        return found - {999_999}
