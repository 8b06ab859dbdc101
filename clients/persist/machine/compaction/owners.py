"""The names a process compacts under: one for each compaction, or the one its commits claim under."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from persist.core.ids import ShardId, WriterId

RENEWED_MAX: Final = 10_000
"""Shards whose renewed names are remembered; the first ones of others may stand on what was set aside."""


class Owners(Protocol):
    """Names to claim compactions under."""

    def of(self, shard: ShardId) -> WriterId:
        """The name for the next compaction of a shard."""
        ...

    def renew(self, shard: ShardId) -> bool:
        """Leave what is claimed under that name alone from now on. Whether there is reason to try again at once."""
        ...


class FreshOwners:
    """Another name for every compaction: nothing is claimed before."""

    def __init__(self, new: Callable[[], WriterId]) -> None:
        self._new = new

    def of(self, shard: ShardId) -> WriterId:
        return self._new()

    def renew(self, shard: ShardId) -> bool:
        return False


class StandingOwners:
    """One name that commits of this process claim under, until a shard is better off with another.

    ``on_renewal`` is called with the name that commits of a shard are to claim under from then on.
    """

    def __init__(self, new: Callable[[], WriterId], on_renewal: Callable[[ShardId, WriterId], None]) -> None:
        self._new = new
        self._first = new()
        self._renewed: OrderedDict[ShardId, WriterId] = OrderedDict()
        self._on_renewal = on_renewal

    def of(self, shard: ShardId) -> WriterId:
        return self._renewed.get(shard, self._first)

    def renew(self, shard: ShardId) -> bool:
        self._renewed[shard] = owner = self._new()
        if len(self._renewed) > RENEWED_MAX:
            self._renewed.popitem(last=False)
        self._on_renewal(shard, owner)
        return True
