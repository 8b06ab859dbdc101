"""CatalogService: the durable catalog of one environment, led by one process and followed by any number."""

from persist import extras

with extras.extra("server"):
    from persist_catalog.serve import open_catalog, serve_catalog, start_catalog
    from persist_catalog.service import CatalogService, Duty
    from persist_host.shard_access import Reach

__all__ = ["CatalogService", "Duty", "Reach", "open_catalog", "serve_catalog", "start_catalog"]
