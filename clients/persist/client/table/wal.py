"""Wal: the transaction log of one timeline. Being in it makes rows definite; copying them to their tables can wait.

One append holds all rows of a transaction, for any number of tables, at one time. The first reader of a table copies
what the log holds for it. A copy of ``[applied, upper)`` is the same from any process and lands by compare-and-append,
so any number of processes may copy at once and die anywhere.
Source: catalog-semantics.md section 4.2, table writes; docs/adr/0009-tables.md.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from persist.client.shard.same_history import renewed
from persist.client.shard.write.batch import ON_LOOP_BYTES_MAX
from persist.client.shard.write.doubts import Doubts, call_of
from persist.client.shard.write.kept import Once
from persist.client.table.data_shard import TableShard
from persist.client.table.rows import body_of, from_payload, payloads
from persist.client.table.wal_retention import live_rows
from persist.client.timeline.oracle import Oracle, acknowledge
from persist.client.timeline.register import Register, seconds
from persist.core.data.schema import Schema
from persist.core.data.update import consolidate
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.shard.commands import Appended, LogCopy, Transaction, UpperMismatch
from persist.core.time.timeline import Timeline
from persist.errors import (
    AlreadyCommitted,
    Indeterminate,
    InvalidArgument,
    LeaseExpired,
    LocationError,
    NotReadable,
    OutcomeForgotten,
    PersistError,
    SchemaMismatch,
    ShardClosed,
    ShardNotFound,
    UsageError,
)
from persist.retry.attempts import certain
from persist.retry.deadline import Deadline
from persist.runtime import Runtime

if TYPE_CHECKING:
    from persist.client.shard.client import ShardClient
    from persist.client.shard.location import Location
    from persist.client.shard.read.handle import ReadHandle
    from persist.client.shard.read.since import SinceHandle
    from persist.client.shard.write.handle import WriteHandle

_log = logging.getLogger("persist.tables")

WAL_SCHEMA: Final = Schema(
    key={
        "table": pa.field("table", pa.string(), nullable=False),
        "entry": pa.field("entry", pa.binary(), nullable=False),
    },
    val={"rows": pa.field("rows", pa.binary(), nullable=False)},
)
"""``table``: a shard id. ``entry``: 16 bytes that name the transaction, and 4 that number its entries."""

WAL_SINCE: Final = "wal"
"""The critical since of every log: it lies behind everything that is not copied yet."""

TIDY_COMMITS: Final = 64
"""One in so many transactions, of whatever process, copies what was not read yet, and forgets what is copied."""

TABLE_APPLICATION_LETTERS: Final = 200
"""Longer application names are replaced by their hash where the table's name is added to them."""

FINISH_SECONDS: Final = 5.0
"""How long a process waits for that at its end."""

WORK_BODY: Final = "transact"
"""Stands for what the work of ``transact`` does, which another run of it may do otherwise."""

Rows = Mapping[ShardId, pa.Table]
"""What a transaction does to each table: updates at any time, checked."""


