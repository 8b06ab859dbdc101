"""One materialized view at work: its query is computed at its refresh times, and the difference appended.

Nothing is remembered but what its shard holds. A result that cannot be had (a division by zero) ends nothing: the view
stays complete up to there, and goes on at its next refresh time at which the query can be answered. Of one that fell
behind further than its history is retained the refresh times before that are left out, and cannot be read: unless a
hold or a reader still asks for them.
Source: collections: queries (materialized view, plain); design 004, description.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from persist.client.collections.views.difference import difference
from persist.client.collections.views.feeding import Feeding, FeedingClient, horizon
from persist.client.collections.views.kept import GivesUp, KeptRows, StillReadable
from persist.client.collections.views.query import QueryAt, QueryFailed, QueryRunner, Refresher
from persist.client.collections.views.times import Until, last_refresh, next_refresh, plan, refreshed_at
from persist.core.catalog.control.controlled import EVERYTHING
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.ddl.statements import Refresh
from persist.core.catalog.values import Id, KnownColumns, Retain
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.errors import NotReadable

QUERIES_MAX: Final = 100
"""Of one pass: the next one looks anew at what is complete, and at what has to be computed still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewDefinition:
    """``inputs``: the stored collections that the query reads; ``items``: see ``QueryAt``.

    ``asks_time``: its rows differ from time to time even if no input changes. ``known``: see ``QueryAt``.
    """

    shard: ShardId
    schema: Schema
    query: str
    refresh: Refresh
    inputs: Mapping[Id, ShardId]
    items: tuple[Described, ...]
    asks_time: bool = False
    known: tuple[KnownColumns, ...] = ()
    retain: Retain = EVERYTHING


class Recomputing:
    """A Refresher that has the rows of a view in memory, before and after."""

    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner

    async def refresh(self, asked: QueryAt, kept: KeptRows, lower: int, upper: int | None) -> bool:
        """See Refresher."""
        new = await self._runner.run(asked)
        current = await kept.contents(lower) if lower else None
        return await kept.append(difference(new, current, kept.schema, asked.as_of), lower, upper)

    def close(self) -> None:
        """Release the runner."""
        self._runner.close()


@dataclass(frozen=True, slots=True)
class Passed:
    """What one pass did. ``upper``: of what is computed; ``queries`` run, ``appended`` results.

    ``failed``: why it does not go on at its refresh time ``upper``; empty while it does.
    """

    upper: Antichain
    queries: int = 0
    appended: int = 0
    failed: str = ""


