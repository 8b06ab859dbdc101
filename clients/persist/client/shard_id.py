"""The public ShardId, which can make itself up.

Source: architecture.md section 8.
"""

from typing import Self

from persist.core import ids, names
from persist.runtime import system


class ShardId(ids.ShardId):
    """Names one shard: ``ShardId.new()`` for a fresh one, ``ShardId.parse("s…")`` for a known one."""

    __slots__ = ()

    @classmethod
    def new(cls) -> Self:
        """A new name, unlike all others."""
        return cls.of(system().random_bytes(16))

    @classmethod
    def for_name(cls, name: str) -> Self:
        """What ``client.named(name, create=True)`` returns where nothing has this name yet. Raises InvalidArgument."""
        return cls(names.new_shard(name))
