"""What PostgreSQL says of a source's slot."""

SLOT = """
SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE database = current_database() AND NOT temporary
"""
"""From where the source of this database has the log; temporary ones go some moments after their session."""
