"""Frames around durable messages: what they are, in which format, whole, and where they belong.

A frame is ``magic(4) format(u16) length(u32) checksum(u32)`` and the message, little-endian. The checksum covers magic,
format, the *binding* (whatever names the place the bytes belong to) and the message: bytes of another place are as
corrupt as flipped ones, and nothing is parsed before it matched. Source: docs/formats.md; reliability.md I24, I26.
"""

import struct
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from persist.errors import CorruptData, VersionMismatch
from persist.wire.checksum import crc32c, crc32c_extend

M = TypeVar("M", bound=Message)

_HEAD: Final = struct.Struct("<4sHII")


def framed(magic: bytes, version: int, binding: bytes, message: Message) -> bytes:
    """The message in its frame; the same message gives the same bytes everywhere."""
    body = message.SerializeToString(deterministic=True)
    return _HEAD.pack(magic, version, len(body), _checksum(magic, version, binding, body)) + body


def unframed(kind: type[M], magic: bytes, version: int, binding: bytes, data: bytes, **place: object) -> M:
    """The message in a frame. ``place`` goes into errors.

    Raises CorruptData (not the bytes that were written here), VersionMismatch (whole, but of another release, be it by
    its format or by fields this release does not know: reading on would drop them).
    """
    if len(data) < _HEAD.size:
        raise _corrupt("too short for a frame", **place)
    found, written, length, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if found != magic:
        raise _corrupt("not the frame that belongs here", **place)
    if len(body) != length or _checksum(magic, written, binding, body) != checksum:
        raise _corrupt("checksum mismatch", **place)
    if written != version:
        raise _other_release(found=written, known=version, **place)
    try:
        message = kind.FromString(body)
    except DecodeError as error:
        raise _corrupt("not a message", **place) from error
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise _other_release(known=version, **place)
    return message


def _checksum(magic: bytes, version: int, binding: bytes, body: bytes) -> int:
    return crc32c_extend(crc32c(magic + version.to_bytes(2, "little") + binding), body)


def _corrupt(why: str, **place: object) -> CorruptData:
    return CorruptData(f"stored bytes are corrupt: {why}", hint="stop, and run persist fsck", **place)


def _other_release(**details: object) -> VersionMismatch:
    return VersionMismatch("written in a format of another release", hint="use a release that knows it", **details)
