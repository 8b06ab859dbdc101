"""Versions of a shard's state: loading the newest, catching up, making the first.

The newest state is the rollup that the newest diff names, with the diffs after it applied. Opening a shard therefore
costs one head, one scan bounded by the rollup interval and one blob, however long its history.
Source: design 001, "incremental state"; persist-semantics.md section 2.7; reliability.md I14 and section 4, watchdog.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from persist.core.ids import ABSENT, ShardId, rollup_key
from persist.core.shard.commands import Rollup
from persist.core.shard.diff import StateDiff, apply_diff, diff, replaces
from persist.core.shard.state import FIRST_FORMAT, STATE_FORMAT, State
from persist.errors import (
    CorruptData,
    Determinate,
    HistoryRewound,
    Indeterminate,
    LocationError,
    StoreFull,
    StoreReadOnly,
    VersionMismatch,
    check,
)
from persist.machine.cached import part_with_lost
from persist.machine.gate import Gate
from persist.machine.guard import Guard
from persist.machine.identity import Identity
from persist.retry.attempts import Attempts, Call, certain
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import DELETES_MAX, Blob, Consensus, Entry
from persist.wire.checksum import crc32c
from persist.wire.frame import HEAD_BYTES, message_bytes
from persist.wire.shard.state import OLDEST_FORMAT, decode_diff, decode_rollup, encode_diff, encode_rollup

T = TypeVar("T")

_log = logging.getLogger("persist.versions")

_STALE_HEADS_MAX = 16
_PAGE_DIFFS = 512
ON_LOOP_BYTES_MAX: Final = 16 << 10
"""Stored bytes that are decoded on the event loop: some milliseconds at most. More is decoded in a thread."""
PIECE_BYTES_MAX: Final = 256 << 10
"""Bytes of diffs that are decoded at once."""
DELETES_AT_ONCE: Final = 4
"""Requests to delete many blobs that are under way at a time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A state and the checksum of the diff that made it, by which a rewound or forked history is noticed.

    ``head``: the first bytes of that diff's frame, its own checksum among them, after which the next one is set.
    ``replaced``: seqnos of the diffs read for it which released blobs of batches.
    """

    state: State
    diff_checksum: int
    head: bytes = b""
    replaced: tuple[int, ...] = ()

    @property
    def seqno(self) -> int:
        """The state's seqno."""
        return self.state.seqno


