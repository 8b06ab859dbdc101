"""One shard in this process: its newest known state, and the loop that moves it.

Commands are folded into one successor state and committed with one compare-and-set; losing the race means catching up
and folding again. A compare-and-set whose answer was lost is resolved by reading back what stands at its seqno.
Source: design 001, state machine; persist-semantics.md section 2.2; reliability.md I1-I4.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from persist.core.ids import ShardId
from persist.core.shard.commands import AnyCommand
from persist.core.shard.diff import diff
from persist.core.shard.invariants import check_cheap
from persist.core.shard.state import State
from persist.core.shard.transitions.apply import apply, finish
from persist.core.shard.transitions.dispatch import Context
from persist.errors import (
    Determinate,
    Indeterminate,
    LocationError,
    LocationReplaced,
    PersistError,
    ShardNotFound,
)
from persist.machine.unforeseen import Unforeseen
from persist.machine.versions import Version, Versions
from persist.retry.attempts import Attempts, unsure
from persist.retry.counts import UNCOUNTED, Counts
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Entry
from persist.typed import AnyOutcome
from persist.wire.checksum import crc32c
from persist.wire.frame import HEAD_BYTES
from persist.wire.state import encode_diff


@dataclass(frozen=True, slots=True)
class Folded:
    """What a fold of commands came to: the successor (None: nothing to commit), the diff to it as it is written, and
    each command's outcome or error."""

    successor: State | None
    data: bytes
    outcomes: list[Any]


def _newer(state: State, known: State) -> bool:
    """Whether it is to take the place of the known one. Seqnos of two histories say nothing of each other."""
    return state.seqno > known.seqno or state.incarnation != known.incarnation


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
        self.on_commit: Callable[[], None] = lambda: None
        """Called after every commit of this process."""
        self._versions = versions
        self._settings = settings
        self._runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)
        self._unforeseen = Unforeseen(runtime, counts)
        self._committing = asyncio.Lock()
        self._version: Version | None = None
        self._moved = asyncio.Event()

    @property
    def cached(self) -> State | None:
        """The newest state this process knows, perhaps not the newest there is."""
        return self._version.state if self._version else None

    async def refresh(self, deadline: Deadline, *, create: bool = False) -> State:
        """The newest state there is: linearizable. Raises ShardNotFound unless ``create``."""
        try:
            found = await self._found(deadline, create=create)
        except LocationReplaced:
            # What stands there now may be of another location.
            self._versions.identity.forget()
            raise
        if found is None:
            raise ShardNotFound("no such shard here", hint="check the id and the location", shard=self.shard)
        self._install(found)
        return found.state

    async def _found(self, deadline: Deadline, *, create: bool) -> Version | None:
        known = self._version
        if known is not None:
            return await self._versions.catch_up(known, deadline)
        found = await self._versions.load(self.shard, deadline)
        return await self._versions.initialise(self.shard, deadline) if found is None and create else found

    async def moved_past(self, state: State) -> None:
        """Return once this process knows a newer state, or one of another history."""
        while self._version is None or not _newer(self._version.state, state):
            await self._moved.wait()

    async def commit(self, commands: Sequence[AnyCommand], deadline: Deadline) -> list[AnyOutcome]:
        """Apply the commands in order with one commit. Each result is an outcome, or a PersistError for that command.

        One attempt: a lost race is run again and a compare-and-set in doubt resolved, but one that failed is told. All
        outcomes are linearized, also those that change nothing. Raises LocationError for all commands at once:
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
        except LocationReplaced:
            self._versions.identity.forget()
            raise
        finally:
            self._committing.release()

    async def _commit(self, commands: Sequence[AnyCommand], deadline: Deadline) -> list[AnyOutcome]:
        if self._version is None:
            await self.refresh(deadline)
        await self._versions.identity.settle(deadline)
        backoff = self._attempts.backoff(deadline)
        while True:
            self._versions.gate.check()
            base = self._newest()
            folded = self._fold(base.state, commands)
            if folded.successor is None:
                # Computed from what may be a stale cache: it counts only if nothing happened since.
                await self.refresh(deadline)
                if self._newest() is base:
                    return folded.outcomes
                continue
            if await self._compare_and_set(base, folded.data, deadline):
                checksum, head = crc32c(folded.data), folded.data[:HEAD_BYTES]
                self._install(Version(state=folded.successor, diff_checksum=checksum, head=head))
                self.on_commit()
                return folded.outcomes
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
            return Folded(None, b"", outcomes)
        try:
            successor = finish(base, state, context)
            check_cheap(base, successor)
            return Folded(successor, encode_diff(diff(base, successor), self.shard), outcomes)
        except PersistError:
            raise
        except Exception as error:
            raise self._unforeseen.together(error) from error

    def _context(self) -> Context:
        return Context(
            now_ms=self._runtime.now_ms(),
            format=self._versions.gate.format,
            hostname=self._runtime.hostname,
            owner=self.owner,
            compactor=self.compactor,
            compaction_takeover_ms=self._settings.compaction_takeover_ms,
            inline_total_bytes_max=self._settings.inline_total_bytes_max,
            parts_per_append_max=self._settings.parts_per_append_max,
            rollup_every=self._settings.rollup_every,
            gc_versions_max=self._settings.gc_versions_max,
        )

    def _install(self, version: Version) -> None:
        if self._version is not None and not _newer(version.state, self._version.state):
            return
        self._version = version
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _compare_and_set(self, base: Version, data: bytes, deadline: Deadline) -> bool:
        """Whether ``data`` stands after ``base`` for ever. Raises LocationError when that stays unknown.

        SUBTLE: after that very diff, not only its seqno, to which a restored history may just have come.
        """
        expected = base.seqno
        backoff = self._attempts.backoff(deadline)
        doubtful = False
        while True:
            failure: LocationError = Indeterminate("another attempt's answer was lost", shard=self.shard, hint="retry")
            try:
                timeout = deadline.slice(self._settings.store_timeout_ms)
                if await self._versions.consensus.compare_and_set(
                    self.shard, expected, data, after=base.head, timeout=timeout
                ):
                    return True
                if not doubtful:
                    return False
            except Indeterminate as error:
                doubtful, failure = True, error
            except LocationError as error:
                if not doubtful:
                    raise
                failure = unsure(error)
            stands = await self._stands(expected + 1, data, deadline)
            if stands is not None:
                return stands
            # Nothing stands there yet, and it may still arrive: the same bytes again settle it, whoever comes first.
            if not await backoff.pause():
                raise failure

    async def _stands(self, seqno: int, data: bytes, deadline: Deadline) -> bool | None:
        """Whether ``data`` is what stands at ``seqno``; None while nothing does. Raises Indeterminate."""

        async def call(seconds: float) -> list[Entry]:
            return await self._versions.consensus.scan(self.shard, seqno, 1, timeout=seconds)

        try:
            entries = await self._attempts.read(deadline, call, limit_ms=self._settings.store_timeout_ms)
        except LocationError as error:
            raise unsure(error) from error
        if not entries:
            return None
        if entries[0].seqno != seqno:
            # Already truncated: only the state's sessions can tell.
            raise Indeterminate("the commit's answer was lost and its diff is gone", shard=self.shard, hint="retry")
        return entries[0].data == data
