"""The client for asyncio: the same names as ``persist``, with calls to await.

``client = await persist.aio.embedded("./data")``; handles, snapshots and listens belong to the event loop they were
made on.
"""

from persist.client.client import Client
from persist.client.connect import connect, embedded
from persist.client.listen import Listen, Progress, Updates
from persist.client.oracle import Oracle
from persist.client.read import ReadHandle
from persist.client.since import SinceHandle
from persist.client.snapshot import Diffs, Snapshot
from persist.client.table import Table
from persist.client.transaction import TableTransaction
from persist.client.write import WriteHandle

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
