"""Beginning a shard's history in a Consensus that does not know it, from a state that another history reached.

As when a shard is made: the rollup is written first, then the diff at seqno 0 that names it. The rollup's key is
derived from what the state comes from, so a second attempt finds what the first one did, and nothing else.
Source: docs/formats.md, states; reliability.md I11.
"""

import dataclasses
import hashlib
from typing import NamedTuple

from persist.core.ids import ABSENT, ShardId, copied_part_key, rollup_key
from persist.core.shard.commands import Rollup
from persist.core.shard.diff import diff
from persist.core.shard.rebirth import reborn
from persist.core.shard.state import State
from persist.errors import Indeterminate, InvalidArgument, LocationError
from persist.machine.backup.copying import Store
from persist.retry.attempts import Attempts
from persist.retry.deadline import Backoff, Deadline
from persist.storage.ports import Consensus, Entry
from persist.wire.checksum import crc32c
from persist.wire.shard.state import decode_diff, decode_rollup, encode_diff, encode_rollup


class Birth(NamedTuple):
    """What is a new history's own: 8 random bytes, and when and where it began."""

    incarnation: bytes
    now_ms: int
    hostname: str

    def key_of(self, key: str) -> str:
        """Where this history has its copy of the part that lies under ``key`` in the one it comes from.

        No other history has a key of these: what was decided in one, and is late, deletes nothing of another.
        """
        return copied_part_key(key, hashlib.sha256(b"part\0" + self.incarnation + key.encode()).digest()[:16])


class Beginnings:
    """Begins shards in one Blob and one Consensus. Safe to race and to repeat."""

    def __init__(self, to: Store, consensus: Consensus) -> None:
        self._to = to
        self._consensus = consensus

    async def prepare(self, state: State, origin: bytes, birth: Birth | None = None) -> None:
        """Write the rollup that the shard will begin with, unless it is there. Raises CorruptData, LocationError.

        ``birth``: what two attempts must agree on when both may write, and where the copies of parts lie; made up here
        otherwise, for parts that stay where they are.
        """
        runtime = self._to.runtime
        key = first_key(state.shard, origin)
        if await self._to.get(key) is None:
            key_of = None if birth is None else birth.key_of
            birth = birth or Birth(runtime.random_bytes(8), runtime.now_ms(), runtime.hostname)
            first = reborn(
                state,
                incarnation=int.from_bytes(birth.incarnation, "big"),
                now_ms=birth.now_ms,
                hostname=birth.hostname,
                key_of=key_of,
            )
            await self._to.set(key, await runtime.offload(encode_rollup, first))

    async def begin(self, shard: ShardId, origin: bytes) -> bool:
        """Make a prepared shard known to Consensus. False: an earlier attempt had done it.

        Raises InvalidArgument (the shard has another history here), CorruptData, LocationError.
        """
        key = first_key(shard, origin)
        data = await self._first_diff(shard, key)
        settings, runtime = self._to.settings, self._to.runtime
        deadline = Deadline(runtime, settings.timeout_ms / 1000)
        backoff = Backoff(runtime, settings, deadline)
        while True:
            there = await self.first_entry(shard)
            if there is not None:
                if there.seqno == 0 and decode_diff(there.data, shard, 0).latest_rollup[1].key == key:
                    return False
                raise InvalidArgument(
                    "the shard is there, with a history of its own", hint="name an empty location", shard=shard
                )
            try:
                timeout = deadline.slice(settings.store_timeout_ms)
                if await self._consensus.compare_and_set(shard, ABSENT, data, timeout=timeout):
                    return True
            except LocationError:
                # What stands there is looked at again.
                pass
            if not await backoff.pause():
                raise Indeterminate("beginning the shard got no answer in time", hint="run it again", shard=shard)

    async def first_entry(self, shard: ShardId) -> Entry | None:
        """The oldest entry Consensus has of a shard; None when there is none."""
        settings, runtime = self._to.settings, self._to.runtime

        async def call(seconds: float) -> list[Entry]:
            return await self._consensus.scan(shard, 0, 1, timeout=seconds)

        deadline = Deadline(runtime, settings.timeout_ms / 1000)
        attempts = Attempts(settings=settings, runtime=runtime)
        entries = await attempts.read(deadline, call, limit_ms=settings.store_timeout_ms)
        return entries[0] if entries else None

    async def _first_diff(self, shard: ShardId, key: str) -> bytes:
        data = await self._to.get(key)
        if data is None:
            raise Indeterminate("the first rollup is not there", hint="run it again", key=key)
        bare = decode_rollup(data, shard, 0)
        rollup = Rollup(key=key, encoded_bytes=len(data), checksum=crc32c(data))
        return encode_diff(diff(bare, dataclasses.replace(bare, rollups={0: rollup})), shard)


def first_key(shard: ShardId, origin: bytes) -> str:
    """The key of the first rollup of a history that comes from ``origin``, 16 bytes."""
    return rollup_key(shard, 0, origin)
