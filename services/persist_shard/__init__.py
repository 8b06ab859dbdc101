"""PersistShard: the state machine behind gRPC, one lane per shard."""

from persist import extras

with extras.extra("server"):
    from persist_shard.lanes import Lanes
    from persist_shard.serve import serve_shard, start_shard
    from persist_shard.service import ShardService

__all__ = ["Lanes", "ShardService", "serve_shard", "start_shard"]
