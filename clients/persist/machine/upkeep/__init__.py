"""Maintenance of a shard beside its commits: rollups, checks, repairs, upgrades, its end."""
