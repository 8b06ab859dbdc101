"""Subscription: what a collection holds at a time, and every update after it, as it happens. Held while it runs.

Source: catalog-semantics.md section 3.2, resume contract; design 000.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from persist.client.collections.reading.explaining import Explanation
from persist.client.collections.reading.inputs import Held
from persist.client.collections.reading.ticking import ATTENDED_SECONDS, PATIENCE_SECONDS, Attended
from persist.client.shard.handles import Stays
from persist.client.shard.read.listen import Event, Listen, Progress, Updates
from persist.client.timeline.register import seconds
from persist.core.data.schema import TS
from persist.core.frontier import Antichain
from persist.errors import LeaseExpired, LocationError, NotYetAvailable, PersistError, UsageError
from persist.retry.deadline import Deadline
from persist.retry.tasks import ended

if TYPE_CHECKING:
    from persist.client.table.table import Table
    from persist.client.timeline.oracle import Oracle
    from persist.runtime import Runtime

COMPLETED_SECONDS: Final = 0.25
"""Between two looks whether a table, which nothing else may complete, has rows that were committed and not returned."""


class Completing(Protocol):
    """What brings a collection forward for a reader that waits for its updates: else none might ever come."""

    async def once(self, deadline: Deadline) -> None:
        """All is returned that there is by now, or will be."""
        ...

    async def run(self) -> None:
        """The same, time and again, until it is cancelled. Raises what does not pass."""
        ...


class CompletingTables:
    """Tables of one timeline are completed up to its read time."""

    def __init__(
        self, tables: "Sequence[Table]", oracle: "Oracle", runtime: "Runtime", up_to: int | None = None
    ) -> None:
        """``up_to``: who waits needs no time from there on, and all before it once a clock has passed it."""
        self._tables = tables
        self._oracle = oracle
        self._runtime = runtime
        self._last = None if up_to is None or not oracle.timeline.has_clock else up_to - 1

    async def once(self, deadline: Deadline) -> None:
        """All that had been committed is in the tables' shards."""
        ts = await self._oracle.read_ts(timeout=seconds(deadline))
        await asyncio.gather(*(table.complete_to(ts, timeout=seconds(deadline)) for table in self._tables))

    async def run(self) -> None:
        """Until it is cancelled. Failures of the location pass; raises what does not."""
        while True:
            await self.step()
            await self._runtime.sleep(COMPLETED_SECONDS)

    async def step(self) -> None:
        """As ``once``, unless the location does not answer."""
        with contextlib.suppress(LocationError):
            await self._pass()
            ts = await self._oracle.read_ts()
            await asyncio.gather(*(table.complete_to(ts) for table in self._tables))

    async def _pass(self) -> None:
        """A clock's times come by themselves: where no process leads and nothing is written, no tick says so."""
        if self._last is not None and self._last <= self._runtime.now_ms():
            await self._oracle.apply_write(self._last)
            self._last = None


class Attending:
    """What only a leader computes goes on as long as one leads: who led when this began may end any time.

    And as far as what it is computed from is complete, which ``inputs`` bring forward.
    """

    def __init__(
        self,
        attend: Callable[[], Awaitable[Attended]],
        ticked: Callable[[Deadline], Awaitable[int | None]],
        held: Held,
        runtime: "Runtime",
        inputs: Sequence[CompletingTables] = (),
    ) -> None:
        """``attend`` sees that a process leads; raises nothing. ``ticked``: see Readers."""
        self._attend = attend
        self._ticked = ticked
        self._held = held
        self._runtime = runtime
        self._inputs = inputs

    async def once(self, deadline: Deadline) -> None:
        """A process leads, where any may, and what it computes has all there was before it did, unless that takes
        long."""
        ts = await self._ticked(deadline)
        for each in self._inputs:
            await each.once(deadline)
        if ts is not None:
            patience = Deadline(self._runtime, min(PATIENCE_SECONDS, deadline.remaining()))
            with contextlib.suppress(NotYetAvailable):
                await self._held.snapshot(ts, patience)

    async def run(self) -> None:
        """Until it is cancelled. Failures of the location pass; raises what does not."""
        while True:
            if await self._attend() not in (Attended.NOWHERE, Attended.ELSEWHERE):
                # Where nothing leads who follows moves the time, too.
                with contextlib.suppress(LocationError):
                    await self._ticked(Deadline(self._runtime, 2 * PATIENCE_SECONDS))
            for each in self._inputs:
                await each.step()
            await self._runtime.sleep(ATTENDED_SECONDS)


@dataclass(frozen=True, slots=True)
class Followed:
    """What a subscription reads: its collection, or an index that answers. ``completing`` brings it forward."""

    held: Held
    listen: Listen
    completing: Completing | None

    async def close(self) -> None:
        """End it, and release what it holds. Raises nothing."""
        await self.listen.aclose()
        await self.held.expire()


class Instead(Protocol):
    """Asked where nothing more comes from what is followed."""

    async def __call__(self, followed: Followed, at: int | None, *, snapshot: bool) -> Followed | None:
        """What goes on with the updates after ``at``, after the contents then if ``snapshot``; None: nothing follows.

        ``at`` None: some updates at one time were given, and others not. Raises UnknownObject (the collection was
        dropped), NotReadable (nothing else has what comes next).
        """
        ...


