"""The durable catalog: all metadata of one environment, in one shard."""
