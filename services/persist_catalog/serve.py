"""``persist serve catalog``: reach the shards, check the stores, lead or follow one catalog.

Source: architecture.md sections 6 and 8.
"""

import json as jsons
from typing import Final

from persist.client.client import Client
from persist.client.shard.location import Location
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist_catalog.service import CatalogService, Duty
from persist_host import Address, Host, Telemetry, logs, run_service
from persist_host.shard_access import Reach

READY_LINE: Final = "persist catalog listening on {address}"


def serve_catalog(
    listen: str,
    reach: Reach,
    duty: Duty,
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
        telemetry = Telemetry(service="persist-catalog", otlp_endpoint=otlp_endpoint)
        host, address = await start_catalog(
            listen,
            reach,
            duty,
            settings,
            telemetry=telemetry,
            side_listen=side_listen,
            with_reflection=with_reflection,
        )
        print(jsons.dumps({"catalog": str(address)}) if json else READY_LINE.format(address=address), flush=True)
        return host

    return run_service(start)


async def start_catalog(
    listen: str,
    reach: Reach,
    duty: Duty,
    settings: Settings,
    *,
    telemetry: Telemetry | None = None,
    runtime: Runtime | None = None,
    side_listen: str = "",
    with_reflection: bool = True,
) -> tuple[Host, Address]:
    """A CatalogService in this event loop that leads or follows, and where it listens.

    ``host.stop()`` ends it and lets go of the shards. Raises UnsafeConfiguration, InvalidArgument, InvalidUri,
    LocationError (no endpoint said where the parts are, or the port is taken), IncompatibleDataVersion,
    IncompatibleContentVersion (it was to lead and this release cannot).
    """
    runtime = runtime or system()
    telemetry = telemetry or Telemetry(service="persist-catalog")
    location, stores = await reach.location(settings, runtime, counts=telemetry)
    service = open_catalog(location, duty, telemetry=telemetry)
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
    try:
        service.listens(str(address), host.tell)
        await service.serving()
    except BaseException:
        await host.stop(notice=0, grace=0)
        raise
    return host, address


def open_catalog(location: Location, duty: Duty, *, telemetry: Telemetry) -> CatalogService:
    """The service of a catalog over a location, which it closes. It begins when it is first asked for something."""
    settings, runtime = location.settings, location.runtime
    return CatalogService(Client(location), duty, settings=settings, runtime=runtime, telemetry=telemetry)
