"""NameClaims: who says what a name is, before it follows from the name itself. Source: docs/concepts.md, names."""

from collections.abc import Collection, Mapping
from typing import Protocol

from persist.core.ids import ShardId
from persist.core.names import Named
from persist.retry.deadline import Deadline


class NameClaims(Protocol):
    """Who says what names are before it follows from anything: an environment."""

    async def find(
        self, name: str, shards: Collection[ShardId], deadline: Deadline
    ) -> tuple[Named | None, Mapping[ShardId, Named]]:
        """The shard that has this name, None if no item claims it; and what claims each of these shards, by whatever
        name, as far as something does: both at one moment. Raises InvalidArgument: something without a shard."""
        ...

    async def of(self, shard: ShardId, deadline: Deadline) -> Named | None:
        """What claims this shard, by whatever name; None: nothing does."""
        ...

    async def released(self, shard: ShardId, environment: str, deadline: Deadline) -> str:
        """The hold that an environment may have left on this shard; empty where there is no environment to be seen.

        ``environment``: another one than that whose items names are. Raises InvalidArgument: an item has the shard.
        """
        ...

    async def near(self, name: str, deadline: Deadline) -> list[str]:
        """Names that are like this one."""
        ...
