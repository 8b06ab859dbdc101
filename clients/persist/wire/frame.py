"""Frames around durable messages: what they are, in which format, whole, and where they belong.

A frame is ``magic(4) format(u8) codec(u8) length(u32) checksum(u32)`` and the body, little-endian. The checksum covers
magic, format, codec, the *binding* (whatever names the place the bytes belong to) and the body: bytes of another place
are as corrupt as flipped ones, and nothing is expanded or parsed before it matched. The body is the message (codec 0),
or its size as u32 and its zstd (codec 1). Source: docs/formats.md; reliability.md I24, I26.
"""

import struct
from typing import Final, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from persist.errors import CorruptData, RequestTooLarge, VersionMismatch
from persist.wire.checksum import crc32c, crc32c_extend

M = TypeVar("M", bound=Message)

COMPRESSED_FROM: Final = 8 << 10
"""Messages of fewer bytes are framed as they are."""

_HEAD: Final = struct.Struct("<4sBBII")
HEAD_BYTES: Final = _HEAD.size
"""How many bytes of a frame distinguish it from any other at its place: its checksum is among them."""
_SIZE: Final = struct.Struct("<I")
_PLAIN: Final = 0
_ZSTD: Final = 1
_CODEC: Final = pa.Codec("zstd", compression_level=1)


def framed(magic: bytes, version: int, binding: bytes, message: Message, *, limit: int = 0) -> bytes:
    """The message in its frame; the same message gives the same bytes with the same release of zstd.

    ``limit``: bytes that readers expand at most; 0: nothing is compressed. Raises RequestTooLarge beyond it.
    """
    body, codec = message.SerializeToString(deterministic=True), _PLAIN
    if limit and len(body) > limit:
        raise RequestTooLarge("a state's message is too large", hint="use more shards", bytes=len(body), max=limit)
    if limit and len(body) >= COMPRESSED_FROM:
        smaller = _SIZE.pack(len(body)) + _CODEC.compress(body, asbytes=True)
        if len(smaller) < len(body):
            body, codec = smaller, _ZSTD
    return _HEAD.pack(magic, version, codec, len(body), _checksum(magic, version, codec, binding, body)) + body


def format_of(data: bytes) -> int:
    """The format a frame says it has; nothing is verified. -1 when it is too short for one."""
    return int(_HEAD.unpack_from(data)[1]) if len(data) >= _HEAD.size else -1


def message_bytes(data: bytes) -> int:
    """How large the message of a frame is, as the frame says: what decoding it costs. Nothing is verified."""
    if len(data) < _HEAD.size + _SIZE.size or _HEAD.unpack_from(data)[2] == _PLAIN:
        return len(data)
    return int(_SIZE.unpack_from(data, _HEAD.size)[0])


def unframed(
    kind: type[M],
    magic: bytes,
    version: int,
    binding: bytes,
    data: bytes,
    *,
    oldest: int | None = None,
    limit: int = 0,
    unknown_fields: bool = False,
    **place: object,
) -> M:
    """The message in a frame of format ``version``, or of one from ``oldest`` on. ``place`` goes into errors.

    ``limit``: bytes it may expand to; 0: nothing compressed belongs here. ``unknown_fields``: those are passed over.
    Raises CorruptData (not the bytes that were written here), VersionMismatch (whole, but of another release, be it by
    its format or by fields this release does not know: reading on would drop them).
    """
    written, body = opened(magic, version, binding, data, oldest=oldest, limit=limit, **place)
    return known(kind, body, written, version, unknown_fields=unknown_fields, **place)


def opened(
    magic: bytes,
    version: int,
    binding: bytes,
    data: bytes,
    *,
    oldest: int | None = None,
    limit: int = 0,
    **place: object,
) -> tuple[int, bytes]:
    """The format of a frame and the bytes of its message, verified and expanded. As ``unframed``."""
    if len(data) < _HEAD.size:
        raise _corrupt("too short for a frame", **place)
    found, written, codec, length, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if found != magic:
        raise _corrupt("not the frame that belongs here", **place)
    if len(body) != length or _checksum(magic, written, codec, binding, body) != checksum:
        raise _corrupt("checksum mismatch", **place)
    if not (version if oldest is None else oldest) <= written <= version:
        raise other_release(found=written, known=version, **place)
    return written, body if codec == _PLAIN else _expanded(body, codec, limit, **place)


def known(
    kind: type[M],
    body: bytes | memoryview,
    written: int,
    version: int,
    *,
    unknown_fields: bool = False,
    **place: object,
) -> M:
    """The message in bytes that were verified, or a part of one. As ``unframed``."""
    try:
        message = kind.FromString(body)  # type: ignore[arg-type]  # takes any buffer
    except DecodeError as error:
        raise _corrupt("not a message", **place) from error
    message.DiscardUnknownFields()
    # What was written here takes as many bytes again: of such, nothing was discarded.
    if message.ByteSize() != len(body) and not unknown_fields and _has_unknown_fields(message, body):
        raise other_release(found=written, known=version, fields="unknown", **place)
    return message


def other_release(*, found: int, known: int, **details: object) -> VersionMismatch:
    """The error for what another release wrote: in format ``found``, while this one knows up to ``known``."""
    if found > known:
        hint = "the location was upgraded: use the release that did it, or a newer one; nothing was changed"
    else:
        hint = "use a release that knows it"
    return VersionMismatch("written in a format of another release", hint=hint, found=found, known=known, **details)


def _expanded(body: bytes, codec: int, limit: int, **place: object) -> bytes:
    """The message of a compressed body. Nothing is allocated for one that says it is larger than ``limit``."""
    if codec != _ZSTD or len(body) < _SIZE.size:
        raise _corrupt("not a codec that belongs here", **place)
    size = _SIZE.unpack_from(body)[0]
    if size > limit:
        raise _corrupt("it would expand to too much", **place)
    try:
        message = _CODEC.decompress(pa.py_buffer(body)[_SIZE.size :], decompressed_size=size, asbytes=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _corrupt("it cannot be expanded", **place) from error
    if len(message) != size:
        raise _corrupt("it expands to another size", **place)
    return bytes(message)


def _has_unknown_fields(known: Message, body: bytes | memoryview) -> bool:
    return type(known).FromString(body).ByteSize() != known.ByteSize()  # type: ignore[arg-type]  # takes any buffer


def _checksum(magic: bytes, version: int, codec: int, binding: bytes, body: bytes) -> int:
    return crc32c_extend(crc32c(magic + bytes((version, codec)) + binding), body)


def _corrupt(why: str, **place: object) -> CorruptData:
    return CorruptData(f"stored bytes are corrupt: {why}", hint="stop, and run persist fsck", **place)
