"""One shard in this process: its newest known state, and the loop that moves it.

Commands are folded into one successor state and committed with one compare-and-set; losing the race means catching up
and folding again. A compare-and-set whose answer was lost is resolved by reading back what stands at its seqno.
Source: design 001, state machine; persist-semantics.md section 2.2; reliability.md I1-I4.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from persist.core.ids import ShardId
from persist.core.shard.commands import AnyCommand
from persist.core.shard.diff import StateDiff, diff
from persist.core.shard.invariants import check_cheap
from persist.core.shard.ranges import Bounds
from persist.core.shard.state import State
from persist.core.shard.transitions.apply import apply, finish
from persist.core.shard.transitions.dispatch import Context
from persist.errors import (
    Determinate,
    Indeterminate,
    LocationError,
    PersistError,
    ShardNotFound,
    UnsafeConfiguration,
)
from persist.machine.cached import part_with_lost
from persist.machine.rounds import Rounds
from persist.machine.unforeseen import Unforeseen
from persist.machine.versions import Version, Versions
from persist.retry.attempts import Attempts, unsure
from persist.retry.counts import UNCOUNTED, Counts
from persist.retry.deadline import Deadline
from persist.retry.turns import Turns
from persist.retry.weakly import weakly
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Entry
from persist.typed import AnyOutcome
from persist.wire.checksum import crc32c
from persist.wire.frame import HEAD_BYTES
from persist.wire.shard.state import encode_diff

CONFLICTS: Final = "persist_commit_conflicts_total"
"""Counts commits that another process was ahead of: each costs a read and is folded again."""


@dataclass(frozen=True, slots=True)
class Folded:
    """What a fold of commands came to: the successor (None: nothing to commit), the diff to it, also as it is written,
    and each command's outcome or error."""

    successor: State | None
    change: StateDiff | None
    data: bytes
    outcomes: list[Any]


def _stirs(state: State, known: State) -> bool:
    """Whether it is news to those who wait: frontiers and schemas, and that a reader is gone. Heartbeats are none."""
    readers = state.leased_readers is known.leased_readers or known.leased_readers.keys() <= state.leased_readers.keys()
    return standing(state) != standing(known) or not readers


def standing(state: State) -> tuple[object, ...]:
    """What a state is to those who only follow it: all but what readers and writers say of themselves."""
    return state.upper, state.since, state.schemas, state.incarnation, state.format


