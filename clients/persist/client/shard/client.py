"""ShardClient: the shards of one persist location, opened, looked into, finalized.

What stands on shards (timelines, tables, bindings, catalogs) takes one of these; ``Client`` adds all of that.
Source: design 001, Client; architecture.md section 8; persist-semantics.md feature rows 13, 14, 16, 53, 54, 61.
"""

import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

from persist.client.shard.handles import Stays
from persist.client.shard.location import Location
from persist.client.shard.naming import check_alone, check_unfed, claimed, shard_of
from persist.client.shard.read.handle import ReadHandle
from persist.client.shard.read.lease import Lease
from persist.client.shard.read.since import SinceHandle, open_since
from persist.client.shard.write.handle import WriteHandle
from persist.client.shard.write.prepared import UNREGISTERED, BatchSpec
from persist.core.data.schema import Schema
from persist.core.frontier import MINIMUM, Antichain
from persist.core.ids import ReaderId, ShardId, WriterId, check_critical_id
from persist.core.names import id_or_name
from persist.core.shard.commands import EvolveSchema, RegisterLeasedReader, RegisterSchema, SchemaEntry
from persist.errors import InvalidArgument, PersistError, ShardNotFound, UsageError
from persist.machine.shards import ShardInfo
from persist.retry.deadline import Deadline
from persist.retry.streams import listing
from persist.storage.open import blob_identity
from persist.typed import Fields

if TYPE_CHECKING:
    from persist.client.shard.compaction import Compaction
    from persist.client.shard.finalizing import Emptied
    from persist.machine.garbage.sweeper import Swept

LEASE_SECONDS_MIN = 1.0


