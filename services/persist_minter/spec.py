"""TimestampMinter, and TimestampOracle beside it, as a process."""

from persist.client.binding.local_minter import LocalMinter
from persist.client.client import Client
from persist.client.shard.location import Location
from persist.runtime import Runtime
from persist.settings import Settings
from persist_host import Built, Service, ServiceSpec, Telemetry
from persist_host.shard_access import ShardAccess
from persist_minter.oracle import OracleService
from persist_minter.service import MinterService


def minter_spec(reach: ShardAccess) -> ServiceSpec:
    """A TimestampMinter over the shards it reaches."""

    async def build(settings: Settings, runtime: Runtime, telemetry: Telemetry) -> Built:
        location, stores = await reach.location(settings, runtime, counts=telemetry)
        return Built(services=open_minter(location, telemetry=telemetry), stores=stores)

    return ServiceSpec(name="minter", build=build)


def open_minter(location: Location, *, telemetry: Telemetry) -> tuple[Service, ...]:
    """The services of a minter over a location, which they close. They share one client; its owner comes last."""
    client = Client(location)
    return OracleService(client), MinterService(
        LocalMinter(client), client, settings=location.settings, telemetry=telemetry
    )
