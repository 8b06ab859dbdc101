"""Batches, frontiers and schema entries <-> messages of types.proto.

Encoding a batch is remembered with the batch: it goes into a diff, into pushes and into every rollup.
Source: docs/formats.md, batches.
"""

import functools
from typing import Final

from persist.core.frontier import Antichain, Description
from persist.core.shard.batch import Block, ColumnStats, HollowBatch, Part, Run
from persist.core.shard.commands import SchemaEntry
from persist.errors import CorruptData, InvalidArgument, UsageError, VersionMismatch
from persist.typed import AnyMessage
from persist.v1 import types_pb2 as pb
from persist.wire.frame import framed, unframed

_CACHED: Final = "_message"
_MAGIC: Final = b"pBAT"
_FORMAT: Final = 1
"""Version of the form in which a batch travels outside any state."""


def antichain_to_proto(frontier: Antichain) -> pb.Antichain:
    """The message of a frontier."""
    return pb.Antichain(elements=frontier.elements)


def antichain_from_proto(message: pb.Antichain) -> Antichain:
    """The frontier of a message. Raises InvalidArgument for more than one element."""
    return _antichain(*message.elements)


@functools.lru_cache(maxsize=4096)
def _antichain(*elements: int) -> Antichain:
    """The same object again: each batch begins where another ends, and most have one since."""
    return Antichain(elements)


def required_antichain(message: AnyMessage, name: str) -> Antichain:
    """The frontier in a field that must be set. Raises InvalidArgument when it is not."""
    if not message.HasField(name):
        raise InvalidArgument(f"{name} must be set", hint="an empty frontier is a set one without elements")
    return antichain_from_proto(getattr(message, name))


def batch_to_proto(batch: HollowBatch) -> pb.HollowBatch:
    """The message of a batch; the same object for the same batch, not to be changed."""
    known = batch.__dict__.get(_CACHED)
    if known is None:
        known = batch.__dict__[_CACHED] = _batch(batch)
    message: pb.HollowBatch = known
    return message


def description_from_proto(message: pb.Description) -> Description:
    """The description of a message. Raises InvalidArgument, InvalidBounds."""
    return Description(
        lower=required_antichain(message, "lower"),
        upper=required_antichain(message, "upper"),
        since=required_antichain(message, "since"),
    )


def batch_from_proto(message: pb.HollowBatch) -> HollowBatch:
    """The batch of a message. Raises InvalidArgument, InvalidBounds."""
    if not message.HasField("desc"):
        raise InvalidArgument("a batch must have a description")
    desc = description_from_proto(message.desc)
    runs = tuple([Run(parts=tuple([part_from_proto(part) for part in run.parts])) for run in message.runs])
    return HollowBatch(desc=desc, runs=runs, truncated=message.truncated)


def batch_taken_in(message: pb.HollowBatch) -> HollowBatch:
    """The batch that another program sent to be committed. Raises InvalidArgument, InvalidBounds, VersionMismatch.

    One with a field that this release does not know is refused: the field would be missing from what is committed.
    """
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise VersionMismatch(
            "the batch holds fields that this release does not know",
            hint="a newer release made it: send it to servers of that release",
        )
    return batch_from_proto(message)


def batch_to_bytes(batch: HollowBatch) -> bytes:
    """The batch as durable bytes of its own, framed, bound to no place."""
    return framed(_MAGIC, _FORMAT, b"", batch_to_proto(batch))


def batch_from_bytes(data: bytes) -> HollowBatch:
    """The batch that ``batch_to_bytes`` wrote. Raises CorruptData, VersionMismatch."""
    message = unframed(pb.HollowBatch, _MAGIC, _FORMAT, b"", data)
    try:
        return batch_from_proto(message)
    except UsageError as error:
        raise CorruptData("these bytes are no batch", hint="stop and report it") from error


