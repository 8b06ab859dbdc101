"""PersistCompaction as something a host hosts."""

from collections.abc import Sequence
from typing import Final

import grpc.aio

from persist.client.shard.location import Location
from persist.machine.compaction.compactor import Compactor
from persist.machine.compaction.owners import FreshOwners
from persist.machine.compaction.scheduler import CompactionScheduler
from persist.machine.shards import Shards
from persist.v1.compaction_pb2_grpc import add_PersistCompactionServicer_to_server
from persist_compaction.quiet import NotingRunner, Quiet
from persist_compaction.servicer import CompactionServicer
from persist_compaction.work_discovery import WorkDiscovery
from persist_host import Telemetry

NAME: Final = "persist.v1.PersistCompaction"


class CompactionService:
    """Owns the location, the sources of hints and all that works on them, and closes them."""

    name = NAME
    undated: frozenset[str] = frozenset()

    def __init__(self, location: Location, sources: Sequence[Shards] = (), *, telemetry: Telemetry) -> None:
        """``sources``: where hints come from, if from elsewhere than the location's own shards."""
        settings, runtime = location.settings, location.runtime
        self._location = location
        self._sources = tuple(sources)
        compactor = Compactor(location.shards, location, counts=telemetry)
        owners = FreshOwners(compactor.new_owner)
        quiet = Quiet()
        carrier = NotingRunner(location.shards, location, compactor, owners, quiet, counts=telemetry)
        self.workers = CompactionScheduler(carrier, settings=settings, runtime=runtime, counts=telemetry)
        self._lookout = WorkDiscovery(
            location.shards,
            self._sources or (location.shards,),
            self.workers,
            quiet,
            settings=settings,
            runtime=runtime,
            counts=telemetry,
        )
        self._servicer = CompactionServicer(self.workers)

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicer to a server."""
        add_PersistCompactionServicer_to_server(self._servicer, server)

    def start(self) -> None:
        """Look for work until drained."""
        self._lookout.start()

    async def drain(self) -> None:
        """Stop looking for work and stop merges; their claims are released."""
        await self._lookout.close()
        await self.workers.drain()

    async def close(self) -> None:
        """Stop, then release the location."""
        await self._lookout.close()
        await self.workers.close()
        for source in self._sources:
            await source.close()
        await self._location.close()
