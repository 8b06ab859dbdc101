"""Subscription: what a collection holds at a time, and every update after it, as it happens. Held while it runs.

Source: catalog-semantics.md section 3.2, resume contract; design 000.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from persist.client.collections.reading.explaining import Explanation
from persist.client.collections.reading.inputs import Held
from persist.client.shard.handles import Stays
from persist.client.shard.read.listen import Event, Listen, Progress, Updates
from persist.client.timeline.register import seconds
from persist.core.data.schema import TS
from persist.core.frontier import Antichain
from persist.errors import LocationError, PersistError, UsageError
from persist.retry.tasks import ended

if TYPE_CHECKING:
    from persist.client.table.table import Table
    from persist.client.timeline.oracle import Oracle
    from persist.retry.deadline import Deadline
    from persist.runtime import Runtime

COMPLETED_SECONDS: Final = 0.25
"""Between two looks whether a table, which nothing else may complete, has rows that were committed and not returned."""
ATTENDED_SECONDS: Final = 1.0
"""Between two looks whether a process leads."""


class Completing(Protocol):
    """What brings a collection forward for a reader that waits for its updates: else none might ever come."""

    async def once(self, deadline: "Deadline") -> None:
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

    async def once(self, deadline: "Deadline") -> None:
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
        self, attend: Callable[[], Awaitable[None]], runtime: "Runtime", inputs: Sequence[CompletingTables] = ()
    ) -> None:
        """``attend`` sees that a process leads; raises nothing."""
        self._attend = attend
        self._runtime = runtime
        self._inputs = inputs

    async def once(self, deadline: "Deadline") -> None:
        """A process leads, where any may, and has all there is by now."""
        await self._attend()
        for each in self._inputs:
            await each.once(deadline)

    async def run(self) -> None:
        """Until it is cancelled. Failures of the location pass; raises what does not."""
        while True:
            await self._attend()
            for each in self._inputs:
                await each.step()
            await self._runtime.sleep(ATTENDED_SECONDS)


class Subscription(Stays):
    """The updates of one collection: Updates of rows with ts and diff, and Progress, for ever, or up to ``up_to``.

    An async iterator, one step at a time. Progress p says that every update at a time before p has been given; updates
    at p may still come. To go on later read ``AS OF p - 1`` without the snapshot, which a cursor does by itself. It
    ends with the collection, and raises UnknownObject where that was dropped. Close it, or use it as a context manager:
    until then it holds the collection, from one step before the last Progress on.
    """

    def __init__(
        self,
        held: Held,
        listen: Listen,
        explanation: Explanation,
        *,
        completing: Completing | None,
        at_end: Callable[[], Awaitable[None]],
        shown: pa.Schema,
        progress: bool,
        up_to: int | None,
    ) -> None:
        """``at_end`` is asked where nothing more can come: it raises, unless that is the end of the collection.
        ``shown``: the columns of updates.
        """
        self._held = held
        self._at_end = at_end
        self._listen = listen
        self._explanation = explanation
        self._shown = shown
        self._progress = progress
        self._up_to = up_to
        self._failure: PersistError | None = None
        self._over = False
        self._completing = asyncio.create_task(self._complete(completing)) if completing is not None else None

    @property
    def name(self) -> str:
        """The full name of the collection."""
        return str(self._held.stands_for.name)

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
        return self._listen.frontier

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._over:
            try:
                event = await anext(self._listen)
            except UsageError as closed:
                await self._at_end()
                raise self._failure or closed from None
            if isinstance(event, Progress) and event.upper.is_empty:
                await self._at_end()
            if (given := self._given(event)) is not None:
                return given
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End it, and release what it holds. Closing again does nothing. Raises nothing."""
        if self._completing is not None:
            await ended(self._completing)
        await self._listen.aclose()
        await self._held.expire()

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

    async def _complete(self, completing: Completing) -> None:
        try:
            await completing.run()
        except PersistError as error:
            # A reader that waits would wait for ever.
            self._failure = error
            await self._listen.aclose()


def _as_shown(updates: pa.Table, shown: pa.Schema) -> pa.Table:
    """Updates with these columns, null in those that were added after they were written. Each comes as its schema was
    when it was read.
    """
    if updates.schema.names == shown.names:
        return updates
    there = set(updates.schema.names)
    columns = [
        updates.column(field.name) if field.name in there else pa.nulls(updates.num_rows, field.type) for field in shown
    ]
    return pa.Table.from_arrays(columns, schema=shown)
