"""What a backup holds: one line per shard, and where its state lies. Written last, so that a backup is there or not.

A backup lies in a Blob of its own. Parts have the keys they have in the location, so a later backup finds them there;
a state has the key of a rollup of its seqno, numbered by its contents; a manifest that of a rollup of a shard that can
never be, numbered by the time it was made. Source: docs/formats.md, backups.
"""

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from persist.core.ids import IDENTITY, ShardId, check_blob_key, rollup_key
from persist.core.shard.state import FIRST_FORMAT, STATE_FORMAT
from persist.errors import CorruptData, InvalidArgument, PersistError, VersionMismatch, check
from persist.storage.ports import Blob
from persist.wire.checksum import crc32c

FORMAT: Final = 1
MANIFESTS: Final = ShardId.named("persist.backup", "manifests")
"""The shard under whose prefix manifests lie. No backup holds a shard of this id."""
RESTORING: Final = ShardId.named("persist.backup", "restoring")
"""The shard under whose prefix a restore marks the Blob it writes to. Nothing lies there in any backup."""
PROBES: Final = ShardId.named("persist.backup", "probes")
"""The shard under whose prefix a backup looks whether its destination is the Blob that it copies."""
NO_SHARDS: Final = frozenset({MANIFESTS, RESTORING, PROBES, IDENTITY})
"""Ids under which blobs lie and that no shard ever has."""

_MAGIC: Final = b"pBAK"
_NAMED_MAX: Final = 8
"""Shards that a refusal names one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBackup:
    """One shard at one seqno: ``state`` is the key of its whole state, which names the parts and their checksums.

    ``since`` and ``upper`` are times, None for []. ``parts``, ``part_bytes`` and ``rows`` are sums.
    """

    shard: str
    seqno: int
    since: int | None
    upper: int | None
    state: str
    state_bytes: int
    state_checksum: int
    parts: int
    part_bytes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A shard that is not in the backup, and why."""

    shard: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole backup. ``blob`` and ``consensus`` are where it was taken from, without secrets.

    ``write_version``: the location's; no state in the backup is in a later format.
    """

    created_ms: int
    blob: str
    consensus: str
    shards: tuple[ShardBackup, ...]
    left_out: tuple[LeftOut, ...] = ()
    write_version: int = FIRST_FORMAT

    def encode(self) -> bytes:
        """``pBAK``, the CRC32C of what follows as eight hexadecimal digits, a line break, and JSON."""
        body = json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()
        return _MAGIC + f"{crc32c(body):08x}\n".encode() + body

    @classmethod
    def decode(cls, data: bytes, key: str) -> "Manifest":
        """What ``encode`` wrote. Raises CorruptData, VersionMismatch."""
        head, _, body = data.partition(b"\n")
        whole = head == _MAGIC + f"{crc32c(body):08x}".encode()
        check(whole, "a manifest's bytes are those that were written", key=key)
        found = json.loads(body)
        if found.pop("format") != FORMAT:
            raise VersionMismatch("the backup has a format of another release", hint="use a release that knows it")
        written = found.get("write_version", FIRST_FORMAT)
        if written > STATE_FORMAT:
            raise VersionMismatch(
                "the backup is of a location that was upgraded beyond what this release knows",
                hint="use the release that made the backup, or a newer one",
                found=written,
                known=STATE_FORMAT,
            )
        return cls(
            **found
            | {
                "shards": tuple([ShardBackup(**each) for each in found["shards"]]),
                "left_out": tuple([LeftOut(**each) for each in found["left_out"]]),
            }
        )

    @property
    def wanted(self) -> frozenset[str]:
        """Every shard that it was to hold, those left out among them."""
        return frozenset({each.shard for each in self.shards} | {each.shard for each in self.left_out})

    def has(self, wanted: frozenset[str]) -> bool:
        """Whether all these shards are in it."""
        return wanted <= {each.shard for each in self.shards}

    @property
    def key(self) -> str:
        """Where the manifest lies: named by its contents and numbered by its time."""
        return rollup_key(MANIFESTS, self.created_ms, digest(self.encode()))

    @property
    def mark(self) -> str:
        """Where a restore of it marks its target. No backup holds this key, so a Blob that has it is not the backup."""
        return rollup_key(RESTORING, self.created_ms, digest(b"restoring", self.key.encode()))


def digest(*what: bytes) -> bytes:
    """Sixteen bytes that identify ``what``."""
    return hashlib.sha256(b"\0".join(what)).digest()[:16]


async def manifests(blob: Blob, *, timeout: float) -> list[str]:
    """The keys of all manifests in a destination, oldest first."""
    keys = [key async for key, _ in blob.list(f"{MANIFESTS}/", timeout=timeout)]
    return sorted(keys, key=lambda key: int(key.split("/")[2].partition("-")[0]))


async def read_manifest(blob: Blob, key: str | None, *, timeout: float) -> tuple[str, Manifest]:
    """A manifest, by what its key or the last name in that begins with, or the newest.

    Raises InvalidArgument (there is none, or more than one), CorruptData, VersionMismatch.
    """
    there = await manifests(blob, timeout=timeout)
    if not there:
        raise InvalidArgument("there is no finished backup here", hint="persist backup create makes one")
    meant = there[-1:] if key is None else [each for each in there if key and _begins(each, key)]
    data = await blob.get(check_blob_key(meant[0], MANIFESTS), timeout=timeout) if len(meant) == 1 else None
    if data is None:
        what = "more than one backup here has a key that begins so" if meant[1:] else "there is no such backup here"
        raise InvalidArgument(what, hint="persist backup list shows those there are", key=key)
    return meant[0], Manifest.decode(data, meant[0])


async def manifest_to_restore(blob: Blob, key: str | None, *, partial: bool, timeout: float) -> tuple[str, Manifest]:
    """As ``read_manifest``; one that left shards out only if ``partial``.

    Raises InvalidArgument: shards were left out; the hint names the newest backup that has them all.
    """
    chosen, manifest = await read_manifest(blob, key, timeout=timeout)
    if manifest.left_out and not partial:
        whole = await _newest_with(blob, manifest.wanted, timeout=timeout)
        others = "--partial restores the other shards"
        raise InvalidArgument(
            "damaged shards were left out of this backup",
            hint=f"no backup here has all of them; {others}"
            if whole is None
            else f"the newest backup that has all of them: --backup {whole}; {others}",
            backup=chosen,
            left_out=", ".join(each.shard for each in manifest.left_out[:_NAMED_MAX]),
            shards_left_out=len(manifest.left_out),
        )
    return chosen, manifest


async def _newest_with(blob: Blob, wanted: frozenset[str], *, timeout: float) -> str | None:
    """The key of the newest backup that has all these shards. One that cannot be read is passed over."""
    for key in reversed(await manifests(blob, timeout=timeout)):
        with contextlib.suppress(CorruptData, VersionMismatch):
            if (await read_manifest(blob, key, timeout=timeout))[1].has(wanted):
                return key
    return None


def _begins(key: str, given: str) -> bool:
    return key.startswith(given) or key.rpartition("/")[2].startswith(given)


def describe(error: PersistError) -> str:
    """An error in one line."""
    key: Any = error.details.get("key", "") if isinstance(error, CorruptData) else ""
    return f"{error.message} {key}".strip()


async def keys_of(blob: Blob, shard: str, *, timeout: float) -> AsyncIterator[tuple[str, int]]:
    """The blobs under a shard's prefix, with sizes."""
    async for key, size in blob.list(f"{shard}/", timeout=timeout):
        yield key, size
