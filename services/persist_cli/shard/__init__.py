"""``persist shard``."""
