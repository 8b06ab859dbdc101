"""Shards: the operations of a PersistShard service as a Python port.

Three implementations answer alike: LocalShards (the machine in this process), RemoteShards (gRPC), FailoverShards.
Every call takes ``timeout`` in seconds; when it passes, a mutation is Indeterminate and the same command resolves
it. Raises, everywhere: UsageError subclasses (nothing happened), LocationError (see ``determinate``),
CorruptData. Source: architecture.md section 5.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, ShardId
from persist.core.shard.batch import HollowBatch
from persist.core.shard.commands import Command, SchemaEntry
from persist.core.shard.state import FIRST_FORMAT
from persist.typed import Fields

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """Where a shard stands: its frontiers at ``seqno``, every schema, oldest first, and the location's incarnation.

    ``format``: which fields its batches may hold, and new ones may have. ``writers_since_ms``: writers whose ids say
    that they began before that, and which the shard does not know, are refused. ``behind``, of ``open`` alone: the
    setting by which further rows are refused until compaction has come further, or empty.
    """

    shard: ShardId
    seqno: int
    since: Antichain
    upper: Antichain
    schemas: tuple[SchemaEntry, ...]
    incarnation: int = 0
    format: int = FIRST_FORMAT
    writers_since_ms: int = 0
    behind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlan:
    """The batches a snapshot reads: every batch with lower <= as_of, tiling [0, upper of the last), at one seqno."""

    info: ShardInfo
    as_of: Antichain
    batches: tuple[HollowBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotYet:
    """``as_of`` is not complete yet: the upper stood at ``info.upper`` when the timeout passed."""

    info: ShardInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMoved:
    """The shard moved: ``batches`` tile [lower of the first, info.upper) and continue what was asked for or returned
    before.

    ``batches`` may be empty (only since or schemas moved). A first batch that straddles the asked frontier
    has been compacted: its times below the frontier are to be dropped.
    """

    info: ShardInfo
    batches: tuple[HollowBatch, ...]


class Shards(Protocol):
    """Any number of shards at one persist location."""

    @property
    def blob_uri(self) -> str:
        """Where rich clients read and write parts."""
        ...

    async def open(self, shard: ShardId, *, create: bool = True, timeout: float) -> ShardInfo:
        """The shard's newest state, initialising it if new (``create``). Linearizable. Raises ShardNotFound."""
        ...

    async def apply(self, shard: ShardId, command: Command[R], *, timeout: float) -> R:
        """Commit one command and return its outcome. Linearizable, also when the outcome changes nothing."""
        ...

    async def snapshot(
        self, shard: ShardId, as_of: Antichain, *, reader_id: ReaderId | None = None, timeout: float
    ) -> SnapshotPlan | NotYet:
        """The batches to read at ``as_of``, waiting while as_of >= upper. Raises NotReadable below since."""
        ...

    async def fetch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> ShardMoved:
        """Batches whose upper lies beyond ``frontier``; waits for the upper to pass it, at most ``timeout``.

        When the wait ends without news the ShardMoved has no batches. Raises LocationError when it ends while the store
        does not answer.
        """
        ...

    def watch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> AsyncIterator[ShardMoved]:
        """Every change as it commits, from ``frontier`` on without gap or repeat, for at most ``timeout`` seconds.

        A change is that upper, since or schemas moved; that only since did may come some time later, folded.
        The first comes at once, after a look at the store. Ends after the timeout, or when the upper is []. Raises
        LocationError when the push breaks or the store does not answer: call again with the frontier reached (or poll
        with ``fetch``). A frozen server says nothing: only asking anew shows how things stand.
        """
        ...

    async def inspect(self, shard: ShardId, *, timeout: float) -> Fields:
        """The whole state as JSON-ready values, for people and tests."""
        ...

    def list(self, *, timeout: float) -> AsyncIterator[ShardId]:
        """Every shard ever initialised here."""
        ...

    def work(self, *, timeout: float) -> AsyncIterator[ShardId]:
        """Shards that may have something to compact, as they come, for at most ``timeout`` seconds. Only hints.

        Raises LocationError when the push breaks.
        """
        ...

    async def close(self) -> None:
        """Stop background work and release connections."""
        ...
