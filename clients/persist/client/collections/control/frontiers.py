"""Where the shards of collections are, as far as the controller knows: asked often while they move, else now and then.

Source: collections: the controller (frontiers are watched, not polled one by one).
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from persist.core.catalog.control.pace import LOOK_SECONDS_MAX, Look, due
from persist.core.frontier import MINIMUM, Antichain
from persist.core.ids import ShardId
from persist.errors import PersistError, ShardNotFound
from persist.machine.shards import ShardInfo

if TYPE_CHECKING:
    from persist.client.shard.client import ShardClient

AT_ONCE: Final = 16
"""Calls under way at the same time."""


class Uppers:
    """The uppers of shards. What was learned elsewhere, such as by completing a table, spares a look."""

    def __init__(self, client: "ShardClient") -> None:
        self._client = client
        self._runtime = client.location.runtime
        self._uppers: dict[ShardId, Antichain] = {}
        self._sinces: dict[ShardId, Antichain] = {}
        self._looks: dict[ShardId, Look] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    def upper(self, shard: ShardId) -> Antichain | None:
        """The newest upper known; None: none is, yet. No RPC."""
        return self._uppers.get(shard)

    def since(self, shard: ShardId) -> Antichain:
        """The since of the shard when it was looked at last: no reader may read before it. No RPC."""
        return self._sinces.get(shard, MINIMUM)

    def follow(self, shards: Iterable[ShardId]) -> None:
        """Look at these from now on, and at no others."""
        now, wanted = self._runtime.monotonic(), set(shards)
        self._looks = {shard: self._looks.get(shard, Look(now)) for shard in wanted}
        self._uppers = {shard: upper for shard, upper in self._uppers.items() if shard in wanted}
        self._sinces = {shard: since for shard, since in self._sinces.items() if shard in wanted}

    def hurry(self) -> None:
        """Look at all of them the next time."""
        now = self._runtime.monotonic()
        self._looks = {shard: Look(now, look.after) for shard, look in self._looks.items()}

    def completed(self, shard: ShardId, upper: Antichain) -> None:
        """This leader moved it there, and will again: no look is needed for long."""
        self.heard(shard, upper)
        if shard in self._looks:
            self._looks[shard] = Look(self._runtime.monotonic() + LOOK_SECONDS_MAX, LOOK_SECONDS_MAX)

    def heard(self, shard: ShardId, upper: Antichain) -> bool:
        """It was seen to be this; whether that is news. Uppers never go back."""
        before = self._uppers.get(shard)
        moved = before is None or before.less_than(upper)
        if moved:
            self._uppers[shard] = upper
        look = self._looks.get(shard)
        if look is not None:
            self._looks[shard] = look.told(self._runtime.monotonic(), moved=moved)
        return moved

    async def look(self, shard: ShardId) -> ShardInfo | None:
        """Ask the shard; None when there is none. One RPC. Raises CorruptData and the like, LocationError."""
        location = self._client.location
        deadline = location.attempts.deadline(None)
        try:
            async with self._room:
                info = await location.attempts.repeat(
                    deadline, lambda seconds: location.shards.open(shard, create=False, timeout=seconds)
                )
        except ShardNotFound:
            self.heard(shard, MINIMUM)
            return None
        except PersistError:
            if (look := self._looks.get(shard)) is not None:
                self._looks[shard] = look.told(self._runtime.monotonic(), moved=False)
            raise
        self.heard(shard, info.upper)
        if shard in self._looks:
            self._sinces[shard] = info.since
        return info

    def due(self) -> list[ShardId]:
        """The shards whose turn to be looked at it is."""
        return list(due(self._looks, self._runtime.monotonic()))
