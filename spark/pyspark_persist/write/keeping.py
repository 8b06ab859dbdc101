"""The audit of a table as its owner asks for it: begun, settled and found."""

from functools import partial
from typing import TYPE_CHECKING

from persist import ShardNotFound
from persist_ingest.location import Target
from pyspark_persist.audit.entry import SCHEMA, audit_shard
from pyspark_persist.audit.recording import is_audited, settle
from pyspark_persist.write.commit import known_commit

if TYPE_CHECKING:
    import persist


def start(target: Target) -> "persist.ShardId":
    """Record the commits to this shard from now on; where. Its name was looked up. Raises LocationError."""
    shard = audit_shard(target.shard)
    target.client(create=True).open_writer(shard, schema=SCHEMA, timeout=target.timeout)
    return shard


def settled(target: Target) -> "persist.ShardId":
    """The shard of the audit, in which every commit that is known to have happened says so. Raises ShardNotFound."""
    if not is_audited(target):
        raise ShardNotFound("the table has no audit", hint="PersistTable.startAudit() begins one", **target.described)
    settle(target, partial(known_commit, target))
    return audit_shard(target.shard)
