"""Access: what collections need of a client: its shards, and the oracle and the log of a timeline."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from persist.client.table.in_doubt import TablesInDoubt
from persist.client.table.wal import Wal
from persist.client.timeline.oracle import Oracle
from persist.core.time.timeline import Timeline

if TYPE_CHECKING:
    from persist.client.collections.views.query import QueryRunner
    from persist.client.shard.client import ShardClient


@dataclass(frozen=True, slots=True)
class Access:
    """``oracle_of`` and ``log_of`` make what is missing. Borrows the client.

    ``queries`` makes what runs the queries of views that are kept; None: views are not kept up here.
    """

    client: "ShardClient"
    oracle_of: Callable[[Timeline], Awaitable[Oracle]]
    log_of: Callable[[Timeline], Awaitable[Wal]]
    queries: "Callable[[], QueryRunner] | None" = None
    doubts: TablesInDoubt = field(default_factory=TablesInDoubt)
    """What statements put into tables without an answer."""
