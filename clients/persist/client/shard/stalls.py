"""Reads that wait for a time that does not come by itself end with the reason: see ``ExportStalled``.

Every read that waits for a shard goes through ``Stalls.unless_stalled``, beside which what is recorded of sources is
looked at, for as long as it waits: reads that do not wait cost nothing. A client looks once in two seconds for all of
its own, and a process takes what is recorded apart once.
Source: catalog-semantics.md section 4.2; docs/sources.md, one table.
"""

import asyncio
import contextlib
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from persist.core.cached import cached_property
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.dates import dated
from persist.errors import ExportStalled, PersistError, ShardNotFound
from persist.machine.parts.place import Place
from persist.machine.parts.reading import snapshot_of
from persist.machine.parts.stream import rows
from persist.machine.shards import ShardInfo, Shards
from persist.retry.tasks import Tasks, ended, forsake, outcome_of

if TYPE_CHECKING:
    from persist.core.source.standing import Feeds, Standstill

T = TypeVar("T")

FIRST_SECONDS: Final = 0.1
"""A read that waits for less is answered without a look."""
LOOK_SECONDS: Final = 2.0
"""Between two looks for a read that goes on waiting."""
_KEPT_MAX: Final = 64
_LOOK_SECONDS_MAX: Final = 10.0
"""For one look: it is no part of the read, and the next one comes."""


class Looked(Place, Protocol):
    """A location to look at."""

    shards: Shards
    tasks: Tasks


@dataclass(frozen=True, slots=True)
class _At:
    """Of which records: right wherever a shard is at this upper. ``blob``: where the location's data are."""

    blob: str
    shard: ShardId
    incarnation: int
    upper: Antichain


@dataclass(eq=False)
class _Records:
    """Records as texts, by kind and name."""

    texts: Mapping[str, Mapping[str, str]]

    @cached_property
    def fed(self) -> "Mapping[str, Feeds]":
        """What sources feed, by shard."""
        from persist.core.source.standing import SOURCE, all_fed

        return all_fed(self.texts.get(SOURCE, {}))


class _Kept:
    """The records that clients of this process read last. They are the same for all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: OrderedDict[_At, _Records] = OrderedDict()

    def get(self, at: _At) -> _Records | None:
        """Records, if they are kept."""
        with self._lock:
            return self._records.get(at)

    def keep(self, at: _At, records: _Records) -> None:
        """Keep these, and not those of the shard's earlier uppers."""
        with self._lock:
            earlier = [each for each in self._records if (each.blob, each.shard) == (at.blob, at.shard)]
            for each in earlier:
                del self._records[each]
            self._records[at] = records
            while len(self._records) > _KEPT_MAX:
                self._records.popitem(last=False)


_KEPT: Final = _Kept()
_NOTHING: Final = _Records({})


