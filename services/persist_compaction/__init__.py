"""PersistCompaction: compacts shards beside the servers that commit to them."""

from persist import extras

with extras.extra("server"):
    from persist_compaction.asking import AskedServer, Busy
    from persist_compaction.service import CompactionService
    from persist_compaction.spec import compaction_spec
    from persist_host.shard_access import ShardAccess

__all__ = ["AskedServer", "Busy", "CompactionService", "ShardAccess", "compaction_spec"]
