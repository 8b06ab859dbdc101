"""The order in which a backup reads a location's shards, and the check that what it read fits together.

A table holds what was copied to it from its transaction log, and a source's tables what its remap shard has bound: a
log or remap shard older than they are would give out times anew that the tables have passed. So tables are read first.
But a log forgets what it has copied: what it forgot after the tables were read is in neither, and both are read again.
The registers of oracles, which have no rows, come last: the times they gave out lie in logs.
Source: docs/runbook.md, backups; docs/adr/0009-tables.md.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from persist.client.table.wal import WAL_SCHEMA
from persist.client.timeline.register import NO_ROWS
from persist.core.binding.remap_rows import REMAP_SCHEMA
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.shard.commands import SchemaEntry
from persist.wire.catalog.rows import CATALOG_SCHEMA

if TYPE_CHECKING:
    from persist.client.client import Client

_RANKS: Final = {WAL_SCHEMA: 1, REMAP_SCHEMA: 1, CATALOG_SCHEMA: 1, NO_ROWS: 2}


class BackupOrder:
    """The tables, sources and catalogs a backup must copy in order. Reads through ``client``, of that location."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def rank(self, schemas: Sequence[SchemaEntry]) -> int:
        """0 for shards that users write; more for those that are to be read after them."""
        return _RANKS.get(Schema.from_bytes(schemas[0].schema), 0) if schemas else 0

    async def kept_all(self, shard: ShardId, lower: Antichain, upper: Antichain) -> bool:
        """Whether a log still has every row at times in ``[lower, upper)``; True for other shards."""
        if lower.time is None or not lower.less_than(upper):
            return True
        reader = await self._client.open_reader(shard, purpose="backup")
        try:
            if reader.schema != WAL_SCHEMA:
                return True
            found = await (await reader.diffs(lower, upper)).to_arrow(columns=["table"])
            return not pc.any(pc.less(found.column("diff"), 0)).as_py()
        finally:
            await reader.expire()
