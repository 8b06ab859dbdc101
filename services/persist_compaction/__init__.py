"""PersistCompaction: compacts shards beside the servers that commit to them."""

from persist import extras

with extras.extra("server"):
    from persist_compaction.asking import Asked, Busy
    from persist_compaction.service import CompactionService
    from persist_compaction.spec import compaction_spec
    from persist_host.shard_access import Reach

__all__ = ["Asked", "Busy", "CompactionService", "Reach", "compaction_spec"]