class ShardClient(Stays):
    """Any number of shards at one location. Safe for many tasks at once; close it, or use it as a context manager.

    A shard is given by its id, or by its name, as the command line, Spark and sources have it: three RPCs more, at
    once. ``timeout`` is in seconds everywhere, None means ``settings.timeout_ms``. Location errors are retried within
    it; usage errors are raised at once. Every call may also raise LocationError, InvalidId, AmbiguousName (several
    shards of one name) and CorruptData.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._readers: list[Lease] = []

    @property
    def location(self) -> Location:
        """What its handles share: for what is built on top of handles."""
        return self._location

    async def named(
        self, name: ShardId | str, *, create: bool = False, writes: bool = False, timeout: float | None = None
    ) -> ShardId:
        """The shard of this name; an id is returned as it is, and not looked for. Makes nothing.

        ``create``, for who is going to write: of a name without a shard the id that its first write will give it,
        instead of ShardNotFound, which names similar ones. ``writes``: rows are going to be appended as they are; with
        ``create``, too. An environment is asked then which item has it, also of an id. Three RPCs at once. Raises
        AmbiguousName, which lists all shards of the name, InvalidArgument (no name; where rows are written, a table
        that is written through a log, or has a primary key, or whose rows persist writes: what to write to is said).
        """
        self._location.check_open()
        deadline = self._location.attempts.deadline(timeout)
        is_written = writes or create
        shard = await shard_of(self._location, name, deadline, create=create, writes=is_written)
        if is_written and isinstance(id_or_name(name), ShardId):
            claim = await claimed(self._location, shard, deadline)
            claim.check_appended(shard)
            await check_unfed(self._location, claim, shard)
        return shard

    async def open(
        self, shard: ShardId | str, *, schema: Schema | None = None, timeout: float | None = None
    ) -> tuple[WriteHandle, ReadHandle]:
        """A writer and a reader, initialising a new shard with ``schema``.

        Without ``schema`` the registered one is used. Three RPCs at most. Raises ShardNotFound (no schema given and no
        such shard), SchemaMismatch, CodecMismatch, InvalidArgument (a name of a table that is written through a log).
        """
        deadline = self._location.attempts.deadline(timeout)
        writer = await self.open_writer(shard, schema=schema, timeout=deadline.slice())
        reader = await self._reader(writer.shard, writer.schema, writer.incarnation, deadline=deadline)
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

        Two RPCs at most; of a name without rows its look-up twice. Raises as ``open``.
        """
        given = WriterId.parse(writer_id) if writer_id is not None else None
        deadline = self._location.attempts.deadline(timeout)
        create = schema is not None
        the_shard = await shard_of(self._location, shard, deadline, create=create, writes=True)
        info, entry, opened = await self._open(the_shard, schema, create=create, deadline=deadline)
        if create and the_shard != shard and info.upper == MINIMUM:
            await check_alone(self._location, str(shard), the_shard, deadline)
        return WriteHandle(
            self._location,
            shard=info.shard,
            writer_id=given or self._newborn(info),
            schema=opened,
            schema_id=entry.schema_id,
            upper=info.upper,
            seqno=info.seqno,
            incarnation=info.incarnation,
            fence_ms=info.writers_since_ms,
            owns_id=given is None,
            behind=info.behind,
        )

    async def batch_spec(
        self, shard: ShardId | str, schema: Schema, *, writer_id: WriterId | str, timeout: float | None = None
    ) -> BatchSpec:
        """What other processes need to write parts for a shard that may not have ``schema`` yet, or may not exist.

        Changes nothing. What they prepare cannot be appended before ``PreparedBatch.registered`` gave it the id under
        which the shard has that very schema, by a writer of this id. One RPC to servers, the first time. Raises
        InvalidId, LocationError.
        """
        location = self._location
        location.check_open()
        deadline = location.attempts.deadline(timeout)
        the_shard = await shard_of(location, shard, deadline, create=True, writes=True)
        await location.locate(timeout=deadline.slice())
        return BatchSpec(
            blob_uri=location.blob.uri,
            shard=the_shard,
            writer_id=WriterId.parse(writer_id),
            schema=schema.to_bytes(),
            schema_id=UNREGISTERED,
            settings=location.settings,
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
        deadline = self._location.attempts.deadline(timeout)
        the_shard = await shard_of(self._location, shard, deadline)
        info, _, opened = await self._open(the_shard, schema, create=False, deadline=deadline)
        return await self._reader(
            info.shard,
            opened,
            info.incarnation,
            purpose=purpose,
            lease=lease,
            reader_id=reader_id,
            use_critical_since=use_critical_since,
            deadline=deadline,
        )

    async def open_since(
        self, name: str, shard: ShardId | str, *, opaque: bytes = b"", purpose: str = "", timeout: float | None = None
    ) -> SinceHandle:
        """The critical since called ``name``, made at the shard's since with ``opaque`` when there is none yet.

        Two RPCs. Raises ShardNotFound, InvalidId, LeaseExpired (another process removed it while it was being made).
        """
        check_critical_id(name)
        deadline = self._location.attempts.deadline(timeout)
        info = await self._info(await shard_of(self._location, shard, deadline), create=False, deadline=deadline)
        return await open_since(
            self._location, name, info, opaque=bytes(opaque), purpose=purpose, timeout=deadline.slice()
        )

    async def recent_upper(self, shard: ShardId | str, *, timeout: float | None = None) -> Antichain:
        """The shard's upper: everything before it is complete. Linearizable. One RPC. Raises ShardNotFound."""
        deadline = self._location.attempts.deadline(timeout)
        return (
            await self._info(await shard_of(self._location, shard, deadline), create=False, deadline=deadline)
        ).upper

    async def place(self, shard: ShardId | str, *, timeout: float | None = None) -> str:
        """Identifies this shard among those with its id at other locations, and from itself before a restore.

        For programs that keep times of a shard elsewhere: such times mean nothing at another place. A location that is
        moved to another Blob has another one, too. One RPC. Raises ShardNotFound.
        """
        deadline = self._location.attempts.deadline(timeout)
        info = await self._info(await shard_of(self._location, shard, deadline), create=False, deadline=deadline)
        blob = hashlib.blake2b(blob_identity(self.location.blob.uri).encode(), digest_size=8).hexdigest()
        return f"{blob}-{info.incarnation:x}"

    async def schema(self, shard: ShardId | str, *, timeout: float | None = None) -> Schema:
        """The shard's newest schema. One RPC. Raises ShardNotFound, UsageError when none was registered yet."""
        deadline = self._location.attempts.deadline(timeout)
        info = await self._info(await shard_of(self._location, shard, deadline), create=False, deadline=deadline)
        return Schema.from_bytes(_newest(info).schema)

    async def evolve_schema(self, shard: ShardId | str, schema: Schema, *, timeout: float | None = None) -> SchemaEntry:
        """Make ``schema`` the newest: it may only add nullable val columns at the end. Repeating the newest one is
        allowed.

        Handles that are open go on with the schema they have. Two RPCs. Raises SchemaMismatch (incompatible, or
        another process evolved it meanwhile), CodecMismatch, ShardNotFound.
        """
        deadline = self._location.attempts.deadline(timeout)
        info = await self._info(await shard_of(self._location, shard, deadline), create=False, deadline=deadline)
        newest = _newest(info)
        Schema.from_bytes(newest.schema).check_evolution(schema)
        command = EvolveSchema(expected_id=newest.schema_id, schema=schema.to_bytes(), codec=schema.codec_name)
        location = self._location
        answer = await location.attempts.repeat(
            deadline,
            lambda seconds: location.shards.apply(info.shard, command, timeout=seconds),
        )
        return answer.entry

    async def inspect(self, shard: ShardId | str, *, timeout: float | None = None) -> Fields:
        """The shard's whole state as JSON-ready values: what ``persist shard inspect`` shows.

        Among the keys: shard, seqno, since, upper, seqno_since, rows, spine (its batches with runs and parts),
        leased_readers, critical_readers, writers, transactions, schemas, rollups. One RPC. Raises ShardNotFound.
        """
        location = self._location
        location.check_open()
        deadline = location.attempts.deadline(timeout)
        the_shard = await shard_of(location, shard, deadline)
        return await location.attempts.repeat(
            deadline, lambda seconds: location.shards.inspect(the_shard, timeout=seconds)
        )

    async def list_shards(self, *, timeout: float | None = None) -> AsyncIterator[ShardId]:
        """Every shard ever initialised here, in any order. A scan of Consensus keys. Raises LocationError."""
        location = self._location
        location.check_open()
        deadline = location.attempts.deadline(timeout)
        opened = listing(location.attempts, deadline, lambda seconds: location.shards.list(timeout=seconds))
        async with aclosing(opened) as shards:
            async for shard in shards:
                yield shard

    async def finalize(
        self,
        shard: ShardId | str,
        *,
        force: bool = False,
        dry_run: bool = False,
        environment: str = "",
        timeout: float | None = None,
    ) -> "Emptied":
        """Take away all that a closed shard still holds; its id is dead for ever, and nothing revives it.

        The shard must be closed for writing and for reading (upper and since ``[]``). ``force`` closes it first,
        even while it is in use: readers and writers see that at their next call. Afterwards a tombstone and one rollup
        remain. ``dry_run``: nothing changes; it is refused as it would be, or what would go is returned. Repeat it
        after an error, or any time: it goes on where it was. ``environment``: what gave the shard up, if that is not
        the one of the settings. A few RPCs.

        Raises ShardNotFound, InvalidArgument (it is open: the message says how to close it; an item of an environment
        has it, whether this client sees that one or not: DROP that, or give it back by ``persist catalog leave``).
        LocationError is Indeterminate once anything of it may be done.
        """
        from persist.client.shard.finalizing import finalized

        location = self._location
        location.check_open()
        deadline = location.attempts.deadline(timeout)
        the_shard = await shard_of(location, shard, deadline)
        return await finalized(location, the_shard, deadline, force=force, dry_run=dry_run, environment=environment)

    async def sweep(
        self, shard: ShardId | str, *, dry_run: bool = True, safe_age: float = 86_400.0, timeout: float | None = None
    ) -> "Swept":
        """Delete what writers that crashed, or whose write was refused, left in Blob of a shard.

        Only blobs that no state names and that no process can publish any more: with ``dry_run`` False writers that
        began more than ``safe_age`` seconds ago, and that the shard does not know, are refused from then on, and write
        again. ``dry_run`` finds them only. For clients of stores, not of servers. Reads the names of all blobs of the
        shard. Raises ShardNotFound, InvalidArgument, HistoryRewound.
        """
        from persist.client.shard.sweeping import sweep

        deadline = self._location.attempts.deadline(timeout)
        the_shard = await shard_of(self._location, shard, deadline)
        await self._info(the_shard, create=False, deadline=deadline)
        return await sweep(self._location, the_shard, dry_run=dry_run, safe_age=safe_age)

    async def close(self) -> None:
        """End its listens, expire its readers as far as they answer, stop background work, release connections.

        Closing again does nothing. Raises nothing: leases that could not be expired run out by themselves.
        """
        self._location.closing = True
        await self._location.end_listens()
        readers, self._readers = self._readers, []
        for lease in readers:
            try:
                await lease.expire(timeout=CLOSE_SECONDS)
            except PersistError:
                break  # the location is away: the leases run out by themselves
        await self._location.close()

    def __repr__(self) -> str:
        return f"<Client of {self._location}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def begin_compaction(self, shard: ShardId | str) -> "Compaction | None":
        """Claim a whole shard for compaction by other processes; None when it is as compact as it can be.

        Run ``pieces(n)`` anywhere, then ``commit`` their results, or ``abandon``. One RPC. Raises ShardNotFound,
        LocationError.
        """
        from persist.client.shard.compaction import Compaction

        deadline = self._location.attempts.deadline(None)
        the_shard = await shard_of(self._location, shard, deadline)
        await self._info(the_shard, create=False, deadline=deadline)
        return await Compaction.begin(self._location, the_shard)

    async def _open(
        self, shard: ShardId, schema: Schema | None, *, create: bool, deadline: Deadline
    ) -> tuple[ShardInfo, SchemaEntry, Schema]:
        """The shard, and the entry and value of the schema to use: a registered one, or ``schema`` registered here."""
        info = await self._info(shard, create=create, deadline=deadline)
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
            deadline,
            lambda seconds: location.shards.apply(shard, command, timeout=seconds),
        )
        return info, answer.entry, schema

    async def _info(self, shard: ShardId, *, create: bool, deadline: Deadline) -> ShardInfo:
        location = self._location
        location.check_open()
        try:
            return await location.attempts.repeat(
                deadline,
                lambda seconds: location.shards.open(shard, create=create, timeout=seconds),
            )
        except ShardNotFound as error:
            hint = "check the id and the location, or open the shard with schema= to make it"
            raise ShardNotFound(error.message, hint=hint, **error.details) from error

    async def _reader(
        self,
        shard: ShardId,
        schema: Schema,
        incarnation: int,
        *,
        purpose: str = "",
        lease: float | None = None,
        reader_id: ReaderId | str | None = None,
        use_critical_since: bool = False,
        deadline: Deadline,
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
            deadline,
            lambda seconds: location.shards.apply(shard, command, timeout=seconds),
        )
        registered = Lease(
            location,
            shard=shard,
            reader_id=command.reader_id,
            lease_ms=command.lease_ms,
            since=answer.since,
            seqno=answer.seqno,
            incarnation=incarnation,
        )
        self._readers = [held for held in self._readers if held.alive] + [registered]
        return ReadHandle(location, registered, schema=schema, upper=answer.upper)

    def _newborn(self, info: ShardInfo) -> WriterId:
        runtime = self._location.runtime
        # SUBTLE: behind the fence, which some clock further ahead than this one may have set: a process that was
        # refused by a fence begins after it.
        return WriterId.born(max(runtime.now_ms(), info.writers_since_ms), runtime.random_bytes(16))

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