class Applier:
    """The commit loop of one shard. One commit at a time; reads never wait for commits."""

    def __init__(
        self,
        shard: ShardId,
        versions: Versions,
        *,
        settings: Settings,
        runtime: Runtime,
        owner: str,
        compactor: str = "",
        counts: Counts = UNCOUNTED,
    ) -> None:
        """``owner`` names this process in claims, ``compactor`` in those on compactions (empty: it does none)."""
        self.shard = shard
        self.owner = owner
        self.compactor = compactor
        self.on_commit: Callable[[StateDiff], None] = lambda change: None
        """Called after every commit of this process, unless the history that it is of was replaced by then."""
        self.on_history: Callable[[State], None] = lambda state: None
        """Called with the first state that is known, and with that of another history after a restore."""
        self.on_install: Callable[[ShardId], object] = lambda shard: None
        """Called whenever another state is known."""
        self.replaced: tuple[int, ...] = ()
        """Seqnos of commits that were read, above the newest rollup, which released blobs of batches."""
        self._versions = versions
        self._settings = settings
        self._runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)
        self._counts = counts
        self._unforeseen = Unforeseen(runtime, counts)
        self._committing = asyncio.Lock()
        self._version: Version | None = None
        self._histories = 0
        """How many histories of the shard this process has known, one after the other."""
        self._moved = asyncio.Event()
        self.turns = Turns()
        """Of those who wait for news, or ask for it, in a crowd."""
        # Who asks again would load all of it again: a large state would never be there.
        # SUBTLE: by weak references, as are calls after commits. What is forgotten of a shard must go at once: servers
        # look for cycles next to never.
        self._rounds = Rounds(weakly(self._look), runtime, lasts=weakly(self._is_unknown))

    @property
    def cached(self) -> State | None:
        """The newest state this process knows, perhaps not the newest there is."""
        return self._version.state if self._version else None

    @property
    def idle(self) -> bool:
        """Whether nothing is read."""
        return self._rounds.idle

    async def close(self) -> None:
        """Read nothing any more."""
        await self._rounds.close()

    async def refresh(self, deadline: Deadline, *, create: bool = False) -> State:
        """The newest state there is: linearizable. Raises ShardNotFound unless ``create``.

        Calls that are one attempt share what they read with all that wait for it.
        """
        found = await (self._rounds.answer(deadline) if deadline.once else self._look(deadline))
        if found is None and create:
            begun = self._histories
            found = await self._versions.initialise(self.shard, deadline)
            self._install(found, begun)
        if found is None:
            raise ShardNotFound("no such shard here", hint="check the id and the location", shard=self.shard)
        return found.state

    def _is_unknown(self) -> bool:
        return self._version is None

    async def _look(self, deadline: Deadline) -> Version | None:
        known, begun = self._version, self._histories
        if known is not None:
            found: Version | None = await self._versions.catch_up(known, deadline)
        else:
            found = await self._versions.load(self.shard, deadline)
        if found is not None:
            self._install(found, begun)
        if known is not None and found is not None and known is not self._version:
            behind = [known.state]
            del known
            await part_with_lost(behind, found.state, self._runtime)
        return found

    async def moved_past(self, state: State) -> None:
        """Return once this process knows a state of other frontiers or schemas, of another history, or without a
        reader of this one. Of a crowd a few at a time."""
        while self._version is None or not _stirs(self._version.state, state):
            await self._moved.wait()
        # Also where it has moved already: all that the last change was sent to come back together.
        await self.turns.turn()

    async def commit(self, commands: Sequence[AnyCommand], deadline: Deadline) -> list[AnyOutcome]:
        """Apply the commands in order with one commit. Each result is an outcome, or a PersistError for that command.

        One attempt: a lost race is run again and a compare-and-set in doubt resolved, but one that failed is reported.
        All outcomes are linearized, also those that change nothing. Raises LocationError for all commands at once:
        Indeterminate when they may have been committed, CannotApply when some of them alone might be.
        """
        try:
            # SUBTLE: wait_for may swallow a cancellation that meets the lock being freed; timeout does not.
            async with asyncio.timeout(deadline.remaining()):
                await self._committing.acquire()
        except TimeoutError:
            raise Determinate("deadline passed while waiting for earlier commits", shard=self.shard) from None
        try:
            return await self._commit(commands, deadline)
        finally:
            self._committing.release()

    async def _commit(self, commands: Sequence[AnyCommand], deadline: Deadline) -> list[AnyOutcome]:
        if self._version is None:
            await self.refresh(deadline)
        await self._versions.identity.settle(deadline)
        backoff = self._attempts.backoff(deadline)
        while True:
            self._versions.gate.check()
            base, begun = self._newest(), self._histories
            folded = self._fold(base.state, commands)
            if folded.successor is None:
                # Computed from what may be a stale cache: it counts only if nothing happened since.
                await self.refresh(deadline)
                if self._newest() is base:
                    return folded.outcomes
                continue
            if await self._compare_and_set(base, folded.data, deadline):
                checksum, head = crc32c(folded.data), folded.data[:HEAD_BYTES]
                assert folded.change is not None
                if self._install(Version(state=folded.successor, diff_checksum=checksum, head=head), begun):
                    self.on_commit(folded.change)
                return folded.outcomes
            self._counts.count(CONFLICTS)
            await self.refresh(deadline)
            if self._newest() is base and not await backoff.pause():
                raise Determinate("lost every race for a commit", shard=self.shard, hint="retry")

    def _newest(self) -> Version:
        assert self._version is not None
        return self._version

    def _fold(self, base: State, commands: Sequence[AnyCommand]) -> Folded:
        context = self._context()
        state, outcomes = base, []
        for command in commands:
            try:
                state, outcome = apply(state, command, context)
            except PersistError as error:
                outcome = error
            except Exception as error:
                # Applying is pure: nothing happened, and it says nothing about the other commands.
                outcome = self._unforeseen.of(command, error)
            outcomes.append(outcome)
        if state is base:
            return Folded(None, None, b"", outcomes)
        try:
            successor = finish(base, state, context)
            check_cheap(base, successor)
            change = diff(base, successor)
            return Folded(successor, change, encode_diff(change, self.shard), outcomes)
        except PersistError:
            raise
        except Exception as error:
            raise self._unforeseen.together(error) from error

    def bounds(self, state: State) -> Bounds:
        """What a compaction takes on at a state."""
        return self._context().bounds(state)

    def _context(self) -> Context:
        return Context(
            now_ms=self._runtime.now_ms(),
            format=self._versions.gate.format,
            hostname=self._runtime.hostname,
            owner=self.owner,
            compactor=self.compactor,
            compaction_takeover_ms=self._settings.compaction_takeover_ms,
            compaction_parts_max=self._settings.compaction_parts_max,
            compaction_step_parts_max=self._settings.compaction_step_parts_max,
            inline_total_bytes_max=self._settings.inline_total_bytes_max,
            parts_per_append_max=self._settings.parts_per_append_max,
            shard_batches_max=self._settings.shard_batches_max,
            shard_parts_max=self._settings.shard_parts_max,
            rollup_every=self._settings.rollup_every,
            gc_versions_max=self._settings.gc_versions_max,
        )

    def _install(self, version: Version, begun: int) -> bool:
        """Know this version, unless a newer one is known; whether it is of the history that is known then.

        ``begun``: what ``_histories`` was when that was asked for which this is the answer to.
        """
        known = self._version
        is_other = known is None or version.state.incarnation != known.state.incarnation
        # SUBTLE: what began before a restore may end long after it, when the newer history is known. Seqnos of two
        # histories cannot be compared: which is the newer one shows only in what was known when this began.
        if is_other and begun != self._histories:
            return False
        if known is not None and not is_other and version.seqno <= known.seqno:
            return True
        self._histories += is_other
        self._version = version
        if version.replaced or self.replaced:
            newest = max(version.state.rollups, default=0)
            noted = version.replaced if is_other else (*self.replaced, *version.replaced)
            self.replaced = tuple([each for each in noted if each > newest])
        self.on_install(self.shard)
        if is_other:
            self.on_history(version.state)
        if known is None or _stirs(version.state, known.state):
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()
        return True

    async def _compare_and_set(self, base: Version, data: bytes, deadline: Deadline) -> bool:
        """Whether ``data`` was committed after ``base``, for ever. Raises LocationError when that stays unknown.

        SUBTLE: after that very diff, not only its seqno, to which a restored history may just have come.
        """
        expected = base.seqno
        backoff = self._attempts.backoff(deadline)
        maybe_applied = False
        while True:
            failure: LocationError = Indeterminate("another attempt's answer was lost", shard=self.shard, hint="retry")
            try:
                timeout = deadline.slice(self._settings.store_timeout_ms)
                if await self._versions.consensus.compare_and_set(
                    self.shard, expected, data, after=base.head, timeout=timeout
                ):
                    return True
                if not maybe_applied:
                    return False
            except Indeterminate as error:
                maybe_applied, failure = True, error
            except LocationError as error:
                if not maybe_applied:
                    raise
                failure = unsure(error)
            except UnsafeConfiguration as error:
                if maybe_applied:
                    raise unsure(error) from error
                raise
            stands = await self._stands(expected + 1, data, deadline)
            if stands is not None:
                return stands
            # Nothing stands there yet, and it may still arrive: writing the same bytes again settles it, whichever
            # comes first.
            if not await backoff.pause():
                raise failure

    async def _stands(self, seqno: int, data: bytes, deadline: Deadline) -> bool | None:
        """Whether ``data`` is the entry at ``seqno``; None while there is none. Raises Indeterminate."""

        async def call(seconds: float) -> list[Entry]:
            return await self._versions.consensus.scan(self.shard, seqno, 1, timeout=seconds)

        try:
            entries = await self._attempts.read(deadline, call, limit_ms=self._settings.store_timeout_ms)
        except (LocationError, UnsafeConfiguration) as error:
            # What stands in the stores' place now says nothing of what stood there.
            raise unsure(error) from error
        if not entries:
            return None
        if entries[0].seqno != seqno:
            # Already truncated: only the state's sessions know.
            raise Indeterminate("the commit's answer was lost and its diff is gone", shard=self.shard, hint="retry")
        return entries[0].data == data
