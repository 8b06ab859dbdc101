"""What each command does to the state of a shard: checks, effects, outcomes. Pure."""
