"""Tables of a PostgreSQL database, by logical replication: a snapshot, then every change.

Needs PostgreSQL 14 or newer with wal_level=logical, and REPLICA IDENTITY FULL on tables that are updated.
Source: design 003; sources.md section 1.
"""

from persist_ingest.sources.postgres.making.setup import POSTGRES

__all__ = ["POSTGRES"]
