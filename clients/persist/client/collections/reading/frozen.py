"""Tables at a location that is only read: what is in their shards, and what their logs have for them besides.

Elsewhere who reads a table copies its log, and says in it that nothing more comes before a time. Here nothing is
written: the rows of the log are laid over those of the shard, at times that both have passed, so they are as definite.
Source: docs/guarantees.md, read-only locations; docs/adr/0009-tables.md.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from persist.client.collections.reading.in_memory import Computed
from persist.client.shard.read.snapshot import Snapshot
from persist.client.table.rows import from_payload
from persist.client.table.wal import exact, log_of, not_before
from persist.client.timeline.register import seconds
from persist.core.catalog.ddl.described import Described
from persist.core.data.schema import TS, Schema
from persist.core.data.update import consolidate, normalise
from persist.core.frontier import Antichain
from persist.core.shard.transaction import LogCopy
from persist.core.time.timeline import EPOCH_MILLISECONDS
from persist.errors import ShardNotFound
from persist.retry.deadline import Deadline

if TYPE_CHECKING:
    from persist.client.shard.client import ShardClient
    from persist.client.shard.read.handle import ReadHandle


@dataclass(frozen=True, slots=True)
class Uncopied:
    """``updates``: what a log has for a table that is not in its shard; before ``upper`` nothing more comes."""

    updates: pa.Table
    upper: int


async def uncopied(client: "ShardClient", item: Described, reader: "ReadHandle", deadline: Deadline) -> Uncopied | None:
    """What is in the log for a table whose shard is read. None: nothing is. Five RPCs. Raises LocationError."""
    upper = reader.upper.time
    if item.mode != "wal" or upper is None:
        return None
    shard, schema = log_of(item.timeline or EPOCH_MILLISECONDS), reader.schema
    try:
        log = await client.open_reader(shard, purpose="table", timeout=seconds(deadline))
    except ShardNotFound:
        return None
    async with log:
        state = await client.inspect(reader.shard, timeout=seconds(deadline))
        end = log.upper.time or 0
        recorded = state["transactions"].get(LogCopy.of(shard, 0).app_id)
        # As who copies it does: nothing recorded is a table of before that was, whose writers kept to the log.
        copied = upper if recorded is None else int(recorded["version"])
        first = copied if exact(copied, log) else min(end, (log.since.time or 0) + 1)
        if first >= end:
            return None
        changes = await log.diffs(first, end, timeout=seconds(deadline))
        entries = (await changes.to_arrow(where=[("table", "=", str(reader.shard))])).to_pylist()
    found = [from_payload(each["rows"], each["ts"], schema) for each in entries if each["diff"] > 0]
    updates = consolidate(pa.concat_tables([schema.updates.empty_table(), *found]), schema)
    rest = not_before(updates.filter(pc.greater_equal(updates.column(TS.name), copied)), upper)
    return Uncopied(rest, max(end, upper + 1))


async def overlaid(reader: "ReadHandle", rest: Uncopied, as_of: int, deadline: Deadline) -> "Snapshot | Overlaid":
    """The contents of a table at a time before both have ended."""
    upper = reader.upper.time or 0
    base = None
    if upper and reader.since.less_equal(Antichain.of(min(as_of, upper - 1))):
        base = await reader.snapshot(min(as_of, upper - 1), timeout=seconds(deadline))
    elif upper:
        # Who completes the shard was to come, and is needed no more for what its log has.
        base = await reader.so_far(as_of, timeout=seconds(deadline))
    later = rest.updates.filter(pc.less_equal(rest.updates.column(TS.name), as_of))
    if base is not None and not later.num_rows:
        return base
    schema = reader.schema
    there = schema.updates.empty_table() if base is None else await base.to_arrow()
    if base is not None:
        at = pa.repeat(pa.scalar(as_of, TS.type), there.num_rows)
        there = there.append_column(TS, at).select(schema.updates.names)
    rows = consolidate(pa.concat_tables([normalise(there, schema), normalise(later, schema)]), schema, as_of)
    return Overlaid(schema, rows.drop_columns([TS.name]))


class Overlaid(Computed):
    """The rows of a table in memory, with their diffs."""

    def __init__(self, schema: Schema, rows: pa.Table) -> None:
        self.schema = schema
        self._rows = rows
