"""Backups: taking them beside running services, verifying, restoring, and rebuilding Consensus from rollups."""
