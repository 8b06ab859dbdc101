"""What keeps a shard well beside its commits: rollups, checks, repairs, upgrades, its end."""
