"""TableTransaction: writes to any number of tables of one timeline that happen together or not at all.

Source: catalog-semantics.md section 4.2, table writes; docs/adr/0009-tables.md.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeVar

import pyarrow as pa

from persist.client.shard.handles import Stays
from persist.client.shard.write.kept import Once
from persist.client.table.keyed import rows_with_keys
from persist.client.table.rows import (
    RowsLike,
    body_of,
    check_distinct,
    keys_of,
    replacing,
    updates_of,
    widened,
)
from persist.client.table.unique import KeyTwice, adds, check_free
from persist.client.timeline.register import seconds
from persist.core.data.schema import Schema
from persist.core.data.update import consolidate
from persist.core.ids import ShardId
from persist.core.shard.commands import Transaction
from persist.errors import InvalidArgument, NotReadable, NotYetAvailable, UsageError
from persist.retry.attempts import certain
from persist.retry.deadline import Deadline

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
        self,
        wal: "Wal",
        *,
        marker: Transaction | None,
        timeout: float | None,
        pinned: int | None = None,
        once: Once | None = None,
    ) -> None:
        """``pinned``: where the log ends for this transaction. ``once``: its own, and of other runs of its work."""
        self.ts = None
        self._wal = wal
        self._marker = marker
        self._timeout = timeout
        self._pinned = pinned
        self._encoded = Once() if once is None else once
        self._rows: dict[ShardId, list[pa.Table]] = {}
        self._tables: dict[ShardId, Table] = {}
        self._owners: dict[int, Doubts] = {}
        self._looked: set[ShardId] = set()
        """Tables with a primary key of which it read the rows of all keys that it puts in."""
        self._over = False

    def insert(self, table: "Table", rows: RowsLike) -> None:
        """Add rows. No RPC. Raises InvalidArgument, SchemaMismatch, UsageError (a table of another log).

        Of a table of SQL with a primary key the end of the block looks whether the keys are free, and raises.
        """
        self.add(table, updates_of(rows, table.schema, declared=table.declared))

    def retract(self, table: "Table", rows: RowsLike) -> None:
        """Take whole rows away, which must be there. Raises as ``insert``."""
        self.add(table, updates_of(rows, table.schema, diff=-1))

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
        new = updates_of(rows, table.schema, declared=table.declared)
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
            # With all of their columns, whatever the table knows of them: less would take nothing away.
            old = await rows_with_keys(self._wal.runtime, snapshot, keys, snapshot.schema)
        is_first = table.shard not in self._rows
        # Looking at the log may have found columns that were added since the table was opened, too.
        old = await table.fitted(old, timeout=self._timeout)
        self.add(table, replacing(old, widened(new, table.schema), table.schema))
        if is_first:
            self._looked.add(table.shard)
        return self

    async def check_keys(self) -> None:
        """Raise KeyTwice when a primary key would be there twice at the end. Raises as ``snapshot``."""
        pinned = self._pinned
        if pinned is not None:
            await self._check_keys(self._updates(), pinned, self._timeout)

    async def commit(self, deadline: Deadline) -> bool:
        """Whether it is committed now; if not, another one committed since it began.

        Raises LocationError and, of one that only writes, KeyTwice and NotYetAvailable (others committed first).
        """
        rows = self._updates()
        owners, tables = list(self._owners.values()), [self._tables[shard]._data for shard in rows]
        if self._pinned is None:
            if any(map(self._is_looked_at, rows, rows.values())):
                self.ts = await self._commit_keyed(rows, owners, deadline)
            elif rows:
                self.ts = await self._wal.commit(
                    rows, tables, owners=owners, marker=self._marker, timeout=self._timeout
                )
            return True
        if rows:
            self.ts = await self._wal.commit_at(
                rows, tables, self._pinned, owners=owners, marker=self._marker, once=self._encoded, deadline=deadline
            )
            return self.ts is not None
        # What was read may not be applied yet. A later reader must not find less.
        await certain(self._wal.oracle.apply_write(self._pinned - 1, timeout=seconds(deadline)))
        self.ts = self._pinned - 1
        return True

    def __repr__(self) -> str:
        state = "collecting" if self.ts is None else f"committed at {self.ts}"
        return f"<TableTransaction of {self._wal.oracle.timeline} over {len(self._rows)} tables: {state}>"

    def _updates(self) -> dict[ShardId, pa.Table]:
        rows = {shard: _together(pieces, self._tables[shard].schema) for shard, pieces in self._rows.items()}
        return {shard: updates for shard, updates in rows.items() if updates.num_rows}

    def _is_looked_at(self, shard: ShardId, updates: pa.Table) -> bool:
        """Whether the keys of these updates have to be compared with those that are there."""
        return self._tables[shard].is_keyed and shard not in self._looked and adds(updates)

    async def _check_keys(self, rows: dict[ShardId, pa.Table], pinned: int, timeout: float | None) -> None:
        for shard, updates in rows.items():
            if self._is_looked_at(shard, updates):
                table = self._tables[shard]
                there = await table.complete_at(pinned - 1, timeout=timeout)
                await check_free(self._wal.runtime, updates, there, table.schema)

    async def _commit_keyed(self, rows: dict[ShardId, pa.Table], owners: "list[Doubts]", deadline: Deadline) -> int:
        """The time of a commit with nothing between looking for its keys and writing them."""
        wal, marker = self._wal, self._marker
        if marker is not None:
            marker = marker.with_body(await wal.location.runtime.offload(body_of, rows))
        tables = [self._tables[shard]._data for shard in rows]

        async def committed(pinned: int) -> int | None:
            if marker is not None and (done := await wal.done(marker, deadline)) is not None:
                return done
            try:
                await self._check_keys(rows, pinned, seconds(deadline))
            except KeyTwice:
                # The same transaction, by another process, may be who put them there.
                if marker is not None and (done := await wal.done(marker, deadline)) is not None:
                    return done
                raise
            return await wal.commit_at(
                rows, tables, pinned, owners=owners, marker=marker, is_same=True, once=once, deadline=deadline
            )

        async with self._encoded as once:
            return await _with_nothing_between(wal, committed, deadline)

    def add(self, table: "Table", updates: pa.Table) -> None:
        """Add updates that were checked. Raises as ``insert``."""
        self._check(table)
        self._looked.discard(table.shard)
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

    async def worked(pinned: int) -> tuple[T] | None:
        transaction = TableTransaction(wal, marker=marker, timeout=timeout, pinned=pinned, once=once)
        with collecting(transaction):
            answer = await work(transaction)
        await transaction.check_keys()
        return (answer,) if await transaction.commit(deadline) else None

    async with Once() as once:
        (answer,) = await _with_nothing_between(wal, worked, deadline)
    return answer


class _Alone:
    """See Alone."""

    async def write(
        self, table: "Table", wal: "Wal", updates: pa.Table, *, marker: Transaction | None, timeout: float | None
    ) -> int:
        alone = TableTransaction(wal, marker=marker, timeout=timeout)
        with collecting(alone):
            alone.add(table, updates)
        await alone.commit(wal.location.attempts.deadline(timeout))
        assert alone.ts is not None
        return alone.ts

    async def replace(
        self, table: "Table", wal: "Wal", keys: pa.LargeBinaryArray, new: pa.Table, *, timeout: float | None
    ) -> int:
        done = await transact(wal.location, wal, lambda txn: txn.replace(table, keys, new), timeout=timeout)
        assert done.ts is not None
        return done.ts


ALONE: Final = _Alone()


async def _with_nothing_between(wal: "Wal", attempt: Callable[[int], Awaitable[T | None]], deadline: Deadline) -> T:
    """What ``attempt`` comes to, which reads as of the end of the log that it is given, and commits iff no others did
    since. None: others did, and nothing of it happened; then it begins again, at a later end.

    Raises what it raises, at once: after Indeterminate it may have happened, so it is not made again. Raises
    NotYetAvailable when others committed first until time was up.
    """
    backoff, is_late = wal.location.attempts.backoff(deadline), False
    while True:
        try:
            found = await attempt(await wal.upper.read(deadline))
        except NotReadable:
            # SUBTLE: where nothing was written for long the log ends before what its tables still hold. All reads are
            # of one time, so it begins again at a later one.
            if is_late:
                raise
            is_late = True
            await wal.go_on(deadline)
            continue
        if found is not None:
            return found
        is_late = False
        if not await backoff.pause():
            raise NotYetAvailable("others committed first each time", hint="repeat it with a longer timeout")


def _together(pieces: Sequence[pa.Table], schema: Schema) -> pa.Table:
    """What updates come to, also those that were collected before columns were added."""
    return consolidate(pa.concat_tables([widened(each, schema) for each in pieces]), schema)
