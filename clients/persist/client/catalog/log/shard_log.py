"""The rows of a catalog in one shard of a persist location.

Source: design document 2, the persist section; catalog-semantics.md sections 1.1, 1.2.2, 1.2.7 and 2.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from persist.client.catalog.gc_pause import no_collection
from persist.client.catalog.port import CatalogUpdates, StagedRows
from persist.client.catalog.same_history import rewound
from persist.client.shard.same_history import H
from persist.client.timeline.register import Register
from persist.core.catalog.rows import Row, RowUpdate
from persist.core.ids import ShardId
from persist.core.names import catalog_shard
from persist.core.shard.commands import Appended
from persist.errors import (
    Indeterminate,
    LeaseExpired,
    LocationError,
    NotReadable,
    NotYetAvailable,
    PersistError,
)
from persist.retry.tasks import Tasks
from persist.wire.catalog.rows import CATALOG_SCHEMA, from_table, to_table

if TYPE_CHECKING:
    from persist.client.shard.client import ShardClient
    from persist.client.shard.read.handle import ReadHandle
    from persist.client.shard.read.since import SinceHandle
    from persist.client.shard.write.handle import WriteHandle
    from persist.client.shard.write.kept import KeptBatch

T = TypeVar("T")

CATALOG_SINCE: Final = "catalog"
"""The critical since of every catalog shard: so that it forgets nothing when no process is there to read it."""

BESIDE_ROWS: Final = 1_000
"""So many are made and taken apart beside the event loop, which others need."""
FORGET_SECONDS: Final = 1.0
"""How often a log releases what it needs no more, which is a commit of its own."""


async def open_shard_log(client: "ShardClient", environment: str) -> "ShardLog":
    """The log of an environment's catalog, in a shard that is made if missing. Borrows the client: close it first.

    Two RPCs, three the first time. Raises InvalidArgument, and what another schema in that shard raises.
    """
    return ShardLog(client, await client.open_writer(catalog_shard(environment), schema=CATALOG_SCHEMA))


class ShardLog:
    """The RowLog over a shard. Its calls may overlap; each gives up after ``settings.timeout_ms``.

    Costs: ``upper`` and ``append`` one RPC, ``snapshot`` two and its parts, ``updates`` three when there are any. Once
    a second at most ``updates`` and ``forget`` take one more. A process that reads nothing for longer than its lease
    goes on with a new one. After a restore every call raises HistoryRewound, for good.
    """

    def __init__(self, client: "ShardClient", writer: "WriteHandle") -> None:
        self._client = client
        self._writer = writer
        self._upper = Register(client, writer)
        self._reader: ReadHandle | None = None
        self._since: SinceHandle | None = None
        self._released = self._forgot = float("-inf")
        self._let_go = 0
        self._tasks = Tasks()
        self._forgetting: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"shard {self._writer.shard}"

    @property
    def shard(self) -> ShardId:
        """The shard."""
        return self._writer.shard

    @property
    def history(self) -> int | None:
        """See RowLog."""
        return self._writer.incarnation

    async def upper(self) -> int:
        """See RowLog."""
        try:
            return await self._upper.read(self._client.location.attempts.deadline(None))
        except LeaseExpired as error:
            raise rewound(self.shard) from error

    async def snapshot(self, kinds: Iterable[str] | None = None) -> CatalogUpdates:
        """See RowLog."""
        where = None if kinds is None else [("kind", "in", sorted(kinds))]

        async def newest(reader: "ReadHandle") -> CatalogUpdates:
            # SUBTLE: asked for once the reader holds the shard's since, which then stays at or before this upper.
            upper = await self.upper()
            return CatalogUpdates(await self._as_of(reader, upper - 1, where) if upper else [], upper)

        return await self._read(newest)

    async def updates(self, lower: int) -> CatalogUpdates:
        """See RowLog."""
        if lower == 0:
            return await self._everything()
        upper = await self.upper()
        if upper <= lower:
            return CatalogUpdates([], upper)
        found = await self._read(lambda reader: self._between(reader, lower, upper))
        await self._release(lower - 1)
        return CatalogUpdates(found, upper)

    async def append(self, changes: Sequence[tuple[Row, int]], ts: int, *, expected_upper: int) -> int | None:
        """See RowLog."""
        return await self.append_all([(ts, changes)], expected_upper=expected_upper)

    async def append_all(
        self, times: Sequence[tuple[int, Sequence[tuple[Row, int]]]], *, expected_upper: int
    ) -> int | None:
        """See Grouping."""
        ts = times[-1][0]
        rows = await self._computed(sum(len(changes) for _, changes in times), _table_of, times)
        try:
            outcome = await self._writer.compare_and_append(rows, expected_upper, ts + 1)
        except LeaseExpired as error:
            # The shard forgot this writer, which was silent for long: a new one is sure of its own attempts only.
            self._writer = self._same(await self._client.open_writer(self.shard, schema=CATALOG_SCHEMA))
            self._upper.use(self._writer)
            outcome = await self._writer.compare_and_append(rows, expected_upper, ts + 1)
            if not isinstance(outcome, Appended):
                raise Indeterminate(
                    "whether this was appended is not known", hint="read it again", expected_upper=expected_upper
                ) from error
        upper = self._upper.heard(outcome.upper)
        return None if isinstance(outcome, Appended) else upper

    async def stage(self, rows: Sequence[tuple[Row, int]]) -> "_StagedBatch":
        """See Staging. No RPC."""
        table = await self._computed(len(rows), _table_of, [(0, rows)])
        return _StagedBatch(rows, self._writer, await self._writer.keep(table))

    async def append_staged(
        self, staged: StagedRows, rest: Sequence[tuple[Row, int]], ts: int, *, expected_upper: int
    ) -> int | None:
        """See Staging. One RPC."""
        assert isinstance(staged, _StagedBatch)
        writer, kept = staged.writer, staged.kept
        if writer is self._writer and kept.is_fresh:
            beside = await self._computed(len(rest), _table_of, [(ts, rest)]) if rest else None
            with contextlib.suppress(LeaseExpired):
                outcome = await writer.compare_and_append_kept(kept, expected_upper, ts, beside=beside)
                upper = self._upper.heard(outcome.upper)
                return None if isinstance(outcome, Appended) else upper
        return await self.append([*staged.rows, *rest], ts, expected_upper=expected_upper)

    async def nudge(self) -> None:
        """See Nudging. One RPC."""
        self._upper.heard((await self._writer.append_at_upper([])).upper)

    async def changed(self, upper: int, timeout: float) -> None:
        """See RowLog."""
        runtime = self._client.location.runtime
        end = runtime.monotonic() + timeout
        try:
            await self._read(lambda reader: reader.snapshot(upper, timeout=timeout))
        except NotYetAvailable:
            return
        except LocationError:
            # The time may have been up amid a look at the store.
            if runtime.monotonic() < end:
                raise

    async def forget(self, to: int) -> None:
        """See RowLog. Once a second at most, beside its caller, whose turn it is; the rest goes with the log's end."""
        self._let_go = max(self._let_go, to)
        now = self._client.location.runtime.monotonic()
        if now - self._forgot < FORGET_SECONDS or (self._forgetting is not None and not self._forgetting.done()):
            return
        self._forgot = now
        self._forgetting = self._tasks.start(self._forget_and_release())

    async def _forget_and_release(self) -> None:
        # The next one does what this one could not.
        with contextlib.suppress(PersistError):
            await self._forget()
            await self._release(self._let_go)

    async def close(self) -> None:
        """See RowLog."""
        if self._forgetting is not None:
            await asyncio.wait({self._forgetting})
        await self._tasks.close()
        reader, self._reader = self._reader, None
        with contextlib.suppress(PersistError):
            await self._forget()
        if reader is not None:
            with contextlib.suppress(PersistError):
                await reader.expire()

    async def _forget(self) -> None:
        if self._since is None and self._let_go:
            self._since = await self._client.open_since(CATALOG_SINCE, self.shard, purpose="catalog")
        since = self._since
        if since is not None and (since.since.time or 0) < self._let_go:
            await since.compare_and_downgrade(since.opaque, self._let_go)

    async def _release(self, to: int) -> None:
        """Let this process's lease hold no more than the next reading needs."""
        now, reader = self._client.location.runtime.monotonic(), self._reader
        if reader is None or now - self._released < FORGET_SECONDS or to <= (reader.since.time or 0):
            return
        self._released = now
        with contextlib.suppress(PersistError):
            await reader.downgrade_since(to)

    async def _read(self, work: "Callable[[ReadHandle], Awaitable[T]]") -> T:
        """What ``work`` reads. Again with a new lease if this process slept through its own, or released too much."""
        reader = self._reader or await self._opened()
        try:
            return await work(reader)
        except (LeaseExpired, NotReadable):
            return await work(await self._opened())

    async def _everything(self) -> CatalogUpdates:
        """All updates, at the times that a hold still keeps distinct."""
        opened = await self._client.open_reader(self.shard, schema=CATALOG_SCHEMA, purpose="catalog history")
        reader = self._same(opened)
        async with reader:
            first, upper = reader.since.time or 0, await self.upper()
            if upper == 0:
                return CatalogUpdates([], 0)
            begin = await self._as_of(reader, first, None)
            return CatalogUpdates([*begin, *await self._between(reader, first + 1, upper)], upper)

    async def _opened(self) -> "ReadHandle":
        # The one before is dropped, not expired: others may be reading with it.
        reader = await self._client.open_reader(self.shard, schema=CATALOG_SCHEMA, purpose="catalog")
        self._reader = self._same(reader)
        return reader

    async def _as_of(self, reader: "ReadHandle", as_of: int, where: object) -> list[RowUpdate]:
        rows = await (await reader.snapshot(as_of)).to_arrow(where=where)
        times = pa.repeat(pa.scalar(as_of, pa.uint64()), rows.num_rows)
        timed = rows.append_column(CATALOG_SCHEMA.updates.field("ts"), times)
        return await self._computed(rows.num_rows, from_table, timed)

    async def _between(self, reader: "ReadHandle", lower: int, upper: int) -> list[RowUpdate]:
        rows = await (await reader.diffs(lower, upper)).to_arrow()
        return await self._computed(rows.num_rows, from_table, rows)

    async def _computed(self, rows: int, function: Callable[..., T], *args: object) -> T:
        """What a function makes of so many rows, beside the event loop if they are many."""
        if rows < BESIDE_ROWS:
            return function(*args)
        with no_collection():
            return await self._client.location.runtime.offload(function, *args)

    def _same(self, handle: H) -> H:
        """A handle to go on with. SUBTLE: what is known of the catalog is of one history, and fences no other one."""
        if handle.incarnation != self._writer.incarnation:
            raise rewound(self.shard)
        return handle


@dataclass(frozen=True)
class _StagedBatch:
    """See StagedRows."""

    rows: Sequence[tuple[Row, int]]
    writer: "WriteHandle"
    kept: "KeptBatch"

    async def release(self) -> None:
        """See StagedRows."""
        await self.kept.release()


def _table_of(times: Sequence[tuple[int, Sequence[tuple[Row, int]]]]) -> pa.Table:
    return to_table(RowUpdate(row, ts, diff) for ts, changes in times for row, diff in changes)
