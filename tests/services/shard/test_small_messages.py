"""Servers and clients that are set to small messages: what a compaction is given and hands back passes all the same."""

import dataclasses
import re

import pytest
from bench import ours
from bench.simulated import hollow
from machine.support import SETTINGS, machine, memory_stores, new_shard
from services.support import serving

from persist.core.ids import ShardId, Token, WriterId
from persist.core.shard.batch import HollowBatch, Run
from persist.core.shard.commands import (
    Appended,
    ApplyMerge,
    ClaimCompaction,
    CompactionClaimed,
    CompareAndAppend,
    MergeApplied,
    MergeRefused,
    RegisterSchema,
)
from persist.errors import RequestTooLarge
from persist.machine.local_shards import LocalShards
from persist.wire.rpc import method_of, request_of, response_of

OWNER = WriterId.of(bytes(16))
SMALL = dataclasses.replace(SETTINGS, compaction=False, max_message_bytes=256 << 10)


def writer_of(batch: HollowBatch) -> WriterId:
    """Whose key its parts lie under."""
    found = re.search("-([0-9a-f]{32})/p", str(batch.runs[0].parts[0].key))
    assert found is not None
    return WriterId.of(bytes.fromhex(found.group(1)))


async def crowded(shards: LocalShards, shard: ShardId) -> None:
    """A shard with as many parts as a claim takes on by their descriptions."""
    await shards.open(shard, timeout=60)
    register = RegisterSchema(schema=ours.SCHEMA.to_bytes(), codec=ours.SCHEMA.codec_name)
    await shards.apply(shard, register, timeout=60)
    for number, batch in enumerate(hollow(shard, 24, 25)):
        append = CompareAndAppend(writer_id=writer_of(batch), batch=batch, token=Token.of(number.to_bytes(16, "big")))
        assert isinstance(await shards.apply(shard, append, timeout=60), Appended)


@pytest.mark.parametrize("sessions", [True, False], ids=["session", "unary"])
async def test_a_claim_and_what_is_made_of_it_pass_and_nothing_larger_than_is_set_does(sessions: bool):
    shard = new_shard()
    async with serving(machine(*memory_stores(), SMALL), settings=SMALL) as server:
        await crowded(server.shards, shard)
        remote = server.remote(sessions=sessions)
        command = ClaimCompaction(owner=OWNER, takeover_ms=60_000, whole=True)
        claimed = await remote.apply(shard, command, timeout=60)
        assert isinstance(claimed, CompactionClaimed)
        assert response_of(method_of(command), claimed).ByteSize() > 4 * SMALL.max_message_bytes
        parts = tuple(part for batch in claimed.batches for part in batch.runs[0].parts)
        first, last = claimed.batches[0], claimed.batches[-1]
        output = dataclasses.replace(
            first, desc=dataclasses.replace(first.desc, upper=last.desc.upper), runs=(Run(parts=parts),)
        )
        inputs = tuple(batch.fingerprint for batch in claimed.batches)
        merge = ApplyMerge(owner=OWNER, inputs=inputs, output=output)
        assert request_of(shard, merge).ByteSize() > 4 * SMALL.max_message_bytes
        # Whatever becomes of it: these parts are nowhere.
        assert isinstance(await remote.apply(shard, merge, timeout=60), MergeApplied | MergeRefused)
        append = CompareAndAppend(writer_id=writer_of(output), batch=output, token=Token.of(bytes(16)))
        with pytest.raises(RequestTooLarge):
            await remote.apply(shard, append, timeout=60)
        await remote.close()
