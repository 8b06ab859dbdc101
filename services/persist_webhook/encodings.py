"""Compressed bodies, bounded: never more is made of one than may be kept, and never much at once.

Source: RFC 9110 section 8.4; RFC 1950, 1951, 1952.
"""

import zlib
from collections.abc import Iterator
from typing import Final

from persist_ingest.sources.webhook.refusals import BAD_ENCODING, ENCODED, Refused

IDENTITY: Final = "identity"
ENCODINGS: Final = ("gzip", "deflate")
STEP_BYTES: Final = 64 << 10
"""At most so much is made at once, of a quarter of it."""
_MEMBERS: Final = 1_000
_GZIP, _ZLIB, _RAW = 31, 15, -15


def encoding_of(named: str) -> str:
    """What ``Content-Encoding`` says. Raises Refused: none that is known, or several."""
    encoding = named.strip().lower().removeprefix("x-") or IDENTITY
    if encoding not in (IDENTITY, *ENCODINGS):
        raise Refused(ENCODED, f"send the body as it is, or compressed by one of {', '.join(ENCODINGS)}")
    return encoding


def inflated(body: bytes, encoding: str) -> Iterator[bytes]:
    """The pieces of what was compressed, each small. Raises Refused: it was not, or ends midway."""
    step, members = STEP_BYTES >> 2, 1
    window = _GZIP if encoding == "gzip" else _ZLIB if _is_zlib(body) else _RAW
    inflater = zlib.decompressobj(window)
    at = 0
    try:
        while at < len(body):
            given = body[at : at + step]
            at += len(given)
            while given and not inflater.eof:
                yield inflater.decompress(given, STEP_BYTES)
                given = inflater.unconsumed_tail
            if inflater.eof and (at := at - len(inflater.unused_data)) < len(body):
                # Another member, which only gzip knows; the bound is for many that are empty.
                members += 1
                if window != _GZIP or members > _MEMBERS:
                    raise Refused(BAD_ENCODING, f"something stands after what is {encoding}")
                inflater = zlib.decompressobj(window)
        while not inflater.eof and (rest := inflater.decompress(b"", STEP_BYTES)):
            yield rest
    except zlib.error as error:
        raise Refused(BAD_ENCODING, f"this is not {encoding}: {error}") from None
    if not inflater.eof:
        raise Refused(BAD_ENCODING, f"what is {encoding} ends midway")


def _is_zlib(body: bytes) -> bool:
    """Some senders call it deflate without the head that RFC 1950 puts before it."""
    return len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
