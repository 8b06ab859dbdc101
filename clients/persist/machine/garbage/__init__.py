"""Blobs and diffs that nobody reads: found by inventory, collected, swept."""
