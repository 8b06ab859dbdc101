"""The shard state machine: batches, trace, state, commands, transitions, diffs."""
