"""The rows of a table that have certain keys, found without holding the others."""

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from persist.client.table.key_groups import key_groups
from persist.client.table.rows import key_range, with_keys
from persist.core.data.schema import Schema
from persist.runtime import Runtime
from persist.threads import computed

if TYPE_CHECKING:
    from persist.client.shard.read.snapshot import Snapshot

AT_ONCE: Final = 4
"""Groups of keys read side by side: of each a store is waited for."""


async def rows_with_keys(runtime: Runtime, snapshot: "Snapshot", keys: pa.LargeBinaryArray, schema: Schema) -> pa.Table:
    """Those rows of a snapshot whose key is one of at least one, as updates at time 0. Raises as ``to_batches``.

    Cost: reads the blocks of parts that may hold one of the keys, and some between them where that is cheaper than
    another read; holds the rows that have one of them.
    """
    ordered = await computed(runtime, len(keys), _ascending, keys)
    parts = [part for split in snapshot.splits(1, keys=key_range(ordered)) for part in split.parts]
    groups = await computed(runtime, len(keys), key_groups, parts, ordered.to_pylist())
    turn = asyncio.Semaphore(AT_ONCE)

    async def read(begin: int, end: int) -> pa.Table:
        async with turn:
            return await _read(runtime, snapshot, ordered.slice(begin, end - begin), schema)

    if len(groups) == 1:
        return await read(*groups[0])
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read(*each)) for each in groups]
    return pa.concat_tables([task.result() for task in tasks])


async def _read(runtime: Runtime, snapshot: "Snapshot", keys: pa.LargeBinaryArray, schema: Schema) -> pa.Table:
    """All rows between the smallest and the largest key, and of those the ones that have one of the keys."""
    found = [schema.updates.empty_table()]
    async with aclosing(snapshot.to_batches(keys=key_range(keys))) as batches:
        async for batch in batches:
            rows = pa.Table.from_batches([batch])
            found.append(await computed(runtime, batch.num_rows, with_keys, rows, keys, schema))
    return pa.concat_tables(found)


def _ascending(keys: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    ordered: pa.LargeBinaryArray = keys.take(pc.sort_indices(keys))
    return ordered
