"""State and diffs of shards as they are stored."""
