"""Writing to a shard: from updates to parts, from parts to one append."""
