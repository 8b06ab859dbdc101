"""Blobs and diffs that no reader needs: found by inventory, collected, swept."""
