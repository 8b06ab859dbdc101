"""Restoring a backup into an empty location: first everything to Blob, then shard by shard to Consensus.

Until its entry in Consensus is there a shard does not exist, and once it is there everything it names is. What it names
has keys of this restore alone: requests of the location that was here before, however late, delete nothing of it.
A mark lies in the new Blob meanwhile: by it an interrupted restore knows itself, and goes on. It has a key that no
backup holds: the backup's own Blob, whatever it is called, is not taken for an interrupted restore, but refused as not
empty.
A claim in the new Consensus keeps two restores apart (``claim.py``).
Source: docs/runbook.md, backups; reliability.md I8.
"""

import asyncio
import contextlib
from dataclasses import dataclass

from persist.core.ids import LOCATION_KEY, ShardId, identity_key
from persist.errors import InvalidArgument, PersistError
from persist.machine.backup.beginning import Beginnings
from persist.machine.backup.claim import CLAIM, RestoreClaim, RestoreClaims
from persist.machine.backup.copying import COPIES_AT_ONCE, Copied, Copier, Report, Store, together
from persist.machine.backup.manifest import Manifest, ShardBackup, digest
from persist.machine.backup.verify import read_state
from persist.machine.gate import Gate
from persist.machine.identity import Identity
from persist.storage.ports import Consensus

_SHARDS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of a restore: shards in the location, how many of them this run began, and blobs copied."""

    shards: int
    begun: int
    copied: Copied


class Restorer:
    """Restores one backup. Memory: sixteen states and four parts at most."""

    def __init__(
        self, source: Store, manifest: Manifest, to: Store, consensus: Consensus, *, report: Report = lambda blobs: None
    ) -> None:
        """``report`` is called per part and shard done. Raises InvalidArgument when it would restore onto itself."""
        if source.blob.uri == to.blob.uri:
            raise InvalidArgument("the backup lies in this Blob", hint="name another location")
        self._source = source
        self._manifest = manifest
        self._to = to
        self._consensus = consensus
        self._beginnings = Beginnings(to, consensus)
        self._gate = Gate(consensus, settings=to.settings, runtime=to.runtime)
        self._identity = Identity(to.blob, consensus, self._gate, settings=to.settings, runtime=to.runtime)
        self._claims = RestoreClaims(to, consensus, manifest)
        self._claim: RestoreClaim | None = None
        self._report = report
        self._parts_at_once = asyncio.Semaphore(COPIES_AT_ONCE)
        self._copied = Copied()
        self._begun = 0

    async def restore(self, *, resume: bool = False) -> Restored:
        """Restore every shard of the backup. Run again after a failure, it goes on where it was.

        ``resume``: also after it was killed, and could not record its end. Raises InvalidArgument (the location is
        not empty, another restore into it has not ended), CorruptData (the backup is damaged: verify it),
        VersionMismatch, LocationError.
        """
        mark = self._manifest.mark
        await self._claims.look(resume=resume)
        begun = await self._to.get(mark) is not None
        if not begun:
            await self._check_empty()
        self._claim = await self._claims.take(resume=resume)
        done = False
        try:
            if not begun:
                await self._to.set(mark, self._manifest.key.encode())
            shards = self._manifest.shards
            await self._gate.raise_to(self._manifest.write_version, self._to.deadline())
            # A location of its own: a process with the stores of the original location does not take these for them.
            await self._identity.renew(self._to.deadline(), self._claim.location)
            await together(shards, self._prepare, asyncio.Semaphore(_SHARDS_AT_ONCE))
            await self._claims.check()
            await together(shards, self._begin, asyncio.Semaphore(_SHARDS_AT_ONCE))
            await self._to.delete(mark)
            done = True
        finally:
            with contextlib.suppress(PersistError):
                # Otherwise the next one says --resume.
                await self._claims.let_go(done=done)
        return Restored(shards=len(shards), begun=self._begun, copied=self._copied)

    async def _check_empty(self) -> None:
        record = await self._gate.look(self._to.deadline())
        # A location that was begun and never held a shard, or a restore that was interrupted.
        own = None if record is None or record.id is None else identity_key(record.id)

        async def found(seconds: float) -> tuple[str, str] | None:
            async for shard in self._consensus.list_keys(timeout=seconds):
                # Neither says anything of shards; the write-version may have been made by what was interrupted.
                if shard not in (CLAIM, LOCATION_KEY):
                    return "Consensus", shard
            async for key, _ in self._to.blob.list("", timeout=seconds):
                if key != own:
                    return "Blob", key
            return None

        there = await self._to.read(found, self._to.settings.store_timeout_ms)
        if there is not None:
            raise _not_empty(*there)

    async def _prepare(self, entry: ShardBackup) -> None:
        """Write everything that the shard will name to Blob."""
        state = await read_state(self._source, entry)
        assert self._claim is not None
        birth = self._claim.birth(entry.shard)
        copied = await Copier(self._source, self._to, self._parts_at_once, key_of=birth.key_of).parts(
            state, self._report
        )
        self._copied += copied
        await self._beginnings.prepare(state, self._origin(entry), birth)

    async def _begin(self, entry: ShardBackup) -> None:
        shard = ShardId.parse(entry.shard)
        begun = await self._beginnings.begin(shard, self._origin(entry))
        self._begun += begun
        self._report(1)

    def _origin(self, entry: ShardBackup) -> bytes:
        assert self._claim is not None
        return digest(b"restore", self._claim.seed.encode(), entry.shard.encode())


def _not_empty(store: str, found: str) -> InvalidArgument:
    hint = "restore into new, empty stores; a restore that failed goes on with the same --backup"
    return InvalidArgument(f"{store} is not empty", hint=hint, found=found)
