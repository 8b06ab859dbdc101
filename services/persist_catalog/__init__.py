"""CatalogService: the durable catalog of one environment, led by one process and followed by any number."""

from persist import extras

with extras.extra("server"):
    from persist_catalog.service import CatalogService, Duty
    from persist_catalog.spec import catalog_spec, open_catalog
    from persist_host.shard_access import Reach

__all__ = ["CatalogService", "Duty", "Reach", "catalog_spec", "open_catalog"]
