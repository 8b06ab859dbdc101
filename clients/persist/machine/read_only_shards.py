"""ReadOnlyShards: the machine over stores that it only looks at.

Source: docs/guarantees.md, read-only locations.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from persist.core.ids import ShardId
from persist.core.shard.commands import Command, DowngradeSince, ExpireReader, RegisterLeasedReader
from persist.errors import ShardNotFound
from persist.machine.local_shards import LocalShards
from persist.machine.shards import ShardInfo
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Blob, Consensus
from persist.storage.read_only import Overlay, ReadOnlyBlob, refused

_OF_READERS: Final = (RegisterLeasedReader, DowngradeSince, ExpireReader)
_NEVER: Final = 1 << 31


class ReadOnlyShards(LocalShards):
    """Implements ``Shards`` for readers: each shard as it is when it is first looked at. Owns its stores."""

    def __init__(self, blob: Blob, consensus: Consensus, *, settings: Settings, runtime: Runtime) -> None:
        quiet = dataclasses.replace(settings, compaction=False, rollup_every=_NEVER)
        super().__init__(ReadOnlyBlob(blob), Overlay(consensus), settings=quiet, runtime=runtime)

    async def open(self, shard: ShardId, *, create: bool = True, timeout: float) -> ShardInfo:
        """The shard's state. Raises StoreReadOnly where it would have to be made."""
        try:
            return await super().open(shard, create=False, timeout=timeout)
        except ShardNotFound:
            if create:
                raise refused() from None
            raise

    async def commit(self, shard: ShardId, commands: Sequence[Command[Any]], *, timeout: float) -> list[Any]:
        """What readers say of themselves, which no other process sees. Raises StoreReadOnly for anything else."""
        if not all(isinstance(command, _OF_READERS) for command in commands):
            raise refused()
        return await super().commit(shard, commands, timeout=timeout)
