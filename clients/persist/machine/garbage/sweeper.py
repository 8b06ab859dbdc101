"""Sweeping: deleting blobs that no live state names and that no process can ever publish.

The order makes it safe: fence writers of that age off, then read the state and every live diff, then list, then delete.
A writer born before the fence that the state read does not know can publish nothing from then on, so what it left is
garbage whatever it still does. Blobs of ids without a time are never swept. Source: reliability.md I9 and I12.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from persist.core.ids import ShardId
from persist.core.shard.commands import FenceWriters
from persist.errors import InvalidArgument, ShardNotFound
from persist.machine.asking import Asking
from persist.machine.garbage.inventory import BlobVerdict, Found, Inventory, LiveKeys
from persist.machine.shards import Shards
from persist.retry.attempts import Attempts
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings

SAFE_AGE_MS: Final = 86_400_000
"""Writes take less than this; one that takes longer may be refused, and is then repeated."""
_DELETED_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep of one shard found: leaked blobs and their bytes, what must stay, and unfinished uploads.

    ``deleted`` is False for a dry run.
    """

    shard: ShardId
    leaked: int = 0
    leaked_bytes: int = 0
    unlinked: int = 0
    unlinked_bytes: int = 0
    ageless: int = 0
    uploads: int = 0
    deleted: bool = False


Report = Callable[[Found], None]


class Sweeper:
    """Sweeps shards, one after the other. Cut off anywhere, the next sweep goes on. Memory: the names in one shard."""

    def __init__(self, shards: Shards, survey: Inventory, *, settings: Settings, runtime: Runtime) -> None:
        self._asking = Asking(shards, Attempts(settings=settings, runtime=runtime))
        self._survey = survey
        self._settings = settings
        self._runtime = runtime

    async def sweep(
        self,
        shard: ShardId,
        *,
        safe_age_ms: int = SAFE_AGE_MS,
        commit: bool = False,
        report: Report = lambda found: None,
    ) -> Swept:
        """Delete what is leaked; only find it without ``commit``. ``report`` is called for each blob that no state
        names.

        Raises ShardNotFound, InvalidArgument, LocationError, CorruptData (HistoryRewound: it was restored meanwhile).
        """
        fence_ms = self._runtime.now_ms() - safe_age_ms
        if safe_age_ms < 0 or fence_ms < 0:
            raise InvalidArgument("a safe age is a time before now", hint="give milliseconds", safe_age_ms=safe_age_ms)
        deadline = Deadline(self._runtime, self._settings.maintenance_timeout_ms / 1000)
        if commit:
            await self._fence(shard, fence_ms)
        names = await self._survey.names(shard, deadline)
        if names is None:
            raise ShardNotFound("no such shard here", hint="check the id and the location", shard=shard)
        leaked = leaked_bytes = unlinked = unlinked_bytes = ageless = 0
        dead: list[str] = []
        # Committed, the state says what is fenced off; otherwise it is as if.
        async for found in self._survey.found(names, fence_ms=0 if commit else fence_ms):
            if found.verdict is BlobVerdict.LEAKED:
                leaked, leaked_bytes = leaked + 1, leaked_bytes + found.size
                dead.append(found.key)
            elif found.verdict is BlobVerdict.UNLINKED:
                unlinked, unlinked_bytes = unlinked + 1, unlinked_bytes + found.size
                ageless += found.ageless
            else:
                continue
            report(found)
            if commit and len(dead) >= _DELETED_AT_ONCE:
                await self._delete(names, dead, deadline)
            if len(dead) >= _DELETED_AT_ONCE:
                dead.clear()
        if commit:
            await self._delete(names, dead, deadline)
        return Swept(
            shard=shard,
            leaked=leaked,
            leaked_bytes=leaked_bytes,
            unlinked=unlinked,
            unlinked_bytes=unlinked_bytes,
            ageless=ageless,
            uploads=await self._uploads(f"{shard}/", safe_age_ms, commit=commit),
            deleted=commit,
        )

    async def _delete(self, names: LiveKeys, dead: list[str], deadline: Deadline) -> None:
        """SUBTLE: what was listed is of the history of these names if that one stands after the listing.

        A restore writes under keys of its own, once the history before it is gone; so a late request does no harm.
        """
        await self._survey.versions.check_same(names.version, deadline)
        await self._survey.versions.delete(dead, deadline)

    async def _fence(self, shard: ShardId, fence_ms: int) -> None:
        timeout = self._settings.timeout_ms / 1000
        await self._asking.open(shard, timeout=timeout)
        await self._asking.apply(shard, FenceWriters(born_before_ms=fence_ms), timeout=timeout)

    async def _uploads(self, prefix: str, safe_age_ms: int, *, commit: bool) -> int:
        """Abort unfinished uploads that have not moved for so long; how many."""
        timeout = self._settings.blob_timeout_ms / 1000
        blob = self._survey.versions.blob
        return await blob.abort_uploads(prefix, older_than_ms=safe_age_ms, dry_run=not commit, timeout=timeout)