def schema_entry_to_proto(entry: SchemaEntry) -> pb.SchemaEntry:
    """The message of a schema entry."""
    return pb.SchemaEntry(schema_id=entry.schema_id, schema=entry.schema, codec=entry.codec)


def schema_entry_from_proto(message: pb.SchemaEntry) -> SchemaEntry:
    """The schema entry of a message."""
    return SchemaEntry(schema_id=message.schema_id, schema=message.schema, codec=message.codec)


def _batch(batch: HollowBatch) -> pb.HollowBatch:
    # Messages are made where they belong: passing made ones to a constructor copies them, at twice the cost.
    message = pb.HollowBatch(truncated=batch.truncated)
    desc, bounds = message.desc, batch.desc
    for frontier, field in ((bounds.lower, desc.lower), (bounds.upper, desc.upper), (bounds.since, desc.since)):
        field.SetInParent()
        field.elements.extend(frontier.elements)
    for run in batch.runs:
        parts = message.runs.add().parts
        for part in run.parts:
            add_part(parts, part)
    return message


def add_part(parts: AnyMessage, part: Part) -> None:
    """Add the message of a part to some, where it belongs."""
    message = parts.add(
        key=part.key or "",
        inline=part.inline,
        encoded_bytes=part.encoded_bytes,
        decoded_bytes=part.decoded_bytes,
        rows=part.rows,
        checksum=part.checksum,
        key_lower=part.key_lower,
        key_upper=part.key_upper,
        min_ts=part.min_ts,
        max_ts=part.max_ts,
        diffs_sum=part.diffs_sum,
        schema_id=part.schema_id,
        footer_bytes=part.footer_bytes,
        footer_checksum=part.footer_checksum,
        ts_rewrite=part.ts_rewrite,
        consolidated_since=part.consolidated_since,
        format=part.format,
        order_version=part.order_version,
    )
    for stats in part.stats:
        message.stats.add(
            name=stats.name,
            null_count=stats.null_count,
            has_nan=stats.has_nan,
            lower=stats.lower,
            upper=stats.upper,
        )
    for block in part.blocks:
        message.blocks.add(
            first_key=block.first_key,
            rows=block.rows,
            row_groups=block.row_groups,
            offset=block.offset,
            length=block.length,
            checksum=block.checksum,
        )


def part_from_proto(message: pb.Part) -> Part:
    """The part of a message. Raises InvalidArgument."""
    if bool(message.key) == message.HasField("inline"):
        raise InvalidArgument("a part has a key or inline bytes, and not both")
    return Part(
        key=message.key or None,
        inline=message.inline if message.HasField("inline") else None,
        encoded_bytes=message.encoded_bytes,
        decoded_bytes=message.decoded_bytes,
        rows=message.rows,
        checksum=message.checksum,
        key_lower=message.key_lower,
        key_upper=message.key_upper if message.HasField("key_upper") else None,
        min_ts=message.min_ts,
        max_ts=message.max_ts,
        diffs_sum=message.diffs_sum,
        schema_id=message.schema_id,
        stats=tuple([_stats_of(stats) for stats in message.stats]),
        blocks=tuple([_block_of(block) for block in message.blocks]),
        footer_bytes=message.footer_bytes,
        footer_checksum=message.footer_checksum,
        ts_rewrite=message.ts_rewrite if message.HasField("ts_rewrite") else None,
        consolidated_since=message.consolidated_since,
        format=message.format,
        order_version=message.order_version,
    )


def _stats_of(message: pb.ColumnStats) -> ColumnStats:
    return ColumnStats(
        name=message.name,
        null_count=message.null_count,
        has_nan=message.has_nan,
        lower=message.lower if message.HasField("lower") else None,
        upper=message.upper if message.HasField("upper") else None,
    )


def _block_of(message: pb.Block) -> Block:
    return Block(
        first_key=message.first_key,
        rows=message.rows,
        row_groups=message.row_groups,
        offset=message.offset,
        length=message.length,
        checksum=message.checksum,
    )
