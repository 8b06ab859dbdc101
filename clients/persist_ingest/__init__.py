"""Ingestion: what upstreams have, exactly once, at times that everybody agrees on.

    here = Location(directory="./data")
    ingest.create(here, "shop", "postgres", {"dsn": "postgresql://…", "tables": "public.orders"})
    ingest.Pipeline(here, "shop").run()

Source: design 003; sources.md; architecture.md section 7.
"""

from persist_ingest.location import Location
from persist_ingest.pipeline.claims import Claim, claims
from persist_ingest.pipeline.creation import abandon, create, drop
from persist_ingest.pipeline.pipeline import Pipeline, PipelineOptions, Step
from persist_ingest.pipeline.records import Records, Source
from persist_ingest.pipeline.status import SourceStatus, status

__all__ = [
    "Claim",
    "Location",
    "Pipeline",
    "PipelineOptions",
    "Records",
    "Source",
    "SourceStatus",
    "Step",
    "abandon",
    "claims",
    "create",
    "drop",
    "status",
]
