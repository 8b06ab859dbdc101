"""The machine's answers to reads, as messages. Changes pushed to many watchers are encoded once.

Source: protos/persist/v1/shard.proto; performance.md A6.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, TypeVar

from persist.core.shard.batch import HollowBatch
from persist.core.shard.commands import SchemaEntry
from persist.machine.shards import ShardInfo, ShardMoved, SnapshotPlan
from persist.runtime import Runtime
from persist.v1 import shard_pb2 as pb
from persist.wire.rpc_reads import chunks, frontier_message, info_message

M = TypeVar("M")

_CACHED_MAX: Final = 256
_CACHED_BYTES_MAX: Final = 8 << 10
"""Larger messages are made for each watcher: so many of them would take too much."""
_Key = tuple[object, ...]
ON_LOOP_PARTS_MAX: Final = 32
"""Of so few parts messages are made on the event loop: in a millisecond or two."""


async def made_aside(pieces: Iterator[M], batches: Sequence[HollowBatch], runtime: Runtime) -> AsyncIterator[M]:
    """The pieces of these batches, made in a thread where they are many."""
    few = not _more_parts(batches, ON_LOOP_PARTS_MAX)
    while (piece := next(pieces, None) if few else await runtime.offload(next, pieces, None)) is not None:
        yield piece


def _more_parts(batches: Sequence[HollowBatch], most: int) -> bool:
    """Whether they have more parts than that; without a look at all of them where they do."""
    count = 0
    for batch in batches:
        count += batch.part_count
        if count > most:
            return True
    return False


def info_of(info: ShardInfo, *, schemas: bool = True) -> pb.ShardInfo:
    """Where a shard stands; without schemas: as in the message before."""
    sent = info.schemas if schemas else None
    return info_message(
        info.shard,
        info.seqno,
        info.since,
        info.upper,
        sent,
        info.incarnation,
        info.format,
        info.writers_since_ms,
        info.behind,
    )


def plan_pieces(plan: SnapshotPlan) -> Iterator[pb.SnapshotResponse]:
    """A plan in messages of bounded size."""
    first = True
    for chunk in chunks(plan.batches):
        piece = pb.SnapshotPlan(chunk=chunk)
        if first:
            piece.info.CopyFrom(info_of(plan.info))
            piece.as_of.CopyFrom(frontier_message(plan.as_of))
            first = False
        yield pb.SnapshotResponse(plan=piece)


def change_pieces(change: ShardMoved, *, schemas: bool = True) -> Iterator[pb.ChangeChunk]:
    """A change in messages of bounded size."""
    info: pb.ShardInfo | None = info_of(change.info, schemas=schemas)
    for chunk in chunks(change.batches):
        yield pb.ChangeChunk(info=info, chunk=chunk)
        info = None


class Pushes:
    """Changes as messages, each encoded once however many watch: all see the same at a seqno of one history."""

    def __init__(self) -> None:
        self._cached: OrderedDict[_Key, pb.WatchResponse] = OrderedDict()

    def pieces(self, change: ShardMoved, schemas_before: tuple[SchemaEntry, ...] | None) -> Iterator[pb.WatchResponse]:
        """The messages of a change for a watcher that has ``schemas_before`` (None: nothing yet)."""
        schemas = change.info.schemas != schemas_before
        lower = change.batches[0].desc.lower if change.batches else None
        # SUBTLE: a restore in place begins at seqno 0 again, while this server lives on.
        key = (change.info.shard, change.info.incarnation, change.info.seqno, lower, len(change.batches), schemas)
        known = self._cached.get(key)
        if known is not None:
            yield known
            return
        # One at a time: those of a long catch-up together may be as large as the state.
        for number, piece in enumerate(change_pieces(change, schemas=schemas)):
            message = pb.WatchResponse(change=piece)
            alone = not number and piece.chunk.last and len(change.batches) <= 1
            if alone and message.ByteSize() <= _CACHED_BYTES_MAX:
                self._cached[key] = message
                if len(self._cached) > _CACHED_MAX:
                    self._cached.popitem(last=False)
            yield message
