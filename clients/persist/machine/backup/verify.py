"""Verifying a backup: every byte that its manifest stands for is read back, decoded and compared."""

import asyncio
from dataclasses import dataclass

from persist.core.ids import ShardId
from persist.core.shard.batch import Part
from persist.core.shard.invariants import check_state
from persist.core.shard.state import State
from persist.errors import CorruptData, VersionMismatch
from persist.machine.backup.copying import COPIES_AT_ONCE, Report, Store, parts_of, together
from persist.machine.backup.manifest import Manifest, ShardBackup, describe
from persist.machine.intake import schemas_of
from persist.wire.columnar.verify import PartFlaw, verify_blob, verify_inline_run
from persist.wire.shard.state import decode_rollup


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupDamage:
    """Something of a backup that cannot be restored: the blob, or the shard, and why."""

    shard: str
    where: str
    what: str


async def read_state(store: Store, entry: ShardBackup) -> State:
    """The state of a shard in a backup. Raises CorruptData, VersionMismatch, LocationError."""
    data = await store.whole(entry.state, entry.state_bytes, entry.state_checksum)
    return decode_rollup(data, ShardId.parse(entry.shard), entry.seqno)


async def verify(store: Store, manifest: Manifest, *, report: Report = lambda blobs: None) -> list[BackupDamage]:
    """All damage to a backup; empty when it can be restored. Holds four parts in memory. Raises LocationError."""
    damages: list[BackupDamage] = []
    room = asyncio.Semaphore(COPIES_AT_ONCE)
    for entry in manifest.shards:
        try:
            state = await read_state(store, entry)
            check_state(state)
        except (CorruptData, VersionMismatch) as error:
            damages.append(BackupDamage(shard=entry.shard, where=entry.state, what=describe(error)))
            continue
        damages += await _verify_parts(store, entry, state, room, report)
        report(1)
    return damages


async def _verify_parts(
    store: Store, entry: ShardBackup, state: State, room: asyncio.Semaphore, report: Report
) -> list[BackupDamage]:
    schemas = schemas_of(state.schemas)
    damages: list[BackupDamage] = []
    for batch in state.trace.batches:
        try:
            for run in batch.runs:
                verify_inline_run(run, schemas)
        except PartFlaw as flaw:
            where = f"batch {batch.desc.lower} to {batch.desc.upper}"
            damages.append(BackupDamage(shard=entry.shard, where=where, what=f"an inline part is damaged: {flaw}"))

    async def one(part: Part) -> None:
        key = part.key or ""
        try:
            data = await store.one(key)
            if data is None:
                raise PartFlaw("it is missing")
            await store.runtime.offload(verify_blob, part, data, schemas[part.schema_id])
        except PartFlaw as flaw:
            damages.append(BackupDamage(shard=entry.shard, where=key, what=str(flaw)))
        except CorruptData as error:
            damages.append(BackupDamage(shard=entry.shard, where=key, what=error.message))
        report(1)

    await together(parts_of(state), one, room)
    return damages
