"""The handles of a leader: one critical since for each shard, moved only by the process whose token is there.

A former leader may be about to move a handle, for as long as it likes. So what is promised to be readable is promised
only once this leader's token is in the handle, and is checked against the since that writing it returned; from then on
whatever the former one sends is refused. Source: collections: the controller; reliability.md I16 and I21.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from persist.core.catalog.control.tokens import Standing, described, standing
from persist.core.catalog.errors import Fenced, FencedByEpoch
from persist.core.frontier import MINIMUM, Antichain
from persist.core.ids import ShardId
from persist.core.shard.commands import CriticalDowngraded
from persist.core.shard.environments import hold_of, of_others
from persist.errors import InvalidArgument, LeaseExpired, OutcomeForgotten

if TYPE_CHECKING:
    from persist.client.shard.client import ShardClient
    from persist.client.shard.read.since import SinceHandle

PURPOSE: Final = "collections"


@dataclass(slots=True)
class _Kept:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    handle: "SinceHandle | None" = None
    given: Antichain = MINIMUM


class Handles:
    """Of one leader, under its ``token``. Safe for many tasks: what is done to one shard is done one by one.

    Every method raises Fenced, for ever, once a later leader's token was met: ``fenced`` is called first.
    """

    def __init__(
        self, client: "ShardClient", environment: str, token: bytes, *, fenced: Callable[[Fenced], None]
    ) -> None:
        self.name = hold_of(environment)
        self._client = client
        self._token = token
        self._kept: dict[ShardId, _Kept] = {}
        self._tell = fenced
        self._fenced: Fenced | None = None

    def given(self, shard: ShardId) -> Antichain | None:
        """What was given up, or is just being given up; None: the handle was not taken over yet. No RPC."""
        kept = self._kept.get(shard)
        return kept.given if kept is not None and kept.handle is not None else None

    @property
    def shards(self) -> frozenset[ShardId]:
        """Where handles were taken over."""
        return frozenset(shard for shard, kept in self._kept.items() if kept.handle is not None)

    async def take_over(self, shard: ShardId) -> Antichain:
        """Write this leader's token into the handle, made if there is none; what it holds. No RPC once that is done.

        Two RPCs, three if a former leader had it. Raises Fenced, ShardNotFound, LocationError.
        """
        self.check()
        kept = self._kept.setdefault(shard, _Kept())
        async with kept.turn:
            if kept.handle is None:
                await self._take_over(shard, kept)
            return kept.given

    async def move(self, shard: ShardId, since: Antichain) -> Antichain:
        """Release what is before ``since``; what is held then. One RPC. Raises Fenced, ShardNotFound, LocationError.

        From the moment it is called on nothing before ``since`` is promised any more, whatever comes of it.
        """
        self.check()
        kept = self._kept.setdefault(shard, _Kept())
        async with kept.turn:
            if kept.handle is None:
                await self._take_over(shard, kept)
            if not kept.given.less_than(since):
                return kept.given
            kept.given = since
            assert kept.handle is not None
            try:
                outcome = await kept.handle.compare_and_downgrade(self._token, since)
            except (InvalidArgument, LeaseExpired, OutcomeForgotten):
                # Removed by hand, or the location was restored, or it is not known: look at it anew.
                kept.handle = None
                raise
            if isinstance(outcome, CriticalDowngraded):
                return outcome.since
            kept.handle = None
            self._refuse_later(outcome.opaque, shard)
            await self._take_over(shard, kept)
            return kept.given

    async def release(self, shard: ShardId) -> None:
        """Remove the handle, if it is this leader's. Raises Fenced, LocationError; ShardNotFound is none."""
        await self.take_over(shard)
        kept = self._kept[shard]
        async with kept.turn:
            handle, kept.handle = kept.handle, None
            if handle is not None:
                await handle.expire(expected=self._token)
        self._kept.pop(shard, None)

    async def of_others(self, shard: ShardId) -> list[str]:
        """The handles of other environments on a shard that was taken over: it is a collection of theirs.

        Of two that take one over at a time at least one sees the other. Raises ShardNotFound, LocationError.
        """
        state = await self._client.inspect(shard)
        return of_others(state["critical_readers"], self.name)

    def forget(self, shard: ShardId) -> None:
        """The shard is gone, and its handle with it."""
        self._kept.pop(shard, None)

    def check(self) -> None:
        """Nothing, while no later leader was met. Raises Fenced."""
        if self._fenced is not None:
            raise self._fenced

    def end(self, fenced: Fenced) -> None:
        """A later leader was met, here or elsewhere."""
        if self._fenced is None:
            self._fenced = fenced
            self._tell(fenced)

    async def _take_over(self, shard: ShardId, kept: _Kept) -> None:
        handle = await self._client.open_since(self.name, shard, opaque=self._token, purpose=PURPOSE)
        since, opaque = handle.since, handle.opaque
        while standing(opaque, self._token) is not Standing.OURS:
            self._refuse_later(opaque, shard)
            outcome = await handle.compare_and_downgrade(opaque, since, opaque=self._token)
            since, opaque = outcome.since, outcome.opaque
        kept.handle, kept.given = handle, kept.given.join(since)

    def _refuse_later(self, opaque: bytes, shard: ShardId) -> None:
        if standing(opaque, self._token) is Standing.LATER:
            self.end(FencedByEpoch("a later leader holds this shard", hint="ask it", shard=shard, **described(opaque)))
            self.check()