class Versions:
    """Reads and creates states in one Blob and one Consensus. Keeps nothing in memory.

    Store calls are repeated until the deadline, unless that is for one attempt.
    """

    def __init__(self, blob: Blob, consensus: Consensus, *, settings: Settings, runtime: Runtime) -> None:
        self._guard = guard = Guard(blob, consensus, settings=settings, runtime=runtime)
        self.blob: Blob = guard.blob
        self.consensus: Consensus = guard.consensus
        self._settings = settings
        self._runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)
        self.gate = Gate(self.consensus, settings=settings, runtime=runtime)
        self.identity = Identity(self.blob, self.consensus, self.gate, settings=settings, runtime=runtime)
        guard.on_taken = self.identity.forget

    @property
    def taken(self) -> int:
        """How often other files were taken for the stores."""
        return self._guard.taken

    async def load(self, shard: ShardId, deadline: Deadline, *, older: bool = False) -> Version | None:
        """The newest state; None when the shard was never initialised. Three Consensus reads and one Blob read.

        One of them is the location's record: whether it is the one this process has compared. The first time that takes
        one more Blob read.

        ``older``: also one in a format that must be upgraded before anything is added. Raises Determinate,
        CorruptData, VersionMismatch, UnsafeConfiguration (the two stores are not of one location).
        """
        await self.identity.confirm(deadline)
        for _ in range(_STALE_HEADS_MAX):
            head = await self._head(shard, deadline)
            if head is None:
                return None
            newest = decode_diff(head.data, shard, head.seqno)
            if not older:
                check_upgraded(newest.format, shard)
            seqno, rollup = newest.latest_rollup
            state = await self.rollup(shard, seqno, rollup, deadline)
            if state is None:
                # The rollup was collected after this head was read, so a newer head names a newer one.
                continue
            begun = [Version(state=state, diff_checksum=0)]
            del state
            version = await self._advance(begun.pop(), deadline, after=seqno)
            if version is not None:
                return version
        raise CorruptData("the rollup that the newest diff names is missing", shard=shard, hint="run persist fsck")

    async def catch_up(self, version: Version, deadline: Deadline) -> Version:
        """The newest state, from a known one: the same object when nothing happened. One Consensus read, usually.

        After a restore that of another incarnation, whose seqno may be any. Raises HistoryRewound when the store shows
        less, or something else, than was seen before, and is not restored.
        """
        shard = version.state.shard
        try:
            advanced = await self._advance(version, deadline, after=version.seqno)
        except HistoryRewound as rewound:
            return await self._restored(version, rewound, deadline)
        if advanced is not None:
            return advanced
        loaded = await self.load(shard, deadline)
        if loaded is None or (loaded.seqno < version.seqno and not _is_other(loaded, version)):
            raise _rewound(shard, version.seqno, ABSENT if loaded is None else loaded.seqno)
        return loaded

    async def _restored(self, version: Version, rewound: HistoryRewound, deadline: Deadline) -> Version:
        """The newest state of the history that replaced this one. Raises HistoryRewound unless that history says so
        itself.

        Nothing is certain about that location, perhaps not even that these two stores belong together.
        """
        shard = version.state.shard
        self.identity.forget()
        loaded = await self.load(shard, deadline)
        if loaded is None or not _is_other(loaded, version):
            raise rewound
        fields = {"shard": shard, "seqno": version.seqno, "found": loaded.seqno}
        _log.warning("the location was restored: what was known of the shard is given up", extra=fields)
        return loaded

    async def initialise(self, shard: ShardId, deadline: Deadline) -> Version:
        """The newest state, creating the first one if there is none. Safe to race and to repeat. One attempt.

        The rollup blob is written first and names itself; the process that loses the race adopts the winner's state and
        deletes its own blob, which no state can name any more: slot 0 is taken.
        """
        await self.identity.settle(deadline)
        taken = self._guard.taken
        first, rollup, data = await self._write_first(shard, deadline)
        if not await self.identity.holds(deadline) or taken != self._guard.taken:
            # Nothing names the rollup, and what stands there now may not have it.
            raise Determinate("the location was replaced meanwhile", hint="open it again", shard=shard)
        failure: LocationError | None = None
        try:
            slice_ = deadline.slice(self._settings.store_timeout_ms)
            if await self.consensus.compare_and_set(shard, ABSENT, data, timeout=slice_):
                return Version(state=first, diff_checksum=crc32c(data), head=data[:HEAD_BYTES])
        except (StoreFull, StoreReadOnly):
            raise
        except LocationError as error:
            failure = error
        version = await self.load(shard, deadline)
        if version is not None:
            await self._adopt(version, rollup, deadline)
            return version
        # An unanswered attempt may still arrive, so its blob stays; another attempt writes its own.
        raise failure or Indeterminate("initialising the shard got no answer", shard=shard, hint="open it again")

    async def _adopt(self, winner: Version, rollup: Rollup, deadline: Deadline) -> None:
        """Delete the loser's rollup: slot 0 is taken for ever, so no state can come to name it."""
        entries = await self._scan(winner.state.shard, 0, 1, deadline)
        if not entries or entries[0].seqno != 0:
            return
        if decode_diff(entries[0].data, winner.state.shard, 0).latest_rollup[1].key != rollup.key:
            with contextlib.suppress(LocationError):
                await self.blob.delete(rollup.key, timeout=deadline.slice(self._settings.blob_timeout_ms))

    async def diffs(self, shard: ShardId, until: int, deadline: Deadline) -> AsyncIterator[StateDiff]:
        """The diffs that are still there, oldest first, up to the one that made the state at ``until``."""
        at = 0
        while True:
            entries = await self._scan(shard, at, _PAGE_DIFFS, deadline)
            wanted = [entry for entry in entries if entry.seqno <= until]
            for piece in _pieces(wanted):
                for change in await self._aside(_size(piece), _decoded_all, shard, piece):
                    yield change
            if len(entries) < _PAGE_DIFFS or len(wanted) < len(entries):
                return
            at = entries[-1].seqno + 1

    async def head_at(self, shard: ShardId, seqno: int, deadline: Deadline) -> bytes:
        """The first bytes of the diff at ``seqno``, which distinguish it from others there; empty when it is gone."""
        entries = await self._scan(shard, seqno, 1, deadline)
        return entries[0].data[:HEAD_BYTES] if entries and entries[0].seqno == seqno else b""

    async def check_same(self, known: Version, deadline: Deadline) -> None:
        """Raise HistoryRewound unless the history that this version is of still stands. One Consensus read, usually."""
        if _is_other(found := await self.catch_up(known, deadline), known):
            raise _rewound(known.state.shard, known.seqno, found.seqno)

    async def delete(self, keys: Iterable[str], deadline: Deadline) -> None:
        """Delete blobs, a thousand with one request. Raises LocationError once all have been tried."""
        room, names = asyncio.Semaphore(DELETES_AT_ONCE), sorted(keys)

        async def delete(some: Sequence[str]) -> None:
            async def call(seconds: float) -> None:
                await self.blob.delete_many(some, timeout=seconds)

            async with room:
                await self._call(deadline, call, self._settings.blob_timeout_ms)

        # Every deletion ends before a failure is raised: none may go on behind the caller's back.
        pieces = [names[at : at + DELETES_MAX] for at in range(0, len(names), DELETES_MAX)]
        results = await asyncio.gather(*map(delete, pieces), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def write_rollup(self, state: State, deadline: Deadline) -> Rollup:
        """Write the whole state to Blob under a fresh key and describe it. Nothing names it yet."""
        key = rollup_key(state.shard, state.seqno, self._runtime.random_bytes(16))
        data = await self._runtime.offload(encode_rollup, state)

        async def call(seconds: float) -> None:
            await self.blob.set(key, data, timeout=seconds)

        await self._call(deadline, call, self._settings.blob_timeout_ms)
        return Rollup(key=key, encoded_bytes=len(data), checksum=crc32c(data))

    async def _write_first(self, shard: ShardId, deadline: Deadline) -> tuple[State, Rollup, bytes]:
        runtime = self._runtime
        bare = State.initial(shard, now_ms=runtime.now_ms(), hostname=runtime.hostname, format=self.gate.format)
        rollup = await self.write_rollup(bare, deadline)
        first = dataclasses.replace(bare, rollups={0: rollup})
        return first, rollup, encode_diff(diff(bare, first), shard)

    async def _head(self, shard: ShardId, deadline: Deadline) -> Entry | None:
        limit = self._settings.store_timeout_ms

        async def call(seconds: float) -> Entry | None:
            return await self.consensus.head(shard, timeout=seconds)

        return await self._read(deadline, call, limit)

    async def rollup(self, shard: ShardId, seqno: int, rollup: Rollup, deadline: Deadline) -> State | None:
        """The state a rollup is of; None when its blob is not there. Raises CorruptData, VersionMismatch."""

        async def call(seconds: float) -> bytes | None:
            return await self.blob.get(rollup.key, timeout=seconds)

        data = await self._read(deadline, call, self._settings.blob_timeout_ms)
        if data is None:
            return None
        whole = len(data) == rollup.encoded_bytes and crc32c(data) == rollup.checksum
        check(whole, "a rollup's bytes are those its diff names", key=rollup.key)
        state = await self._aside(message_bytes(data), decode_rollup, data, shard, seqno)
        # The first rollup cannot contain its own checksum: the diff that named it says it instead.
        return dataclasses.replace(state, rollups={0: rollup}) if seqno == 0 else state

    async def _advance(self, version: Version, deadline: Deadline, *, after: int) -> Version | None:
        """Apply every diff above ``after``. None when the diffs are no longer contiguous with it.

        The scan starts at ``after`` itself: the store must still show the diff that was seen there.
        """
        shard, page = version.state.shard, self._settings.recent_diffs_max
        state, seen, head = version.state, version.diff_checksum, version.head
        at, replaced = after, list[int]()
        known = version if version.diff_checksum else None
        # A rollup's state is no other's: what merges took out of it goes from memory with it.
        del version
        while True:
            entries = await self._scan(shard, at, page, deadline)
            if not entries:
                raise _rewound(shard, state.seqno, ABSENT)
            if entries[0].seqno != at:
                return None
            seen, head = _same(shard, entries[0], seen), entries[0].data[:HEAD_BYTES]
            for piece in _pieces(entries[1:]):
                behind = [state]
                state, gone = await self._aside(_size(piece), _applied, shard, state, piece)
                if known is None or behind[0] is not known.state:
                    await part_with_lost(behind, state, self._runtime)
                replaced += gone
                seen, head = crc32c(piece[-1].data), piece[-1].data[:HEAD_BYTES]
            at = state.seqno
            if len(entries) < page:
                break
        if known is not None and state is known.state:
            return known
        return Version(state=state, diff_checksum=seen, head=head, replaced=tuple(replaced))

    async def _aside(self, size: int, function: Callable[..., T], *args: object) -> T:
        """What a pure function of messages of so many bytes returns: on the loop only where that takes no time."""
        return function(*args) if size <= ON_LOOP_BYTES_MAX else await self._runtime.offload(function, *args)

    async def _scan(self, shard: ShardId, from_seqno: int, limit: int, deadline: Deadline) -> list[Entry]:
        async def call(seconds: float) -> list[Entry]:
            return await self.consensus.scan(shard, from_seqno, limit, timeout=seconds)

        return await self._read(deadline, call, self._settings.store_timeout_ms)

    async def _read(self, deadline: Deadline, call: Call[T], limit_ms: int) -> T:
        """What a store returns. Raises Determinate when it does not."""
        return await self._call(deadline, lambda seconds: certain(call(seconds)), limit_ms)

    async def _call(self, deadline: Deadline, call: Call[T], limit_ms: int) -> T:
        if deadline.once:
            return await call(deadline.slice(limit_ms))
        return await self._attempts.repeat(deadline, call, limit_ms=limit_ms)


def _is_other(found: Version, known: Version) -> bool:
    """Whether it is of another incarnation of the location: a restored backup, or what was rebuilt from rollups."""
    return found.state.incarnation != known.state.incarnation


def check_upgraded(found: int, shard: ShardId) -> None:
    """Raise VersionMismatch when a shard stands in an older format: it may be read then, but nothing be added."""
    if OLDEST_FORMAT <= found < FIRST_FORMAT:
        raise VersionMismatch(
            "this location was written by an older release",
            hint="stop that release's programs, then run persist admin upgrade --all --commit",
            shard=shard,
            found=found,
            known=STATE_FORMAT,
            oldest=FIRST_FORMAT,
        )


def _pieces(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """The entries in pieces of a bounded size: between two of them others have their turn."""
    begin = size = 0
    for at, entry in enumerate(entries):
        if at > begin and size + message_bytes(entry.data) > PIECE_BYTES_MAX:
            yield entries[begin:at]
            begin, size = at, 0
        size += message_bytes(entry.data)
    if begin < len(entries):
        yield entries[begin:]


def _size(entries: Sequence[Entry]) -> int:
    return sum(message_bytes(entry.data) for entry in entries)


def _decoded_all(shard: ShardId, entries: Sequence[Entry]) -> list[StateDiff]:
    return [decode_diff(entry.data, shard, entry.seqno) for entry in entries]


def _applied(shard: ShardId, state: State, entries: Sequence[Entry]) -> tuple[State, list[int]]:
    """The state after these diffs, and which of them released blobs of batches."""
    replaced = []
    for entry in entries:
        change = _decoded(shard, entry, state.seqno)
        state = apply_diff(state, change)
        if replaces(change):
            replaced.append(change.seqno_to)
    return state, replaced


def _decoded(shard: ShardId, entry: Entry, after: int) -> StateDiff:
    check(entry.seqno == after + 1, "seqnos have no gaps", shard=shard, found=entry.seqno, after=after)
    return decode_diff(entry.data, shard, entry.seqno)


def _same(shard: ShardId, entry: Entry, seen: int) -> int:
    """The checksum of a diff that must be the one seen before (``seen`` 0: not seen yet)."""
    found = crc32c(entry.data)
    if seen and found != seen:
        raise _rewound(shard, entry.seqno, entry.seqno)
    return found


def _rewound(shard: ShardId, seen: int, found: int) -> HistoryRewound:
    return HistoryRewound(
        "consensus shows another history than before",
        hint="a restored backup, a failover or the wrong database: stop writing and compare the stores",
        shard=shard,
        seen=seen,
        found=found,
    )
