"""Upgrading a location: its write-version, and shards in a format that is no longer written.

A location is upgraded once every program that uses it knows the new format: from then on those that do not refuse it.
Programs that do not are found by their commits, each of which names the newest format its program knows. Shards in a
format that is still written stay as they are, and move with the next commit. Those of an older one are moved here, by
two commits each: nothing is rewritten, what lies there is read as before.
Source: reliability.md I26; docs/adr/0013; docs/formats.md, State.
"""

from dataclasses import dataclass

from persist.core.ids import ShardId
from persist.core.shard.diff import diff
from persist.core.shard.state import FIRST_FORMAT, STATE_FORMAT, State
from persist.errors import Determinate
from persist.machine.versions import Versions
from persist.retry.attempts import Attempts
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.wire.shard.state import decode_diff, encode_diff


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderProgram:
    """A recent committer to a shard that does not know the newest format. ``known_format`` 0: it does not say."""

    shard: ShardId
    hostname: str
    known_format: int
    walltime_ms: int


class FormatUpgrade:
    """Looks at the write-version of a location and at the format of its shards, and moves them on."""

    def __init__(self, versions: Versions, *, settings: Settings, runtime: Runtime) -> None:
        self._versions = versions
        self._settings = settings
        self._runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)

    async def write_version(self, deadline: Deadline) -> int | None:
        """The newest format that may be written here; None where shards are older than the record that says so.

        Raises VersionMismatch when this release does not know it.
        """
        return await self._versions.gate.write_version(deadline)

    async def raise_write_version(self, deadline: Deadline) -> bool:
        """Let the newest format of this release be written. False: it was. Programs that do not know it refuse.

        A location that has no id is given one.
        """
        raised = await self._versions.gate.raise_to(STATE_FORMAT, deadline)
        await self._versions.identity.settle(deadline)
        return raised

    async def older_programs(self, shard: ShardId, deadline: Deadline) -> list[OlderProgram]:
        """Programs that committed within a reader's lease and do not know ``STATE_FORMAT``, newest first.

        Programs that only read, and hold no lease, cannot be seen. Reads the diffs of the shard unless it was quiet.
        """
        version = await self._versions.load(shard, deadline, older=True)
        since_ms = self._runtime.now_ms() - self._settings.reader_lease_ms
        if version is None or version.state.walltime_ms < since_ms:
            return []
        at = {name: getattr(version.state, name) for name in ("walltime_ms", "hostname", "known_format")}
        steps = [
            {name: change.scalars[name] for name in at if name in change.scalars}
            async for change in self._versions.diffs(shard, version.seqno, deadline)
        ]
        found: dict[tuple[str, int], OlderProgram] = {}
        for step in reversed(steps):
            if at["walltime_ms"] < since_ms:
                break
            if at["known_format"] < STATE_FORMAT:
                found.setdefault((at["hostname"], at["known_format"]), OlderProgram(shard=shard, **at))
            at |= {name: changed.old for name, changed in step.items()}
        return list(found.values())

    async def format(self, shard: ShardId, deadline: Deadline) -> int | None:
        """The format of a shard's newest state; None when it was never initialised. One Consensus read.

        Raises CorruptData: bytes are asked for their format only once they are known to be what was written here.
        """
        limit = self._settings.store_timeout_ms
        head = await self._attempts.read(
            deadline, lambda seconds: self._versions.consensus.head(shard, timeout=seconds), limit_ms=limit
        )
        return None if head is None else decode_diff(head.data, shard, head.seqno).format

    async def move(self, shard: ShardId, deadline: Deadline) -> bool:
        """Commit the newest state in a format that is written, and a rollup of it. False: it was in one already.

        Safe to repeat, and beside programs of the older release: what these commit first is taken along, what they
        would commit afterwards is refused. Raises CorruptData, LocationError.
        """
        while True:
            found = await self.format(shard, deadline)
            if found is None or found >= FIRST_FORMAT:
                return False
            version = await self._versions.load(shard, deadline, older=True)
            if version is None:
                return False
            await self._versions.identity.settle(deadline)
            # What the older format remembered of appends is gone: repeating one returns CannotTell.
            seqno = version.seqno
            moved = self._next(version.state).evolved(sessions_forgotten=seqno, tokens_forgotten=seqno)
            if await self._committed(version.state, moved, deadline):
                break
        rollup = await self._versions.write_rollup(moved, deadline)
        rolled = self._next(moved).evolved(rollups={**moved.rollups, moved.seqno: rollup})
        # A process that works with the shard by now writes rollups in this format too.
        await self._committed(moved, rolled, deadline)
        return True

    def _next(self, state: State) -> State:
        return state.evolved(
            seqno=state.seqno + 1,
            format=max(state.format, self._versions.gate.format),
            known_format=STATE_FORMAT,
            walltime_ms=max(self._runtime.now_ms(), state.walltime_ms + 1),
            hostname=self._runtime.hostname,
        )

    async def _committed(self, before: State, after: State, deadline: Deadline) -> bool:
        """Whether ``after`` is what follows ``before`` now. Raises Determinate: unknown, look again."""
        data = encode_diff(diff(before, after), after.shard)
        timeout = deadline.slice(self._settings.store_timeout_ms)
        consensus = self._versions.consensus
        if await consensus.compare_and_set(after.shard, before.seqno, data, timeout=timeout):
            return True
        if deadline.passed:
            raise Determinate("lost every race for a commit", shard=after.shard, hint="run it again")
        return False
