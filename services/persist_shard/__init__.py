"""PersistShard: the state machine behind gRPC, one lane per shard."""

from persist import extras

with extras.extra("server"):
    from persist_shard.lanes import Lanes
    from persist_shard.service import ShardService
    from persist_shard.spec import shard_spec

__all__ = ["Lanes", "ShardService", "shard_spec"]