class Wal:
    """The log of one timeline. Safe for many tasks; any number of processes may hold it."""

    def __init__(self, client: "ShardClient", oracle: Oracle, writer: "WriteHandle", hold: "SinceHandle") -> None:
        self.oracle = oracle
        self.upper = Register(client, writer)
        self._client = client
        self._writer = writer
        self._hold = hold
        self._reader: ReadHandle | None = None
        self._turn = asyncio.Lock()
        self._settling: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, client: "ShardClient", oracle: Oracle, timeline: Timeline, *, timeout: float | None = None
    ) -> "Wal":
        """The log of a timeline, made if missing. Six RPCs at most."""
        deadline = client.location.attempts.deadline(timeout)
        shard = log_of(timeline)
        writer = await client.open_writer(shard, schema=WAL_SCHEMA, timeout=seconds(deadline))
        hold = await client.open_since(WAL_SINCE, shard, purpose="transaction log", timeout=seconds(deadline))
        wal = cls(client, oracle, writer, hold)
        # So that there is a time before the upper from the beginning.
        await wal.upper.raise_to(1, deadline)
        return wal

    @property
    def over(self) -> bool:
        """Whether the location was restored: then open the log and its tables again. No RPC."""
        return self.upper.over or self.oracle.over

    @property
    def location(self) -> "Location":
        """Where the log is."""
        return self._client.location

    @property
    def runtime(self) -> Runtime:
        """Of its location."""
        return self._client.location.runtime

    @property
    def writer(self) -> "WriteHandle":
        """The writer of this process to the log."""
        return self._writer

    async def commit(
        self,
        rows: Rows,
        tables: Collection[TableShard],
        *,
        owners: Sequence[Doubts],
        marker: Transaction | None,
        timeout: float | None,
    ) -> int:
        """All of it at one time, which is returned: definite, and seen by every read time asked for from now on.

        Three RPCs. ``tables``: whose rows these are; raises ShardClosed when one was dropped. ``marker``: happens once
        for ever; what it was is written beside it, so that only the same rows are taken for done. After Indeterminate
        each of ``owners`` can find out whether it did.
        """
        deadline = self.deadline(timeout)
        ts = await self._given(tables, deadline)
        # It lands there at least. Once it has, that this cannot be applied comes too late.
        await self.oracle.check_ahead(max(ts, self.upper.known), timeout=seconds(deadline))
        if marker is not None:
            marker = marker.with_body(await self._client.location.runtime.offload(body_of, rows))
        with call_of(owners) as call:
            appended = await self._writer.append_at_upper_as(
                call, await self._entries_of(rows), not_before=ts, transaction=marker, timeout=seconds(deadline)
            )
            return await self._committed_at(appended, deadline)

    async def commit_at(
        self,
        rows: Rows,
        tables: Collection[TableShard],
        upper: int,
        *,
        owners: Sequence[Doubts],
        marker: Transaction | None,
        is_same: bool = False,
        once: Once,
        deadline: Deadline,
    ) -> int | None:
        """As ``commit``, iff no rows were committed since the log ended at ``upper``; else None.

        ``once``: has what other runs encoded, which may do the same.
        ``is_same``: the marker, which has a body, stands for these very rows: what was committed under it is returned.
        Else another run may do something else, and has raised AlreadyCommitted.
        """
        # What it does depends on its reads as well, so another run of it may do something else.
        marked = marker if marker is None or is_same else marker.with_body(WORK_BODY)
        with call_of(owners) as call:
            ts = await self._new_ts(tables, upper, deadline)
            while True:
                ts = await self._ts_from(upper, ts, deadline)
                kept = await once.of(self._writer, rows, lambda: self._entries_of(rows), seconds(deadline))
                try:
                    outcome = await self._writer.compare_and_append_kept_as(
                        call, kept, upper, ts, transaction=marked, timeout=seconds(deadline)
                    )
                except InvalidArgument:
                    if marker is not None and not is_same:
                        await self.check_new(marker, deadline)
                    raise
                if isinstance(outcome, Appended):
                    if marker is not None and not is_same and outcome.upper != Antichain.of(ts + 1):
                        raise _already_committed(marker, outcome)
                    return await self._committed_at(outcome, deadline)
                # SUBTLE: each reader raises the log's upper, and so does a leader every second. Nothing that was read
                # changed by that; who takes longer would else never commit.
                before, upper = upper, self.upper.heard(outcome.upper)
                is_empty, ts = await asyncio.gather(
                    certain(self._is_empty(before, upper, deadline)), self._new_ts(tables, upper, deadline)
                )
                if not is_empty:
                    return None

    async def _new_ts(self, tables: Collection[TableShard], upper: int, deadline: Deadline) -> int:
        """A time of this write's own, for what is written at ``upper``."""
        ts = await self._given(tables, deadline)
        await self.oracle.check_ahead(max(ts, upper), timeout=seconds(deadline))
        return ts

    async def _ts_from(self, upper: int, ts: int, deadline: Deadline) -> int:
        """That time, or a later one where ``upper`` has passed it."""
        if ts >= upper:
            return ts
        # SUBTLE: never a time that another run may have, too: by its time this one knows itself.
        await certain(self.oracle.apply_write(upper - 1, timeout=seconds(deadline)))
        return await certain(self.oracle.write_ts(timeout=seconds(deadline)))

    async def _is_empty(self, begin: int, end: int, deadline: Deadline) -> bool:
        """Whether the log surely has no rows from ``begin`` to ``end``. What was merged since may hide that."""
        reader = await self._reading(deadline)
        if not exact(begin, reader):
            return False
        try:
            return not (await reader.diffs(begin, end, timeout=seconds(deadline))).rows
        except (LeaseExpired, NotReadable):
            self._reader = None
            return False

    async def _given(self, tables: Collection[TableShard], deadline: Deadline) -> int:
        """A time to write at, and that the tables are there, at once. One that was given for nothing does no harm:
        nothing of the transaction has happened.
        """
        given = self.oracle.write_ts(timeout=seconds(deadline))
        there = asyncio.gather(*(each.check_open(deadline) for each in tables))
        ts, _ = await asyncio.gather(certain(given), there)
        return ts

    async def check_new(self, marker: Transaction, deadline: Deadline) -> None:
        """Raises AlreadyCommitted for a transaction that the log remembers as committed.

        One RPC, which changes nothing: the log has left its beginning behind, but asks for the marker first. Raises
        InvalidArgument when a later version was committed: whether this one was is not known any more.
        """
        try:
            asked = await self._asked(marker.with_body(WORK_BODY), deadline)
        except InvalidArgument as error:
            if str(error.details.get("newest")) != str(marker.version):
                raise
            # Other rows, or another run: this version was committed all the same.
            asked = await self._asked(marker, deadline)
        if isinstance(asked, Appended):
            raise _already_committed(marker, asked)

    async def done(self, marker: Transaction, deadline: Deadline) -> int | None:
        """When the rows that a marker stands for were committed under it; None: they were not. One RPC.

        Raises InvalidArgument: other rows were, or a later version.
        """
        asked = await self._asked(marker, deadline)
        return await self._committed_at(asked, deadline) if isinstance(asked, Appended) else None

    async def go_on(self, deadline: Deadline) -> None:
        """Let the log end now: where nothing was written for a while it ends before what its tables still hold."""
        await self.upper.raise_to(await certain(self.oracle.write_ts(timeout=seconds(deadline))), deadline)

    async def _asked(self, marker: Transaction, deadline: Deadline) -> Appended | UpperMismatch:
        marker = marker.with_body("")  # a question, which has no updates to compare
        return await self._writer.compare_and_append([], 0, 0, transaction=marker, timeout=seconds(deadline))

    async def catch_up(self, table: TableShard, until: int, deadline: Deadline) -> None:
        """Return when the table holds all that the log holds before ``until``, which ends what can come before it.

        No RPC when that is known. Else about five; contents as large as what is to be copied are held in memory.
        Raises UsageError when others wrote to the table at times that the log has not reached.
        """
        if table.copied >= until:
            return
        async with table.turn:
            if table.copied >= until:
                return
            upper = await table.read_upper(deadline)
            if upper > self.upper.known and upper > await self.upper.read(deadline):
                raise _past_the_log(table)
            if await self._copied(table, upper, deadline) < until:
                # Where others wrote to the table there must be room for what they came before.
                await self.upper.raise_to(max(until, upper + 1), deadline)
                await self._copy(table, upper, self.upper.known, deadline)

    async def complete(self, table: TableShard, timeout: float | None = None) -> None:
        """Return when the table holds all that was acknowledged before this was called. One RPC, or about six.

        One that was dropped holds what it holds. Raises LocationError, and as ``catch_up``.
        """
        deadline = self.deadline(timeout)
        with contextlib.suppress(ShardClosed):
            await self.catch_up(table, await self.upper.read(deadline), deadline)

    async def table(self, shard: ShardId, deadline: Deadline) -> TableShard:
        """A shard that is a table of this log, or becomes one. Three RPCs. Raises ShardNotFound."""
        table = await TableShard.open(self._client, shard, None, timeout=seconds(deadline))
        await self.adopt(table, deadline)
        return table

    async def adopt(self, table: TableShard, deadline: Deadline) -> None:
        """See that the table's shard records until when the log is copied, before anything for it is in the log.

        One RPC, and one more the first time.
        """
        async with table.turn:
            upper = table.upper.known
            while not upper or await last_copy(table, upper, self._writer.shard, deadline) is None:
                # The log of a table that has nothing yet begins at 1.
                end = max(self.upper.known, upper + 1) if upper else 1
                await self.upper.raise_to(end, deadline)
                await self._copy(table, upper, end, deadline)
                upper = table.upper.known

    async def settle(self, *, timeout: float | None = None) -> tuple[ShardId, ...]:
        """Copy everything to its table, and forget what is copied; which tables there was something for.

        Any process may, at any time. What is wrong with one table keeps no other from its rows, and is raised then:
        the log keeps all.
        """
        deadline = self.deadline(timeout)
        async with self._turn:
            reader = await self._opened(deadline)
            live, end = await live_rows(reader, self.upper, deadline)
            tables = tuple(live.tables)
            failure: PersistError | None = None
            for shard in tables:
                try:
                    await self._copy_to(shard, end, deadline)
                except LocationError:
                    raise
                except PersistError as error:
                    failure = failure or error
            if failure is not None:
                raise failure
            await live.retract(self._writer, reader, end, deadline)
            # Everything before ``end`` is copied now: what comes to the log later comes at or behind it.
            await self._hold.compare_and_downgrade(self._hold.opaque, end - 1, timeout=seconds(deadline))
            await reader.expire(timeout=seconds(deadline))
            if self._reader is not None:
                with contextlib.suppress(LeaseExpired):
                    await self._reader.downgrade_since(end - 1, timeout=seconds(deadline))
            return tables

    async def _copy_to(self, shard: ShardId, end: int, deadline: Deadline) -> None:
        try:
            await self.catch_up(
                await TableShard.open(self._client, shard, None, timeout=seconds(deadline)), end, deadline
            )
        except (ShardClosed, ShardNotFound):
            return  # the table was dropped, and what it would hold will never be read

    def deadline(self, timeout: float | None) -> Deadline:
        """The deadline of a call."""
        return self._client.location.attempts.deadline(timeout)

    async def _opened(self, deadline: Deadline) -> "ReadHandle":
        shard = self._writer.shard
        reader = await self._client.open_reader(shard, purpose="transaction log", timeout=seconds(deadline))
        return renewed(self._writer.incarnation, reader)

    async def _reading(self, deadline: Deadline, *, anew: bool = False) -> "ReadHandle":
        """A reader of the log. ``anew``: with the least since there is, instead of the one held."""
        # The one held is dropped, not expired: others may be reading with it.
        reader = None if anew else self._reader
        if reader is None:
            reader = self._reader = await self._opened(deadline)
        return reader

    async def _copy(self, table: TableShard, upper: int, end: int, deadline: Deadline) -> None:
        """SUBTLE: the rows of an interval never change once the log has passed it, so the first process may write.

        What is copied goes on from where the last copy ended, which the table's shard records with it, and not from the
        table's upper: if others wrote in between, the rows that they came before move behind what they wrote.
        """
        copied = await self._copied(table, upper, deadline)
        updates = (
            await self._decoded(await self._for(table, copied, end, deadline), table, deadline)
            if end > 1
            else table.writer.schema.updates.empty_table()
        )
        while copied < end:
            if upper >= end:
                raise _past_the_log(table)
            rest = not_before(updates.filter(pc.greater_equal(updates.column("ts"), copied)), upper)
            try:
                outcome = await table.writer.compare_and_append(
                    rest, upper, end, transaction=LogCopy.of(self._writer.shard, end), timeout=seconds(deadline)
                )
            except OutcomeForgotten:
                upper = await table.read_upper(deadline)
            else:
                if isinstance(outcome, Appended):
                    # Or what another process has copied, at least as much.
                    table.copied = max(table.copied, outcome.upper.elements[0])
                    if not outcome.already_committed and copied < upper and rest.num_rows:
                        # Readers from now on find what had to move.
                        await acknowledge(self.oracle, upper, deadline)
                        table.moved = upper
                upper = table.upper.heard(outcome.upper)
            copied = await self._copied(table, upper, deadline)

    async def _copied(self, table: TableShard, upper: int, deadline: Deadline) -> int:
        """Until when the log is in the table whose upper was ``upper`` just now. No RPC if no other process wrote, else
        one.

        SUBTLE: asked after ``upper`` was, so that both belong together when the caller then appends at ``upper``: every
        copy raises the upper. It cannot lie beyond the upper, so what is known to have reached it is up to date.
        """
        if upper and table.copied < upper:
            recorded = await last_copy(table, upper, self._writer.shard, deadline)
            # Nothing recorded: a table from before it was, whose writers were believed to keep to the log.
            table.copied = max(table.copied, upper if recorded is None else recorded)
        return table.copied

    async def _for(self, table: TableShard, begin: int, end: int, deadline: Deadline) -> pa.Table:
        """What the log holds for a table from ``begin``, where its last copy ended, to ``end``."""
        reader = await self._reading(deadline)
        if not exact(begin, reader):
            # Perhaps only this reader has released what the log still has.
            reader = await self._reading(deadline, anew=True)
        try:
            return await self._between(reader, table, begin, end, deadline)
        except (LeaseExpired, NotReadable):
            return await self._between(await self._reading(deadline, anew=True), table, begin, end, deadline)

    async def _between(
        self, reader: "ReadHandle", table: TableShard, begin: int, end: int, deadline: Deadline
    ) -> pa.Table:
        # SUBTLE: since moves only past rows that are copied. A table whose last copy lies before it has no such rows.
        first = begin if exact(begin, reader) else min(end, (reader.since.time or 0) + 1)
        changes = await reader.diffs(first, end, timeout=seconds(deadline))
        return await changes.to_arrow(where=[("table", "=", str(table.shard))])

    async def _decoded(self, log: pa.Table, table: TableShard, deadline: Deadline) -> pa.Table:
        for last in (False, True):
            schema = table.writer.schema
            try:
                # Diffs below zero are what forgot rows that were copied.
                found = [
                    from_payload(entry["rows"], entry["ts"], schema) for entry in log.to_pylist() if entry["diff"] > 0
                ]
                return consolidate(pa.concat_tables([schema.updates.empty_table(), *found]), schema)
            except SchemaMismatch:
                if last:
                    raise
                await table.renew(deadline)
        raise AssertionError("unreachable")

    async def _committed_at(self, appended: Appended, deadline: Deadline) -> int:
        self.upper.heard(appended.upper)
        ts = appended.upper.elements[0] - 1
        await acknowledge(self.oracle, ts, deadline)
        idle = self._settling is None or self._settling.done()
        if idle and not appended.already_committed and is_turn(appended.seqno):
            self._settling = self._client.location.tasks.spawn(self._settle_quietly(), "settling a log")
        return ts

    async def finish(self) -> None:
        """Wait, but not for long, for background work: a process that commits once and ends may have the turn."""
        if self._settling is not None:
            await asyncio.wait([self._settling], timeout=FINISH_SECONDS)

    async def _settle_quietly(self) -> None:
        try:
            await self.settle()
        except PersistError as error:
            # The next turn tries again; until then the log grows, which an operator should see.
            _log.warning("the transaction log %s was not settled: %s", self._writer.shard, error)

    async def _entries_of(self, rows: Rows) -> pa.Table:
        runtime = self._client.location.runtime
        name = runtime.random_bytes(16)
        if sum(updates.nbytes for updates in rows.values()) <= ON_LOOP_BYTES_MAX:
            return self._entries(name, rows)
        return await runtime.offload(self._entries, name, rows)

    @staticmethod
    def _entries(name: bytes, rows: Rows) -> pa.Table:
        entries = [(str(shard), payload) for shard, updates in rows.items() for payload in payloads(updates)]
        return pa.table(
            {
                "table": pa.array([shard for shard, _ in entries], pa.string()),
                "entry": pa.array([name + at.to_bytes(4, "big") for at in range(len(entries))], pa.binary()),
                "rows": pa.array([payload for _, payload in entries], pa.binary()),
            }
        )


