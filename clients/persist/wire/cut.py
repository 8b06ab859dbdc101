"""Cutting a message at a repeated field, unparsed: so that what has very many elements is parsed one by one.

A parser holds Python's lock until it is through: a message of 100,000 batches would stop every other thread for as
long. Source: docs/formats.md; docs/scaling.md, one shard among many.
"""

from collections.abc import Iterator

from persist.core.paced import paced
from persist.errors import CorruptData

__all__ = ["cut"]

_VARINT, _EIGHT_BYTES, _SIZED, _FOUR_BYTES = 0, 1, 2, 5


class _Malformed(Exception):
    """These bytes are no message."""


def cut(data: bytes | memoryview, number: int, **place: object) -> tuple[bytes, list[memoryview]]:
    """The message without its field ``number``, which is a repeated one of messages, and the bytes of each of these.

    ``place`` goes into errors. Raises CorruptData for what is no message.
    """
    view = memoryview(data)
    rest, found = [], list[memoryview]()
    kept = 0
    try:
        for start, payload, end, field in paced(_fields(view)):
            if field == number:
                found.append(view[payload:end])
                rest.append(view[kept:start])
                kept = end
    except (IndexError, _Malformed) as error:
        raise CorruptData(
            "stored bytes are corrupt: not a message", hint="stop, and run persist fsck", **place
        ) from error
    rest.append(view[kept:])
    return b"".join(rest), found


def _fields(view: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Of each field: where it starts, where its payload does, where it ends, and its number where it has a length."""
    at, size = 0, len(view)
    while at < size:
        start = at
        tag, at = _number(view, at)
        kind = tag & 7
        payload = at
        if kind == _SIZED:
            length, payload = _number(view, at)
            at = payload + length
        elif kind == _VARINT:
            _, at = _number(view, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if kind == _EIGHT_BYTES else 4
        else:
            raise _Malformed
        if at > size:
            raise _Malformed
        yield start, payload, at, tag >> 3 if kind == _SIZED else 0


def _number(view: memoryview, at: int) -> tuple[int, int]:
    """The varint at a place, and where it ends."""
    byte = view[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = view[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 63:
            raise _Malformed
