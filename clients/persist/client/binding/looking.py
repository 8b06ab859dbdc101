"""Looking at a remap shard before anything is registered in it: asking about a source must not make one.

Source: catalog-semantics.md section 5.2; reliability.md I18.
"""

import contextlib
import difflib
from contextlib import aclosing
from typing import Final

from persist.client.binding.port import RemapSource
from persist.client.shard.client import ShardClient
from persist.core.binding.remap_rows import REMAP_SCHEMA
from persist.core.data.schema import Schema
from persist.core.frontier import MINIMUM, Antichain
from persist.errors import NotReadable, PersistError, ShardNotFound
from persist.machine.parts.reading import snapshot_of
from persist.machine.parts.stream import rows
from persist.machine.shards import ShardInfo, SnapshotPlan
from persist.retry.deadline import Deadline
from persist.retry.streams import listing

LISTED_MAX: Final = 1_000
"""Shards that a wrong id is compared with."""
ALIKE: Final = 0.8
ALIKE_MAX: Final = 3


async def incarnation_there(client: ShardClient, source: RemapSource, deadline: Deadline) -> str | None:
    """The incarnation that the bindings in a source's shard are about; None where there are none.

    No lease, no write. Of a shard that holds something else, or cannot be read without a lease, that of the source:
    opening it shows what is wrong. One RPC, and a read of the bindings. Raises LocationError.
    """
    location = client.location
    location.check_open()
    try:
        info = await location.attempts.repeat(
            deadline, lambda seconds: location.shards.open(source.remap, create=False, timeout=seconds)
        )
    except ShardNotFound:
        return None
    if not info.schemas:
        return None
    if not any(_is_remap(entry.schema, entry.codec) for entry in info.schemas):
        return source.incarnation
    if info.upper == MINIMUM:
        return None
    try:
        return await _first(client, info, deadline)
    except PersistError:
        return source.incarnation


async def not_found(client: ShardClient, source: RemapSource, deadline: Deadline) -> ShardNotFound:
    """The error for a source that was never begun, with the ids that may have been meant."""
    location, ids = client.location, list[str]()
    with contextlib.suppress(PersistError):
        async with aclosing(
            listing(location.attempts, deadline, lambda seconds: location.shards.list(timeout=seconds))
        ) as shards:
            async for shard in shards:
                ids.append(str(shard))
                if len(ids) >= LISTED_MAX:
                    break
    near = difflib.get_close_matches(str(source.remap), ids, ALIKE_MAX, ALIKE)
    return ShardNotFound(
        "no source has its bindings in this shard",
        hint=f"did you mean {' or '.join(near)}?" if near else "is it of this location? A source begins with mint",
        shard=source.remap,
    )


async def _first(client: ShardClient, info: ShardInfo, deadline: Deadline) -> str | None:
    location = client.location
    as_of = Antichain.of(info.upper.time - 1) if info.upper.time else info.since
    plan = await location.attempts.repeat(
        deadline, lambda seconds: location.shards.snapshot(info.shard, as_of, timeout=seconds)
    )
    if not isinstance(plan, SnapshotPlan) or as_of.time is None:
        raise NotReadable("nothing of the shard can be read", hint="open it")
    reading = snapshot_of(plan.batches, plan.info, location.settings, as_of.time)
    async with aclosing(rows(location, reading, ["incarnation"])) as found:
        async for batch in found:
            if batch.num_rows:
                return str(batch.column("incarnation")[0].as_py())
    return None


def _is_remap(schema: bytes, codec: str) -> bool:
    return codec == REMAP_SCHEMA.codec_name and (
        schema == REMAP_SCHEMA.to_bytes() or Schema.from_bytes(schema, REMAP_SCHEMA.codec) == REMAP_SCHEMA
    )
