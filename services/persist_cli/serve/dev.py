"""``persist dev``: all services of a directory in one process."""

from pathlib import Path

from persist.runtime import Runtime
from persist.settings import Settings
from persist_catalog import CatalogDuty, open_catalog
from persist_cli.options import directory_stores
from persist_host import Address, Built, Host, ServiceSpec, ShardAccess, Telemetry
from persist_minter import open_minter
from persist_shard import shard_spec


def dev_spec(data: Path, environment: str) -> ServiceSpec:
    """PersistShard, TimestampMinter and CatalogService over SQLite and files below a directory."""
    # The layout of an embedded location: `--location DIR` reaches the same shards.
    blob, consensus = directory_stores(str(data))
    where = str(data.absolute())

    async def build(settings: Settings, runtime: Runtime, telemetry: Telemetry) -> Built:
        # Through the stores like any other process: the shard service of the same port is not up yet. A location
        # each: every service closes the one it works on.
        reach = ShardAccess(blob_uri=blob, consensus_uri=consensus)
        minter = open_minter((await reach.location(settings, runtime))[0], telemetry=telemetry)
        # The catalog has a leader once it is written.
        reached, _ = await reach.location(settings, runtime)
        catalog = open_catalog(reached, CatalogDuty(environment=environment), telemetry=telemetry)
        shard = await shard_spec(blob, consensus).build(settings, runtime, telemetry)

        async def begin(host: Host, address: Address) -> None:
            catalog.listens(str(address), host.tell)

        return Built(services=(*minter, catalog, *shard.services), stores=shard.stores, begin=begin)

    return ServiceSpec(
        name="dev",
        build=build,
        ready=(
            f"persist dev: shard, minter and catalog service on {{address}}, data in {where}\n"
            "  persist shard list --endpoint {address}"
        ),
        names=("shard", "minter", "catalog"),
        facts={"data": where},
    )
