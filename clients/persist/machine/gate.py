"""The gate of a location: which format its programs may write, and whether this one knows all that they do.

The write-version stands in Consensus under a key of its own, made with the location, and only rises: by ``persist admin
upgrade``, once all programs know the format. It is read when this process first meets the location and when it writes a
rollup; commits ask nothing. To know an older one than there is does no harm: what is written then is read by all.
Source: docs/adr/0013.
"""

import dataclasses
from typing import Final, TypeVar

from persist.core.ids import ABSENT, LOCATION_KEY, ShardId
from persist.core.release import RELEASE
from persist.core.shard.state import FIRST_FORMAT, STATE_FORMAT
from persist.errors import InvalidArgument, InvalidId, LocationError, VersionMismatch
from persist.retry.attempts import Attempts, Call, certain
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Consensus, Entry
from persist.wire.location import LocationRecord, decode_location, encode_location

T = TypeVar("T")

_RACES_MAX: Final = 16


class Gate:
    """What may be written at one location. Safe to use before anything is there."""

    def __init__(self, consensus: Consensus, *, settings: Settings, runtime: Runtime) -> None:
        self._consensus = consensus
        self._settings = settings
        self._runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)
        self._known: int | None = None
        self._refused: VersionMismatch | None = None
        self._made = False
        self.record: LocationRecord | None = None
        """What was read last."""

    @property
    def format(self) -> int:
        """The format this process may write, by the record it read last; before that the first format."""
        return self._known or FIRST_FORMAT

    def check(self) -> None:
        """Raise VersionMismatch once this process has seen a write-version that it does not know."""
        if self._refused is not None:
            raise _too_old(self._refused.details)

    async def enter(self, deadline: Deadline) -> None:
        """Read the write-version unless it was read. One Consensus read, once. Raises VersionMismatch, Determinate."""
        self.check()
        if self._known is None:
            await self.look(deadline)

    async def look(self, deadline: Deadline) -> LocationRecord | None:
        """The record as it stands; None where there is none. One Consensus read.

        Raises VersionMismatch (this release does not know what is written here: use the one that upgraded it, or a
        newer one), CorruptData, Determinate.
        """
        return (await self.read(deadline))[1]

    async def read(self, deadline: Deadline) -> tuple[int, LocationRecord | None]:
        """As ``look``, with the seqno of the record; ABSENT where there is none."""
        seqno, record = await self._read(deadline)
        self._take(record)
        return seqno, record

    async def replace(self, record: LocationRecord, seqno: int, deadline: Deadline) -> bool:
        """Put a record after the one at ``seqno``. False: another one came first. Raises Determinate: look again."""
        if not await self._put(record, seqno, deadline):
            return False
        self.record = record
        return True

    def forget(self) -> None:
        """Read the record again before the next use. What was refused stays refused."""
        self._known, self._made, self.record = None, False, None

    async def write_version(self, deadline: Deadline) -> int | None:
        """The newest format that may be written, as it stands or as the first shard makes it. Raises as ``look``.

        None: the location has shards and no record, as releases before it leave it. Two Consensus reads at most.
        """
        record = await self.look(deadline)
        if record is not None:
            return record.write_version
        return None if await self.has_shards(deadline) else STATE_FORMAT

    async def make(self, deadline: Deadline) -> None:
        """Make the location's record, of this release's newest format, before its first shard is made.

        A location that has shards and no record is older than records, and gets none. Asks nothing once it did.
        """
        if self._made:
            self.check()
            return
        seqno, record = await self._read(deadline)
        if record is None and not await self.has_shards(deadline):
            await self._set(LocationRecord(write_version=STATE_FORMAT), seqno, deadline)
            record = (await self._read(deadline))[1]
        self._take(record)
        self._made = True

    async def raise_to(self, format: int, deadline: Deadline) -> bool:
        """Let ``format`` be written from now on, for ever. False: it was allowed already.

        Raises VersionMismatch (it stands at one that this release does not know), InvalidArgument (this release does
        not know ``format``), LocationError (maybe raised: run it again).
        """
        if not FIRST_FORMAT <= format <= STATE_FORMAT:
            raise InvalidArgument("this release does not write that format", format=format, known=STATE_FORMAT)
        for _ in range(_RACES_MAX):
            seqno, record = await self._read(deadline)
            self._take(record)
            if record is not None and record.write_version >= format:
                return False
            raised = dataclasses.replace(record or LocationRecord(write_version=format), write_version=format)
            if await self._set(raised, seqno, deadline):
                self._known = format
                return True
        raise VersionMismatch("others keep changing the location's write-version", hint="run it again")

    def _take(self, record: LocationRecord | None) -> None:
        found = FIRST_FORMAT if record is None else record.write_version
        if found > STATE_FORMAT:
            assert record is not None
            self._refused = _too_old({"found": found, "known": STATE_FORMAT, "release": record.release})
            raise self._refused
        self._known = max(found, self._known or 0)
        self.record = record

    async def _read(self, deadline: Deadline) -> tuple[int, LocationRecord | None]:
        async def call(seconds: float) -> Entry | None:
            return await self._consensus.head(LOCATION_KEY, timeout=seconds)

        entry = await self._asked(deadline, call)
        return (ABSENT, None) if entry is None else (entry.seqno, decode_location(entry.data, entry.seqno))

    async def has_shards(self, deadline: Deadline) -> bool:
        """Whether any shard was ever made here. Lists Consensus up to the first."""

        async def call(seconds: float) -> bool:
            async for key in self._consensus.list_keys(timeout=seconds):
                if _is_shard(key):
                    return True
            return False

        return await self._asked(deadline, call)

    async def _asked(self, deadline: Deadline, call: Call[T]) -> T:
        limit = self._settings.store_timeout_ms
        if deadline.once:
            return await certain(call(deadline.slice(limit)))
        return await self._attempts.read(deadline, call, limit_ms=limit)

    async def _set(self, record: LocationRecord, seqno: int, deadline: Deadline) -> bool:
        """Write a record of this release after the one at ``seqno``; returns whether it is there."""
        now_ms, hostname = self._runtime.now_ms(), self._runtime.hostname
        stamped = dataclasses.replace(record, release=RELEASE, walltime_ms=now_ms, hostname=hostname)
        return await self._put(stamped, seqno, deadline)

    async def _put(self, record: LocationRecord, seqno: int, deadline: Deadline) -> bool:
        """Write this record after the one at ``seqno``; whether it is there. A lost answer is resolved by reading."""
        data = encode_location(record, seqno + 1)
        try:
            timeout = deadline.slice(self._settings.store_timeout_ms)
            return await self._consensus.compare_and_set(LOCATION_KEY, seqno, data, timeout=timeout)
        except LocationError as error:
            if error.determinate or deadline.once:
                raise
            return (await self._read(deadline))[1] == record


def _is_shard(key: str) -> bool:
    try:
        ShardId.parse(key)
    except InvalidId:
        return False
    return True


def _too_old(details: dict[str, str] | dict[str, object]) -> VersionMismatch:
    release = details["release"]
    named = f"release {release}" if release else "the release that upgraded it"
    return VersionMismatch(
        "this location is written in a format that this release does not know",
        hint=f"use {named} or a newer one: there is no way back; nothing was changed",
        **details,
    )
