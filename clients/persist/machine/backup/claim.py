"""The claim of a restore on a location: an entry in its Consensus, set by compare-and-set before anything is written.

One restore at a time: a second is refused, and the error names the first. One that fails releases its claim; one that
was killed cannot, and looks the same as one that stands still, so an operator says that it is gone, and the claim is
taken over. The seed is handed on with it: what a restore makes up is derived from that, so even the first, should it
wake, writes the same.
Source: docs/runbook.md, backups.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Final

from persist.core.ids import ABSENT, LocationId
from persist.errors import Indeterminate, InvalidArgument, LocationError, VersionMismatch
from persist.machine.backup.beginning import Birth
from persist.machine.backup.copying import Store
from persist.machine.backup.manifest import Manifest, digest
from persist.retry.attempts import Attempts
from persist.retry.deadline import Backoff, Deadline
from persist.storage.ports import Consensus, Entry

FORMAT: Final = 1
CLAIM: Final = "restoring"
"""The claim's key in Consensus: no shard id, so it is not taken for a shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreClaim:
    """One restore. ``run``: its id; ``host``, ``pid``: for people; ``held``: it has not ended.

    ``seed``, ``seed_host``, ``seed_ms`` are the first's: what its beginnings are derived from.
    """

    backup: str
    run: str
    host: str
    pid: int
    seed: str
    seed_host: str
    seed_ms: int
    held: bool = True

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    def birth(self, shard: str) -> Birth:
        """What a shard's history begins with, the same for every run that goes on with this restore."""
        return Birth(digest(b"birth", self.seed.encode(), shard.encode())[:8], self.seed_ms, self.seed_host)

    @property
    def location(self) -> LocationId:
        """What the restored location is called, by every run that goes on with this restore."""
        return LocationId.of(digest(b"location", self.seed.encode()))

    @classmethod
    def decode(cls, data: bytes) -> "RestoreClaim":
        """What ``encode`` wrote. Raises VersionMismatch."""
        found = json.loads(data)
        if found.pop("format") != FORMAT:
            raise VersionMismatch("a restore by another release was begun here", hint="use new, empty stores")
        return cls(**found)


class RestoreClaims:
    """The claim on one Consensus by one run."""

    def __init__(self, to: Store, consensus: Consensus, manifest: Manifest) -> None:
        self._to = to
        self._consensus = consensus
        self._backup = manifest.key
        self._run = to.runtime.random_bytes(8).hex()

    async def look(self, *, resume: bool) -> None:
        """Refuse as ``take`` does, and write nothing."""
        there = await self._head()
        if there is not None:
            self._check_free(RestoreClaim.decode(there.data), resume=resume)

    async def take(self, *, resume: bool) -> RestoreClaim:
        """Claim the location. ``resume``: take over from a restore of the same backup that has not ended.

        Raises InvalidArgument (another restore was begun here, and has not ended), VersionMismatch, LocationError.
        """
        runtime = self._to.runtime
        mine = RestoreClaim(
            backup=self._backup,
            run=self._run,
            host=runtime.hostname,
            pid=os.getpid(),
            seed=runtime.random_bytes(16).hex(),
            seed_host=runtime.hostname,
            # Writers of the old history that began in this very millisecond are its own, too.
            seed_ms=runtime.now_ms() + 1,
        )

        def following(there: RestoreClaim | None) -> RestoreClaim:
            if there is None:
                return mine
            self._check_free(there, resume=resume)
            if there.backup != mine.backup:
                return mine
            # What a restore that failed has written stays, so what it made up goes on.
            return replace(mine, seed=there.seed, seed_host=there.seed_host, seed_ms=there.seed_ms)

        claim = await self._put(following)
        assert claim is not None
        return claim

    async def check(self) -> None:
        """Check that no other restore took over. Raises InvalidArgument."""
        there = await self._head()
        if there is None or RestoreClaim.decode(there.data).run != self._run:
            raise InvalidArgument("another restore took this one over", hint="leave it to that one")

    async def let_go(self, *, done: bool) -> None:
        """Record that this restore has ended, unless another took it over. ``done``: none is to go on with it.

        Raises LocationError.
        """
        after = self._to.runtime.random_bytes(16).hex()

        def ended(there: RestoreClaim | None) -> RestoreClaim | None:
            if there is None or there.run != self._run:
                return None
            return replace(there, held=False, seed=after if done else there.seed)

        await self._put(ended)

    def _check_free(self, there: RestoreClaim, *, resume: bool) -> None:
        if there.held and there.run != self._run and not (resume and there.backup == self._backup):
            raise _taken(there)

    async def _put(self, following: Callable[[RestoreClaim | None], RestoreClaim | None]) -> RestoreClaim | None:
        """Replace the claim by its successor; does nothing for None, or when that is there already."""
        settings, runtime = self._to.settings, self._to.runtime
        deadline = Deadline(runtime, settings.timeout_ms / 1000)
        backoff = Backoff(runtime, settings, deadline)
        while True:
            entry = await self._head()
            there = None if entry is None else RestoreClaim.decode(entry.data)
            wanted = following(there)
            if wanted is None or wanted == there:
                return wanted
            try:
                timeout, seqno = deadline.slice(settings.store_timeout_ms), ABSENT if entry is None else entry.seqno
                if await self._consensus.compare_and_set(CLAIM, seqno, wanted.encode(), timeout=timeout):
                    return wanted
            except LocationError:
                # What stands there is looked at again.
                pass
            if not await backoff.pause():
                raise Indeterminate("claiming the location got no answer in time", hint="run it again with --resume")

    async def _head(self) -> Entry | None:
        settings, runtime = self._to.settings, self._to.runtime

        async def call(seconds: float) -> Entry | None:
            return await self._consensus.head(CLAIM, timeout=seconds)

        deadline = Deadline(runtime, settings.timeout_ms / 1000)
        attempts = Attempts(settings=settings, runtime=runtime)
        return await attempts.read(deadline, call, limit_ms=settings.store_timeout_ms)


def _taken(there: RestoreClaim) -> InvalidArgument:
    return InvalidArgument(
        "another restore into this location was begun and has not ended",
        hint="let it end; if it was killed, go on with it by --resume and its --backup, or restore into new stores",
        backup=there.backup,
        host=there.host,
        pid=there.pid,
        begun_ms=there.seed_ms,
    )
