"""Inline parts: one Arrow record batch message, compressed as a whole, without its schema (the state has it).

Frame: ``PIB1``, u32 little-endian length of the message, zstd of the message. Compressing the whole message costs as
little as compressing its buffers and is a third of the size; and its length is known before it is expanded.
Source: performance.md A1; reliability.md finding 9.
"""

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from persist.core.data.consolidation import checked_sum
from persist.core.data.encoding import edge_keys
from persist.core.data.schema import DIFF, TS, Schema
from persist.core.data.stats import BOUND_BYTES, truncate_down, truncate_up
from persist.core.shard.batch import PART_FORMAT, Part
from persist.errors import CorruptData, InvalidArgument, RequestTooLarge, VersionMismatch
from persist.wire.checksum import crc32c

DECODED_BYTES_MAX: Final = 512 << 20
"""Default limit of what one inline part or one row group may decode to."""

_MAGIC: Final = b"PIB1"
_HEADER: Final = struct.Struct("<4sI")
_CODEC: Final = pa.Codec("zstd", compression_level=1)


def encode_inline(table: pa.Table, schema: Schema, schema_id: int, *, size: int | None = None) -> Part:
    """A sorted, consolidated table with at least one row as an inline part. ``size``: its ``nbytes``, where known.

    Raises InvalidArgument when it is empty.
    """
    if not table.num_rows:
        raise InvalidArgument("a part has at least one row", hint="append a batch without parts")
    batch = table.select(schema.updates.names).combine_chunks().to_batches()[0]
    message = batch.serialize()
    data = _HEADER.pack(_MAGIC, message.size) + _CODEC.compress(message, asbytes=True)
    first, last = edge_keys([table.column(name) for name in schema.key.names])
    ts = table.column(TS.name).to_numpy()
    # No column statistics: the rows are at hand wherever the description is, and the state is to stay small.
    return Part(
        key=None,
        inline=data,
        encoded_bytes=len(data),
        decoded_bytes=table.nbytes if size is None else size,
        rows=table.num_rows,
        checksum=crc32c(data),
        key_lower=truncate_down(first, BOUND_BYTES),
        key_upper=truncate_up(last, BOUND_BYTES),
        min_ts=int(ts.min()),
        max_ts=int(ts.max()),
        diffs_sum=checked_sum(table.column(DIFF.name).to_numpy()),
        schema_id=schema_id,
    )


def decode_inline(part: Part, schema_of_part: Schema, *, decoded_bytes_max: int = DECODED_BYTES_MAX) -> pa.Table:
    """The rows of an inline part, its times rewritten. Raises CorruptData before anything unverified is decoded."""
    check_format(part)
    data = part.inline or b""
    if len(data) != part.encoded_bytes or crc32c(data) != part.checksum:
        raise corrupt("an inline part is not what was written", part, "checksum")
    if len(data) < _HEADER.size or data[:4] != _MAGIC:
        raise corrupt("an inline part has no header", part, "magic")
    size = _HEADER.unpack_from(data)[1]
    check_decoded(part, max(size, part.decoded_bytes), decoded_bytes_max)
    try:
        message = _CODEC.decompress(pa.py_buffer(data)[_HEADER.size :], decompressed_size=size)
        if len(message) != size or _body_is_compressed(memoryview(message)):
            raise corrupt("an inline part holds another message than it says", part, "message")
        batch = pa.ipc.read_record_batch(message, schema_of_part.updates)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, IndexError, struct.error) as error:
        raise corrupt("an inline part cannot be decoded", part, str(error)[:200]) from error
    if batch.num_rows != part.rows:
        raise corrupt("an inline part has another number of rows", part, "rows", got=batch.num_rows)
    return rewrite_times(pa.Table.from_batches([batch]), part.ts_rewrite)


def check_decoded(part: Part, size: int, decoded_bytes_max: int) -> None:
    """Raise RequestTooLarge for rows of a part beyond what a reader allows; CorruptData where no reader would."""
    if size > max(DECODED_BYTES_MAX, decoded_bytes_max):
        raise corrupt("a part decodes to more than any does", part, "decoded bytes", size=size)
    if size > decoded_bytes_max:
        raise RequestTooLarge(
            "rows are larger than this reader allows", hint="raise decoded_bytes_max",
            bytes=size, limit=decoded_bytes_max, **({} if part.key is None else {"key": part.key}),
        )  # fmt: skip


def inline_message_bytes(part: Part) -> int:
    """What an inline part says it takes once it is expanded; 0 for one without a header. Nothing is verified."""
    data = part.inline or b""
    return int(_HEADER.unpack_from(data)[1]) if len(data) >= _HEADER.size and data[:4] == _MAGIC else 0


def rewrite_times(table: pa.Table, ts_rewrite: int | None) -> pa.Table:
    """The table with every time t as max(t, ts_rewrite)."""
    if not ts_rewrite or not table.num_rows:
        return table
    ts = table.column(TS.name).to_numpy()
    if int(ts.min()) >= ts_rewrite:
        return table
    index = table.schema.get_field_index(TS.name)
    return table.set_column(index, TS, pa.array(np.maximum(ts, np.uint64(ts_rewrite)), TS.type))


def check_format(part: Part) -> None:
    """Accept a part of a format this release reads. Raises VersionMismatch otherwise."""
    if part.format != PART_FORMAT:
        raise VersionMismatch("the part has a format this release does not know", hint="upgrade", format=part.format)


def corrupt(message: str, part: Part, found: str, **details: object) -> CorruptData:
    """The error for a part that is not what was written."""
    if part.key is None:
        hint = "persist fsck shows where; persist admin repair takes it out"
        return CorruptData(message, hint=hint, found=found, **details)
    return CorruptData(message, hint="stop and restore the blob", key=part.key, found=found, **details)


def _body_is_compressed(message: memoryview) -> bool:
    """Whether a record batch message says that its buffers are compressed. They never are: the frame bounds sizes.

    Reads the flatbuffer by hand: Message.header (slot 2) is a RecordBatch, whose compression is slot 3. Raises
    IndexError or struct.error when there is no such structure.
    """
    start = 8 if struct.unpack_from("<I", message)[0] == 0xFFFFFFFF else 4
    body: Any = message[start:]
    root = _indirect(body, 0)
    header = _field(body, root, 2)
    if header is None:
        raise IndexError("a message without a header")
    return _field(body, _indirect(body, header), 3) is not None


def _indirect(buffer: memoryview, at: int) -> int:
    return at + int(struct.unpack_from("<I", buffer, at)[0])


def _field(buffer: memoryview, table: int, slot: int) -> int | None:
    """Where a table's field is; None when it is absent."""
    if not 0 <= table <= len(buffer) - 4:
        raise IndexError("an offset beyond the message")
    vtable = table - int(struct.unpack_from("<i", buffer, table)[0])
    if vtable < 0:
        raise IndexError("an offset before the message")
    entry = 4 + 2 * slot
    if entry >= struct.unpack_from("<H", buffer, vtable)[0]:
        return None
    offset = int(struct.unpack_from("<H", buffer, vtable + entry)[0])
    return table + offset if offset else None
