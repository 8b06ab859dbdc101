"""``persist serve minter``: reach the shards, check the stores, mint.

Source: architecture.md sections 6 and 8.
"""

import json as jsons
from typing import Final

from persist.client.binding.local_minter import LocalMinter
from persist.client.client import Client
from persist.client.shard.location import Location
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist_host import Address, Host, Service, Telemetry, logs, run_service
from persist_host.shard_access import Reach
from persist_minter.oracle import OracleService
from persist_minter.service import MinterService

READY_LINE: Final = "persist minter listening on {address}"


def serve_minter(
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
        telemetry = Telemetry(service="persist-minter", otlp_endpoint=otlp_endpoint)
        host, address = await start_minter(
            listen,
            reach,
            settings,
            telemetry=telemetry,
            side_listen=side_listen,
            with_reflection=with_reflection,
        )
        print(jsons.dumps({"minter": str(address)}) if json else READY_LINE.format(address=address), flush=True)
        return host

    return run_service(start)


async def start_minter(
    listen: str,
    reach: Reach,
    settings: Settings,
    *,
    telemetry: Telemetry | None = None,
    runtime: Runtime | None = None,
    side_listen: str = "",
    with_reflection: bool = True,
) -> tuple[Host, Address]:
    """A TimestampMinter in this event loop, and where it listens.

    ``host.stop()`` ends it and lets go of the shards. Raises UnsafeConfiguration, InvalidArgument, InvalidUri,
    LocationError (no endpoint said where the parts are, or the port is taken).
    """
    runtime = runtime or system()
    telemetry = telemetry or Telemetry(service="persist-minter")
    location, stores = await reach.location(settings, runtime, counts=telemetry)
    return await Host.open(
        open_minter(location, telemetry=telemetry),
        stores,
        listen,
        settings=settings,
        runtime=runtime,
        telemetry=telemetry,
        side_listen=side_listen,
        with_reflection=with_reflection,
    )


def open_minter(location: Location, *, telemetry: Telemetry) -> tuple[Service, ...]:
    """The services of a minter over a location, which they close. They share one client; its owner comes last."""
    client = Client(location)
    return OracleService(client), MinterService(
        LocalMinter(client), client, settings=location.settings, telemetry=telemetry
    )
