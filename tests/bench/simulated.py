"""Shards as large as one wants, made in the stores at once: states of many batches and parts, and files for their rows.

What is simulated is how they came to be, and in ``hollow`` parts the rows; states, keys and descriptions are those
that appends make.
"""

import dataclasses
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import ours, rows
from persist.core.frontier import Antichain, Description
from persist.core.ids import ABSENT, ShardId, WriterId, part_key, rollup_key
from persist.core.shard.batch import Block, ColumnStats, HollowBatch, Part, Run
from persist.core.shard.commands import Rollup, SchemaEntry
from persist.core.shard.diff import diff
from persist.core.shard.state import State
from persist.core.shard.trace import Trace, spine_batch
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus
from persist.storage.ports import Blob, Consensus
from persist.wire.checksum import crc32c
from persist.wire.columnar import encode_parts
from persist.wire.shard.state import encode_diff, encode_rollup

LINKS_MAX = 30_000
"""Names of one file; a file system has a limit."""


@dataclass
class Stores:
    """A Blob of files below ``root``, and a Consensus."""

    root: Path
    blob: Blob
    consensus: Consensus

    @classmethod
    async def of(cls, root: Path, consensus_uri: str) -> "Stores":
        """The stores of a location, which one settled shard makes a location of."""
        from persist import aio

        async with await aio.embedded(blob=f"file:{root}", consensus=consensus_uri) as client:
            await client.open_writer(ours.new_shard(), schema=ours.SCHEMA)
        settings, runtime = Settings(), system()
        return cls(
            root,
            open_blob(f"file:{root}", settings=settings, runtime=runtime),
            open_consensus(consensus_uri, settings=settings, runtime=runtime),
        )

    async def close(self) -> None:
        await self.blob.close()
        await self.consensus.close()

    async def make(self, batches: Sequence[HollowBatch], shard: ShardId, **changes: object) -> None:
        """Make it the shard's first state that it has these batches, each in turn, and what ``changes`` say."""
        upper = batches[-1].desc.upper if batches else Antichain.of(0)
        spine = (spine_batch(0, len(batches), tuple(batches)),) if batches else ()
        trace = Trace(upper=upper, spine=spine, next_id=len(batches))
        entry = SchemaEntry(schema_id=0, schema=ours.SCHEMA.to_bytes(), codec=ours.SCHEMA.codec_name)
        now_ms = system().now_ms()
        bare = State.initial(shard, now_ms=now_ms, hostname="simulated").evolved(
            trace=trace, schemas=(entry,), **changes
        )
        key, data = rollup_key(shard, 0, secrets.token_bytes(16)), encode_rollup(bare)
        await self.blob.set(key, data, timeout=600)
        named = Rollup(key=key, encoded_bytes=len(data), checksum=crc32c(data))
        first = dataclasses.replace(bare, rollups={0: named})
        value = encode_diff(diff(bare, first), shard)
        if not await self.consensus.compare_and_set(shard, ABSENT, value, timeout=60):
            raise RuntimeError("the shard is there already")

    async def rows_of(self, shard: ShardId, count: int, each: int) -> list[HollowBatch]:
        """``count`` batches of the same ``each`` rows at a time of its own, in files of their own names."""
        writer = WriterId.of(secrets.token_bytes(16))
        table = rows.make(each).sort_by([("k", "ascending")])
        [encoded] = encode_parts([table.cast(ours.SCHEMA.updates)], ours.SCHEMA, 0)
        made: list[HollowBatch] = []
        path = Path()
        for at in range(count):
            key = part_key(shard, writer, 1, at.to_bytes(16, "big"))
            if at % LINKS_MAX == 0:
                await self.blob.set(key, encoded.data, timeout=60)
                path = self.root / key
            else:
                os.link(path, self.root / key)
            part = dataclasses.replace(encoded.part, key=key, ts_rewrite=at)
            made.append(_batch(at, (part,)))
        return made


def hollow(shard: ShardId, batches: int, parts: int, *, blocks: int = 64) -> list[HollowBatch]:
    """Batches of ``parts`` parts of 128 MiB each, all one behind the other by key: there is only their description."""
    writer = WriterId.of(secrets.token_bytes(16))
    return [
        _batch(at, tuple(_hollow_part(shard, writer, at, at * parts + n, blocks) for n in range(parts)))
        for at in range(batches)
    ]


def _batch(at: int, parts: tuple[Part, ...]) -> HollowBatch:
    desc = Description(lower=Antichain.of(at), upper=Antichain.of(at + 1))
    return HollowBatch(desc=desc, runs=(Run(parts=parts),))


def _hollow_part(shard: ShardId, writer: WriterId, at: int, number: int, blocks: int) -> Part:
    size, lower = 2 << 20, b"\x02user" + number.to_bytes(8, "big")
    return Part(
        key=part_key(shard, writer, 1, at.to_bytes(8, "big") + number.to_bytes(8, "big")),
        inline=None,
        encoded_bytes=blocks * size + 5_000,
        decoded_bytes=4 * blocks * size,
        rows=blocks * 65_536,
        checksum=0x12345678,
        key_lower=lower + b"\x00",
        key_upper=lower + b"\xff",
        min_ts=at,
        max_ts=at,
        diffs_sum=blocks * 65_536,
        schema_id=0,
        stats=(ColumnStats(name="k", null_count=0, lower=lower, upper=lower + b"\xff"),),
        blocks=tuple(
            Block(
                first_key=lower + secrets.token_bytes(12),
                rows=65_536,
                row_groups=1,
                offset=n * size,
                length=size,
                checksum=0x12345678,
            )
            for n in range(blocks)
        ),
        footer_bytes=5_000,
        footer_checksum=0x12345678,
    )
