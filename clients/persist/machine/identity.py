"""The check that a Blob and a Consensus are of one location: each holds its id, and both are compared before use.

The id is drawn when the first commit of a location is due. Consensus keeps it in the location's record, by
compare-and-set; the Blob as a key of its own, one for each location that was ever named there. Only when the Blob names
this one alone is the record marked as named, and only then is anything else written. So of two locations that are given
one Blob one is refused, if they begin at the same moment both, and what either holds is never swept by the other.
Source: docs/formats.md, Location; docs/guarantees.md, what they rest on.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Set
from typing import Final, TypeVar

from persist.core.ids import IDENTITY, LocationId, check_blob_key, identity_key, identity_of
from persist.core.release import RELEASE
from persist.core.shard.state import FIRST_FORMAT
from persist.errors import Determinate, InvalidId, StoreReadOnly
from persist.machine.gate import Gate
from persist.retry.attempts import Attempts, Call, certain
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.open import check_safe
from persist.storage.ports import Blob, Consensus, Finding
from persist.wire.location import LocationRecord

T = TypeVar("T")

FINDING: Final = "stores-of-two-locations"
_RACES_MAX: Final = 16
_LOST: Final = (
    "its shards name data that are not there",
    "give the Blob of this location; if it is lost, persist backup restore into new, empty stores; accepted once, a"
    " Blob that names no location is named at the next write",
)
_FOREIGN: Final = (
    "what is written cannot be read, and what the other location holds would be swept",
    "give the two stores of one location, to a new one a Blob or prefix of its own",
)
_NO_CONSENSUS: Final = (
    "the data that lie there would be swept",
    "give the Consensus they belong to; if it is lost, persist admin rebuild --all --commit or, into new, empty stores,"
    " persist backup restore; to a new location give a Blob of its own",
)
"""Of each: the consequence, and what to do."""


class Identity:
    """The identity of one Blob and one Consensus, as this process has read it. Reads once; again after a refusal."""

    def __init__(self, blob: Blob, consensus: Consensus, gate: Gate, *, settings: Settings, runtime: Runtime) -> None:
        self._blob = blob
        self._consensus = consensus
        self._gate = gate
        self._settings = settings
        self._runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)
        self._compared = False
        self._settled = False
        self._of: LocationId | None = None

    async def enter(self, deadline: Deadline) -> None:
        """Compare, unless that was done: before anything is read. One Blob read, once. Writes nothing.

        Raises UnsafeConfiguration (they are not of one location), Determinate, and as ``Gate.enter``.
        """
        await self._gate.enter(deadline)
        if self._compared:
            return
        record = self._gate.record
        for _ in range(_RACES_MAX):
            problem = await self._seen(record, deadline)
            if problem is None:
                break
            again = await self._gate.look(deadline)
            if again == record:
                check_safe([problem], self._settings.allow_unsafe)
                break
            record = again
        self._take(record)

    async def confirm(self, deadline: Deadline) -> None:
        """``enter``, and look whether the record still has the id that was compared: one Consensus read.

        For the first look at a shard: no history of it is known that could show another location.
        """
        if self._compared and not await self.holds(deadline):
            self.forget()
        await self.enter(deadline)

    async def holds(self, deadline: Deadline) -> bool:
        """Whether the record has the id that was compared. One Consensus read. Raises as ``Gate.look``."""
        record = await self._gate.look(deadline)
        return (None if record is None else record.id) == self._of

    async def settle(self, deadline: Deadline) -> None:
        """See that both know the location, and each other, before anything is written. Asks nothing once they do.

        Raises UnsafeConfiguration (they are not of one location: nothing was written that names a shard), and as
        ``Gate.make``; Determinate for all that a store failed with: whatever this is done for did not begin.
        """
        if not self._settled:
            await self._whole(deadline, self._settle)

    async def renew(self, deadline: Deadline, id: LocationId | None = None) -> None:
        """Give the location another id, in the place of whatever is named: for callers that have seen that all else is
        empty.

        A process with another Consensus is refused from then on. ``id``: the same one for all attempts of one
        restore; otherwise one that an earlier attempt drew and did not come to name is taken up. Raises Determinate.
        """
        await self._whole(deadline, lambda own: self._renew(own, id))

    async def take_over(self, deadline: Deadline) -> None:
        """Name a Blob anew whose Consensus is lost. Of a Consensus that has a name it is compared, as by ``enter``."""
        if not await self.compare_named(deadline):
            await self.renew(deadline)
            await self.enter(deadline)

    async def compare_named(self, deadline: Deadline) -> bool:
        """Compare a Consensus that has a name, as by ``enter``. False: it has none, as a new one. Writes nothing."""
        record = await self._gate.look(deadline)
        named = record is not None and record.named
        if named:
            await self.enter(deadline)
        return named

    def forget(self) -> None:
        """Look again before the next use: another history was met, perhaps of another location."""
        self._compared = self._settled = False
        self._gate.forget()

    def _take(self, record: LocationRecord | None) -> None:
        """Go by this record: it was compared."""
        self._compared, self._of = True, None if record is None else record.id

    async def _seen(self, record: LocationRecord | None, deadline: Deadline) -> Finding | None:
        """The problem that a reader can see, if any."""
        mine = None if record is None else record.id
        if record is not None and record.named and mine is not None and await self._names_it(mine, deadline):
            self._settled = True
            return None
        names = await self._names(deadline)
        if names - {mine}:
            return await self._foreign(record, names - {mine}, deadline)
        if record is not None and record.named and mine not in names and await self._gate.has_shards(deadline):
            return self._unnamed(record)
        return None

    async def _settle(self, deadline: Deadline) -> None:
        made = False
        for _ in range(_RACES_MAX):
            seqno, record = await self._gate.read(deadline)
            names = await self._names(deadline)
            problem = await self._problem(record, names, deadline)
            if problem is not None:
                if await self._gate.look(deadline) != record:
                    continue
                check_safe([problem], self._settings.allow_unsafe)
            mine = None if record is None else record.id
            others = bool(names - {mine})
            if others or (record is not None and record.named and mine in names):
                self._take(record)
                break
            if record is None and not made:
                # The write-version of a new location is said by the gate; one that is older than records has none.
                await self._gate.make(deadline)
                made = True
                continue
            if await self._name(seqno, record, deadline):
                self._take(self._gate.record)
                break
        else:
            raise Determinate("others keep changing what the location is", hint="try again")
        self._settled = True

    async def _problem(
        self, record: LocationRecord | None, names: Set[LocationId], deadline: Deadline
    ) -> Finding | None:
        """The problem that a writer can see, if any.

        SUBTLE: the first process may write data between these reads. That it had settled before stands in the record,
        which is read again before this is believed.
        """
        mine = None if record is None else record.id
        if record is not None and record.named and mine in names:
            return None
        if names - {mine}:
            return await self._foreign(record, names - {mine}, deadline)
        shards, states = await self._gate.has_shards(deadline), await self._has_states(deadline)
        if shards and (not states or (record is not None and record.named)):
            return self._unnamed(record)
        if states and not shards:
            return self._empty("a location whose id is not known")
        return None

    async def _name(self, seqno: int, record: LocationRecord | None, deadline: Deadline) -> bool:
        """Write the id to both stores. False: another process was first, look again."""
        before = record or self._first()
        given = before if before.id else dataclasses.replace(before, id=self._new_id())
        if given != record:
            if not await self._gate.replace(given, seqno, deadline):
                return False
            seqno += 1
        assert given.id is not None
        try:
            await self._write(given.id, deadline)
        except StoreReadOnly:
            # A process that may only read the Blob leaves the naming of a location with shards to others, and commits
            # its leases.
            if not await self._gate.has_shards(deadline):
                raise
            return True
        if await self._names(deadline) != {given.id}:
            return False
        return given.named or await self._gate.replace(dataclasses.replace(given, named=True), seqno, deadline)

    async def _renew(self, deadline: Deadline, id: LocationId | None) -> None:
        for _ in range(_RACES_MAX):
            seqno, record = await self._gate.read(deadline)
            before = record or self._first()
            if before.named and before.id == id:
                return
            wanted = id or (None if before.named else before.id) or self._new_id()
            given = dataclasses.replace(before, id=wanted, named=False)
            if given != record:
                if not await self._gate.replace(given, seqno, deadline):
                    continue
                seqno += 1
            await self._write(wanted, deadline)
            for other in await self._names(deadline) - {wanted}:
                await self._delete(other, deadline)
            if await self._gate.replace(dataclasses.replace(given, named=True), seqno, deadline):
                self._take(self._gate.record)
                self._settled = True
                return
        raise Determinate("others keep changing what the location is", hint="run it again")

    def _first(self) -> LocationRecord:
        """The record of a location that is older than records."""
        runtime = self._runtime
        return LocationRecord(
            write_version=FIRST_FORMAT, release=RELEASE, walltime_ms=runtime.now_ms(), hostname=runtime.hostname
        )

    def _new_id(self) -> LocationId:
        return LocationId.of(self._runtime.random_bytes(16))

    # ---- what is wrong -------------------------------------------------------------------------------------------

    async def _foreign(self, record: LocationRecord | None, others: Set[LocationId], deadline: Deadline) -> Finding:
        which = _which(others)
        if not await self._gate.has_shards(deadline):
            return self._empty(which)
        return _finding(f"the Blob {self._blob.uri}", f"that of {which}", self._required(record), _FOREIGN)

    def _empty(self, which: str) -> Finding:
        return _without_consensus(self._consensus.uri, "empty", which, self._blob)

    def _unnamed(self, record: LocationRecord | None) -> Finding:
        return _finding(f"the Blob {self._blob.uri}", "of no location", self._required(record), _LOST)

    def _required(self, record: LocationRecord | None) -> str:
        which = "a location that has no id yet" if record is None or record.id is None else f"location {record.id}"
        return f"that of {which}, which is the one of Consensus {self._consensus.uri}"

    # ---- requests ------------------------------------------------------------------------------------------------

    async def _names_it(self, location: LocationId, deadline: Deadline) -> bool:
        async def call(seconds: float) -> bool:
            return await self._blob.get(identity_key(location), timeout=seconds) is not None

        return await self._asked(deadline, call)

    async def _names(self, deadline: Deadline) -> set[LocationId]:
        """All locations that the Blob names."""

        async def call(seconds: float) -> set[LocationId]:
            return await _names_in(self._blob, seconds)

        return await self._asked(deadline, call)

    async def _has_states(self, deadline: Deadline) -> bool:
        """Whether a state of any shard lies in the Blob: every shard has one. Lists up to the first.

        Parts alone say nothing: they may be written before the first shard of a location is made.
        """

        async def call(seconds: float) -> bool:
            async for key, _ in self._blob.list("", timeout=seconds):
                if _is_state(key):
                    return True
            return False

        return await self._asked(deadline, call)

    async def _write(self, location: LocationId, deadline: Deadline) -> None:
        async def call(seconds: float) -> None:
            await self._blob.set(identity_key(location), f"persist location {location}\n".encode(), timeout=seconds)

        await self._asked(deadline, call)

    async def _delete(self, location: LocationId, deadline: Deadline) -> None:
        async def call(seconds: float) -> None:
            await self._blob.delete(identity_key(location), timeout=seconds)

        await self._asked(deadline, call)

    async def _whole(self, deadline: Deadline, work: Callable[[Deadline], Awaitable[None]]) -> None:
        """Steps of which each attempt begins with looking how far the last one came.

        They are repeated here, not with the call: none of them belongs to it, as it has not begun.
        """
        own = Deadline(self._runtime, deadline.remaining())
        await self._attempts.read(own, lambda seconds: work(own))

    async def _asked(self, deadline: Deadline, call: Call[T]) -> T:
        limit = self._settings.blob_timeout_ms
        if deadline.once:
            return await certain(call(deadline.slice(limit)))
        return await self._attempts.read(deadline, call, limit_ms=limit)


async def check_not_lost(blob: Blob, consensus: str, *, settings: Settings) -> None:
    """Raise UnsafeConfiguration where a Blob names a location and the Consensus with this URI is not there.

    For one that opening would make. One Blob read. Raises LocationError.
    """
    names = await _names_in(blob, settings.blob_timeout_ms / 1000)
    if names:
        check_safe([_without_consensus(consensus, "not there", _which(names), blob)], settings.allow_unsafe)


async def _names_in(blob: Blob, seconds: float) -> set[LocationId]:
    keys = [key async for key, _ in blob.list(f"{IDENTITY}/", timeout=seconds)]
    return {found for key in keys if (found := identity_of(key)) is not None}


def _which(locations: Set[LocationId]) -> str:
    return f"location {', '.join(sorted(locations)[:3])}"


def _without_consensus(consensus: str, found: str, which: str, blob: Blob) -> Finding:
    required = f"that of {which}, which is the one of the Blob {blob.uri}"
    return _finding(f"the Consensus {consensus}", found, required, _NO_CONSENSUS)


def _finding(setting: str, found: str, required: str, why: tuple[str, str]) -> Finding:
    consequence, remedy = why
    return Finding(
        name=FINDING, setting=setting, found=found, required=required, consequence=consequence, remedy=remedy
    )


def _is_state(key: str) -> bool:
    """Whether it is a shard's state. Other things may lie in a bucket, too."""
    try:
        return "/rollup/" in check_blob_key(key) and identity_of(key) is None
    except InvalidId:
        return False
