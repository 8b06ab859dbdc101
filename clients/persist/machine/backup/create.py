"""Taking a backup of a living location: hold, read the states, copy what they name, write the manifest.

A hold is a reader under a lease: what its seqno names is not collected, nor does since move. All shards are held first
and their states read one after the other, so they stand seconds apart however long copying takes. What depends on
others is read after them, and read again with them if it forgot something in between (``Order``): a transaction log is
never older than a table it was copied to, and never lacks what a table had not got yet. When the lease runs out (this
process stood still), the backup fails: what it had copied is there for the next one.
Source: design 001, capability readers; reliability.md I8 and I10; docs/runbook.md, backups.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from persist.core.frontier import MINIMUM, Antichain
from persist.core.ids import ReaderId, ShardId, rollup_key
from persist.core.shard.commands import (
    ExpireReader,
    HeartbeatReader,
    RegisterLeasedReader,
    SchemaEntry,
)
from persist.core.shard.state import FIRST_FORMAT, State
from persist.errors import (
    CorruptData,
    Determinate,
    InvalidArgument,
    LeaseExpired,
    LocationError,
    PersistError,
    VersionMismatch,
)
from persist.machine.asking import Asking
from persist.machine.backup.copying import COPIES_AT_ONCE, Copied, Copier, Report, Store, parts_of, together
from persist.machine.backup.manifest import PROBES, LeftOut, Manifest, ShardBackup, describe, digest
from persist.machine.shards import Shards
from persist.machine.versions import Versions
from persist.retry.attempts import Attempts
from persist.storage.ports import Blob
from persist.wire.checksum import crc32c
from persist.wire.shard.state import decode_rollup, encode_rollup

LEASE_MS: Final = 900_000
"""How long collection waits for a backup that stands still. It is renewed while the backup goes on."""
SHARDS_AT_ONCE: Final = 16

CUTS_MAX: Final = 20
"""How often the states are read until they agree."""


class Order(Protocol):
    """Which shards depend on each other."""

    def rank(self, schemas: Sequence[SchemaEntry]) -> int:
        """The order in which a shard's state is read, by its schemas: a higher rank after all lower ones."""
        ...

    async def kept_all(self, shard: ShardId, lower: Antichain, upper: Antichain) -> bool:
        """Whether a shard of a rank above 0 forgot nothing that others depend on, at times in ``[lower, upper)``."""
        ...


class Apart:
    """Shards that do not depend on each other."""

    def rank(self, schemas: Sequence[SchemaEntry]) -> int:
        """All have rank 0."""
        return 0

    async def kept_all(self, shard: ShardId, lower: Antichain, upper: Antichain) -> bool:
        """No other shard depends on it."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A finished backup: its key, what is in it, and what was copied for it."""

    key: str
    manifest: Manifest
    copied: Copied


@dataclass(slots=True)
class _Held:
    """A shard under way: its hold, when its state is to be read, and its line once it is in the backup.

    ``before``: where its upper stood before any state was read; ``upper``: where it stands in the state read.
    """

    shard: ShardId
    reader: ReaderId | None = None
    rank: int = 0
    entry: ShardBackup | None = None
    before: Antichain = MINIMUM
    upper: Antichain = MINIMUM


