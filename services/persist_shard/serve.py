"""``persist serve shard``: open the stores, check them, serve.

Source: architecture.md sections 6 and 8.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from persist.machine.local_shards import LocalShards
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus
from persist_host import Address, Host, Service, Telemetry, logs, run_service
from persist_shard.service import ShardService

READY_LINE: Final = "persist shard listening on {address}"


def serve_shard(
    listen: str,
    blob_uri: str,
    consensus_uri: str,
    settings: Settings,
    *,
    side_listen: str = "",
    otlp_endpoint: str = "",
    with_reflection: bool = True,
    log_level: str = "warning",
) -> int:
    """Serve until SIGTERM and return the exit code (0, 1, 78). Prints one line when ready.

    ``listen`` and ``side_listen`` (``/healthz /readyz /metrics``; empty: none) are HOST:PORT; port 0 is any free one.
    """
    logs.configure(log_level)

    async def start() -> Host:
        telemetry = Telemetry(service="persist-shard", otlp_endpoint=otlp_endpoint)
        host, address = await start_shard(
            listen,
            blob_uri,
            consensus_uri,
            settings,
            telemetry=telemetry,
            side_listen=side_listen,
            with_reflection=with_reflection,
        )
        print(READY_LINE.format(address=address), flush=True)
        return host

    return run_service(start)


async def start_shard(
    listen: str,
    blob_uri: str,
    consensus_uri: str,
    settings: Settings,
    *,
    telemetry: Telemetry | None = None,
    runtime: Runtime | None = None,
    side_listen: str = "",
    with_reflection: bool = True,
    beside: Sequence[Service] = (),
) -> tuple[Host, Address]:
    """A PersistShard in this event loop, and where it listens. Raises UnsafeConfiguration, InvalidUri, Determinate.

    ``beside``: other services for the same port. ``host.stop()`` ends all and closes the stores.
    """
    runtime = runtime or system()
    telemetry = telemetry or Telemetry(service="persist-shard")
    blob = open_blob(blob_uri, settings=settings, runtime=runtime, count_request=_counting(telemetry))
    consensus = open_consensus(consensus_uri, settings=settings, runtime=runtime)
    shards = LocalShards(blob, consensus, settings=settings, runtime=runtime, counts=telemetry)
    service = ShardService(shards, settings=settings, runtime=runtime, telemetry=telemetry)
    return await Host.open(
        (*beside, service),
        (blob, consensus),
        listen,
        settings=settings,
        runtime=runtime,
        telemetry=telemetry,
        side_listen=side_listen,
        with_reflection=with_reflection,
    )


def _counting(telemetry: Telemetry) -> Callable[[str], None]:
    """Counts requests to Blob by kind, from any thread."""
    lock = threading.Lock()

    def count(kind: str) -> None:
        with lock:
            telemetry.count("persist_store_requests_total", (("kind", kind),))

    return count
