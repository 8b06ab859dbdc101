"""PersistShard as something a host hosts."""

from typing import Final, Protocol

import grpc.aio

from persist.machine.shards import Shards
from persist.runtime import Runtime
from persist.settings import Settings
from persist.v1.shard_pb2_grpc import add_PersistShardServicer_to_server
from persist_host import Telemetry
from persist_shard.lanes import Commits, Lanes
from persist_shard.servicer import ShardServicer

NAME: Final = "persist.v1.PersistShard"


class Machine(Shards, Commits, Protocol):
    """What a PersistShard serves: LocalShards."""


class ShardService:
    """Owns the machine, the lanes and the servicer, and closes them."""

    name = NAME
    undated = frozenset({f"/{NAME}/Session"})

    def __init__(self, shards: Machine, *, settings: Settings, runtime: Runtime, telemetry: Telemetry) -> None:
        self._shards = shards
        self.lanes = Lanes(shards, settings=settings, runtime=runtime, telemetry=telemetry)
        self._servicer = ShardServicer(shards, self.lanes, settings=settings, runtime=runtime, telemetry=telemetry)

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicer to a server."""
        add_PersistShardServicer_to_server(self._servicer, server)

    async def drain(self) -> None:
        """End sessions and watches."""
        self._servicer.drain()

    async def close(self) -> None:
        """Stop the lanes, then the machine."""
        await self.lanes.close()
        await self._shards.close()
