"""CatalogService: the durable catalog of one environment, led by one process and followed by any number."""

from persist import extras

with extras.extra("server"):
    from persist_catalog.service import CatalogDuty, CatalogService
    from persist_catalog.spec import catalog_spec, open_catalog
    from persist_host.shard_access import ShardAccess

__all__ = ["CatalogDuty", "CatalogService", "ShardAccess", "catalog_spec", "open_catalog"]