def writes_of(oracle: Oracle) -> Doubts:
    """The writes of one table of an oracle's timeline: one is over when its time is applied.

    Its ``resolve`` raises LeaseExpired when the location was restored: whether they are there is for a read to say.
    """

    async def apply(written: list[Appended], deadline: Deadline) -> None:
        # Or they would not be read before the next write.
        try:
            await acknowledge(oracle, max(each.upper.elements[0] for each in written) - 1, deadline)
        except Indeterminate as error:
            if isinstance(error.__cause__, LeaseExpired):
                raise error.__cause__ from None
            raise

    return Doubts(finish=apply)


def is_turn(seqno: int) -> bool:
    """Whether the process that committed at this seqno of a log tidies it: one in ``TIDY_COMMITS``, however they are
    spaced.

    The log decides, so that it stays short also when no process commits more than once. Multiples of the golden ratio
    are spread evenly, in whatever steps they are taken.
    """
    return seqno * 0x9E3779B97F4A7C15 % (1 << 64) < (1 << 64) // TIDY_COMMITS


def _already_committed(marker: Transaction, found: Appended) -> AlreadyCommitted:
    return AlreadyCommitted(
        "this version was committed before: nothing happened now, and what was returned then is not kept",
        hint="read what it left in the tables, or go on with the next version",
        app_id=marker.app_id,
        version=marker.version,
        ts=found.upper.elements[0] - 1,
    )


