"""Table: rows that users insert and delete, at times of their timeline's oracle.

Source: catalog-semantics.md sections 4.2 (table writes) and 5.3; docs/adr/0009-tables.md.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal, Protocol

import pyarrow as pa

from persist.client.shard.handles import Stays
from persist.client.shard.times import FrontierLike, TimeLike, since_of, time_of
from persist.client.shard.write.doubts import OwnCall, Resolved
from persist.client.shard.write.kept import Once
from persist.client.table.data_shard import TableShard
from persist.client.table.keyed import rows_with_keys
from persist.client.table.rows import (
    RowsLike,
    at_time,
    body_of,
    check_distinct,
    keys_of,
    lacking,
    replacing,
    updates_of,
    widened,
)
from persist.client.table.unique import KeyTwice, adds, check_free
from persist.client.table.wal import of_table, writes_of
from persist.client.timeline.oracle import Oracle, acknowledge
from persist.client.timeline.register import seconds
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.shard.commands import Appended, Transaction
from persist.core.time.timeline import Timeline
from persist.errors import NotYetAvailable, SchemaMismatch
from persist.retry.attempts import certain
from persist.retry.deadline import Backoff, Deadline

if TYPE_CHECKING:
    from persist.client.shard.client import ShardClient
    from persist.client.shard.read.snapshot import Snapshot
    from persist.client.table.wal import Wal

Mode = Literal["direct", "wal"]


class Alone(Protocol):
    """Transactions that have one table, and nothing but one write to it; each returns its time."""

    async def write(
        self, table: "Table", wal: "Wal", updates: pa.Table, *, marker: Transaction | None, timeout: float | None
    ) -> int:
        """Add updates whose keys have to be free. Raises KeyTwice and as ``Table.insert``."""
        ...

    async def replace(
        self, table: "Table", wal: "Wal", keys: pa.LargeBinaryArray, new: pa.Table, *, timeout: float | None
    ) -> int:
        """Put rows in the place of those with these keys. Raises as ``Table.upsert``."""
        ...


class Table(Stays):
    """A table of one timeline. Safe for many tasks, and any number of processes at once.

    Every write happens at one time, which it returns, greater than that of all writes and reads that had ended before
    it began. A snapshot without ``as_of`` holds every write that had returned; one time shows all tables of the
    timeline together. ``timeout`` is in seconds, None means ``settings.timeout_ms``. Every call may raise
    LocationError, ShardClosed. After Indeterminate a write may have happened, or may not be read yet: ``resolve`` finds
    out, and sees to the rest; with a ``transaction`` it may be repeated, ``upsert`` and ``delete`` anyway.
    So does it after a cancelled or interrupted write. After OutcomeForgotten read whether it did.
    """

    def __init__(
        self,
        client: "ShardClient",
        data: TableShard,
        oracle: Oracle,
        wal: "Wal | None",
        alone: Alone,
        *,
        is_kept: bool = False,
        is_keyed: bool = False,
    ) -> None:
        """``wal``: None for a table that is written directly. ``is_keyed``: no two rows may have one key."""
        self.wal = wal
        self.is_keyed = is_keyed
        self._client = client
        self._location = client.location
        self._data = data
        self._oracle = oracle
        self._alone = alone
        self._is_kept = is_kept
        self.doubts = writes_of(oracle)
        """Its own writes, and the transactions that it takes part in."""

    @property
    def shard(self) -> ShardId:
        """Where its rows are. Only tables may write there, all in the same mode."""
        return self._data.shard

    @property
    def schema(self) -> Schema:
        """What rows look like: as of when it was opened, or of the last time that it met columns added since."""
        return self._data.writer.schema

    @property
    def declared(self) -> Schema | None:
        """The schema it was opened with."""
        return self._data.declared

    @property
    def timeline(self) -> Timeline:
        """What its times mean."""
        return self._oracle.timeline

    @property
    def mode(self) -> Mode:
        """How it is written: straight to its shard, or to the timeline's transaction log first."""
        return "direct" if self.wal is None else "wal"

    async def insert(
        self, rows: RowsLike, *, transaction: Transaction | None = None, timeout: float | None = None
    ) -> int:
        """Add rows: what an append takes, without times, or a list of dicts. Returns their time.

        Of a table that SQL made with a primary key the keys have to be free: looked at and written with nothing in
        between, as ``upsert`` does it, and at the same cost.

        ``transaction``: happens once for ever in this table. The same rows under its version are not added again: the
        time at which they were is returned. Other rows under it, or a version before the newest, of which nothing is
        known any more, are InvalidArgument. Three RPCs, and uploads. Raises InvalidArgument (also a primary key that
        is there already), SchemaMismatch, and with a primary key NotYetAvailable (others came first).
        """
        return await self._write(await self._updates(rows, 1, timeout), transaction, timeout)

    async def retract(
        self, rows: RowsLike, *, transaction: Transaction | None = None, timeout: float | None = None
    ) -> int:
        """Take whole rows away, which must be there: this is not checked. Raises as ``insert``."""
        return await self._write(await self._updates(rows, -1, timeout), transaction, timeout)

    async def upsert(self, rows: RowsLike, *, timeout: float | None = None) -> int:
        """Put rows in the place of those with the same keys, if any; no other write happens between looking and
        writing.

        Repeated while others write at the same time, until ``timeout``. A time at which it is so: where nothing was to
        be changed it may be that of an earlier write. Five RPCs or more. Raises InvalidArgument (two rows with one
        key), SchemaMismatch, NotYetAvailable (others came first).
        """
        new = await self._updates(rows, 1, timeout)
        check_distinct(keys := keys_of(new, self.schema))
        return await self._replace(keys, new, timeout)

    async def delete(self, keys: RowsLike, *, timeout: float | None = None) -> int:
        """Take away all rows with these keys: tables or dicts that have at least the key columns.

        Raises as ``upsert``.
        """
        return await self._replace(keys_of(keys, self.schema), self.schema.updates.empty_table(), timeout)

    async def snapshot(self, as_of: TimeLike | None = None, *, timeout: float | None = None) -> "Snapshot":
        """The contents at ``as_of``, by default the timeline's read time: with every write that had returned.

        Waits for an ``as_of`` beyond the read time. To see several tables together give each the same ``as_of``, from
        ``oracle.read_ts()``. About three RPCs; in a log about six more for what was not copied yet. Raises NotReadable
        (below since), NotYetAvailable (``as_of`` is still to come).
        """
        deadline = self._location.attempts.deadline(timeout)
        if as_of is None:
            return await self._complete_now(deadline)
        time = time_of(as_of, self._location.runtime.now_ms())
        if self._data.upper.known <= time:
            await self._come(time, deadline)
        return await self._complete(time, deadline)

    async def complete_at(self, as_of: int, *, timeout: float | None = None) -> "Snapshot":
        """The contents at ``as_of``, where nothing can be written from now on, for who reads no earlier time again.

        Raises ClockAhead: it is far ahead.
        """
        deadline = self._location.attempts.deadline(timeout)
        await self._oracle.check_ahead(as_of, timeout=seconds(deadline))
        return await certain(self._completed_newest(as_of, deadline))

    async def complete_to(self, as_of: int, *, timeout: float | None = None) -> int:
        """``complete_at`` without the contents: for readers of the shard under a lease of their own.

        The time returned is that to which rows moved that had been written by then: who reads at an earlier one does
        not see all of them. Raises ClockAhead.
        """
        deadline = self._location.attempts.deadline(timeout)
        await self._oracle.check_ahead(as_of, timeout=seconds(deadline))
        await certain(self._reach(as_of, deadline))
        return self._data.moved

    async def complete_before(self, *, timeout: float | None = None) -> int:
        """The upper the table can be completed to now: its shard's, or, through a log, the log's. One RPC or two.

        Raises LocationError.
        """
        deadline = self._location.attempts.deadline(timeout)
        upper = await self._data.upper.read(deadline)
        return upper if self.wal is None else max(upper, await self.wal.upper.read(deadline))

    async def fitted(self, updates: pa.Table, *, timeout: float | None = None) -> pa.Table:
        """Updates with all columns of ``schema``, null in those that were added since they were made.

        Where they have more, columns were added since this was opened, which it looks for: two RPCs then. Raises
        SchemaMismatch: there are no such columns.
        """
        await self._know(updates.schema.names, self._location.attempts.deadline(timeout))
        return widened(updates, self.schema)

    async def downgrade_since(self, since: FrontierLike, *, timeout: float | None = None) -> Antichain:
        """Release the history before ``since``: until then this object keeps it once it has read. One RPC.

        ``since``: as ReadHandle.downgrade_since takes it. Raises InvalidArgument, LeaseExpired, LocationError.
        """
        return await self._data.downgrade_since(since_of(since), self._location.attempts.deadline(timeout))

    async def resolve(self, *, timeout: float | None = None) -> tuple[Resolved, ...]:
        """What came of the writes that ended without an answer, of which nothing more comes then.

        See WriteHandle.resolve. What is returned as appended every snapshot from then on shows. A transaction over
        several tables is returned by the first of them that is asked. An upper is one past the time of the write.
        One RPC more if any happened. Raises LocationError: repeat it.
        """
        self._location.check_open()
        return await self.doubts.resolve(self._location.attempts.deadline(timeout))

    async def expire(self) -> None:
        """Release everything this object holds for reading. One RPC at most.

        Raises LocationError: it runs out by itself.
        """
        await self._data.expire()

    def __repr__(self) -> str:
        return f"<Table of {self.timeline} in {self.shard} mode={self.mode}: {self.schema}>"

    async def _know(self, names: Iterable[str], deadline: Deadline) -> None:
        """Look for columns that were added, unless all of these are known."""
        if lacking(self.schema, names):
            await self._data.renew(deadline)

    async def _updates(self, rows: RowsLike, diff: int, timeout: float | None) -> pa.Table:
        """SUBTLE: columns may have been added since this was opened. Rows that are given once cannot be read again."""
        try:
            return updates_of(rows, self.schema, diff=diff, declared=self.declared)
        except SchemaMismatch:
            before = self.schema
            if isinstance(rows, Iterator | pa.RecordBatchReader):
                raise
            await self._data.renew(self._location.attempts.deadline(timeout))
            if self.schema == before:
                raise
            return updates_of(rows, self.schema, diff=diff, declared=self.declared)

    async def _write(self, updates: pa.Table, transaction: Transaction | None, timeout: float | None) -> int:
        if transaction is not None:
            body = await self._location.runtime.offload(body_of, {self.shard: updates})
            transaction = of_table(transaction, self.shard if self.wal is not None else None).with_body(body)
        is_looked_at = self.is_keyed and adds(updates)
        if self.wal is None:
            if is_looked_at:
                return await self._insert_keyed(updates, transaction, timeout)
            return await self._append(updates, transaction, timeout)
        if not is_looked_at:
            return await self.wal.commit(
                {self.shard: updates}, [self._data], owners=[self.doubts], marker=transaction, timeout=timeout
            )
        return await self._alone.write(self, self.wal, updates, marker=transaction, timeout=timeout)

    async def _append(self, updates: pa.Table, transaction: Transaction | None, timeout: float | None) -> int:
        """SUBTLE: at the time given, or behind whatever has passed it: no read has seen that time complete without."""
        deadline = self._location.attempts.deadline(timeout)
        # A time that was given out for nothing does no harm: nothing of this write has happened.
        ts = await certain(self._oracle.write_ts(timeout=seconds(deadline)))
        # It lands there at least. Once it has, that this cannot be applied comes too late.
        await self._oracle.check_ahead(max(ts, self._data.upper.known), timeout=seconds(deadline))
        with self.doubts.call() as call:
            # Columns may have been added while it waited.
            writer = self._data.writer
            appended = await writer.append_at_upper_as(
                call, widened(updates, writer.schema), not_before=ts, transaction=transaction, timeout=seconds(deadline)
            )
            at = self._data.upper.heard(appended.upper) - 1
            await acknowledge(self._oracle, at, deadline)
            return at

    async def _insert_keyed(self, updates: pa.Table, transaction: Transaction | None, timeout: float | None) -> int:
        """Straight to the shard, at the upper at which the keys were free."""
        deadline = self._location.attempts.deadline(timeout)

        async def written(there: "Snapshot | None") -> pa.Table:
            try:
                await check_free(self._location.runtime, updates, there, self.schema)
            except KeyTwice:
                # The same transaction may be who put them there: then the shard says when.
                if transaction is None or not await self._is_committed(transaction, deadline):
                    raise
            return updates

        return await self._write_at_upper(written, deadline, transaction)

    async def _is_committed(self, transaction: Transaction, deadline: Deadline) -> bool:
        """Raises InvalidArgument: other rows were, under its version, or a later one. One RPC that changes nothing."""
        asked = await self._data.writer.compare_and_append([], 0, 0, transaction=transaction, timeout=seconds(deadline))
        return isinstance(asked, Appended)

    async def _complete(self, as_of: int, deadline: Deadline) -> "Snapshot":
        # Whatever a read does on its way changes nothing that can be read.
        return await certain(self._completed(as_of, deadline))

    async def _completed(self, as_of: int, deadline: Deadline) -> "Snapshot":
        await self._reach(as_of, deadline)
        return await self._data.snapshot(as_of, deadline)

    async def _completed_newest(self, as_of: int, deadline: Deadline) -> "Snapshot":
        await self._reach(as_of, deadline)
        return await self._newest(as_of, deadline)

    async def _newest(self, as_of: int, deadline: Deadline) -> "Snapshot":
        """SUBTLE: a lease that moves along gives history up for all where nothing else holds it."""
        return await (self._data.newest if self._is_kept else self._data.snapshot)(as_of, deadline)

    async def _reach(self, as_of: int, deadline: Deadline) -> None:
        # A write that has no answer yet and a time at or before ``as_of`` moves behind it: to it this read came first.
        if self.wal is None:
            await self._data.upper.raise_to(as_of + 1, deadline)
        else:
            await self.wal.catch_up(self._data, as_of + 1, deadline)

    async def _complete_now(self, deadline: Deadline) -> "Snapshot":
        while True:
            as_of = await self._oracle.read_ts(timeout=seconds(deadline))
            snapshot = await self._complete(as_of, deadline)
            if self._data.moved <= as_of:
                return snapshot
            # Rows that had been written by then were found to be later: they came behind a write past the log.

    async def _come(self, as_of: int, deadline: Deadline) -> None:
        """Wait until the read time has reached ``as_of``."""
        backoff = Backoff(self._location.runtime, self._location.settings, deadline)
        while (ts := await self._oracle.read_ts(timeout=seconds(deadline))) < as_of:
            if not await backoff.pause():
                raise NotYetAvailable(
                    "as_of is still to come", hint="wait longer, or read at the read time", as_of=as_of, read_ts=ts
                )

    async def _replace(self, keys: "pa.LargeBinaryArray", new: "pa.Table", timeout: float | None) -> int:
        if self.wal is not None:
            return await self._alone.replace(self, self.wal, keys, new, timeout=timeout)

        deadline = self._location.attempts.deadline(timeout)

        async def replaced(there: "Snapshot | None") -> pa.Table:
            old = self.schema.updates.empty_table()
            if there is not None and len(keys):
                # With all of their columns, whatever this knows of them: less would take nothing away.
                old = await rows_with_keys(self._location.runtime, there, keys, there.schema)
                await self._know(there.schema.updates.names, deadline)
            schema = self.schema
            return replacing(widened(old, schema), widened(new, schema), schema)

        return await self._write_at_upper(replaced, deadline)

    async def _write_at_upper(
        self,
        work: "Callable[[Snapshot | None], Awaitable[pa.Table]]",
        deadline: Deadline,
        transaction: Transaction | None = None,
    ) -> int:
        """Write what ``work`` makes of what is there, None of nothing, with no other write in between."""
        backoff = Backoff(self._location.runtime, self._location.settings, deadline)
        with self.doubts.call() as call:
            async with self._data.turn, Once() as once:
                while (ts := await self._once(call, work, transaction, once, deadline)) is None:
                    if not await backoff.pause():
                        raise NotYetAvailable("others wrote first each time", hint="repeat it with a longer timeout")
            await acknowledge(self._oracle, ts, deadline)
            return ts

    async def _once(
        self,
        call: OwnCall,
        work: "Callable[[Snapshot | None], Awaitable[pa.Table]]",
        transaction: Transaction | None,
        once: Once,
        deadline: Deadline,
    ) -> int | None:
        """The time of the write, unless another process wrote since the shard was read."""
        given = await certain(self._oracle.write_ts(timeout=seconds(deadline)))
        upper = await self._data.upper.read(deadline)
        there = await certain(self._newest(upper - 1, deadline)) if upper else None
        ts = max(given, upper)
        await self._oracle.check_ahead(ts, timeout=seconds(deadline))
        updates = await work(there)
        writer = self._data.writer

        async def widest() -> pa.Table:
            return at_time(widened(updates, writer.schema), 0)

        kept = await once.of(writer, {self.shard: updates}, widest, seconds(deadline))
        outcome = await writer.compare_and_append_kept_as(
            call, kept, upper, ts, transaction=transaction, timeout=seconds(deadline)
        )
        if not isinstance(outcome, Appended):
            self._data.upper.heard(outcome.upper)
            return None
        # What was committed before, under the transaction, is at the time of then.
        return self._data.upper.heard(outcome.upper) - 1
