"""Client: the door to one persist location: its shards, and all that stands on shards.

Source: design 001, Client; architecture.md section 8.
"""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from persist.client.collections.access import Access
from persist.client.collections.late_items import LateItems
from persist.client.shard.client import ShardClient
from persist.client.shard.location import Location
from persist.client.shard.naming import find
from persist.client.shard.read.handle import ReadHandle
from persist.client.shard.times import TimeLike
from persist.client.table.in_doubt import TablesInDoubt
from persist.client.table.opening import open_table
from persist.client.table.table import Mode, Table
from persist.client.table.transaction import TableTransaction, collecting, transact
from persist.client.table.wal import Wal
from persist.client.timeline.oracle import Oracle, Times
from persist.client.timeline.register import seconds
from persist.core.data.predicate import PredicateLike
from persist.core.data.schema import Schema
from persist.core.ids import ReaderId, ShardId
from persist.core.names import id_or_name
from persist.core.shard.commands import Transaction
from persist.core.time.isolation import Isolation
from persist.core.time.timeline import EPOCH_MILLISECONDS, Timeline, TimelineLike, timeline_of
from persist.errors import InvalidArgument
from persist.extras import extra
from persist.retry.deadline import Deadline
from persist.storage.open import READ_ONLY

if TYPE_CHECKING:
    from persist.client.binding.port import Minter
    from persist.client.catalog.port import OpenableCatalog
    from persist.client.collections.environment import Environment
    from persist.client.collections.reading.contents import Contents
    from persist.client.collections.views.query import QueryRunner
    from persist.client.sql.results import Result
    from persist.client.sql.run.port import Runner
    from persist.client.sql.session import SqlSession
    from persist.client.sql.views.upkeep import ViewUpkeep

T = TypeVar("T")


