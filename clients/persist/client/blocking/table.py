"""Blocking Table and TableTransaction. The asyncio classes say what the calls promise, cost and raise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from persist.client.blocking.read import Snapshot
from persist.client.shard.loop_thread import LoopThread
from persist.client.shard.write.append import Resolved
from persist.client.table import table as aio
from persist.client.table import transaction as aio_transaction
from persist.client.table.rows import RowsLike
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain, AntichainLike
from persist.core.ids import ShardId
from persist.core.shard.commands import Transaction
from persist.core.time.timeline import Timeline, TimelineLike

if TYPE_CHECKING:
    from persist.client.client import Client

T = TypeVar("T")


class Table:
    """A table of one timeline. See aio.Table."""

    def __init__(self, client: object, loop: LoopThread, table: aio.Table) -> None:
        self._client = client
        self._loop = loop
        self._table = table

    @property
    def shard(self) -> ShardId:
        """Where its rows are."""
        return self._table.shard

    @property
    def schema(self) -> Schema:
        """What rows look like."""
        return self._table.schema

    @property
    def timeline(self) -> Timeline:
        """What its times mean."""
        return self._table.timeline

    @property
    def mode(self) -> aio.Mode:
        """How it is written."""
        return self._table.mode

    def insert(self, rows: RowsLike, *, transaction: Transaction | None = None, timeout: float | None = None) -> int:
        """Add rows; the time at which they are there. See aio.Table.insert."""
        return self._loop.run(self._table.insert(rows, transaction=transaction, timeout=timeout))

    def retract(self, rows: RowsLike, *, transaction: Transaction | None = None, timeout: float | None = None) -> int:
        """Take whole rows away, which must be there. See aio.Table.retract."""
        return self._loop.run(self._table.retract(rows, transaction=transaction, timeout=timeout))

    def upsert(self, rows: RowsLike, *, timeout: float | None = None) -> int:
        """Put rows in the place of those with the same keys. See aio.Table.upsert."""
        return self._loop.run(self._table.upsert(rows, timeout=timeout))

    def delete(self, keys: RowsLike, *, timeout: float | None = None) -> int:
        """Take away all rows with these keys. See aio.Table.delete."""
        return self._loop.run(self._table.delete(keys, timeout=timeout))

    def snapshot(self, as_of: int | None = None, *, timeout: float | None = None) -> Snapshot:
        """The contents at ``as_of``, by default with every write that had returned. See aio.Table.snapshot."""
        return Snapshot(self, self._loop, self._loop.run(self._table.snapshot(as_of, timeout=timeout)))

    def downgrade_since(self, since: AntichainLike, *, timeout: float | None = None) -> Antichain:
        """Let go of the history before ``since``. See aio.Table.downgrade_since."""
        return self._loop.run(self._table.downgrade_since(since, timeout=timeout))

    def resolve(self, *, timeout: float | None = None) -> tuple[Resolved, ...]:
        """What came of the writes in doubt, of which nothing more comes then. See aio.Table.resolve."""
        return self._loop.run(self._table.resolve(timeout=timeout))

    def expire(self) -> None:
        """Let go of everything this object holds for reading."""
        self._loop.run(self._table.expire())


class TableTransaction:
    """Writes to several tables that happen at one time. See aio.TableTransaction."""

    def __init__(self, loop: LoopThread, transaction: aio_transaction.TableTransaction) -> None:
        self._loop = loop
        self._transaction = transaction

    @property
    def ts(self) -> int | None:
        """When it happened, once it has."""
        return self._transaction.ts

    def insert(self, table: Table, rows: RowsLike) -> None:
        """Add rows. See aio.TableTransaction.insert."""
        self._transaction.insert(table._table, rows)

    def retract(self, table: Table, rows: RowsLike) -> None:
        """Take whole rows away, which must be there. See aio.TableTransaction.retract."""
        self._transaction.retract(table._table, rows)

    def snapshot(self, table: Table, *, timeout: float | None = None) -> Snapshot:
        """The table as this transaction finds it. See aio.TableTransaction.snapshot."""
        found = self._loop.run(self._transaction.snapshot(table._table, timeout=timeout))
        return Snapshot(table, self._loop, found)

    def upsert(self, table: Table, rows: RowsLike) -> None:
        """Put rows in the place of those with the same keys. See aio.TableTransaction.upsert."""
        self._loop.run(self._transaction.upsert(table._table, rows))

    def delete(self, table: Table, keys: RowsLike) -> None:
        """Take away all rows with these keys. See aio.TableTransaction.delete."""
        self._loop.run(self._transaction.delete(table._table, keys))


@contextmanager
def transaction_of(
    loop: LoopThread,
    client: "Client",
    timeline: TimelineLike,
    *,
    transaction: Transaction | None,
    timeout: float | None,
) -> Iterator[TableTransaction]:
    """See aio.Client.transaction."""
    log = loop.run(client.transaction_log(timeline, timeout=timeout))
    collected = aio_transaction.TableTransaction(log, marker=transaction, timeout=timeout)
    yield TableTransaction(loop, collected)

    async def commit() -> None:
        await collected.commit(log.deadline(timeout))

    loop.run(commit())


def transact_of(
    loop: LoopThread,
    client: "Client",
    work: Callable[[TableTransaction], T],
    timeline: TimelineLike,
    *,
    transaction: Transaction | None,
    timeout: float | None,
) -> T:
    """See aio.Client.transact. ``work`` runs in a thread of its own: its calls block there, not on the loop."""

    async def bridged(collected: aio_transaction.TableTransaction) -> T:
        return await client.location.runtime.offload(work, TableTransaction(loop, collected))

    return loop.run(client.transact(bridged, timeline, transaction=transaction, timeout=timeout))
