"""``persist serve compaction``: reach the shards, check the stores, compact.

Source: architecture.md sections 6 and 8.
"""

import dataclasses
import json as jsons
from collections.abc import Sequence
from typing import Final

from persist.client.remote.shards import RemoteShards
from persist.machine.parts.budget import memory_bound
from persist.machine.shards import Shards
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist_compaction.service import CompactionService
from persist_host import Address, Host, Telemetry, logs, run_service
from persist_host.shard_access import Reach

READY_LINE: Final = "persist compaction listening on {address}, {at_once} at a time in at most {mebibytes} MiB each"


def serve_compaction(
    listen: str,
    reach: Reach,
    settings: Settings,
    *,
    side_listen: str = "",
    otlp_endpoint: str = "",
    with_reflection: bool = True,
    log_level: str = "warning",
    json: bool = False,
) -> int:
    """Serve until SIGTERM and return the exit code (0, 1, 78). Prints one line when ready.

    ``listen`` and ``side_listen`` (``/healthz /readyz /metrics``; empty: none) are HOST:PORT; port 0 is any free one.
    """
    logs.configure(log_level)

    async def start() -> Host:
        telemetry = Telemetry(service="persist-compaction", otlp_endpoint=otlp_endpoint)
        host, address = await start_compaction(
            listen,
            reach,
            settings,
            telemetry=telemetry,
            side_listen=side_listen,
            with_reflection=with_reflection,
        )
        print(_ready(address, settings, json=json), flush=True)
        return host

    return run_service(start)


async def start_compaction(
    listen: str,
    reach: Reach,
    settings: Settings,
    *,
    telemetry: Telemetry | None = None,
    runtime: Runtime | None = None,
    side_listen: str = "",
    with_reflection: bool = True,
) -> tuple[Host, Address]:
    """A PersistCompaction in this event loop, and where it listens.

    ``host.stop()`` ends it and lets go of the shards. Raises UnsafeConfiguration, InvalidArgument, InvalidUri,
    LocationError (no endpoint said where the parts are, or the port is taken).
    """
    runtime = runtime or system()
    telemetry = telemetry or Telemetry(service="persist-compaction")
    # The commits of this process only put results in place: it must not claim with them, too.
    settings = dataclasses.replace(settings, compaction=False)
    location, stores = await reach.location(settings, runtime, counts=telemetry)
    service = CompactionService(location, _sources(reach, settings, runtime), telemetry=telemetry)
    host, address = await Host.open(
        (service,),
        stores,
        listen,
        settings=settings,
        runtime=runtime,
        telemetry=telemetry,
        side_listen=side_listen,
        with_reflection=with_reflection,
    )
    service.start()
    return host, address


def _sources(reach: Reach, settings: Settings, runtime: Runtime) -> Sequence[Shards]:
    """Where hints come from if not from the location's shards: each server tells of its own commits only."""
    each = [name.strip() for name in reach.endpoints.split(",") if name.strip()]
    if len(each) < 2:
        return []
    return [RemoteShards(endpoint, settings=settings, runtime=runtime, watched=True) for endpoint in each]


def _ready(address: Address, settings: Settings, *, json: bool) -> str:
    at_once, memory = max(1, settings.compactions_at_once), memory_bound(settings)
    if json:
        told = {"compaction": str(address), "compactions_at_once": at_once, "compaction_memory_bytes": memory}
        return jsons.dumps(told)
    return READY_LINE.format(address=address, at_once=at_once, mebibytes=memory >> 20)