def _kept_queries() -> "QueryRunner":
    with extra("sql"):
        from persist.client.sql.keeping import KeptQueries

    return KeptQueries()


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
        self._environments: WeakSet[Environment] = WeakSet()
        self._sessions: dict[tuple[str, str], list[SqlSession]] = {}
        self._environments_read: dict[tuple[str, str], Environment] = {}
        self._doubts = TablesInDoubt()
        location.claims = self._items = LateItems(self.access, location.settings.environment)

    async def open_reader(
        self,
        shard: ShardId | str,
        *,
        schema: Schema | None = None,
        purpose: str = "",
        lease: float | None = None,
        reader_id: ReaderId | str | None = None,
        use_critical_since: bool = False,
        timeout: float | None = None,
    ) -> ReadHandle:
        """A reader that holds the shard's since (or its critical since, if asked and any) under a lease.

        Never initialises a shard. ``purpose`` shows in ``inspect``. ``lease``: seconds without a heartbeat after which
        the hold is gone, ``settings.reader_lease_ms`` unless given. A given ``reader_id`` that is alive is taken over
        as it is. Two RPCs. Of the name of a table that is written through a log, the shard has by then all rows that
        were acknowledged, for about six more; by its id it is what it is. Raises ShardNotFound, SchemaMismatch,
        CodecMismatch, InvalidArgument.
        """
        deadline = self._location.attempts.deadline(timeout)
        complete = await self._behind_its_log(shard, deadline)
        if complete is not None:
            await complete(seconds(deadline))
        reader = await super().open_reader(
            shard,
            schema=schema,
            purpose=purpose,
            lease=lease,
            reader_id=reader_id,
            use_critical_since=use_critical_since,
            timeout=seconds(deadline),
        )
        reader.complete = complete
        return reader

    async def _behind_its_log(
        self, given: ShardId | str, deadline: Deadline
    ) -> Callable[[float | None], Awaitable[object]] | None:
        """What brings the shard of a name to the end of its log; None: it has none, or nothing may be written here."""
        wanted = id_or_name(given)
        if isinstance(wanted, ShardId) or self._location.home == READ_ONLY:
            return None
        named = await find(self._location, wanted, deadline)
        if named is None or named.mode != "wal":
            return None
        log = await self.transaction_log(named.timeline, timeout=seconds(deadline))
        return functools.partial(log.complete, await log.table(named.shard, deadline))

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

        One object per client and timeline, whose calls share RPCs. ``reference``: milliseconds since 1970 by another
        machine's clock; write times more than 10 s ahead of it are refused. ``endpoints``: ask TimestampOracle
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
        """The durable catalog of an environment: one per name and location. This only finds it; ``open`` opens it.

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

    @property
    def access(self) -> Access:
        """What collections need of this client: for what is built on top of it."""
        return Access(self, self.oracle, self.transaction_log, _kept_queries, self._doubts)

    async def environment(
        self,
        name: str = "default",
        *,
        role: str = "persist",
        endpoints: str = "",
        take_over: bool = False,
    ) -> "Environment":
        """The environment of that name at this location: its items by name, and what changes them.

        ``role``: in whose name statements are executed. ``endpoints``: CatalogService servers (HOST:PORT, commas); None
        are needed in a directory, where the first process to write leads and is found by the others. Nothing is made
        before the first statement. ``take_over``: lead at shared stores where a program led that did not end in order:
        only if it is gone for good. Borrows this client, and ends with it. Four RPCs. Raises InvalidArgument,
        MissingExtra, IncompatibleDataVersion.
        """
        self._location.check_open()
        from persist.client.collections.environment import Environment

        servers = endpoints or self._location.settings.catalog_endpoints
        opened = await Environment.open(self.access, name, role=role, endpoints=servers, take_over=take_over)
        self._environments.add(opened)
        return opened

    async def session(
        self,
        environment: str = "default",
        *,
        role: str = "persist",
        files: bool = False,
        runner: "Runner | None" = None,
        endpoints: str = "",
    ) -> "SqlSession":
        """A session that runs SQL in an environment, with variables and transactions of its own. Close it.

        ``files``: COPY may read and write files of this process. ``runner``: the engine of its queries, such as a
        ``pyspark_persist.SparkRunner``; None: DuckDB. Needs the extra ``sql``. Raises as ``environment``.
        """
        with extra("sql"):
            from persist.client.sql.session import SqlSession

        opened = await self.environment(environment, role=role, endpoints=endpoints)
        return SqlSession(opened, files=files, runner=runner, owns=True)

    async def views(
        self,
        runner: "Runner",
        environment: str = "default",
        *,
        patience: float | None = None,
        endpoints: str = "",
    ) -> "ViewUpkeep":
        """What keeps up the materialized views that were made for ``runner``, as long as it is asked to. Close it.

        ``patience``: seconds after which its ``work`` returns while what takes long goes on; None: once all are done.
        Needs the extra ``sql``. Raises as ``environment``.
        """
        with extra("sql"):
            from persist.client.sql.views.upkeep import ViewUpkeep

        return ViewUpkeep(await self.environment(environment, endpoints=endpoints), runner, patience=patience)

    async def sql(
        self,
        text: str,
        params: object = None,
        *,
        environment: str = "default",
        role: str = "persist",
        runner: "Runner | None" = None,
    ) -> "list[Result]":
        """What became of each statement of a text: rows that are in memory, and Arrow streams.

        ``params``: values for ``?`` and ``$1`` (a sequence), or for ``:name`` (a mapping). Each call has a session of
        its own: BEGIN and COMMIT stand in one text, or in a ``session``. ``runner``: as for that. Needs the extra
        ``sql``. Raises as ``SqlSession.execute``, and SqlError for a transaction that does not end in the text, or did
        not begin there.
        """
        with extra("sql"):
            from persist.client.sql.session import whole
        if runner is not None:
            own = await self.session(environment, role=role, runner=runner)
            try:
                return await whole(own, text, params)
            finally:
                await own.close()
        free = self._sessions.setdefault((environment, role), [])
        session = free.pop() if free else await self.session(environment, role=role)
        if session.environment.is_over:
            await session.close()
            self._forget_history()
            session = await self.session(environment, role=role)
        try:
            return await whole(session, text, params)
        finally:
            await session.reset()
            free.append(session)

    async def read(
        self,
        name: str,
        *,
        as_of: TimeLike | None = None,
        at_least: TimeLike | None = None,
        isolation: Isolation | str = Isolation.STRICT_SERIALIZABLE,
        columns: Sequence[str] | None = None,
        where: PredicateLike = None,
        environment: str = "default",
        role: str = "persist",
        timeout: float | None = None,
    ) -> "Contents":
        """The rows of a name (``database.schema.name``, or less of it) at one time, as ``Environment.read`` has them.

        An Arrow stream for pandas, Polars, DuckDB and pyarrow; release it when it is read. Raises as that.
        """
        known = await self._environment_read(environment, role)
        return await known.read(
            name,
            as_of=as_of,
            at_least=at_least,
            isolation=isolation,
            columns=columns,
            where=where,
            timeout=timeout,
        )

    async def _environment_read(self, name: str, role: str) -> "Environment":
        """The one that reads by name share, as long as its history goes on."""
        known = self._environments_read.get((name, role))
        if known is not None and not known.is_over:
            return known
        if known is not None:
            self._forget_history()
        opened = await self.environment(name, role=role)
        current = self._environments_read.get((name, role))
        if current is not None and current is not known:  # another call was first
            await opened.close()
            return current
        self._environments_read[name, role] = opened
        if known is not None:
            await known.close()
        return opened

    def _forget_history(self) -> None:
        """The location was restored: what this keeps for others knows a history that is over, and is opened anew."""
        self._oracles.clear()
        self._logs.clear()

    async def item_names(self, *, timeout: float | None = None) -> Mapping[str, str]:
        """What shards are called here: the full name of the item that has each, by id. Empty without an environment.

        One RPC then; a few more, the first time, where there is one. Raises IncompatibleDataVersion.
        """
        self._location.check_open()
        return await self._items.called(self._location.attempts.deadline(timeout))

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
        block ends, LocationError: after Indeterminate all of it may have happened, or nothing, which ``resolve`` of any
        of the tables reports.
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
        """Reads and writes of tables of mode ``wal`` with nothing in between: serializable. Returns what ``work``
        returned.

        ``work`` runs again when another transaction committed first, so it must do nothing but what it does to its
        transaction. ``transaction``: happens once for ever; AlreadyCommitted when that was before, and ``work`` is
        not run then. Raises what ``work`` raises, and NotYetAvailable when others were first until time was up.
        """
        log = await self.transaction_log(timeline, timeout=timeout)
        return await transact(self._location, log, work, marker=transaction, timeout=timeout)

    async def settle(self, timeline: TimelineLike = EPOCH_MILLISECONDS, *, timeout: float | None = None) -> None:
        """Copy everything from the log of a timeline to its tables, and let the log forget what is copied.

        No program needs to call this: reading a table copies what is missing, and committing settles now and then. Any
        process may do it at any time. About five RPCs, and ten for each table with something to copy. Raises
        LocationError.
        """
        await (await self.transaction_log(timeline, timeout=timeout)).settle(timeout=timeout)

    async def close(self) -> None:
        """End its listens, expire its readers as far as they answer, stop background work, release connections.

        Closing again does nothing. Raises nothing: leases that could not be expired run out by themselves.
        """
        for free in self._sessions.values():
            while free:
                await free.pop().close()
        for environment in list(self._environments):
            await environment.close()
        await self._items.close()
        for log in self._logs.values():
            await log.finish()
        await super().close()
        while self._closers:
            await self._closers.pop()()
