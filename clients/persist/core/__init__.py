"""The pure heart: frontiers, data, shard state. No IO, clock, randomness or protobuf."""
