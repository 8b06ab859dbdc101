"""A damaged newest rollup, written again from an older one: the diffs between them are in Consensus.

Opening a shard reads the newest rollup, so without it the shard is lost, although all that it held is there. The same
state has the same bytes, which the diff that names the rollup can confirm: they are put back under its key, and no
history changes. Source: persist-semantics.md section 2.7; reliability.md I14.
"""

import dataclasses
import re
from dataclasses import dataclass
from typing import Final

from persist.core.ids import ShardId
from persist.core.shard.commands import Rollup
from persist.core.shard.diff import StateDiff, apply_diff
from persist.core.shard.state import State
from persist.errors import CorruptData
from persist.machine.versions import Versions
from persist.retry.attempts import Attempts
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.wire.checksum import crc32c
from persist.wire.shard.state import decode_rollup, encode_rollup

_ROLLUP: Final = re.compile(r".*/rollup/(\d+)-[0-9a-f]{32}")
_NEWEST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mendable:
    """A newest rollup that cannot be read, and its bytes. ``origin``: the seqno of the rollup they were made from."""

    shard: ShardId
    seqno: int
    key: str
    origin: int
    data: bytes


class RollupRepair:
    """Looks whether a shard's newest rollup can be read, and writes it again if not. Memory: a state and its diffs."""

    def __init__(self, versions: Versions, *, settings: Settings, runtime: Runtime) -> None:
        self._versions = versions
        self._settings = settings
        self._runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)

    async def find(self, shard: ShardId) -> Mendable | None:
        """What can be written again; None: the newest rollup can be read, or nothing here makes its bytes.

        Raises LocationError, CorruptData (a diff is damaged).
        """
        deadline = Deadline(self._runtime, self._settings.maintenance_timeout_ms / 1000)
        diffs = [each async for each in self._versions.diffs(shard, _NEWEST, deadline)]
        if not diffs:
            return None
        seqno, rollup = diffs[-1].latest_rollup
        if await self._is_whole(shard, seqno, rollup, deadline):
            return None
        for origin, key in await self._older(shard, seqno, deadline):
            state = await self._state(shard, origin, key, deadline)
            if state is not None and origin == 0:
                # The first rollup cannot contain its own checksum: the diff that named it says it instead.
                state = dataclasses.replace(state, rollups={0: diffs[0].latest_rollup[1]})
            data = None if state is None else await self._runtime.offload(_encoded, state, diffs, seqno)
            if data is not None and len(data) == rollup.encoded_bytes and crc32c(data) == rollup.checksum:
                return Mendable(shard=shard, seqno=seqno, key=rollup.key, origin=origin, data=data)
        return None

    async def mend(self, found: Mendable) -> None:
        """Put it back. May be repeated. Raises LocationError."""

        async def call(seconds: float) -> None:
            await self._versions.blob.set(found.key, found.data, timeout=seconds)

        deadline = Deadline(self._runtime, self._settings.maintenance_timeout_ms / 1000)
        await self._attempts.repeat(deadline, call, limit_ms=self._settings.blob_timeout_ms)

    async def _is_whole(self, shard: ShardId, seqno: int, rollup: Rollup, deadline: Deadline) -> bool:
        try:
            return await self._versions.rollup(shard, seqno, rollup, deadline) is not None
        except CorruptData:
            return False

    async def _older(self, shard: ShardId, seqno: int, deadline: Deadline) -> list[tuple[int, str]]:
        """The rollups before this one, the newest first."""
        listed = self._versions.blob.list(f"{shard}/rollup/", timeout=self._settings.blob_timeout_ms / 1000)
        keys = [key async for key, _ in listed]
        numbered = [(int(match.group(1)), key) for key in keys if (match := _ROLLUP.fullmatch(key))]
        return sorted((each for each in numbered if each[0] < seqno), reverse=True)

    async def _state(self, shard: ShardId, seqno: int, key: str, deadline: Deadline) -> State | None:
        async def call(seconds: float) -> bytes | None:
            return await self._versions.blob.get(key, timeout=seconds)

        data = await self._attempts.read(deadline, call)
        try:
            return await self._runtime.offload(decode_rollup, data or b"", shard, seqno)
        except CorruptData:
            return None


def _encoded(state: State, diffs: list[StateDiff], until: int) -> bytes | None:
    """The bytes of the state at ``until``; None: a diff on the way is gone."""
    for change in diffs:
        if state.seqno < change.seqno_to <= until:
            if change.seqno_from != state.seqno:
                return None
            state = apply_diff(state, change)
    return encode_rollup(state) if state.seqno == until else None
