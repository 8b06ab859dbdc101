"""The newest row of every key of an export: a cache of what its shard holds, in files of this machine."""
