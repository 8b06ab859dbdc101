"""All services of a location in one process, so that one signal stops them all: HOST:PORT, blob URI, consensus URI."""

import asyncio
import dataclasses
import os
import sys

from persist.runtime import Runtime
from persist.settings import Settings
from persist_catalog import CatalogDuty, open_catalog
from persist_compaction.service import CompactionService
from persist_host import Address, Built, Host, ServiceSpec, Telemetry, start
from persist_minter import ShardAccess, open_minter
from persist_shard import shard_spec


async def main(listen: str, blob: str, consensus: str) -> None:
    """Serve until killed. Prints where."""
    settings = dataclasses.replace(Settings.from_env(os.environ), compaction=False)

    async def build(settings: Settings, runtime: Runtime, telemetry: Telemetry) -> Built:
        reach = ShardAccess(blob_uri=blob, consensus_uri=consensus)
        places = [(await reach.location(settings, runtime))[0] for _ in range(3)]
        minter = open_minter(places[0], telemetry=telemetry)
        catalog = open_catalog(places[1], CatalogDuty(environment="default"), telemetry=telemetry)
        compaction = CompactionService(places[2], telemetry=telemetry)
        shard = await shard_spec(blob, consensus).build(settings, runtime, telemetry)

        async def begin(host: Host, address: Address) -> None:
            catalog.listens(str(address), host.tell)

        return Built(services=(*minter, catalog, compaction, *shard.services), stores=shard.stores, begin=begin)

    host, address = await start(ServiceSpec(name="everything", build=build), listen, settings)
    print(address, flush=True)
    await host.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