class Subscription(Stays):
    """The updates of one collection: Updates of rows with ts and diff, and Progress, for ever, or up to ``up_to``.

    An async iterator, one step at a time. Progress p says that every update at a time before p has been given; updates
    at p may still come. To go on later read ``AS OF p - 1`` without the snapshot, which a cursor does by itself. It
    ends with the collection, and raises UnknownObject where that was dropped. An index that answered for it and was
    dropped is no end: the collection itself goes on from there, or NotReadable says that it does not reach back so far.
    With ``up_to`` it raises ExportStalled once it is clear that its end does not come by itself; to go on is no error.
    Close it, or use it as a context manager: until then it holds the collection, from one step before the last Progress
    on.
    """

    def __init__(
        self,
        followed: Followed,
        explanation: Explanation,
        *,
        instead: Instead,
        shown: pa.Schema,
        snapshot: bool,
        progress: bool,
        up_to: int | None,
        unless_stalled: Callable[[Awaitable[Event]], Awaitable[Event]],
    ) -> None:
        """``snapshot``: it begins with the contents. ``shown``: the columns of updates. ``unless_stalled``: gives what
        is waited for, or raises ExportStalled where ``up_to`` does not come by itself.
        """
        self._followed = followed
        self._instead = instead
        self._explanation = explanation
        self._shown = shown
        self._progress = progress
        self._up_to = up_to
        self._unless_stalled = unless_stalled
        self._frontier = Antichain.of(explanation.query_ts)
        self._snapshot = snapshot
        """No Progress has said yet that the contents were given."""
        self._amid = False
        """Updates were given that no Progress has passed yet."""
        self._failure: PersistError | None = None
        self._over = self._closed = False
        self._completing = self._brought(followed)

    @property
    def name(self) -> str:
        """The full name of the collection."""
        return str(self._followed.held.stands_for.name)

    @property
    def as_of(self) -> int:
        """The time it began at."""
        return self._explanation.query_ts

    @property
    def explanation(self) -> Explanation:
        """Why it began there: what EXPLAIN TIMESTAMP prints."""
        return self._explanation

    @property
    def frontier(self) -> Antichain:
        """Everything before has been given."""
        return self._frontier

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._over:
            try:
                event = await self._unless_stalled(anext(self._followed.listen))
            except StopAsyncIteration:
                # The step before found the end, and was interrupted while it looked what had ended.
                event = Progress(upper=Antichain())
            except (UsageError, LeaseExpired) as error:
                if not self._may_go_on(error) or not await self._goes_on():
                    raise self._failure or error from None
                continue
            if isinstance(event, Progress):
                if event.upper.is_empty and await self._goes_on():
                    continue
                self._frontier, self._amid, self._snapshot = event.upper, False, False
            else:
                self._amid = True
            if (given := self._given(event)) is not None:
                return given
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End it, and release what it holds. Closing again does nothing. Raises nothing."""
        self._closed = True
        if self._completing is not None:
            await ended(self._completing)
        await self._followed.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Subscription to {self.name} as of {self.as_of} frontier={self.frontier}>"

    def _given(self, event: Event) -> Event | None:
        """What is returned of it; None: nothing."""
        end = None if self._up_to is None else Antichain.of(self._up_to)
        if isinstance(event, Progress):
            upper = event.upper if end is None else event.upper.meet(end)
            self._over = upper == end or upper.is_empty
            return Progress(upper=upper) if self._progress else None
        table = event.table
        if self._up_to is not None:
            table = table.filter(pc.less(table.column(TS.name), self._up_to))
        return Updates(table=_as_shown(table, self._shown)) if table.num_rows else None

    def _may_go_on(self, error: PersistError) -> bool:
        """Whether something else may answer, after what is followed failed like this."""
        held = self._followed.held
        is_index = held.described.id != held.stands_for.id
        return not self._closed and (is_index or not isinstance(error, LeaseExpired))

    async def _goes_on(self) -> bool:
        """Whether something else answers from here on; False: that is the end of the collection. As ``Instead``.

        SUBTLE: interrupted before the end it changed nothing, and the next step asks again.
        """
        before, at = self._followed, self._explanation.query_ts
        if not self._snapshot and self._frontier.time is not None:
            at = max(self._frontier.time - 1, at)
        followed = await self._instead(before, None if self._amid else at, snapshot=self._snapshot)
        if followed is None:
            return False
        self._followed, self._failure = followed, None
        completing, self._completing = self._completing, None if self._closed else self._brought(followed)
        if completing is not None:
            await ended(completing)
        await before.close()
        if self._closed:
            await followed.close()
        return True

    def _brought(self, followed: Followed) -> "asyncio.Task[None] | None":
        completing = followed.completing
        return None if completing is None else asyncio.create_task(self._complete(followed.listen, completing))

    async def _complete(self, listen: Listen, completing: Completing) -> None:
        try:
            await completing.run()
        except PersistError as error:
            # A reader that waits would wait for ever.
            self._failure = error
            await listen.aclose()


def _as_shown(updates: pa.Table, shown: pa.Schema) -> pa.Table:
    """Updates with these columns, null in those that were added after they were written. Each comes as its schema was
    when it was read.
    """
    if updates.schema.equals(shown):
        return updates
    there = set(updates.schema.names)
    columns = [
        updates.column(field.name) if field.name in there else pa.nulls(updates.num_rows, field.type) for field in shown
    ]
    return pa.Table.from_arrays(columns, schema=shown)
