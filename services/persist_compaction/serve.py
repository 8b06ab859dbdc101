"""``persist serve compaction``: reach the shards, check the stores, compact.

Source: architecture.md sections 6 and 8.
"""

import dataclasses
import json as jsons
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from persist.client.location import Location
from persist.client.remote import RemoteShards
from persist.errors import InvalidArgument
from persist.machine.parts.budget import memory_bound
from persist.machine.port import Shards
from persist.machine.shards import LocalShards
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus
from persist_compaction.service import CompactionService
from persist_host import Address, Host, Store, Telemetry, logs, run_service

READY_LINE: Final = "persist compaction listening on {address}, {at_once} at a time in at most {mebibytes} MiB each"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How to reach the shards: ``endpoints`` of PersistShard, or ``consensus_uri``; one of them.

    ``blob_uri``: where the parts are; with endpoints it may be empty, and the server is asked.
    """

    blob_uri: str = ""
    consensus_uri: str = ""
    endpoints: str = ""


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
    location, sources, stores = await _reached(reach, settings, runtime)
    service = CompactionService(location, sources, telemetry=telemetry)
    host, address = await Host.open(
        service,
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


async def _reached(
    reach: Reach, settings: Settings, runtime: Runtime
) -> tuple[Location, Sequence[Shards], Sequence[Store]]:
    """The location, where hints come from if not from its shards, and the stores to check."""
    if bool(reach.endpoints) == bool(reach.consensus_uri):
        raise InvalidArgument("name the endpoints of PersistShard, or a consensus store", hint="exactly one of them")
    if reach.consensus_uri:
        blob = open_blob(reach.blob_uri, settings=settings, runtime=runtime)
        consensus = open_consensus(reach.consensus_uri, settings=settings, runtime=runtime)
        local = LocalShards(blob, consensus, settings=settings, runtime=runtime)
        return Location(local, blob=blob, settings=settings, runtime=runtime), (), (blob, consensus)
    remote = RemoteShards(reach.endpoints, settings=settings, runtime=runtime)
    try:
        blob_uri = reach.blob_uri or await remote.locate(timeout=settings.timeout_ms / 1000)
        blob = open_blob(blob_uri, settings=settings, runtime=runtime)
    except BaseException:
        await remote.close()
        raise
    # Each server tells of its own commits only.
    each = [name.strip() for name in reach.endpoints.split(",") if name.strip()]
    sources = [RemoteShards(endpoint, settings=settings, runtime=runtime) for endpoint in each] if each[1:] else []
    return Location(remote, blob=blob, settings=settings, runtime=runtime, owns_blob=True), sources, (blob,)


def _ready(address: Address, settings: Settings, *, json: bool) -> str:
    at_once, memory = max(1, settings.compactions_at_once), memory_bound(settings)
    if json:
        told = {"compaction": str(address), "compactions_at_once": at_once, "compaction_memory_bytes": memory}
        return jsons.dumps(told)
    return READY_LINE.format(address=address, at_once=at_once, mebibytes=memory >> 20)
