"""Client: the door to one persist location: its shards, and all that stands on shards.

Source: design 001, Client; architecture.md section 8.
"""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from persist.client.shard.client import ShardClient
from persist.client.shard.location import Location
from persist.client.table.table import Mode, Table, open_table
from persist.client.table.transaction import TableTransaction, collecting, transact
from persist.client.table.wal import Wal
from persist.client.timeline.oracle import Oracle, Times
from persist.core.data.schema import Schema
from persist.core.ids import ShardId
from persist.core.shard.commands import Transaction
from persist.core.time.timeline import EPOCH_MILLISECONDS, Timeline, TimelineLike, timeline_of
from persist.errors import InvalidArgument
from persist.extras import extra

if TYPE_CHECKING:
    from persist.client.binding.port import Minter
    from persist.client.catalog.port import OpenableCatalog

T = TypeVar("T")


class Client(ShardClient):
    """Shards, timelines, tables, bindings and catalogs of one location.

    Safe for many tasks at once; close it, or use it as a context manager. ``timeout`` is in seconds everywhere, None
    means ``settings.timeout_ms``. Location errors are retried within it; usage errors are raised at once. Every call
    may also raise LocationError, InvalidId, CorruptData, and UsageError once it is closed.
    """

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self._oracles: dict[tuple[str, str], Oracle] = {}
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._logs: dict[str, Wal] = {}

    async def oracle(
        self,
        timeline: TimelineLike = EPOCH_MILLISECONDS,
        *,
        initially: int = 0,
        reference: Callable[[], int] | None = None,
        endpoints: str = "",
        timeout: float | None = None,
    ) -> Oracle:
        """The write times and the read time of a timeline, made if missing, after ``initially`` was applied.

        One object per client and timeline, whose calls share RPCs. ``reference``: milliseconds since 1970 as somebody
        else's clock has them; write times more than 10 s ahead of it are refused. ``endpoints``: ask TimestampOracle
        servers (HOST:PORT, commas) instead of the timeline's shards, so that many clients share commits. Six RPCs at
        most. Raises InvalidArgument, ClockAhead, InvalidBounds.
        """
        self._location.check_open()
        the_timeline = timeline_of(timeline)
        name = (str(the_timeline), endpoints)
        known = None if reference is not None else self._oracles.get(name)
        if known is not None and not known.over:
            if initially:
                await known.apply_write(initially, timeout=timeout)
            return known
        times = self._remote_times(the_timeline, endpoints) if endpoints else None
        opened = await Oracle.open(self, the_timeline, times, initially=initially, reference=reference, timeout=timeout)
        if reference is not None:
            return opened
        known = self._oracles.get(name)
        if known is None or known.over:
            self._oracles[name] = known = opened
        return known

    def _remote_times(self, timeline: Timeline, endpoints: str) -> Times:
        with extra("grpc"):
            from persist.client.remote.oracle import RemoteTimes

        location = self._location
        times = RemoteTimes(endpoints, timeline, settings=location.settings, runtime=location.runtime)
        self._closers.append(times.close)
        return times

    def minter(self, endpoints: str = "") -> "Minter":
        """Bindings of sources, minted here, or by the TimestampMinter servers at ``endpoints`` (HOST:PORT, commas).

        Borrows this client: close the minter first. Raises InvalidArgument.
        """
        location = self._location
        location.check_open()
        if endpoints:
            with extra("grpc"):
                from persist.client.remote.minter import RemoteMinter

            return RemoteMinter(endpoints, settings=location.settings, runtime=location.runtime)
        from persist.client.binding.local_minter import LocalMinter

        return LocalMinter(self)

    async def catalog(
        self, environment: str, *, endpoints: str = "", implementation: str = "persist", stash: str = ""
    ) -> "OpenableCatalog":
        """The durable catalog of an environment: one per name and location. Nothing is opened, only found, yet.

        ``endpoints``: ask CatalogService servers (HOST:PORT, commas) instead of the catalog's shard. Borrows this
        client: close the catalog first. Three RPCs at most. ``implementation``: ``persist`` keeps it in that shard,
        ``stash`` in the SQL tables at ``stash`` (``sqlite:PATH``, ``postgres://…``), ``shadow`` in both, which are
        compared at every call. Servers know their own.

        Raises InvalidArgument, and for a stash InvalidUri, MissingExtra, UnsafeConfiguration, LocationError,
        VersionMismatch.
        """
        if endpoints:
            if stash or implementation != "persist":
                raise InvalidArgument(
                    "servers know what keeps their catalog", hint="leave out implementation and stash, or endpoints"
                )
            with extra("grpc"):
                from persist.client.catalog.remote import RemoteCatalog

            location = self._location
            location.check_open()
            return RemoteCatalog(
                endpoints, environment=environment, settings=location.settings, runtime=location.runtime
            )
        from persist.client.catalog.implementation import find_catalog

        return await find_catalog(self, environment, implementation, stash)

    async def table(
        self,
        name: ShardId | str,
        *,
        schema: Schema | None = None,
        timeline: TimelineLike = EPOCH_MILLISECONDS,
        mode: Mode = "direct",
        timeout: float | None = None,
    ) -> Table:
        """The table of that name, made with ``schema`` if missing; or the shard ``name`` as a table.

        ``mode``: ``direct`` writes to the table's shard; ``wal`` to the log of the timeline, so that transactions may
        write several tables. A name is one shard through every door, and a table of one mode and timeline for ever; a
        shard given by its id must only ever be written in one of them. What was written to the shard by other means is
        read from when it is opened, or written to, as a table. About ten RPCs the first time. Raises as
        ``open_writer``, and InvalidArgument (the name has another mode or timeline), ClockAhead (the shard has times
        far ahead of the clock).
        """
        the_timeline = timeline_of(timeline)
        return await open_table(
            self,
            name,
            schema=schema,
            timeline=the_timeline,
            mode=mode,
            oracle_of=functools.partial(self.oracle, the_timeline),
            log_of=functools.partial(self.transaction_log, the_timeline),
            timeout=timeout,
        )

    async def transaction_log(
        self, timeline: TimelineLike = EPOCH_MILLISECONDS, *, timeout: float | None = None
    ) -> Wal:
        """The log of the tables of a timeline, made if missing: for what is built on top of tables.

        Raises InvalidArgument, ClockAhead, LocationError.
        """
        the_timeline = timeline_of(timeline)
        name = str(the_timeline)
        known = self._logs.get(name)
        if known is None or known.over:
            oracle = await self.oracle(the_timeline, timeout=timeout)
            opened = await Wal.open(self, oracle, the_timeline, timeout=timeout)
            known = self._logs.get(name)
            if known is None or known.over:
                self._logs[name] = known = opened
        return known

    @asynccontextmanager
    async def transaction(
        self,
        timeline: TimelineLike = EPOCH_MILLISECONDS,
        *,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[TableTransaction]:
        """Writes to tables of mode ``wal`` that happen at one time, when the block ends; none after an error in it.

        ``transaction``: happens once for ever; other rows under its version, or a version before the newest, are
        InvalidArgument when the block ends. Three RPCs, however many tables. Raises InvalidArgument and, when the
        block ends, LocationError: after Indeterminate all of it may have happened, or nothing.
        """
        log = await self.transaction_log(timeline, timeout=timeout)
        collected = TableTransaction(log, marker=transaction, timeout=timeout)
        with collecting(collected):
            yield collected
        await collected.commit(log.deadline(timeout))

    async def transact(
        self,
        work: Callable[[TableTransaction], Awaitable[T]],
        timeline: TimelineLike = EPOCH_MILLISECONDS,
        *,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> T:
        """Reads and writes of tables of mode ``wal`` with nothing in between: serializable. What ``work`` returned.

        ``work`` runs again when somebody else committed first, so it must do nothing but what it does to its
        transaction. ``transaction``: happens once for ever; AlreadyCommitted when that was before, and ``work`` is
        not run then. Raises what ``work`` raises, and NotYetAvailable when others were first until time was up.
        """
        log = await self.transaction_log(timeline, timeout=timeout)
        return await transact(self._location, log, work, marker=transaction, timeout=timeout)

    async def settle(self, timeline: TimelineLike = EPOCH_MILLISECONDS, *, timeout: float | None = None) -> None:
        """Copy everything from the log of a timeline to its tables, and let the log forget what is copied.

        Needed by nobody: reading a table copies what is missing, and committing settles now and then. Any process may
        do it at any time. About five RPCs, and ten for each table with something to copy. Raises LocationError.
        """
        await (await self.transaction_log(timeline, timeout=timeout)).settle(timeout=timeout)

    async def close(self) -> None:
        """End its listens, expire its readers as far as they answer, stop background work, release connections.

        Closing again does nothing. Raises nothing: leases that could not be expired run out by themselves.
        """
        for log in self._logs.values():
            await log.finish()
        await super().close()
        while self._closers:
            await self._closers.pop()()
