"""The client for asyncio: the same names as ``persist``, with calls to await.

``client = await persist.aio.embedded("./data")``; handles, snapshots and listens belong to the event loop they were
made on.
"""

from persist.client.client import Client
from persist.client.connect import connect, embedded
from persist.client.shard.read.handle import ReadHandle
from persist.client.shard.read.listen import Listen, Progress, Updates
from persist.client.shard.read.since import SinceHandle
from persist.client.shard.read.snapshot import Diffs, Snapshot
from persist.client.shard.write.handle import WriteHandle
from persist.client.table.table import Table
from persist.client.table.transaction import TableTransaction
from persist.client.timeline.oracle import Oracle

__all__ = [
    "Client",
    "Diffs",
    "Listen",
    "Oracle",
    "Progress",
    "ReadHandle",
    "SinceHandle",
    "Snapshot",
    "Table",
    "TableTransaction",
    "Updates",
    "WriteHandle",
    "connect",
    "embedded",
]
