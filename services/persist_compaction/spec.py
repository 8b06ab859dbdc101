"""PersistCompaction as a process: it looks for work from when it listens."""

import dataclasses
from collections.abc import Sequence

from persist.client.remote.shards import RemoteShards
from persist.machine.parts.budget import memory_bound
from persist.machine.shards import Shards
from persist.runtime import Runtime
from persist.settings import Settings
from persist_compaction.service import CompactionService
from persist_host import Address, Built, Host, ServiceSpec, Telemetry
from persist_host.shard_access import ShardAccess


def compaction_spec(reach: ShardAccess, settings: Settings) -> ServiceSpec:
    """A PersistCompaction over the shards it reaches. It says what these settings let it take."""
    at_once, memory = max(1, settings.compactions_at_once), memory_bound(settings)

    async def build(settings: Settings, runtime: Runtime, telemetry: Telemetry) -> Built:
        # The commits of this process only put results in place: it must not claim with them, too.
        settings = dataclasses.replace(settings, compaction=False)
        location, stores = await reach.location(settings, runtime, counts=telemetry)
        service = CompactionService(location, _sources(reach, settings, runtime), telemetry=telemetry)

        async def begin(host: Host, address: Address) -> None:
            service.start()

        return Built(services=(service,), stores=stores, begin=begin)

    return ServiceSpec(
        name="compaction",
        build=build,
        ready=f"persist compaction listening on {{address}}, {at_once} at a time in at most {memory >> 20} MiB each",
        facts={"compactions_at_once": at_once, "compaction_memory_bytes": memory},
    )


def _sources(reach: ShardAccess, settings: Settings, runtime: Runtime) -> Sequence[Shards]:
    """Where hints come from if not from the location's shards: each server reports its own commits only."""
    each = [name.strip() for name in reach.endpoints.split(",") if name.strip()]
    if len(each) < 2:
        return []
    return [RemoteShards(endpoint, settings=settings, runtime=runtime, watched=True) for endpoint in each]
