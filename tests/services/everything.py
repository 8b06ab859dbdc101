"""All services of a location in one process, so that one signal stops them all: HOST:PORT, blob URI, consensus URI."""

import asyncio
import dataclasses
import os
import sys

from persist.runtime import system
from persist.settings import Settings
from persist_catalog import Duty, open_catalog
from persist_compaction.service import CompactionService
from persist_host import Telemetry
from persist_minter import Reach, open_minter
from persist_shard import start_shard


async def main(listen: str, blob: str, consensus: str) -> None:
    """Serve until killed. Prints where."""
    settings = dataclasses.replace(Settings.from_env(os.environ), compaction=False)
    reach, telemetry = Reach(blob_uri=blob, consensus_uri=consensus), Telemetry(service="everything")
    places = [(await reach.location(settings, system()))[0] for _ in range(3)]
    minter = open_minter(places[0], telemetry=telemetry)
    catalog = open_catalog(places[1], Duty(environment="default"), telemetry=telemetry)
    compaction = CompactionService(places[2], telemetry=telemetry)
    beside = (*minter, catalog, compaction)
    host, address = await start_shard(listen, blob, consensus, settings, telemetry=telemetry, beside=beside)
    catalog.listens(str(address), host.tell)
    print(address, flush=True)
    await host.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
