"""Reading a shard: under a lease, at one time or as it changes."""
