"""What reads answer: where a shard stands, and sequences of batches cut into messages of bounded size.

Source: protos/persist/v1/shard.proto, ShardInfo and BatchChunk.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypedDict

from google.protobuf.message import Message

from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.shard.batch import HollowBatch
from persist.core.shard.commands import SchemaEntry
from persist.core.shard.state import FIRST_FORMAT, STATE_FORMAT
from persist.errors import Determinate
from persist.v1 import shard_pb2 as pb
from persist.v1 import types_pb2
from persist.wire.frame import other_release
from persist.wire.schemas import put_schemas, schemas_in
from persist.wire.shard import batch as wire_batch

CHUNK_BYTES: Final = 64 << 10
"""Bytes of batches in one message; a single part may exceed it."""


class InfoFields(TypedDict):
    """The fields of a shard's info, ready to be passed by name."""

    shard: ShardId
    seqno: int
    since: Antichain
    upper: Antichain
    schemas: tuple[SchemaEntry, ...]
    incarnation: int
    format: int
    writers_since_ms: int
    behind: str


def info_message(
    shard: ShardId,
    seqno: int,
    since: Antichain,
    upper: Antichain,
    schemas: tuple[SchemaEntry, ...] | None,
    incarnation: int = 0,
    format: int = FIRST_FORMAT,
    writers_since_ms: int = 0,
    behind: str = "",
) -> pb.ShardInfo:
    """Where a shard stands. ``schemas`` None: as in the message before."""
    info = pb.ShardInfo(
        shard_id=shard,
        seqno=seqno,
        since=wire_batch.antichain_to_proto(since),
        upper=wire_batch.antichain_to_proto(upper),
        schemas_unchanged=schemas is None,
        incarnation=incarnation,
        format=format,
        writers_since_ms=writers_since_ms,
        behind=behind,
    )
    if schemas:
        put_schemas(info, schemas)
    return info


def standing_of(info: pb.ShardInfo, schemas_before: tuple[SchemaEntry, ...] = ()) -> InfoFields:
    """What an info message says. Raises VersionMismatch: its batches may hold fields that this release would drop."""
    if info.format > STATE_FORMAT:
        raise other_release(found=info.format, known=STATE_FORMAT, shard=info.shard_id)
    return InfoFields(
        shard=ShardId.parse(info.shard_id),
        seqno=info.seqno,
        since=wire_batch.antichain_from_proto(info.since),
        upper=wire_batch.antichain_from_proto(info.upper),
        schemas=schemas_before if info.schemas_unchanged else schemas_in(info),
        incarnation=info.incarnation,
        format=info.format or FIRST_FORMAT,
        writers_since_ms=info.writers_since_ms,
        behind=info.behind,
    )


def frontier_message(frontier: Antichain) -> types_pb2.Antichain:
    """The message of a frontier."""
    return wire_batch.antichain_to_proto(frontier)


def frontier_in(request: Message, name: str) -> Antichain:
    """The frontier in a request's field. Raises InvalidArgument when it is not set."""
    return wire_batch.required_antichain(request, name)


def chunks(batches: Iterable[HollowBatch], limit: int = CHUNK_BYTES) -> Iterator[pb.BatchChunk]:
    """The batches in order, in at least one chunk of about ``limit`` bytes each; the last one is marked."""
    chunk, size = pb.BatchChunk(), 0
    for batch in batches:
        message = wire_batch.batch_to_proto(batch)
        weight = message.ByteSize()
        if size and size + weight > limit:
            yield chunk
            chunk, size = pb.BatchChunk(), 0
        if weight > limit:
            pieces = _cut(message, limit)
            chunk = next(pieces)
            # One at a time: together they are as large as the batch.
            for piece in pieces:
                yield chunk
                chunk = piece
            size = chunk.ByteSize()
            continue
        chunk.batches.append(message)
        size += weight
    chunk.last = True
    yield chunk


def _cut(message: types_pb2.HollowBatch, limit: int) -> Iterator[pb.BatchChunk]:
    """One batch in several chunks, cut between parts."""
    # Not a copy without its runs: what was copied would stay as long as the pieces.
    about = {field.name: value for field, value in message.ListFields() if field.name != "runs"}
    shell = types_pb2.HollowBatch(**about)
    chunk = pb.BatchChunk(batches=[shell])
    size = bare = shell.ByteSize()
    for run in message.runs:
        chunk.batches[0].runs.add()
        for part in run.parts:
            weight = part.ByteSize()
            if size > bare and size + weight > limit:
                yield chunk
                chunk = pb.BatchChunk(batches=[shell], continues_batch=True, continues_run=True)
                chunk.batches[0].runs.add()
                size = bare
            chunk.batches[0].runs[-1].parts.append(part)
            size += weight
    yield chunk


class Joiner:
    """Puts chunks back together. Raises Determinate when the stream ends too early or does not fit together."""

    def __init__(self) -> None:
        self._messages: list[types_pb2.HollowBatch] = []
        self.complete = False

    def add(self, chunk: pb.BatchChunk) -> None:
        """The next chunk of the stream."""
        found = list(chunk.batches)
        if chunk.continues_batch and found:
            if not self._messages:
                raise Determinate("a stream of batches began in the middle of one", hint="retry")
            self._continue(self._messages[-1], found.pop(0), continues_run=chunk.continues_run)
        self._messages.extend(found)
        self.complete = chunk.last

    def batches(self) -> tuple[HollowBatch, ...]:
        """All batches. Raises Determinate unless the last chunk has been added."""
        if not self.complete:
            raise Determinate("a stream of batches ended before its last piece", hint="retry")
        return tuple(wire_batch.batch_from_proto(message) for message in self._messages)

    @staticmethod
    def _continue(last: types_pb2.HollowBatch, more: types_pb2.HollowBatch, *, continues_run: bool) -> None:
        runs = list(more.runs)
        if continues_run and runs and last.runs:
            last.runs[-1].parts.extend(runs.pop(0).parts)
        last.runs.extend(runs)
