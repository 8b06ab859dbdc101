"""PersistCompaction: compacts shards beside the servers that commit to them."""

from persist import extras

with extras.extra("server"):
    from persist_compaction.asking import Asked, Busy, Merged
    from persist_compaction.serve import serve_compaction, start_compaction
    from persist_compaction.service import CompactionService
    from persist_host.shard_access import Reach

__all__ = ["Asked", "Busy", "CompactionService", "Merged", "Reach", "serve_compaction", "start_compaction"]
