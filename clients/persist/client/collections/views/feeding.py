"""An input of what is computed: its shard, read under a lease that moves along with what is computed from it.

Beside the lease, the controller keeps inputs readable from where what is computed from them goes on.
Source: collections: the controller (running dependants).
"""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow.compute as pc

from persist.client.shard.location import Location
from persist.client.shard.read.handle import ReadHandle
from persist.client.shard.read.snapshot import Diffs, Snapshot
from persist.core.data.schema import TS, Schema
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.errors import PersistError

if TYPE_CHECKING:
    from persist.client.shard.write.handle import WriteHandle

PURPOSE = "view"
"""What leases on inputs say of themselves."""


class FeedingClient(Protocol):
    """The parts of a client that computing needs; see ``Client``."""

    @property
    def location(self) -> Location:
        """See Client."""
        ...

    async def open_reader(
        self, shard: ShardId | str, *, purpose: str = "", timeout: float | None = None
    ) -> "ReadHandle":
        """See Client."""
        ...

    async def open_writer(
        self, shard: ShardId | str, *, schema: Schema | None = None, timeout: float | None = None
    ) -> "WriteHandle":
        """See Client."""
        ...

    async def recent_upper(self, shard: ShardId | str, *, timeout: float | None = None) -> Antichain:
        """See Client."""
        ...


@dataclass(frozen=True, slots=True)
class _Times:
    """The times of changes in ``[begin, end)``; end None: all."""

    begin: int
    end: int | None
    times: frozenset[int] = frozenset()


class Feeding:
    """One input. ``upper`` is what it was at the last ``look``."""

    def __init__(self, client: FeedingClient, shard: ShardId) -> None:
        self._client = client
        self._shard = shard
        self._reader: ReadHandle | None = None
        self._known: _Times | None = None
        self.upper = Antichain.of(0)

    async def look(self) -> Antichain:
        """How far it is complete now. One RPC, two more when it is opened. Raises ShardNotFound, LocationError."""
        await self._open()
        self.upper = await self._client.recent_upper(self._shard)
        return self.upper

    async def since(self) -> int:
        """From when on it can be read. Of a shard that is closed for reading 0, where reads fail."""
        time = (await self._open()).since.time
        return 0 if time is None else time

    async def snapshot(self, as_of: int) -> Snapshot:
        """The contents at a time before ``upper``. Raises NotReadable, LeaseExpired, LocationError."""
        return await (await self._open()).snapshot(as_of)

    async def diffs(self, lower: int, upper: Antichain) -> Diffs:
        """The changes at times in ``[lower, upper)``. Raises as ``snapshot``."""
        return await (await self._open()).diffs(lower, upper)

    async def changed(self, lower: int) -> bool:
        """Whether there may be changes at or beyond ``lower``. Reads no rows."""
        if self.upper.time is not None and self.upper.time <= lower:
            return False
        return any(each.rows for each in await (await self._open()).changes_since(lower))

    async def change_times(self, lower: int) -> set[int]:
        """The times of changes in ``[lower, upper)``. Each is read once, however often a stalled view asks."""
        known = self._known if self._known is not None and self._known.begin <= lower else _Times(lower, lower)
        times, end = {time for time in known.times if time >= lower}, known.end
        if end is not None:
            begin = max(lower, end)
            if await self.changed(begin):
                async for batch in (await self.diffs(begin, self.upper)).to_batches():
                    times.update(pc.unique(batch.column(TS.name)).to_pylist())
            end = None if self.upper.time is None else max(begin, self.upper.time)
        self._known = _Times(lower, end, frozenset(times))
        return times

    async def release(self, since: int) -> None:
        """Nothing before ``since`` is read any more."""
        reader = await self._open()
        if reader.since.less_than(Antichain.of(since)):
            await reader.downgrade_since(since)

    async def close(self) -> None:
        """Release it. What fails runs out by itself."""
        reader, self._reader, self._known = self._reader, None, None
        if reader is not None:
            with contextlib.suppress(PersistError):
                await reader.expire()

    async def _open(self) -> ReadHandle:
        if self._reader is None:
            self._reader = await self._client.open_reader(self._shard, purpose=PURPOSE)
        return self._reader


async def horizon(inputs: Iterable[Feeding]) -> Antichain:
    """What is complete in all of them. Without any, the end. Raises ShardNotFound, LocationError."""
    found = Antichain(())
    for upper in await asyncio.gather(*(each.look() for each in inputs)):
        found = found.meet(upper)
    return found