class BackupCreator:
    """Takes one backup of a location. Memory: a line per shard, four parts, and sixteen states at most."""

    def __init__(
        self,
        shards: Shards,
        versions: Versions,
        to: Store,
        *,
        order: Order | None = None,
        lease_ms: int = LEASE_MS,
        report: Report = lambda blobs: None,
    ) -> None:
        """``report`` is called per part and shard done. Raises InvalidArgument for a backup in its own location."""
        source: Blob = versions.blob
        if source.uri == to.blob.uri:
            raise _own_location()
        self._shards = shards
        self._asking = Asking(shards, Attempts(settings=to.settings, runtime=to.runtime))
        self._timeout = to.settings.timeout_ms / 1000
        self._versions = versions
        self._to = to
        self._from = Store(source, settings=to.settings, runtime=to.runtime)
        self._order = order or Apart()
        self._lease_ms = lease_ms
        self._report = report
        self._held: dict[ShardId, _Held] = {}
        self._left_out: dict[ShardId, LeftOut] = {}
        self._copied = Copied()
        self._keeping: asyncio.Future[None] | None = None
        self._parts_at_once = asyncio.Semaphore(COPIES_AT_ONCE)

    async def create(self, only: Sequence[ShardId] = ()) -> Created:
        """Back up all shards, or some. The backup is there once this returns, and not before.

        A shard that is damaged is left out, and the manifest says so. Raises LeaseExpired (this process stood still
        for longer than the lease), LocationError: what was copied is not copied again by the next backup;
        InvalidArgument (the destination is the location's own Blob, or the location has no shards).
        """
        await self._check_elsewhere()
        created_ms = self._to.runtime.now_ms()
        keeping = self._keeping = asyncio.ensure_future(self._keep())
        try:
            await self._cut(only)
            await self._each(self._taken(), self._copy)
            self._check_kept()
            # Read after the states: none of them is in a later format.
            record = await self._versions.gate.look(self._to.deadline())
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await self._each(list(self._held.values()), self._release)
        manifest = Manifest(
            created_ms=created_ms,
            blob=self._from.blob.uri,
            consensus=self._versions.consensus.uri,
            shards=tuple([one.entry for one in self._taken() if one.entry is not None]),
            left_out=tuple(self._left_out[shard] for shard in sorted(self._left_out)),
            write_version=FIRST_FORMAT if record is None else record.write_version,
        )
        await self._to.set(manifest.key, manifest.encode())
        return Created(key=manifest.key, manifest=manifest, copied=self._copied)

    async def _check_elsewhere(self) -> None:
        """Check that the destination is not the location's own Blob. Raises InvalidArgument.

        SUBTLE: one Blob has many names: links, endpoints, URIs with and without a region. Only the stores know.
        """
        probe = rollup_key(PROBES, 0, self._to.runtime.random_bytes(16))
        try:
            await self._to.set(probe, b"persist backup create")
            if await self._from.get(probe) is not None:
                raise _own_location()
        finally:
            with contextlib.suppress(LocationError):
                # With permission only to add, the probe stays in the destination. It does no harm.
                await self._to.delete(probe)

    def _taken(self) -> list[_Held]:
        """The shards whose state is in the backup."""
        return [self._held[shard] for shard in sorted(self._held) if self._held[shard].entry is not None]

    # ---- the cut -------------------------------------------------------------------------------------------------

    async def _cut(self, only: Sequence[ShardId]) -> None:
        """Hold every shard, then read all their states, until they agree with each other. Raises Determinate."""
        await self._hold_all(only)
        if not self._held and not self._left_out:
            raise InvalidArgument(
                "there are no shards here: nothing to back up",
                hint="is it the right location? persist shard list shows its shards",
            )
        for _ in range(CUTS_MAX):
            await self._take_states(only)
            if await self._agree():
                return
            for one in self._held.values():
                one.entry, one.before = None, one.upper
        raise Determinate(
            "rows left their transaction log amid every reading of the states",
            hint="take the backup when less is written to tables behind logs",
        )

    async def _agree(self) -> bool:
        for one in self._taken():
            if one.rank and not await self._order.kept_all(one.shard, one.before, one.upper):
                return False
        return True

    async def _take_states(self, only: Sequence[ShardId]) -> None:
        """Read every shard's state, by rank.

        Shards that come to be meanwhile are looked for before each rank: what names them may be read in it.
        """
        reached = 0
        while waiting := [one for one in self._held.values() if one.entry is None]:
            least = min(one.rank for one in waiting)
            if least < reached:
                # It came to be after what names it was read: it belongs to the next backup.
                late = [one for one in waiting if one.rank < reached]
                await self._each(late, self._let_go)
                continue
            reached = least
            await self._each([one for one in waiting if one.rank == least], self._take_state)
            if any(one.rank > reached for one in waiting):
                await self._hold_all(only)

    async def _hold_all(self, only: Sequence[ShardId]) -> None:
        there = list(only) or await self._all_shards()
        fresh = [_Held(shard) for shard in there if shard not in self._held and shard not in self._left_out]
        await self._each(fresh, self._hold)

    async def _all_shards(self) -> list[ShardId]:
        async def call(seconds: float) -> list[ShardId]:
            return [shard async for shard in self._shards.list(timeout=seconds)]

        return await self._to.read(call, self._to.settings.timeout_ms)

    async def _hold(self, one: _Held) -> None:
        """Register the hold: from its commit on, nothing that the shard's states name is collected."""
        self._held[one.shard] = one
        try:
            info = await self._asking.open(one.shard, timeout=self._timeout)
            # Noted before it is there: whatever comes of the call, it is released in the end.
            reader = one.reader = ReaderId.of(self._to.runtime.random_bytes(16))
            command = RegisterLeasedReader(
                reader_id=reader, lease_ms=self._lease_ms, purpose="backup", hostname=self._to.runtime.hostname
            )
            registered = await self._asking.apply(one.shard, command, timeout=self._timeout)
        except (CorruptData, VersionMismatch, InvalidArgument) as error:
            # Also one that takes no more readers: it is not to keep all others from being backed up.
            await self._leave_out(one, error)
            return
        one.rank, one.before = self._order.rank(info.schemas), registered.upper
        if registered.since.is_empty and registered.upper.is_empty:
            # One that is dead takes no holds, and needs none.
            one.reader = None

    async def _take_state(self, one: _Held) -> None:
        """Put the newest state into the backup, unless it is of a later rank than was known."""
        try:
            version = await self._versions.load(one.shard, self._to.deadline())
        except (CorruptData, VersionMismatch) as error:
            await self._leave_out(one, error)
            return
        assert version is not None, "it was opened"
        state = version.state
        rank = self._order.rank(state.schemas)
        if rank > one.rank:
            one.rank = rank
            return
        data = await self._to.runtime.offload(encode_rollup, state)
        key = rollup_key(state.shard, state.seqno, digest(data))
        if await self._to.get(key) != data:
            await self._to.set(key, data)
        one.entry, one.upper = _entry(state, key, data), state.upper

    # ---- copying -------------------------------------------------------------------------------------------------

    async def _copy(self, one: _Held) -> None:
        """Copy what the state names, then release the shard."""
        entry = one.entry
        assert entry is not None
        copier = Copier(self._from, self._to, self._parts_at_once)
        self._check_kept()
        try:
            data = await self._to.whole(entry.state, entry.state_bytes, entry.state_checksum)
            state = decode_rollup(data, one.shard, entry.seqno)
            copied = await copier.parts(state, self._report)
            self._copied += copied
        except CorruptData as error:
            if await self._is_held(one):
                await self._leave_out(one, error)
                return
            # It was finalized meanwhile, and its parts went with it.
            one.entry = None
            await self._take_state(one)
        await self._release(one)
        self._report(1)

    async def _leave_out(self, one: _Held, error: PersistError) -> None:
        await self._let_go(one)
        self._left_out[one.shard] = LeftOut(shard=one.shard, why=describe(error))

    # ---- holds ---------------------------------------------------------------------------------------------------

    async def _is_held(self, one: _Held) -> bool:
        """Renew the hold. False: the shard was finalized. Raises LeaseExpired when the hold is gone, LocationError."""
        reader = one.reader
        if reader is None:
            return True
        try:
            await self._asking.apply(one.shard, HeartbeatReader(reader_id=reader), timeout=self._timeout)
        except LeaseExpired as error:
            if one.reader is not reader:
                # Released meanwhile.
                return True
            info = await self._asking.open(one.shard, timeout=self._timeout)
            if info.since.is_empty and info.upper.is_empty:
                return False
            raise LeaseExpired(
                "the backup's hold ran out, so what it needs may have been collected",
                hint="run it again: what was copied is not copied again",
                shard=one.shard,
            ) from error
        return True

    async def _keep(self) -> None:
        """Renew all holds, four times a lease. Raises LeaseExpired; other failures are tried again the next time."""
        while True:
            await self._to.runtime.sleep(self._lease_ms / 4000)
            for one in list(self._held.values()):
                with contextlib.suppress(LocationError):
                    await self._is_held(one)

    def _check_kept(self) -> None:
        """Raise what ended the renewal of holds, which should go on until it is cancelled."""
        if self._keeping is not None and self._keeping.done():
            self._keeping.result()

    async def _let_go(self, one: _Held) -> None:
        del self._held[one.shard]
        await self._release(one)

    async def _release(self, one: _Held) -> None:
        reader, one.reader = one.reader, None
        if reader is not None:
            with contextlib.suppress(PersistError):
                # Otherwise the lease runs out.
                await self._asking.apply(one.shard, ExpireReader(reader_id=reader), timeout=self._timeout)

    async def _each(self, held: Sequence[_Held], work: Callable[[_Held], Awaitable[None]]) -> None:
        await together(held, work, asyncio.Semaphore(SHARDS_AT_ONCE))


def _own_location() -> InvalidArgument:
    return InvalidArgument("a backup in its own location protects nothing", hint="name another place")


def _entry(state: State, key: str, data: bytes) -> ShardBackup:
    parts = parts_of(state)
    return ShardBackup(
        shard=state.shard,
        seqno=state.seqno,
        since=state.since.time,
        upper=state.upper.time,
        state=key,
        state_bytes=len(data),
        state_checksum=crc32c(data),
        parts=len(parts),
        part_bytes=sum(part.encoded_bytes for part in parts),
        rows=state.trace.rows,
    )
