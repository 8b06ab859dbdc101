"""Names of things: shards, readers, writers, tokens, blob keys. All have one strict textual form.

Entropy comes from outside (``persist.runtime``): ids are built from given 16 bytes. Source: docs/formats.md, keys.
"""

import hashlib
import re
from typing import Final, NewType, Self

from persist.errors import InvalidId

SeqNo = NewType("SeqNo", int)
"""Number of a version of a shard's state: 0 is the first, no gaps."""

ABSENT: Final = SeqNo(-1)

LOCATION_KEY: Final = "location"
"""The key in Consensus that is no shard's: what the location's programs agree on."""

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"


def _dashed(raw: bytes) -> str:
    if len(raw) != 16:
        raise InvalidId("an id is made from 16 bytes", got=len(raw))
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class _Id(str):
    """A string of one prefix letter and a uuid; ``parse`` is the only way in from outside."""

    __slots__ = ()
    prefix = ""
    noun = "id"

    @classmethod
    def of(cls, raw: bytes) -> Self:
        """The id made of 16 given bytes. Raises InvalidId for another number of them."""
        return cls(cls.prefix + _dashed(raw))

    @classmethod
    def parse(cls, text: object) -> Self:
        """The id a text names. Raises InvalidId with the expected form."""
        if not isinstance(text, str) or not re.fullmatch(cls.prefix + _UUID, text):
            example = f"{cls.prefix}{_dashed(bytes(16))}"
            raise InvalidId(f"malformed {cls.noun}", hint=f"expected the form {example}", got=repr(text)[:80])
        return cls(text)

    @classmethod
    def named(cls, *names: object) -> Self:
        """The same id for the same names, everywhere and for ever (SHA-256 of the joined names)."""
        digest = hashlib.sha256("\0".join(map(str, names)).encode()).digest()
        return cls.of(digest[:16])

    @property
    def hex(self) -> str:
        """The 32 hexadecimal digits."""
        return self[len(self.prefix) :].replace("-", "")

    @property
    def raw(self) -> bytes:
        """The 16 bytes it is made of."""
        return bytes.fromhex(self.hex)


class ShardId(_Id):
    """Names one shard. The public ``persist.ShardId`` adds ``new()``."""

    __slots__ = ()
    prefix = "s"
    noun = "shard id"


class ReaderId(_Id):
    """Names one leased reader."""

    __slots__ = ()
    prefix = "r"
    noun = "reader id"


class WriterId(_Id):
    """Names one writer."""

    __slots__ = ()
    prefix = "w"
    noun = "writer id"

    @classmethod
    def born(cls, now_ms: int, raw: bytes) -> Self:
        """The id of a writer that begins now, with 16 bytes of entropy: a uuid of version 7, which holds its age."""
        stamped = bytearray(now_ms.to_bytes(6, "big") + raw[6:])
        stamped[6] = 0x70 | stamped[6] & 0x0F
        stamped[8] = 0x80 | stamped[8] & 0x3F
        return cls.of(bytes(stamped))

    @property
    def born_ms(self) -> int | None:
        """When the writer began, on its own clock; None when the id does not contain it."""
        return int(self.hex[:12], 16) if self.hex[12] == "7" else None


class SessionId(_Id):
    """Names one session: the numbered calls of one handle in one process."""

    __slots__ = ()
    prefix = "c"
    noun = "session id"


class LocationId(_Id):
    """Names one location: its Consensus and its Blob each know it."""

    __slots__ = ()
    prefix = "l"
    noun = "location id"


class Token(_Id):
    """Names one logical mutation: a retry with the same token happens at most once."""

    __slots__ = ()
    prefix = "t"
    noun = "idempotency token"


_CRITICAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_critical_id(text: object) -> str:
    """The name of a critical reader when well formed (letters, digits, ``._-``, at most 64). Raises InvalidId."""
    if not isinstance(text, str) or not _CRITICAL.fullmatch(text):
        raise InvalidId(
            "malformed critical reader id", hint="letters, digits, '.', '_', '-', at most 64", got=repr(text)[:80]
        )
    return text


_PART_KEY = re.compile(rf"(s{_UUID})/n(\d{{1,6}})-([0-9a-f]{{32}})/p([0-9a-f]{{32}})")
_ROLLUP_KEY = re.compile(rf"(s{_UUID})/rollup/(\d{{1,19}})-([0-9a-f]{{32}})")


def part_key(shard: ShardId, writer: WriterId, version: int, raw: bytes) -> str:
    """``{shard}/n{version}-{writer}/p{random}``: who wrote a leaked blob, with which release, is in its name."""
    return f"{shard}/n{version}-{writer.hex}/p{raw.hex()}"


def copied_part_key(key: str, raw: bytes) -> str:
    """The key of a copy of the part under ``key``: by the same writer, and otherwise its own."""
    return f"{key[:-32]}{raw.hex()}"


def rollup_key(shard: ShardId, seqno: int, raw: bytes) -> str:
    """``{shard}/rollup/{seqno}-{random}``."""
    return f"{shard}/rollup/{seqno}-{raw.hex()}"


IDENTITY: Final = ShardId.named("persist.location", "identity")
"""The shard that can never be, under whose prefix a Blob names the location that it is of."""


def identity_key(location: LocationId) -> str:
    """The key of the blob that names a location."""
    return rollup_key(IDENTITY, 0, location.raw)


def identity_of(key: str) -> LocationId | None:
    """The location that a key of the identity's prefix names; None for any other key."""
    match = _ROLLUP_KEY.fullmatch(key)
    return None if match is None or match.group(1) != IDENTITY else LocationId.of(bytes.fromhex(match.group(3)))


def check_blob_key(key: object, shard: ShardId | None = None) -> str:
    """The key when it has one of the two forms above (and belongs to ``shard``, if given). Raises InvalidId."""
    match = (_PART_KEY.fullmatch(key) or _ROLLUP_KEY.fullmatch(key)) if isinstance(key, str) else None
    if match is None or (shard is not None and match.group(1) != shard):
        raise InvalidId("malformed or foreign blob key", hint="keys are made by persist only", got=repr(key)[:120])
    return match.group()
