"""Soaked is what is ingested as all tests ingest."""

from ingest.conftest import here

__all__ = ["here"]