class MaterializedView:
    """Of one process. Any number of processes may do the same."""

    def __init__(
        self,
        client: FeedingClient,
        definition: ViewDefinition,
        refresher: Refresher,
        gives_up: GivesUp | None = None,
    ) -> None:
        self.definition = definition
        self._refresher = refresher
        self._kept = KeptRows(client, definition.shard, definition.schema, gives_up)
        self._inputs = {id: Feeding(client, shard) for id, shard in definition.inputs.items()}
        self._failures: dict[int, str] = {}

    async def work(self) -> Passed:
        """Compute what can be computed now. May be cancelled at any point, and repeated.

        Raises LocationError, LeaseExpired (again, anew), NotReadable (an input was given up before it was read).
        """
        upper = await self._kept.upper()
        if upper.time is None:
            return Passed(upper)
        complete = await horizon(self._inputs.values())
        late = self._late(complete)
        try:
            passed = await self._work(upper.time, complete, late)
        except StillReadable as held:
            passed = await self._work(upper.time, complete, refreshed_at(self.definition.refresh, held.since))
        await self._release(passed.upper)
        return passed

    def _late(self, complete: Antichain) -> int:
        """The refresh time that shows at the earliest time that is retained, of what is complete by now."""
        by = self.definition.retain.by
        if by is None or complete.time is None:
            return 0
        return refreshed_at(self.definition.refresh, max(0, complete.time - max(by, 1)))

    async def _work(self, upper: int, complete: Antichain, late: int) -> Passed:
        """``late``: what is before that is left out, if no reader can read it."""
        begun = Passed(Antichain.of(upper))
        if not upper:
            self._kept.leave_out(late, complete)
            begun = await self._begin(complete, late)
            if not begun.upper.time:
                return begun
        time = begun.upper.time or upper
        after = max(time, late)
        if any([await each.since() > after for each in self._inputs.values()]):
            # Who gave up that much of its own history, and ended before it went on from there.
            after = max(after, refreshed_at(self.definition.refresh, await self._kept.since()))
        self._kept.leave_out(after, complete)
        self._failures = {time: why for time, why in self._failures.items() if time >= after}
        changes = await self._changes(after, complete)
        if after > time:
            changes.add(after)
        steps = plan(after, complete.time, self.definition.refresh, changes, always=self.definition.asks_time)
        passed = await self._carry(time, steps)
        return replace(passed, queries=begun.queries + passed.queries, appended=begun.appended + passed.appended)

    async def close(self) -> None:
        """Release the inputs."""
        for each in self._inputs.values():
            await each.close()
        self._kept.forget()

    async def _begin(self, complete: Antichain, late: int) -> Passed:
        """The first result, at the time from which on its shard is to be readable."""
        time = max(await self._kept.since(), late)
        if complete.time is not None and complete.time <= time:
            return Passed(Antichain.of(0))
        for id, each in self._inputs.items():
            since = await each.since()
            if since > time:
                raise NotReadable(
                    "an input cannot be read any more at the time at which the view is to begin",
                    hint="drop the view and create it again",
                    input=id,
                    since=since,
                    begins=time,
                )
        after = None if not self._inputs else next_refresh(self.definition.refresh, time + 1)
        return await self._carry(0, [Until(time, after)])

    async def _changes(self, upper: int, complete: Antichain) -> set[int]:
        """Times of changes since the last refresh. Where that cannot be seen any more, the next refresh time is one."""
        refresh = self.definition.refresh
        after, changes = last_refresh(refresh, upper), set[int]()
        single = next_refresh(refresh, upper + 1)
        for each in self._inputs.values():
            lower = after + 1
            if (since := await each.since()) >= lower:
                changes.add(upper)
                lower = since + 1
            if complete.time is not None and complete.time <= single:
                if await each.changed(lower):
                    changes.add(upper)
            else:
                changes |= await each.change_times(lower)
        return changes

    async def _carry(self, upper: int, steps: Iterable[Until]) -> Passed:
        at: Antichain = Antichain.of(upper)
        queries = appended = 0
        failed = ""
        for step in steps:
            lower = at.time or 0
            if step.at is None:
                was_first = await self._kept.append(None, lower, step.upper)
            else:
                failed = self._failures.get(step.at, "")
                if failed:
                    continue
                if queries == QUERIES_MAX:
                    break
                queries += 1
                try:
                    was_first = await self._refresher.refresh(await self._asked(step.at), self._kept, lower, step.upper)
                except QueryFailed as error:
                    failed = self._failures[step.at] = str(error)
                    continue
            if not was_first:
                # Another process was first, with the same: from where that is.
                return Passed(await self._kept.upper(), queries, appended)
            appended += 1
            at = Antichain(()) if step.upper is None else Antichain.of(step.upper)
        self._failures = {time: why for time, why in self._failures.items() if at.time is not None and time >= at.time}
        return Passed(at, queries, appended, failed)

    async def _asked(self, time: int) -> QueryAt:
        definition = self.definition
        inputs = {id: await each.snapshot(time) for id, each in self._inputs.items()}
        return QueryAt(
            query=definition.query, as_of=time, items=definition.items, known=definition.known, inputs=inputs
        )

    async def _release(self, upper: Antichain) -> None:
        """Inputs are read from the last refresh time on, so that what changed since can be computed."""
        if upper.time is None:
            return
        time = max(0, last_refresh(self.definition.refresh, upper.time))
        for each in self._inputs.values():
            await each.release(time)
