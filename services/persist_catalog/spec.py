"""CatalogService as a process: it leads or follows one catalog."""

from collections.abc import Sequence
from dataclasses import replace

from persist.client.catalog.implementation import Implementation, chosen
from persist.client.client import Client
from persist.client.collections.views.query import QueryRunner
from persist.client.shard.location import Location
from persist.extras import extra
from persist.runtime import Runtime
from persist.settings import Settings
from persist_catalog.service import CatalogDuty, CatalogService
from persist_host import Address, Built, DurableStore, Host, ServiceSpec, Telemetry
from persist_host.shard_access import ShardAccess


def catalog_spec(reach: ShardAccess | None, duty: CatalogDuty) -> ServiceSpec:
    """A CatalogService over the shards it reaches; a stash needs none.

    Beginning raises IncompatibleDataVersion, IncompatibleContentVersion: it was to lead, and this release cannot.
    """

    async def build(settings: Settings, runtime: Runtime, telemetry: Telemetry) -> Built:
        stores: Sequence[DurableStore] = ()
        if duty.implementation is Implementation.STASH or reach is None:
            chosen(Implementation.STASH, duty.stash)
            service = CatalogService(None, duty, settings=settings, runtime=runtime, telemetry=telemetry)
        else:
            chosen(duty.implementation, duty.stash)
            location, stores = await reach.location(settings, runtime, counts=telemetry)
            service = open_catalog(location, duty, telemetry=telemetry)

        async def begin(host: Host, address: Address) -> None:
            service.listens(str(address), host.tell)
            await service.serving()

        return Built(services=(service,), stores=stores, begin=begin)

    return ServiceSpec(name="catalog", build=build)


def open_catalog(location: Location, duty: CatalogDuty, *, telemetry: Telemetry) -> CatalogService:
    """The service of a catalog over a location, which it closes. It begins when it is first asked for something."""
    settings, runtime = location.settings, location.runtime
    client = Client(location)
    # Who may write here may write any text, and this process leads an environment.
    access = replace(client.access, queries=_apart)
    return CatalogService(client, duty, settings=settings, runtime=runtime, telemetry=telemetry, access=access)


def _apart() -> QueryRunner:
    with extra("sql"):
        from persist.client.sql.apart.queries import ApartQueries

    return ApartQueries()
