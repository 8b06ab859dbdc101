"""Client: the door to the shards of one persist location.

Source: design 001, Client; architecture.md section 8; persist-semantics.md feature rows 13, 14, 16, 53, 54, 61.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

from persist.client.catalog.port import OpenableCatalog
from persist.client.distributed import Compaction
from persist.client.lease import Lease
from persist.client.location import Location
from persist.client.minting import Minter
from persist.client.oracle import Oracle, Times
from persist.client.read import ReadHandle
from persist.client.since import SinceHandle
from persist.client.table import Mode, Table, open_table
from persist.client.transaction import TableTransaction, transact
from persist.client.wal import Wal
from persist.client.write import WriteHandle
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, ShardId, WriterId, check_critical_id
from persist.core.shard.commands import (
    EvolveSchema,
    RegisterCriticalReader,
    RegisterLeasedReader,
    RegisterSchema,
    SchemaEntry,
    Transaction,
)
from persist.core.time.timeline import EPOCH_MILLISECONDS, Timeline, TimelineLike, timeline_of
from persist.errors import InvalidArgument, PersistError, ShardNotFound, UsageError
from persist.machine.finalizer import finalize
from persist.machine.port import ShardInfo

T = TypeVar("T")

LEASE_SECONDS_MIN = 1.0


class Client:
    """Any number of shards at one location. Safe for many tasks at once; close it, or use it as a context manager.

    ``timeout`` is in seconds everywhere, None means ``settings.timeout_ms``. Location errors are retried within it;
    usage errors are raised at once. Every call may also raise LocationError, InvalidId and CorruptData.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._readers: set[Lease] = set()
        self._oracles: dict[tuple[str, str], Oracle] = {}
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._logs: dict[str, Wal] = {}

    @property
    def location(self) -> Location:
        """What its handles share: for what is built on top of handles."""
        return self._location

    async def open(
        self, shard: ShardId | str, *, schema: Schema | None = None, timeout: float | None = None
    ) -> tuple[WriteHandle, ReadHandle]:
        """A writer and a reader, initialising a new shard with ``schema``.

        Without ``schema`` the registered one is used. Three RPCs at most. Raises ShardNotFound (no schema given and no
        such shard), SchemaMismatch, CodecMismatch.
        """
        writer = await self.open_writer(shard, schema=schema, timeout=timeout)
        reader = await self._reader(writer.shard, writer.schema, timeout=timeout)
        return writer, reader

    async def open_writer(
        self,
        shard: ShardId | str,
        *,
        schema: Schema | None = None,
        writer_id: WriterId | str | None = None,
        timeout: float | None = None,
    ) -> WriteHandle:
        """A writer, initialising a new shard with ``schema``; under a fresh writer id, or the one given.

        Two RPCs at most. Raises as ``open``.
        """
        the_id = WriterId.parse(writer_id) if writer_id is not None else self._newborn()
        info, entry, opened = await self._open(ShardId.parse(shard), schema, create=schema is not None, timeout=timeout)
        return WriteHandle(
            self._location,
            shard=info.shard,
            writer_id=the_id,
            schema=opened,
            schema_id=entry.schema_id,
            upper=info.upper,
            seqno=info.seqno,
            owns_id=writer_id is None,
        )

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
        as it is. Two RPCs. Raises ShardNotFound, SchemaMismatch, CodecMismatch, InvalidArgument.
        """
        info, _, opened = await self._open(ShardId.parse(shard), schema, create=False, timeout=timeout)
        return await self._reader(
            info.shard,
            opened,
            purpose=purpose,
            lease=lease,
            reader_id=reader_id,
            use_critical_since=use_critical_since,
            timeout=timeout,
        )

    async def open_since(
        self, name: str, shard: ShardId | str, *, opaque: bytes = b"", purpose: str = "", timeout: float | None = None
    ) -> SinceHandle:
        """The critical since called ``name``, made at the shard's since with ``opaque`` when there is none yet.

        Two RPCs. Raises ShardNotFound, InvalidId.
        """
        command = RegisterCriticalReader(critical_id=check_critical_id(name), opaque=bytes(opaque), purpose=purpose)
        info = await self._info(ShardId.parse(shard), create=False, timeout=timeout)
        location = self._location
        answer = await location.attempts.repeat(
            location.attempts.deadline(timeout),
            lambda seconds: location.shards.apply(info.shard, command, timeout=seconds),
        )
        return SinceHandle(location, name=name, shard=info.shard, since=answer.since, opaque=answer.opaque)

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
        if known is not None:
            if initially:
                await known.apply_write(initially, timeout=timeout)
            return known
        times = self._remote_times(the_timeline, endpoints) if endpoints else None
        opened = await Oracle.open(self, the_timeline, times, initially=initially, reference=reference, timeout=timeout)
        return opened if reference is not None else self._oracles.setdefault(name, opened)

    def _remote_times(self, timeline: Timeline, endpoints: str) -> Times:
        from persist.client.remote_oracle import RemoteTimes

        location = self._location
        times = RemoteTimes(endpoints, timeline, settings=location.settings, runtime=location.runtime)
        self._closers.append(times.close)
        return times

    def minter(self, endpoints: str = "") -> Minter:
        """Bindings of sources, minted here, or by the TimestampMinter servers at ``endpoints`` (HOST:PORT, commas).

        Borrows this client: close the minter first. Raises InvalidArgument.
        """
        location = self._location
        location.check_open()
        if endpoints:
            from persist.client.remote_minter import RemoteMinter

            return RemoteMinter(endpoints, settings=location.settings, runtime=location.runtime)
        from persist.client.local_minter import LocalMinter

        return LocalMinter(self)

    async def catalog(self, environment: str, *, endpoints: str = "") -> OpenableCatalog:
        """The durable catalog of an environment: one per name and location. Nothing is opened, only found, yet.

        ``endpoints``: ask CatalogService servers (HOST:PORT, commas) instead of the catalog's shard. Borrows this
        client: close the catalog first. Three RPCs at most. Raises InvalidArgument.
        """
        if endpoints:
            from persist.client.catalog.remote import RemoteCatalog

            location = self._location
            location.check_open()
            return RemoteCatalog(
                endpoints, environment=environment, settings=location.settings, runtime=location.runtime
            )
        from persist.client.catalog.durable import DurableCatalog
        from persist.client.catalog.shard_log import open_shard_log

        return DurableCatalog(await open_shard_log(self, environment))

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
        write several tables. A name means another table for each mode and timeline; a shard given by its id must only
        ever be written in one of them. About ten RPCs the first time. Raises as ``open_writer``, and InvalidArgument,
        ClockAhead (the shard has times far ahead of the clock).
        """
        return await open_table(self, name, schema=schema, timeline=timeline_of(timeline), mode=mode, timeout=timeout)

    async def transaction_log(
        self, timeline: TimelineLike = EPOCH_MILLISECONDS, *, timeout: float | None = None
    ) -> Wal:
        """The log of the tables of a timeline, made if missing: for what is built on top of tables."""
        the_timeline = timeline_of(timeline)
        known = self._logs.get(str(the_timeline))
        return known or self._logs.setdefault(str(the_timeline), await Wal.open(self, the_timeline, timeout=timeout))

    @asynccontextmanager
    async def transaction(
        self,
        timeline: TimelineLike = EPOCH_MILLISECONDS,
        *,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[TableTransaction]:
        """Writes to tables of mode ``wal`` that happen at one time, when the block ends; none after an error in it.

        ``transaction``: happens once for ever. Three RPCs, however many tables. After Indeterminate all of it may have
        happened, or nothing.
        """
        log = await self.transaction_log(timeline, timeout=timeout)
        collected = TableTransaction(log, marker=transaction, timeout=timeout)
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
        transaction. Raises what it raises, and NotYetAvailable when others were first until time was up.
        """
        log = await self.transaction_log(timeline, timeout=timeout)
        return await transact(self._location, log, work, marker=transaction, timeout=timeout)

    async def settle(self, timeline: TimelineLike = EPOCH_MILLISECONDS, *, timeout: float | None = None) -> None:
        """Copy everything from the log of a timeline to its tables, and let the log forget what is copied.

        Needed by nobody: reading a table copies what is missing, and committing settles now and then. Any process may
        do it at any time. About five RPCs, and ten for each table with something to copy.
        """
        await (await self.transaction_log(timeline, timeout=timeout)).settle(timeout=timeout)

    async def recent_upper(self, shard: ShardId | str, *, timeout: float | None = None) -> Antichain:
        """The shard's upper: everything before it is complete. Linearizable. One RPC. Raises ShardNotFound."""
        return (await self._info(ShardId.parse(shard), create=False, timeout=timeout)).upper

    async def schema(self, shard: ShardId | str, *, timeout: float | None = None) -> Schema:
        """The shard's newest schema. One RPC. Raises ShardNotFound, UsageError when none was registered yet."""
        info = await self._info(ShardId.parse(shard), create=False, timeout=timeout)
        return Schema.from_bytes(_newest(info).schema)

    async def evolve_schema(self, shard: ShardId | str, schema: Schema, *, timeout: float | None = None) -> SchemaEntry:
        """Make ``schema`` the newest: it may only add nullable val columns at the end. The newest again is fine.

        Handles that are open go on with the schema they have. Two RPCs. Raises SchemaMismatch (incompatible, or
        somebody else evolved it meanwhile), CodecMismatch, ShardNotFound.
        """
        info = await self._info(ShardId.parse(shard), create=False, timeout=timeout)
        newest = _newest(info)
        Schema.from_bytes(newest.schema).check_evolution(schema)
        command = EvolveSchema(expected_id=newest.schema_id, schema=schema.to_bytes(), codec=schema.codec_name)
        location = self._location
        answer = await location.attempts.repeat(
            location.attempts.deadline(timeout),
            lambda seconds: location.shards.apply(info.shard, command, timeout=seconds),
        )
        return answer.entry

    async def inspect(self, shard: ShardId | str, *, timeout: float | None = None) -> Mapping[str, Any]:
        """The shard's whole state as JSON-ready values: what ``persist shard inspect`` shows.

        Among the keys: shard, seqno, since, upper, seqno_since, rows, spine (its batches with runs and parts),
        leased_readers, critical_readers, writers, transactions, schemas, rollups. One RPC. Raises ShardNotFound.
        """
        location, the_shard = self._location, ShardId.parse(shard)
        location.check_open()
        return await location.attempts.repeat(
            location.attempts.deadline(timeout), lambda seconds: location.shards.inspect(the_shard, timeout=seconds)
        )

    async def list_shards(self, *, timeout: float | None = None) -> AsyncIterator[ShardId]:
        """Every shard ever initialised here, in any order. A scan of Consensus keys."""
        location = self._location
        location.check_open()
        seconds = location.attempts.deadline(timeout).remaining()
        async for shard in location.shards.list(timeout=seconds):
            yield shard

    async def finalize(self, shard: ShardId | str, *, force: bool = False, timeout: float | None = None) -> None:
        """Take away all that a closed shard still holds; its id is dead for ever, and nothing revives it.

        The shard must be closed for writing and for reading (upper and since ``[]``). ``force`` closes it first,
        whoever uses it: readers and writers learn so at their next call. Afterwards a tombstone and one rollup remain.
        Repeat it after an error, or any time. ``timeout`` is for each step; one RPC each. Raises ShardNotFound,
        InvalidArgument (it is open: the message says how to close it).
        """
        the_shard = ShardId.parse(shard)
        await self._info(the_shard, create=False, timeout=timeout)
        await finalize(self._location.shards, self._location.attempts, the_shard, force=force, timeout=timeout)

    async def close(self) -> None:
        """End its listens, expire its readers as far as they answer, stop background work, release connections."""
        self._location.closing = True
        await self._location.end_listens()
        readers, self._readers = list(self._readers), set()
        for lease in readers:
            try:
                await lease.expire(timeout=CLOSE_SECONDS)
            except PersistError:
                break  # the location is away: the leases run out by themselves
        await self._location.close()
        while self._closers:
            await self._closers.pop()()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def begin_compaction(self, shard: ShardId | str) -> Compaction | None:
        """Claim a whole shard for compaction by other processes; None when it is as compact as it can be.

        Run ``pieces(n)`` anywhere, then ``commit`` their results, or ``abandon``. One RPC. Raises ShardNotFound,
        LocationError.
        """
        the_shard = ShardId.parse(shard)
        await self._info(the_shard, create=False, timeout=None)
        return await Compaction.begin(self._location, the_shard)

    async def _open(
        self, shard: ShardId, schema: Schema | None, *, create: bool, timeout: float | None
    ) -> tuple[ShardInfo, SchemaEntry, Schema]:
        """The shard, and the entry and value of the schema to use: a registered one, or ``schema`` registered here."""
        info = await self._info(shard, create=create, timeout=timeout)
        if schema is None:
            entry = _newest(info)
            return info, entry, Schema.from_bytes(entry.schema)
        data, codec = schema.to_bytes(), schema.codec_name
        for entry in reversed(info.schemas):
            if entry.codec == codec and (
                entry.schema == data or Schema.from_bytes(entry.schema, schema.codec) == schema
            ):
                return info, entry, schema
        location = self._location
        command = RegisterSchema(schema=data, codec=codec)
        answer = await location.attempts.repeat(
            location.attempts.deadline(timeout),
            lambda seconds: location.shards.apply(shard, command, timeout=seconds),
        )
        return info, answer.entry, schema

    async def _info(self, shard: ShardId, *, create: bool, timeout: float | None) -> ShardInfo:
        location = self._location
        location.check_open()
        try:
            return await location.attempts.repeat(
                location.attempts.deadline(timeout),
                lambda seconds: location.shards.open(shard, create=create, timeout=seconds),
            )
        except ShardNotFound as error:
            hint = "check the id and the location, or open the shard with schema= to make it"
            raise ShardNotFound(error.message, hint=hint, **error.details) from error

    async def _reader(
        self,
        shard: ShardId,
        schema: Schema,
        *,
        purpose: str = "",
        lease: float | None = None,
        reader_id: ReaderId | str | None = None,
        use_critical_since: bool = False,
        timeout: float | None = None,
    ) -> ReadHandle:
        location = self._location
        command = RegisterLeasedReader(
            reader_id=ReaderId.parse(reader_id) if reader_id is not None else self._fresh(ReaderId),
            lease_ms=location.settings.reader_lease_ms if lease is None else _lease_ms(lease),
            purpose=purpose,
            hostname=location.runtime.hostname,
            use_critical_since=use_critical_since,
        )
        answer = await location.attempts.repeat(
            location.attempts.deadline(timeout),
            lambda seconds: location.shards.apply(shard, command, timeout=seconds),
        )
        registered = Lease(
            location,
            shard=shard,
            reader_id=command.reader_id,
            lease_ms=command.lease_ms,
            since=answer.since,
            seqno=answer.seqno,
        )
        self._readers = {held for held in self._readers if held.alive} | {registered}
        return ReadHandle(location, registered, schema=schema, upper=answer.upper)

    def _newborn(self) -> WriterId:
        runtime = self._location.runtime
        return WriterId.born(runtime.now_ms(), runtime.random_bytes(16))

    def _fresh(self, kind: type[Any]) -> Any:
        return kind.of(self._location.runtime.random_bytes(16))


CLOSE_SECONDS = 1.0


def _newest(info: ShardInfo) -> SchemaEntry:
    if not info.schemas:
        raise UsageError("the shard has no schema yet", hint="open it with schema= first", shard=info.shard)
    return info.schemas[-1]


def _lease_ms(seconds: float) -> int:
    given: object = seconds
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= LEASE_SECONDS_MIN:
        raise InvalidArgument("a lease lasts a second or more", hint="give seconds", got=repr(seconds))
    return int(seconds * 1000)
