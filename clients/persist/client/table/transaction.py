"""TableTransaction: writes to any number of tables of one timeline that happen together or not at all.

Source: catalog-semantics.md section 4.2, table writes; docs/adr/0009-tables.md.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final, Self, TypeVar

import pyarrow as pa

from persist.client.shard.handles import Stays
from persist.client.table.keyed import rows_with_keys
from persist.client.table.rows import RowsLike, check_distinct, keys_of, replacing, updates_of
from persist.client.timeline.register import seconds
from persist.core.data.update import consolidate
from persist.core.ids import ShardId
from persist.core.shard.commands import Transaction
from persist.errors import InvalidArgument, NotReadable, NotYetAvailable, UsageError
from persist.retry.attempts import certain
from persist.retry.deadline import Backoff, Deadline

if TYPE_CHECKING:
    from persist.client.shard.location import Location
    from persist.client.shard.read.snapshot import Snapshot
    from persist.client.shard.write.doubts import Doubts
    from persist.client.table.table import Table
    from persist.client.table.wal import Wal

T = TypeVar("T")

MODE: Final = "wal"


class TableTransaction(Stays):
    """Collects rows for tables; the end of its block, or of its work, commits them all at one time, ``ts``.

    Made by ``Client.transaction``, to write only, and by ``Client.transact``, where it also reads: as of the end of
    the log, which then must not have moved when it commits. It does not read what it wrote itself.
    """

    ts: int | None
    """When it happened, once it has."""

    def __init__(
        self, wal: "Wal", *, marker: Transaction | None, timeout: float | None, pinned: int | None = None
    ) -> None:
        """``pinned``: where the log ends for this transaction."""
        self.ts = None
        self._wal = wal
        self._marker = marker
        self._timeout = timeout
        self._pinned = pinned
        self._rows: dict[ShardId, list[pa.Table]] = {}
        self._tables: dict[ShardId, Table] = {}
        self._owners: dict[int, Doubts] = {}
        self._over = False

    def insert(self, table: "Table", rows: RowsLike) -> None:
        """Add rows. No RPC. Raises InvalidArgument, SchemaMismatch, UsageError (a table of another log)."""
        self._add(table, updates_of(rows, table.schema))

    def retract(self, table: "Table", rows: RowsLike) -> None:
        """Take whole rows away, which must be there. Raises as ``insert``."""
        self._add(table, updates_of(rows, table.schema, diff=-1))

    async def snapshot(self, table: "Table", *, timeout: float | None = None) -> "Snapshot":
        """The table as this transaction finds it: all of them at one time.

        Raises UsageError outside of ``Client.transact``, and NotReadable (that time is kept no more): ``transact`` runs
        its work again then, at a later one.
        """
        self._check(table)
        if self._pinned is None:
            raise UsageError("this transaction cannot read", hint="use client.transact(work)")
        return await table.complete_at(self._pinned - 1, timeout=timeout)

    async def upsert(self, table: "Table", rows: RowsLike) -> None:
        """Put rows in the place of those with the same keys, if any. Raises as ``snapshot`` and ``insert``."""
        new = updates_of(rows, table.schema)
        check_distinct(keys := keys_of(new, table.schema))
        await self.replace(table, keys, new)

    async def delete(self, table: "Table", keys: RowsLike) -> None:
        """Take away all rows with these keys. Raises as ``snapshot`` and ``insert``."""
        await self.replace(table, keys_of(keys, table.schema), table.schema.updates.empty_table())

    async def replace(self, table: "Table", keys: pa.LargeBinaryArray, new: pa.Table) -> Self:
        """Put updates in the place of all rows with these keys, given as canonical bytes. Raises as ``upsert``."""
        old = table.schema.updates.empty_table()
        if len(keys):
            snapshot = await self.snapshot(table, timeout=self._timeout)
            old = await rows_with_keys(self._wal.runtime, snapshot, keys, table.schema)
        self._add(table, replacing(old, new, table.schema))
        return self

    async def commit(self, deadline: Deadline) -> bool:
        """Whether it is committed now; if not, another one committed since it began. Raises LocationError."""
        rows = {
            shard: consolidate(pa.concat_tables(pieces), self._tables[shard].schema)
            for shard, pieces in self._rows.items()
        }
        rows = {shard: updates for shard, updates in rows.items() if updates.num_rows}
        owners = list(self._owners.values())
        if self._pinned is None:
            if rows:
                self.ts = await self._wal.commit(rows, owners=owners, marker=self._marker, timeout=self._timeout)
            return True
        if rows:
            self.ts = await self._wal.commit_at(
                rows, self._pinned, owners=owners, marker=self._marker, deadline=deadline
            )
            return self.ts is not None
        # What was read may not be applied yet. A later reader must not find less.
        await certain(self._wal.oracle.apply_write(self._pinned - 1, timeout=seconds(deadline)))
        self.ts = self._pinned - 1
        return True

    def __repr__(self) -> str:
        state = "collecting" if self.ts is None else f"committed at {self.ts}"
        return f"<TableTransaction of {self._wal.oracle.timeline} over {len(self._rows)} tables: {state}>"

    def _add(self, table: "Table", updates: pa.Table) -> None:
        self._check(table)
        self._tables[table.shard] = table
        self._owners[id(table)] = table.doubts
        self._rows.setdefault(table.shard, []).append(updates)

    def _check(self, table: "Table") -> None:
        if table.wal is not self._wal:
            hint = f'tables of this client and timeline, opened with mode="{MODE}"'
            raise InvalidArgument("this table cannot take part in the transaction", hint=hint, table=table.shard)
        if self._over:
            raise UsageError("the transaction has ended: nothing would come of this", hint="begin another")


@contextlib.contextmanager
def collecting(transaction: TableTransaction) -> Iterator[TableTransaction]:
    """The block in which it takes rows; after its end it takes none."""
    try:
        yield transaction
    finally:
        transaction._over = True


async def transact(
    location: "Location",
    wal: "Wal",
    work: Callable[[TableTransaction], Awaitable[T]],
    *,
    marker: Transaction | None = None,
    timeout: float | None = None,
) -> T:
    """The result of the committed run of ``work``, with nothing between its reads and its writes.

    Raises AlreadyCommitted when the marker's version was committed before: what ``work`` returned then is not known
    here, and what it would return now is another run's. Raises NotYetAvailable when others committed first until time
    was up; nothing happened then.
    """
    deadline = location.attempts.deadline(timeout)
    if marker is not None:
        await wal.check_new(marker, deadline)
    backoff = Backoff(location.runtime, location.settings, deadline)
    is_late = False
    while True:
        pinned = await wal.upper.read(deadline)
        transaction = TableTransaction(wal, marker=marker, timeout=timeout, pinned=pinned)
        try:
            with collecting(transaction):
                answer = await work(transaction)
        except NotReadable:
            # SUBTLE: where nobody has written for a while the log ends before what its tables still tell. All reads are
            # of one time, so the work runs again at a later one.
            if is_late:
                raise
            is_late = True
            await wal.upper.raise_to(await certain(wal.oracle.write_ts(timeout=seconds(deadline))), deadline)
            continue
        if await transaction.commit(deadline):
            return answer
        is_late = False
        if not await backoff.pause():
            raise NotYetAvailable("others committed first each time", hint="repeat it with a longer timeout")
