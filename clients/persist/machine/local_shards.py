"""LocalShards: the operations of PersistShard in this process, over a Blob and a Consensus.

The same code runs inside the service and embedded in a user's process. Source: architecture.md sections 2 and 5.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, ShardId, WriterId
from persist.core.shard.batch import HollowBatch
from persist.core.shard.closed import not_readable, reader_gone
from persist.core.shard.commands import AnyCommand, Command, Finalized
from persist.core.shard.state import State
from persist.core.shard.transitions.append import behind
from persist.errors import (
    CorruptData,
    Determinate,
    Indeterminate,
    InvalidId,
    LocationError,
    NotReadable,
    Overloaded,
    PersistError,
    ShardNotFound,
    UnsafeConfiguration,
    VersionMismatch,
)
from persist.machine.applier import Applier, standing
from persist.machine.cached import FREED_AT_ONCE, PATIENCE_SECONDS, ShardCache, part_with
from persist.machine.compaction.owners import StandingOwners
from persist.machine.follower import Follower
from persist.machine.hints import Hints
from persist.machine.intake import Intake
from persist.machine.parts.place import PlaceOf
from persist.machine.parts.written import NotingWritten, ReadingWritten, WrittenParts
from persist.machine.shards import NotYet, ShardInfo, ShardMoved, SnapshotPlan
from persist.machine.upkeep.backlog import Backlog, BacklogFigures
from persist.machine.upkeep.finalizer import ShardFinalizer
from persist.machine.upkeep.looks import Looks
from persist.machine.upkeep.maintenance import Maintenance
from persist.machine.versions import Versions
from persist.retry.attempts import Attempts
from persist.retry.counts import UNCOUNTED, Counts
from persist.retry.deadline import Deadline
from persist.retry.tasks import Tasks, outcome_of
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist.storage.ports import Blob, Consensus
from persist.typed import AnyOutcome, Fields
from persist.wire.shard.shown import state_to_json

R = TypeVar("R")

if TYPE_CHECKING:
    from persist.machine.compaction.scheduler import CompactionScheduler

LOOKED_AT_ONCE: Final = 2
"""Quiet shards that are opened again at a time, to be looked at."""
SLOW_LOOK_SECONDS: Final = 10.0
"""A look that takes longer keeps others waiting no more."""
SINCE_SECONDS: Final = 1.0
"""For how long watchers get no news of a since that moved, while nothing else does."""
REFUSED: Final = "persist_appends_refused_total"
"""Counts appends of rows to shards that compaction is too far behind with."""


class _Shard:
    """What this process keeps for one shard: all of it can be lost at any time."""

    def __init__(
        self,
        shard: ShardId,
        versions: Versions,
        tasks: Tasks,
        hints: Hints,
        looks: Looks,
        owner: str,
        compactor: str,
        settings: Settings,
        runtime: Runtime,
        counts: Counts,
    ) -> None:
        self.applier = Applier(
            shard, versions, settings=settings, runtime=runtime, owner=owner, compactor=compactor, counts=counts
        )
        self.follower = Follower(
            self.applier, versions.consensus, tasks, settings=settings, runtime=runtime, counts=counts
        )
        self.maintenance = Maintenance(
            self.applier, versions, tasks, hints, looks, settings=settings, runtime=runtime, counts=counts
        )
        self.finalizer = ShardFinalizer(self.applier, versions, self.maintenance, settings=settings, runtime=runtime)
        self.in_use = 0

    @property
    def state(self) -> State | None:
        """The newest state this process knows."""
        return self.applier.cached

    @property
    def idle(self) -> bool:
        """No caller waits for it, and no commit is under way."""
        return self.in_use == 0 and self.applier.idle and self.follower.idle and self.maintenance.idle


class LocalShards:
    """Implements ``Shards`` with the machine in this process. Owns its stores: ``close`` closes them."""

    def __init__(
        self,
        blob: Blob,
        consensus: Consensus,
        *,
        settings: Settings | None = None,
        runtime: Runtime | None = None,
        counts: Counts = UNCOUNTED,
    ) -> None:
        """``counts``: where work in the background is counted that succeeded or failed."""
        self._settings = settings or Settings()
        self._runtime = runtime or system()
        self._versions = Versions(blob, consensus, settings=self._settings, runtime=self._runtime)
        self._counts = counts
        bytes_max = self._settings.written_cache_bytes if self._settings.compaction else 0
        self._written = WrittenParts(bytes_max, history=lambda: self._versions.taken)
        self._versions.blob = self._blob = NotingWritten(self._versions.blob, self._written)
        self._intake = Intake(self._blob, self._written, settings=self._settings, runtime=self._runtime, counts=counts)
        self._tasks = Tasks(counts)
        self._hints = Hints()
        self._looks = Looks(self._look)
        self._backlog = Backlog()
        self._looking = asyncio.Semaphore(LOOKED_AT_ONCE)
        self._owner = f"{self._runtime.hostname}:{self._runtime.random_bytes(4).hex()}"
        self._shards: ShardCache[_Shard] = ShardCache(self._settings.shard_cache_bytes, forgotten=self._part_with)
        self.attempts = Attempts(settings=self._settings, runtime=self._runtime)
        self._owners: StandingOwners | None = None
        self._closed = False
        self._workers: CompactionScheduler | None = None
        if self._settings.compaction:
            self._owners = StandingOwners(self._new_owner, self._compact_as)
            self._hints.also_call(self._offer)

    @property
    def settings(self) -> Settings:
        """Knobs."""
        return self._settings

    @property
    def runtime(self) -> Runtime:
        """Clock, entropy and threads."""
        return self._runtime

    @property
    def versions(self) -> Versions:
        """Its stores as it uses them, for work on whole shards."""
        return self._versions

    @property
    def blob(self) -> Blob:
        """The blob store, for clients in the same process."""
        return self._blob

    @property
    def blob_uri(self) -> str:
        """Where rich clients read and write parts."""
        return self._versions.blob.uri

    @property
    def backlog(self) -> BacklogFigures:
        """What is to be merged of the shards that it keeps in memory."""
        return self._backlog.figures()

    async def check_place(self, *, timeout: float) -> None:
        """Raise UnsafeConfiguration unless the two stores are of one location, as far as they answer. Two reads.

        For a server that starts: its clients get the same answer.
        """
        with contextlib.suppress(LocationError, CorruptData, VersionMismatch):
            await self._versions.identity.enter(self._deadline(timeout))

    async def open(self, shard: ShardId, *, create: bool = True, timeout: float) -> ShardInfo:
        """The shard's newest state, initialising it if new. One Consensus read when this process knows the shard."""
        state = await self._of(shard).applier.refresh(self._deadline(timeout), create=create)
        settings = self._settings
        found = behind(state.trace, batches_max=settings.shard_batches_max, parts_max=settings.shard_parts_max)
        return replace(_info(state), behind=found.setting if found else "")

    async def apply(self, shard: ShardId, command: Command[R], *, timeout: float) -> R:
        """Commit one command and return its outcome. One Consensus write."""
        [outcome] = await self.commit(shard, [command], timeout=timeout)
        if isinstance(outcome, PersistError):
            raise outcome
        result: R = outcome
        return result

    async def commit(self, shard: ShardId, commands: Sequence[AnyCommand], *, timeout: float) -> list[AnyOutcome]:
        """Commit several commands at once; each result is an outcome or the PersistError of that command.

        A caller that goes away does not stop a commit under way. Raises LocationError for all commands together.
        """
        work = self._tasks.start(self._commit(self._of(shard), commands, self._deadline(timeout)))
        return await outcome_of(work, "the process is closing")

    async def _commit(self, known: _Shard, commands: Sequence[AnyCommand], deadline: Deadline) -> list[AnyOutcome]:
        known.in_use += 1
        try:
            refused = await self._intake.refused(known.applier, commands, deadline)
            taken = [command for place, command in enumerate(commands) if place not in refused]
            committed = iter(await known.applier.commit(taken, deadline) if taken else ())
            outcomes = [refused[place] if place in refused else next(committed) for place in range(len(commands))]
            full = [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
            if full:
                # Hints follow commits, and what is refused commits nothing: what it waits for must begin here.
                self._hints.pass_on(known.applier.shard)
            for refusal in full:
                self._counts.count(REFUSED, (("limit", refusal.details.get("setting", "")),))
            if Finalized(done=True) in outcomes:
                outcomes = await self._buried(known, outcomes, deadline)
            return outcomes
        finally:
            known.in_use -= 1

    async def _buried(self, known: _Shard, outcomes: list[object], deadline: Deadline) -> list[AnyOutcome]:
        """The outcomes, once a tombstone has nothing left in the stores; the failure in their place otherwise."""
        try:
            await known.finalizer.bury(deadline)
        except LocationError as failure:
            # SUBTLE: the tombstone is committed, whatever a store says of the last that it was asked.
            message = f"finalized, but not all that it held is deleted: {failure.message}"
            error = Indeterminate(message, hint="finalize it again", **failure.details)
            return [error if outcome == Finalized(done=True) else outcome for outcome in outcomes]
        return outcomes

    async def snapshot(
        self, shard: ShardId, as_of: Antichain, *, reader_id: ReaderId | None = None, timeout: float
    ) -> SnapshotPlan | NotYet:
        """The batches to read at ``as_of``. One Consensus read, then waits for the upper to pass ``as_of``."""
        deadline = self._deadline(timeout)
        known = self._of(shard)
        state = await _looked(known, deadline)
        async with known.follower.following():
            while True:
                _check_readable(state, as_of, reader_id)
                if not state.upper.less_equal(as_of):
                    return SnapshotPlan(info=_info(state), as_of=as_of, batches=_reached(state, as_of))
                if not await known.follower.moved_past(state, deadline):
                    return NotYet(info=_info(state))
                state = _newest(known)

    async def fetch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> ShardMoved:
        """What lies beyond ``frontier``, waiting for it at most ``timeout``. One Consensus read."""
        deadline = self._deadline(timeout)
        known = self._of(shard)
        state = await _looked(known, deadline)
        async with known.follower.following():
            while state.upper.less_equal(frontier) and not state.upper.is_empty:
                if not await known.follower.moved_past(state, deadline):
                    break
                state = _newest(known)
        return ShardMoved(info=_info(state), batches=_beyond(state, frontier))

    async def watch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> AsyncIterator[ShardMoved]:
        """Every change from ``frontier`` on, as this process sees it."""
        deadline = self._deadline(timeout)
        known = self._of(shard)
        state = await _looked(known, deadline)
        async with known.follower.following():
            while True:
                yield ShardMoved(info=_info(state), batches=_beyond(state, frontier))
                frontier = frontier.join(state.upper)
                if frontier.is_empty or (news := await _news(known, state, deadline)) is None:
                    return
                state = news

    async def inspect(self, shard: ShardId, *, timeout: float) -> Fields:
        """The newest state as JSON-ready values. One Consensus read."""
        state = await self._of(shard).applier.refresh(self._deadline(timeout))
        return {**await self._runtime.offload(state_to_json, state), "write_version": self._versions.gate.format}

    async def list(self, *, timeout: float) -> AsyncIterator[ShardId]:
        """Every shard ever initialised here; keys that are no shard ids are passed over."""
        async for key in self._versions.consensus.list_keys(timeout=timeout):
            try:
                yield ShardId.parse(key)
            except InvalidId:
                continue

    def work(self, *, timeout: float) -> AsyncIterator[ShardId]:
        """Shards that commits of this process leave with something to compact."""
        return self._hints.listen(self._deadline(timeout))

    async def close(self) -> None:
        """Stop background work, then close both stores."""
        self._owners = None
        for known in [*self._shards]:
            # The commit that gives a claim up would take it up again.
            known.applier.compactor = ""
        if self._workers is not None:
            # Also when an earlier call was cancelled amid it.
            await self._workers.settle()
            await self._workers.close()
            self._workers = None
        self._closed = True
        self._looks.close()
        for known in [*self._shards]:
            known.maintenance.close()
            await known.applier.close()
        await self._tasks.close()
        await self._versions.consensus.close()
        await self._versions.blob.close()

    def _new_owner(self) -> WriterId:
        return WriterId.born(self._runtime.now_ms(), self._runtime.random_bytes(16))

    def _offer(self, shard: ShardId) -> None:
        """Have a shard compacted in its turn. What compacts is imported and made for the first: readers need none."""
        if self._owners is None:
            return
        if self._workers is None:
            self._workers = self._hire(self._owners)
        self._workers.offer(shard)

    def _hire(self, owners: StandingOwners) -> "CompactionScheduler":
        from persist.machine.compaction.compactor import Compactor
        from persist.machine.compaction.runner import CompactionRunner
        from persist.machine.compaction.scheduler import CompactionScheduler

        blob = ReadingWritten(self._blob, self._written)
        place = PlaceOf(blob, self._settings, self._runtime, self.attempts)
        carrier = CompactionRunner(self, self, Compactor(self, place, counts=self._counts), owners, counts=self._counts)
        return CompactionScheduler(carrier, settings=self._settings, runtime=self._runtime, counts=self._counts)

    def _compact_as(self, shard: ShardId, owner: WriterId) -> None:
        known = self._shards.peek(shard)
        if known is not None and self._owners is not None:
            known.applier.compactor = owner

    def _look(self, shard: ShardId, seconds: float) -> None:
        """Look for what may be deleted of a quiet shard, which is opened again if it was forgotten."""
        known = self._shards.peek(shard)
        if known is not None and known.state is not None:
            known.maintenance.look(seconds)
        else:
            self._tasks.spawn(self._look_in_turn(shard, seconds), "looking at a quiet shard")

    def _grown(self, shard: ShardId) -> None:
        known = self._shards.peek(shard)
        if known is not None and known.state is not None:
            self._backlog.saw(known.state)
            self._shards.grown(shard)

    def _part_with(self, state: State) -> None:
        """What was forgotten goes from memory: at once, unless it is large."""
        self._backlog.forgot(state.shard)
        if state.trace.parts > FREED_AT_ONCE and not self._closed:
            self._tasks.spawn(part_with(state, self._runtime, patience=PATIENCE_SECONDS), "parting with a large shard")

    async def _look_in_turn(self, shard: ShardId, seconds: float) -> None:
        async with self._looking:
            looking = self._tasks.spawn(self._look_again(shard, seconds), "looking at a quiet shard")
            await asyncio.wait({looking}, timeout=SLOW_LOOK_SECONDS)

    async def _look_again(self, shard: ShardId, seconds: float) -> None:
        deadline = Deadline(self._runtime, self._settings.maintenance_timeout_ms / 1000)
        known = self._of(shard)
        known.in_use += 1
        try:
            await known.applier.refresh(deadline)
            known.maintenance.look(seconds)
            await known.maintenance.settled(deadline)
        except ShardNotFound:
            return
        except (LocationError, UnsafeConfiguration, VersionMismatch):
            self._looks.add(shard, 2 * seconds)
        except CorruptData:
            # What damages it may be mended, and until then it is worth a report.
            self._looks.add(shard, 2 * seconds)
            raise
        finally:
            known.in_use -= 1

    def _deadline(self, timeout: float) -> Deadline:
        return Deadline(self._runtime, timeout, once=True)

    def _of(self, shard: ShardId) -> _Shard:
        if self._closed:
            # What is begun now would be neither ended nor looked at.
            raise Determinate("this process has closed the location", hint="open it again")
        known = self._shards.get(shard)
        if known is None:
            known = _Shard(
                shard,
                self._versions,
                self._tasks,
                self._hints,
                self._looks,
                self._owner,
                self._owners.of(shard) if self._owners is not None else "",
                self._settings,
                self._runtime,
                self._counts,
            )
            known.applier.on_install = self._grown
            self._shards.put(shard, known)
        return known


def _info(state: State) -> ShardInfo:
    return ShardInfo(
        shard=state.shard,
        seqno=state.seqno,
        since=state.since,
        upper=state.upper,
        schemas=state.schemas,
        incarnation=state.incarnation,
        format=state.format,
        writers_since_ms=state.writers_since_ms,
    )


async def _looked(known: _Shard, deadline: Deadline) -> State:
    """The newest state, to one of many who perhaps share this look: they have it a few at a time."""
    state = await known.applier.refresh(deadline)
    await known.applier.turns.turn()
    return state


async def _news(known: _Shard, shown: State, deadline: Deadline) -> State | None:
    """What a watcher that knows ``shown`` is to be sent next; None: nothing, to the deadline.

    That only since moved, as it may with every reader, is sent after a while, together with what else it did.
    """
    state = shown
    while standing(state) == standing(shown):
        if not await known.follower.moved_past(state, deadline):
            return None
        try:
            async with asyncio.timeout(min(SINCE_SECONDS, deadline.remaining())):
                while _urgent(state := _newest(known)) == _urgent(shown):
                    await known.applier.moved_past(state)
        except TimeoutError:
            # As it does for all that were woken together.
            await known.applier.turns.turn()
            state = _newest(known)
    return state


def _urgent(state: State) -> tuple[object, ...]:
    return state.upper, state.schemas, state.incarnation, state.format


def _newest(known: _Shard) -> State:
    state = known.applier.cached
    assert state is not None
    return state


def _beyond(state: State, frontier: Antichain) -> tuple[HollowBatch, ...]:
    """The batches whose upper lies beyond ``frontier``, oldest first; cost is what is returned, not the history."""
    found: list[HollowBatch] = []
    for batch in state.trace.newest_first():
        if batch.desc.upper.less_equal(frontier):
            break
        found.append(batch)
    return tuple(reversed(found))


def _reached(state: State, as_of: Antichain) -> tuple[HollowBatch, ...]:
    """The batches that begin at ``as_of`` or before it, without a look at each of them."""
    found: list[HollowBatch] = []
    for each in state.trace.spine:
        if each.batches[-1].desc.lower.less_equal(as_of):
            found += each.batches
        else:
            found += [batch for batch in each.batches if batch.desc.lower.less_equal(as_of)]
    return tuple(found)


def _check_readable(state: State, as_of: Antichain, reader_id: ReaderId | None) -> None:
    if reader_id is not None and reader_id not in state.leased_readers:
        raise reader_gone(reader_id, since=state.since, upper=state.upper)
    if as_of.is_empty or not state.since.less_equal(as_of):
        since = state.since
        if since.is_empty:
            raise not_readable(state.shard, upper=state.upper)
        raise NotReadable("as_of lies below since", hint=f"read at as_of >= {since.time}", as_of=as_of, since=since)
