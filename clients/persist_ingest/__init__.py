"""Ingestion: what upstreams have, exactly once, at times that everybody agrees on.

    here = Location(directory="./data")
    ingest.create(here, "shop", "postgres", {"dsn": "postgresql://…", "tables": "public.orders"})
    ingest.Pipeline(here, "shop").run()

Source: design 003; sources.md; architecture.md section 7.
"""

from pyspark_persist.ingest.creation import create, drop
from pyspark_persist.ingest.pipeline import Pipeline, PipelineOptions, Step
from pyspark_persist.ingest.records import Records, Source
from pyspark_persist.ingest.status import SourceStatus, status
from pyspark_persist.location import Location

__all__ = [
    "Location",
    "Pipeline",
    "PipelineOptions",
    "Records",
    "Source",
    "SourceStatus",
    "Step",
    "create",
    "drop",
    "status",
]