def of_table(transaction: Transaction, shard: ShardId | None) -> Transaction:
    """A marker of one table's own in the log of many, so that a version of each of them happens. None: as it is."""
    if shard is None:
        return transaction
    name = transaction.app_id
    if len(name) > TABLE_APPLICATION_LETTERS:
        name = hashlib.blake2b(name.encode(), digest_size=32).hexdigest()
    return replace(transaction, app_id=f"{name}@{shard}")


def exact(lower: int, reader: "ReadHandle") -> bool:
    """Whether the reader still distinguishes times from ``lower`` on from those before."""
    since = reader.since.time
    return since is not None and (since == 0 or since < lower)


def log_of(timeline: Timeline) -> ShardId:
    """The shard of a timeline's log."""
    return ShardId.named("persist.wal", str(timeline))


async def last_copy(table: TableShard, upper: int, log: ShardId, deadline: Deadline) -> int | None:
    """Until when the log was copied, as the table's shard records it; None: nothing is recorded. One RPC.

    ``upper``: one that the shard has reached. It records something iff it is a table of that log.
    """
    # Below the upper nothing can be appended: only what is recorded of the application is answered.
    outcome = await table.writer.compare_and_append(
        [], upper - 1, upper, transaction=LogCopy.of(log, 0), timeout=seconds(deadline)
    )
    return outcome.upper.elements[0] if isinstance(outcome, Appended) else None


async def is_in_log(table: TableShard, timeline: Timeline, deadline: Deadline) -> bool:
    """Whether the shard is a table of the timeline's log. One RPC at most."""
    upper = table.upper.known
    return bool(upper) and await last_copy(table, upper, log_of(timeline), deadline) is not None


async def check_direct(table: TableShard, timeline: Timeline, deadline: Deadline) -> None:
    """Raise InvalidArgument when the shard is a table of the timeline's log. One RPC at most."""
    if await is_in_log(table, timeline, deadline):
        raise InvalidArgument(
            "this shard is a table whose rows come through a log", hint='open it with mode="wal"', table=table.shard
        )


def not_before(updates: pa.Table, time: int) -> pa.Table:
    """The updates, those at earlier times at ``time``."""
    at = updates.schema.get_field_index("ts")
    moved = pc.max_element_wise(updates.column(at), pa.scalar(time, pa.uint64()))
    return updates.set_column(at, updates.schema.field(at), moved)


def _past_the_log(table: TableShard) -> UsageError:
    return UsageError(
        "another program wrote to a table past its log", hint="write through tables only", table=table.shard
    )
