"""Shards as users hold them: what all their handles share, below it writing and reading."""
