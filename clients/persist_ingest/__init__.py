"""Ingestion: what upstreams have, exactly once, at times that all processes agree on.

    here = Location(directory="./data")
    ingest.create(here, "shop", "postgres", {"dsn": "postgresql://…", "tables": "public.orders"})
    ingest.Pipeline(here, "shop").run()

Source: design 003; sources.md; architecture.md section 7.
"""

from persist_ingest.items import adopt, create, drop, drop_export
from persist_ingest.location import Location
from persist_ingest.pipeline.altering import alter
from persist_ingest.pipeline.anew.again import resnapshot
from persist_ingest.pipeline.anew.attempt import Pace
from persist_ingest.pipeline.anew.joining import add_export
from persist_ingest.pipeline.claims import Claim, claims
from persist_ingest.pipeline.creation import abandon
from persist_ingest.pipeline.pipeline import Pipeline
from persist_ingest.pipeline.records import Records, Source, SourceNotFound
from persist_ingest.pipeline.reporting.status import ExportStatus, SourceStatus, status
from persist_ingest.pipeline.running import PipelineOptions, Step

__all__ = [
    "Claim",
    "ExportStatus",
    "Location",
    "Pace",
    "Pipeline",
    "PipelineOptions",
    "Records",
    "Source",
    "SourceNotFound",
    "SourceStatus",
    "Step",
    "abandon",
    "add_export",
    "adopt",
    "alter",
    "claims",
    "create",
    "drop",
    "drop_export",
    "resnapshot",
    "status",
]