class Stalls:
    """What is recorded of sources at a location, looked at for reads that wait."""

    def __init__(self, location: Looked) -> None:
        """``location``: has this, and outlives it."""
        self._of = weakref.ref(location)
        self._looking: dict[ShardId, tuple[float, asyncio.Task[_Records]]] = {}
        self._turn = asyncio.Lock()

    @property
    def _location(self) -> Looked:
        location = self._of()
        assert location is not None, "a location outlives what it has"
        return location

    async def unless_stalled(self, wanted: Mapping[ShardId, int], waiting: Awaitable[T]) -> T:
        """What ``waiting`` gives, which comes once each shard is complete at its time.

        Raises ExportStalled as soon as one of them is found to get no further before that; and what ``waiting`` does.
        """
        if not wanted:
            return await waiting
        loop, watched = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        found: list[ExportStalled] = []

        async def watch() -> None:
            found.append(await self._stalled(wanted))
            scope.reschedule(loop.time())

        timer = loop.call_later(FIRST_SECONDS, lambda: watched.append(loop.create_task(watch())))
        try:
            async with asyncio.timeout(None) as scope:
                return await waiting
        except (TimeoutError, PersistError):
            # That it was broken off may end it in other ways, and so may its own time, at that moment.
            if found:
                raise found[0] from None
            raise
        finally:
            timer.cancel()
            await ended(*watched)

    async def feeding(self, shard: ShardId) -> "Feeds | None":
        """The source that feeds a shard, as it is recorded now; None: none does. One RPC, two where that changed."""
        from persist.core.source.standing import RECORDS

        records = await self._records(RECORDS, self._location.runtime.monotonic())
        return records.fed.get(str(shard))

    async def _stalled(self, wanted: Mapping[ShardId, int]) -> ExportStalled:
        """Why one of these is not going to be complete at its time; returns once that is so.

        The first look is one of now, and each further one any reader's that is newer than the one before.
        """
        from persist.core.source.standing import RECORDS

        runtime = self._location.runtime
        since = runtime.monotonic()
        while True:
            for shard, time in wanted.items():
                error = None
                # What fails here is the read's own to find out.
                with contextlib.suppress(PersistError):
                    error = await self._now(shard, time, since)
                if error is not None:
                    return error
            # Before the pause: what others look at during it is news to this one.
            since = math.nextafter(self._looking.get(RECORDS, (since, None))[0], math.inf)
            await runtime.sleep(LOOK_SECONDS)

    async def _now(self, shard: ShardId, time: int, since: float) -> ExportStalled | None:
        """Why a shard is not going to be complete at a time, by looks that began at ``since`` or later."""
        stall = await self._standstill(shard, since)
        if stall is not None and self._location.runtime.monotonic() - since >= LOOK_SECONDS:
            # It may have been mended since that look.
            stall = await self._standstill(shard, self._location.runtime.monotonic())
        if stall is None:
            return None
        # SUBTLE: after that was found, as what is recorded may be older than what the shard has.
        upper = (await self._open(shard)).upper
        return None if upper.beyond(time) else _error(stall, shard, upper, time)

    async def _standstill(self, shard: ShardId, since: float) -> "Standstill | None":
        from persist.core.source.standing import RECORDS, STATUS, failed

        fed = (await self._records(RECORDS, since)).fed.get(str(shard))
        if fed is None or fed.stall is not None:
            return None if fed is None else fed.stall
        said = await self._records(fed.statuses, since)
        return failed(fed, said.texts.get(STATUS, {}), self._location.runtime.now_ms())

    async def _records(self, shard: ShardId, since: float) -> _Records:
        """The records of a shard, as they were at ``since`` or later. Raises LocationError."""
        at, task = self._looking.get(shard, (float("-inf"), None))
        if task is None or at < since:
            at, task = self._location.runtime.monotonic(), self._location.tasks.start(self._look(shard))
            # Who asked may be gone by then.
            forsake(task)
            self._looking[shard] = at, task
        return await outcome_of(task, "the client was closed while a read waited")

    async def _look(self, shard: ShardId) -> _Records:
        try:
            info = await self._open(shard)
        except ShardNotFound:
            return _NOTHING
        if not info.upper.time:
            return _NOTHING
        blob = self._location.blob.uri
        async with self._turn:
            known = _KEPT.get(_At(blob, shard, info.incarnation, info.upper))
            if known is None:
                info, known = await self._read(shard)
                _KEPT.keep(_At(blob, shard, info.incarnation, info.upper), known)
            return known

    async def _read(self, shard: ShardId) -> tuple[ShardInfo, _Records]:
        """SUBTLE: without a lease, which would be a commit. So parts may go before they are read: that is no answer."""
        location = self._location
        moved = await location.attempts.repeat(
            location.attempts.deadline(_LOOK_SECONDS_MAX),
            lambda seconds: location.shards.fetch(shard, Antichain.of(0), timeout=seconds),
        )
        assert moved.info.upper.time
        reading = snapshot_of(moved.batches, moved.info, location.settings, moved.info.upper.time - 1)
        texts: dict[str, dict[str, str]] = {}
        async for batch in rows(location, reading, None):
            for row in batch.to_pylist():
                texts.setdefault(row["kind"], {})[row["name"]] = row["record"]
        return moved.info, _Records(texts)

    async def _open(self, shard: ShardId) -> ShardInfo:
        location = self._location
        return await location.attempts.repeat(
            location.attempts.deadline(_LOOK_SECONDS_MAX),
            lambda seconds: location.shards.open(shard, create=False, timeout=seconds),
        )


def _error(stall: "Standstill", shard: ShardId, upper: Antichain, time: int) -> ExportStalled:
    since = dated(stall.since_ms)
    what = (
        f"source {stall.source} failed at {since}"
        if stall.is_whole
        else f"{stall.export} of source {stall.source} is stalled since {since}"
    )
    mend = (
        f"persist source status {stall.source}, then persist source run {stall.source}"
        if stall.is_whole
        else f"{stall.hint}; then: persist source resnapshot {stall.source} {stall.export}"
    )
    return ExportStalled(
        f"{what}, and has no later times until it is mended: {stall.error}",
        hint=f"{mend}; until then read at a time before upper",
        source=stall.source,
        export=stall.export,
        since_ms=stall.since_ms,
        as_of=time,
        upper=upper,
        shard=shard,
    )
