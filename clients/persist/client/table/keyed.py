"""The rows of a table that have certain keys, found without holding the others."""

from contextlib import aclosing
from typing import TYPE_CHECKING

import pyarrow as pa

from persist.client.table.rows import key_range, with_keys
from persist.core.data.schema import Schema
from persist.runtime import Runtime
from persist.threads import computed

if TYPE_CHECKING:
    from persist.client.shard.read.snapshot import Snapshot


async def rows_with_keys(runtime: Runtime, snapshot: "Snapshot", keys: pa.LargeBinaryArray, schema: Schema) -> pa.Table:
    """Those rows of a snapshot whose key is one of at least one, as updates at time 0. Raises as ``to_batches``.

    Cost: reads all rows between the smallest and the largest key, and holds those that have one of them.
    """
    found = [schema.updates.empty_table()]
    async with aclosing(snapshot.to_batches(keys=key_range(keys))) as batches:
        async for batch in batches:
            rows = pa.Table.from_batches([batch])
            found.append(await computed(runtime, batch.num_rows, with_keys, rows, keys, schema))
    return pa.concat_tables(found)
