"""The blobs in a store, compared with what the live states of a shard name.

A live state is one whose diff is still in Consensus. A blob that none of them names is garbage only if no process can
name it any more: its writer was fenced off, or its rollup can never be linked. Source: reliability.md I8, I9 and I12.
"""

import contextlib
import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from persist.core.ids import ShardId, WriterId, check_blob_key, identity_of
from persist.core.shard.retention import is_fenced
from persist.core.shard.state import State
from persist.errors import InvalidId
from persist.machine.garbage.collector import named_by
from persist.machine.garbage.released import let_go, taken_up
from persist.machine.versions import Version, Versions
from persist.retry.attempts import Attempts
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Entry

_AGELESS: Final = "its writer's id does not contain its age"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobKey:
    """What a blob's key says: its shard, and who wrote the part or which seqno the rollup is of."""

    shard: ShardId
    writer_id: WriterId | None = None
    seqno: int | None = None


def place_of(key: str) -> BlobKey:
    """What a key says. Raises InvalidId for one that persist did not make."""
    shard, folder, name = check_blob_key(key).split("/")
    if folder == "rollup":
        return BlobKey(shard=ShardId.parse(shard), seqno=int(name.partition("-")[0]))
    return BlobKey(shard=ShardId.parse(shard), writer_id=WriterId.of(bytes.fromhex(folder.partition("-")[2])))


class BlobVerdict(enum.Enum):
    """What a blob is to its shard."""

    CURRENT = "current"
    """The newest state names it."""
    HELD = "held"
    """Only older states name it: a reader holds them, or they are about to be collected."""
    UNLINKED = "unlinked"
    """No state names it, and its writer may still publish it."""
    LEAKED = "leaked"
    """No state names it, and none ever can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A blob in the store: its key, its bytes, and what it is, with the reason for people.

    Such a blob that is ``ageless`` stays for ever unless its shard is finalized.
    """

    key: str
    size: int
    verdict: BlobVerdict
    reason: str = ""

    @property
    def ageless(self) -> bool:
        """It cannot be classified only because its writer's id has no time."""
        return self.reason == _AGELESS


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveKeys:
    """The newest state of a shard, and the keys that it and the other live states name."""

    version: Version
    current: frozenset[str]
    held: frozenset[str]

    @property
    def state(self) -> State:
        """The newest state."""
        return self.version.state

    def judge(self, key: str, size: int, *, fence_ms: int) -> Found:
        """What a blob of this shard is, once writers born before ``fence_ms`` are fenced off."""
        verdict, reason = self._judge(key, max(fence_ms, self.state.writers_since_ms))
        return Found(key=key, size=size, verdict=verdict, reason=reason)

    def _judge(self, key: str, fence_ms: int) -> tuple[BlobVerdict, str]:
        if key in self.current:
            return BlobVerdict.CURRENT, ""
        if key in self.held:
            return BlobVerdict.HELD, ""
        place = place_of(key)
        if place.seqno is not None:
            return self._rollup(place.seqno)
        assert place.writer_id is not None
        return self._part(place.writer_id, fence_ms)

    def _rollup(self, seqno: int) -> tuple[BlobVerdict, str]:
        rollups = self.state.rollups
        if seqno < min(rollups):
            return BlobVerdict.LEAKED, "a rollup older than all that are linked"
        if seqno in rollups:
            return BlobVerdict.LEAKED, "another rollup of its seqno is linked"
        return BlobVerdict.UNLINKED, "a rollup that may still be linked"

    def _part(self, writer_id: WriterId, fence_ms: int) -> tuple[BlobVerdict, str]:
        if self.state.is_tombstone and not self.state.trace.rows:
            return BlobVerdict.LEAKED, "the shard is gone"
        if writer_id.born_ms is None:
            return BlobVerdict.UNLINKED, _AGELESS
        if is_fenced(self.state.evolved(writers_since_ms=fence_ms), writer_id):
            return BlobVerdict.LEAKED, "its writer can publish nothing any more"
        return BlobVerdict.UNLINKED, "its writer may still publish it"


class Inventory:
    """Reads a location's states and lists its blobs. Changes nothing."""

    def __init__(self, versions: Versions, *, settings: Settings, runtime: Runtime) -> None:
        self.versions = versions
        self._settings = settings
        self._runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)

    async def names(self, shard: ShardId, deadline: Deadline) -> LiveKeys | None:
        """What the live states name; None when there is no such shard. Memory: one text per name.

        Raises LocationError, CorruptData, VersionMismatch.
        """
        version = await self.versions.load(shard, deadline)
        if version is None:
            return None
        held: set[str] = set()
        async for change in self.versions.diffs(shard, version.seqno, deadline):
            held |= let_go(change) | taken_up(change) | {change.latest_rollup[1].key}
        current = frozenset(named_by(version.state))
        return LiveKeys(version=version, current=current, held=frozenset(held - current))

    async def blobs(self, shard: ShardId) -> AsyncIterator[tuple[str, int]]:
        """Every blob under a shard's prefix, with its size."""
        timeout = self._settings.blob_timeout_ms / 1000
        async for key, size in self.versions.blob.list(f"{shard}/", timeout=timeout):
            if _is_key(key):
                yield key, size

    async def found(self, names: LiveKeys, *, fence_ms: int) -> AsyncIterator[Found]:
        """Every blob of a shard and what it is, as if writers born before ``fence_ms`` were fenced off."""
        async for key, size in self.blobs(names.state.shard):
            yield names.judge(key, size, fence_ms=fence_ms)

    async def shards(self) -> list[ShardId]:
        """Every shard ever initialised, ordered. Keys that are no shard ids are passed over."""
        found: list[ShardId] = []
        async for key in self.versions.consensus.list_keys(timeout=self._settings.store_timeout_ms / 1000):
            with contextlib.suppress(InvalidId):
                found.append(ShardId.parse(key))
        return sorted(found)

    async def strangers(self) -> dict[ShardId, tuple[int, int]]:
        """Shards that have blobs and no state: how many, and their bytes. Lists the whole store once."""
        counts: dict[ShardId, tuple[int, int]] = {}
        known: set[str] = set()
        async for key, size in self.versions.blob.list("", timeout=self._settings.blob_timeout_ms / 1000):
            if not _is_key(key) or identity_of(key) is not None or (shard := place_of(key).shard) in known:
                continue
            if shard not in counts and await self._exists(shard):
                known.add(shard)
                continue
            blobs, total = counts.get(shard, (0, 0))
            counts[shard] = (blobs + 1, total + size)
        return counts

    async def _exists(self, shard: ShardId) -> bool:
        limit = self._settings.store_timeout_ms

        async def call(seconds: float) -> Entry | None:
            return await self.versions.consensus.head(shard, timeout=seconds)

        deadline = Deadline(self._runtime, limit / 1000)
        return await self._attempts.read(deadline, call, limit_ms=limit) is not None


def _is_key(key: str) -> bool:
    """Whether it is a key of persist: other things may lie in the bucket, too."""
    try:
        check_blob_key(key)
    except InvalidId:
        return False
    return True
