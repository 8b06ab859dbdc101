"""The one way to a time: what is read together is of one timeline, held, and read at one time of it.

Every path that reads goes through ``Readers.at_one_time``: queries, reads of names, subscriptions, cursors, EXPLAIN.
Source: collections: queries; catalog-semantics.md sections 3.2 and 6.2; design 004.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from persist.client.collections.access import Access
from persist.client.collections.in_time import within
from persist.client.collections.reading.computed import computed
from persist.client.collections.reading.explaining import Explanation
from persist.client.collections.reading.frozen import Overlaid
from persist.client.collections.reading.in_memory import Computed
from persist.client.collections.reading.inputs import (
    KEPT_UP,
    Held,
    Names,
    Tables,
    brought,
    hold,
    is_computed,
    made_of,
    stored,
)
from persist.client.collections.reading.lagging import SAID_AFTER_SECONDS, Lagging, fed, lagging, needed, shown_at
from persist.client.collections.reading.ticking import ATTENDED_SECONDS, PATIENCE_SECONDS, Attended, Ticks, nowhere
from persist.client.shard.read.snapshot import Snapshot
from persist.client.table.table import Table
from persist.client.timeline.oracle import Oracle
from persist.client.timeline.register import seconds
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.values import Id, ObjectType
from persist.core.frontier import Antichain
from persist.core.time.collections import TimelineContext, reached, timeline_context, timeline_read_in
from persist.core.time.isolation import Isolation
from persist.core.time.read_time import AsOf, Choice, Query, choose, readable_at
from persist.core.time.timeline import EPOCH_MILLISECONDS, Timeline
from persist.errors import (
    ExportStalled,
    LeaseExpired,
    NotReadable,
    NotYetAvailable,
    PersistError,
    ShardNotFound,
    StoreReadOnly,
)
from persist.retry.deadline import Backoff, Deadline
from persist.retry.tasks import ended

T = TypeVar("T")
CHOICES: Final = 8
"""Times chosen for one query before it is an error: again only when rows moved behind the one that was chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTime:
    """What a query asks of its time. ``transaction``: the timeline of the transaction that it is in, if that has one.

    ``recency``: the time by which all is here that was upstream when this was asked. ``purpose``: what its leases say.
    ``lease``: seconds after which they are gone when this process is; None: as the settings have it. ``role``: who
    asks; empty: one who may read nothing.
    """

    as_of: AsOf | None = None
    isolation: Isolation = Isolation.STRICT_SERIALIZABLE
    transaction: Timeline | None = None
    recency: int | None = None
    purpose: str = "query"
    lease: float | None = None
    role: str = ""


@dataclass(frozen=True, slots=True)
class AtOneTime:
    """Collections that are held, and the one time at which they are read. ``context``: what time that takes."""

    explanation: Explanation
    context: TimelineContext
    held: Mapping[Id, Held] = field(default_factory=dict)
    snapshots: Mapping[Id, Snapshot | Overlaid] = field(default_factory=dict)
    """The contents at the time, by the id of what was asked for; nothing where it was only explained."""
    computed: Mapping[Id, Computed] = field(default_factory=dict)
    """The rows that the system computes, as they are now."""

    @property
    def ts(self) -> int:
        """The time."""
        return self.explanation.query_ts

    async def release(self) -> None:
        """Release all of it; what was read is read."""
        await asyncio.gather(*(each.expire() for each in self.held.values()))


def timed(names: Names, roots: Iterable[Described]) -> TimelineContext:
    """What time it takes to read these together. Raises MultipleTimelines, which names each object and the way to it.

    No RPC: what cannot be read together is refused before anything is waited for.
    """
    return timeline_context(names.timed(), [str(root.id) for root in roots])


def _wanted_by_nothing(_: Collection[Id]) -> None:
    """Nothing is brought forward here."""


class Readers:
    """Reads of one client by name and time. Safe for many tasks."""

    def __init__(
        self,
        access: Access,
        attend: Callable[[], Awaitable[Attended]] = nowhere,
        unattended: Callable[[], Awaitable[Attended]] = nowhere,
        want: Callable[[Collection[Id]], None] = _wanted_by_nothing,
    ) -> None:
        """``attend`` sees that a process leads, where one may: only a leader keeps up views and indexes, or who reads
        them. ``unattended``, ``want``: see ``Bringing``.
        """
        self.location = access.client.location
        self.attend = attend
        self._unattended = unattended
        self._want = want
        self._ticks = Ticks(self.location, attend, unattended)
        self.told: Callable[[Lagging], None] = _nobody
        """Called with what a read waits for, once it has waited for a while."""
        self._access = access
        self._tables = Tables(access)

    @asynccontextmanager
    async def reading(
        self, names: Names, roots: Sequence[Described], asked: AskedTime, *, timeout: float | None = None
    ) -> AsyncIterator[AtOneTime]:
        """``at_one_time``, released at the end of the block."""
        found = await self.at_one_time(names, roots, asked, timeout=timeout)
        try:
            yield found
        finally:
            await found.release()

    async def at_one_time(
        self, names: Names, roots: Sequence[Described], asked: AskedTime, *, timeout: float | None = None
    ) -> AtOneTime:
        """What is read when ``roots`` are read, held and complete at one time: that is in it which isolation demands.

        About five RPCs for each collection, those of all at once, and one to the oracle. Raises MultipleTimelines at
        once; BelowHold, HoldOverdue, NotReadable (an exact AS OF before what is kept; both boundaries are in details);
        NotYetAvailable (not complete in time; ``details['objects']`` names what lags); ShardClosed, ShardNotFound,
        InvalidArgument (it has no rows), LocationError.
        """
        return await self._read(names, roots, asked, self.location.attempts.deadline(timeout))

    async def explain(
        self, names: Names, roots: Sequence[Described], asked: AskedTime, *, timeout: float | None = None
    ) -> Explanation:
        """The time that would be read at now, and why, without waiting for it. Raises as ``at_one_time``."""
        deadline = self.location.attempts.deadline(timeout)
        found = await self.held(names, roots, asked, deadline, attended=False)
        await found.release()
        return found.explanation

    async def held(
        self,
        names: Names,
        roots: Sequence[Described],
        asked: AskedTime,
        deadline: Deadline,
        *,
        beside: Sequence[Described] = (),
        attended: bool = True,
    ) -> AtOneTime:
        """Held, and the time chosen, but not waited for: what subscriptions and transactions begin from.

        ``beside``: held as well, if it can be; the time is one at which that is readable, too. Raises as
        ``at_one_time``.
        """
        context = timed(names, roots)
        timeline = timeline_read_in(context, asked.transaction)
        inputs = stored(names, roots)
        if self._tables.are_frozen:
            # Nothing can be completed, so what is complete is read.
            asked = replace(asked, isolation=Isolation.SERIALIZABLE)
        exact = asked.as_of is not None and not asked.as_of.at_least
        await self._settled(names, inputs, deadline)
        shown = [each for each in _reached(names, roots) if is_computed(each)]
        if shown and exact:
            raise NotReadable(
                "what the system computes has no history",
                hint="read it without AS OF",
                objects=", ".join(str(each.name) for each in shown),
            )
        rows = {each.id: await computed(self._access.client, names, each, asked.role) for each in shown}
        held = await hold(self._tables, [(each, each) for each in inputs], deadline, asked.purpose, asked.lease)
        try:
            held += await self._held_beside(beside, inputs, asked, deadline)
            if exact:
                assert asked.as_of is not None
                held = await self._readable(names, held, asked.as_of.time, deadline, asked.purpose)
            choice = await self._chosen(names, context, timeline, held, asked, deadline)
            held = [_with_inputs(names, each, choice.query_ts) for each in held]
            behind = _kept_up_behind(held, choice.query_ts)
            if attended and behind:
                self._want(behind)
                await self.attend()
        except BaseException:
            await asyncio.gather(*(each.expire() for each in held))
            raise
        explanation = Explanation(
            choice=choice,
            timeline=timeline,
            isolation=asked.isolation,
            inputs=tuple(each.input for each in held if not each.is_beside),
            refreshed=tuple(_refreshed(held, choice.query_ts)),
        )
        return AtOneTime(explanation, context, {each.stands_for.id: each for each in held}, computed=rows)

    async def _settled(self, names: Names, inputs: Sequence[Described], deadline: Deadline) -> None:
        """See that no more rows come of statements of this client that ended without an answer, into what is read.

        Before the time is chosen: who looks for such rows and sees none may put them again. Raises Determinate.
        """
        if doubts := self._access.doubts:
            tables = [*inputs, *(each for one in inputs if one.kind in KEPT_UP for each in made_of(names, one))]
            shards = {each.data for each in tables if each.data is not None}
            await doubts.settle(shards, seconds(deadline))

    async def reach(self, found: AtOneTime, deadline: Deadline) -> int:
        """Wait until an answer at the time may be given, and complete the tables in it. See ``complete``."""
        behind = [each for each in found.held.values() if not each.upper.beyond(found.ts)]
        if self._tables.are_frozen and behind:
            raise NotYetAvailable(
                "this location is only read, and nothing in it becomes complete",
                hint="read at an earlier time, or without AS OF",
                as_of=found.ts,
                objects=", ".join(f"{each.stands_for.name} (upper {each.upper})" for each in behind),
            )
        await self._arrive(found, deadline)
        return await self.complete(found, found.ts, deadline)

    async def complete(self, found: AtOneTime, ts: int, deadline: Deadline) -> int:
        """Return once all tables in it are complete at ``ts``; the time to which rows moved that belong before it.

        Also those that what lies behind ``ts`` is computed from.
        """
        tables = [each.table for each in found.held.values() if each.table is not None]
        behind = (each for each in found.held.values() if not each.upper.beyond(ts))
        tables += await self.beneath(behind, deadline)
        moved = await asyncio.gather(*(table.complete_to(ts, timeout=seconds(deadline)) for table in tables))
        return max(moved, default=0)

    async def beneath(self, held: Iterable[Held], deadline: Deadline) -> list[Table]:
        """The tables that these are computed from, open."""
        below = {each.id: each for one in held for each in one.made_of}
        opened = await asyncio.gather(*(self._tables.get(each, deadline) for each in below.values()))
        return [table for table in opened if table is not None]

    async def ticked(self, names: Names, held: Held, deadline: Deadline) -> int | None:
        """The read time of what only a leader brings forward, if that had to be moved here: what is computed follows
        in a moment. None: it follows by itself, or nothing leads.
        """
        timeline = timeline_read_in(timed(names, [held.described]))
        if timeline is None or not timeline.has_clock:
            return None
        async with within(deadline):
            oracle = await self.oracle(timeline)
        before = await oracle.read_ts(timeout=seconds(deadline))
        after = await self._ticked(names, oracle, [held], before, deadline)
        return after if after > before else None

    def forget(self) -> None:
        """Open tables anew from now on: this process slept for longer than what they hold."""
        self._tables.forget()

    async def oracle(self, timeline: Timeline) -> Oracle:
        """The oracle of a timeline."""
        return await self._access.oracle_of(timeline)

    async def _read(
        self, names: Names, roots: Sequence[Described], asked: AskedTime, deadline: Deadline, tries: int = CHOICES
    ) -> AtOneTime:
        found = await self.held(names, roots, asked, deadline)
        try:
            choice = found.explanation.choice
            await self._wait_for_no_more(found, deadline)
            moved = await self.reach(found, deadline)
            exact = asked.as_of is not None and not asked.as_of.at_least
            if moved <= choice.query_ts or exact or not tries:
                return await self.snapshots(found, deadline)
        except LeaseExpired:
            self.forget()
            await found.release()
            if not tries:
                raise
        except BaseException:
            await found.release()
            raise
        else:
            # Rows that had been written by then were found to be later: they came behind a write past the log.
            await found.release()
        return await self._read(names, roots, asked, deadline, tries - 1)

    async def _wait_for_no_more(self, found: AtOneTime, deadline: Deadline) -> None:
        """What is computed, and is behind, may leave out what comes before the time that is read. One RPC each."""
        held = found.held.values()
        behind = [each for each in held if each.described.kind in KEPT_UP and not each.upper.beyond(found.ts)]
        await asyncio.gather(*(each.reader.downgrade_since(found.ts, timeout=seconds(deadline)) for each in behind))

    async def _held_beside(
        self, beside: Sequence[Described], inputs: Sequence[Described], asked: AskedTime, deadline: Deadline
    ) -> list[Held]:
        """Leases on these, without those that cannot be read at all, or not at the time that was asked for."""
        known = {each.id for each in inputs}
        wanted = [(each, each) for each in beside if each.id not in known]
        found = await hold(self._tables, wanted, deadline, asked.purpose, asked.lease, all_of_them=False)
        as_of = None if asked.as_of is None or asked.as_of.at_least else asked.as_of.time
        late = [each for each in found if each.reader.since.time is None or not readable(each, as_of)]
        await asyncio.gather(*(each.expire() for each in late))
        return [replace(each, is_beside=True) for each in found if each not in late]

    async def _readable(
        self, names: Names, held: list[Held], as_of: int, deadline: Deadline, purpose: str
    ) -> list[Held]:
        """The same, with indexes in the place of what does not reach back to ``as_of``. Raises NotReadable."""
        late = [each for each in held if not each.reader.since.less_equal_time(as_of)]
        instead: dict[Id, Held] = {}
        for each in late:
            wanted = [(index, each.described) for index in _indexes(names, each.described)]
            for index in await hold(self._tables, wanted, deadline, purpose) if wanted else []:
                if each.described.id not in instead and readable_at([index.input], as_of):
                    instead[each.described.id] = index
                else:
                    await index.expire()
        rest = [each for each in held if each.described.id not in instead]
        try:
            self._check_kept(names, rest, as_of)
        except PersistError:
            await asyncio.gather(*(each.expire() for each in instead.values()))
            raise
        await asyncio.gather(*(each.expire() for each in late if each.described.id in instead))
        return [instead.get(each.described.id, each) for each in held]

    def _check_kept(self, names: Names, held: Sequence[Held], as_of: int) -> None:
        """Raise as ``Holds.check_as_of`` for the first of these that is not kept readable at the time."""
        holds = names.holds({each.described.id: implied(each) for each in held})
        for each in held:
            holds.check_as_of(str(each.described.id), as_of, each.reader.since)
            if not each.reader.since.less_equal_time(as_of):
                raise NotReadable(
                    "this time is no longer readable",
                    hint="read from since on",
                    as_of=as_of,
                    object=each.described.name,
                    since=each.reader.since,
                    physical_since=each.reader.since,
                )

    async def _chosen(
        self,
        names: Names,
        context: TimelineContext,
        timeline: Timeline | None,
        held: Sequence[Held],
        asked: AskedTime,
        deadline: Deadline,
    ) -> Choice:
        query = Query(
            context=context,
            inputs=tuple(each.input for each in held),
            isolation=asked.isolation,
            as_of=asked.as_of,
            recency=asked.recency,
        )
        if query.needs_oracle:
            assert timeline is not None
            async with within(deadline):
                oracle = await self.oracle(timeline)
            if not timeline.has_clock:
                await self._observe(names, timeline, oracle, deadline)
            oracle_ts = await oracle.read_ts(timeout=seconds(deadline))
            if timeline.has_clock:
                if asked.as_of is None or asked.as_of.at_least:
                    oracle_ts = await self._ticked(names, oracle, held, oracle_ts, deadline)
                oracle_ts = await self._brought(oracle, held, oracle_ts, deadline)
            query = replace(query, oracle_ts=oracle_ts)
        return choose(query)

    async def _ticked(
        self, names: Names, oracle: Oracle, held: Sequence[Held], read_ts: int, deadline: Deadline
    ) -> int:
        """The read time, not long ago where views are read, also where no leader lives long enough to tick.

        No later than sources below have brought everything, where that is not yet: a read would wait for them.
        """
        read = [each.described for each in held if not each.is_beside]
        kept_up = [each.id for each in read if each.kind in KEPT_UP]
        if not kept_up:
            return read_ts
        self._want(kept_up)

        async def bound() -> int | None:
            shards = {below.data for each in read for below in brought(names, each)}
            asking = (self._access.client.recent_upper(each, timeout=seconds(deadline)) for each in shards if each)
            try:
                uppers = await asyncio.gather(*asking)
            except ShardNotFound:
                return read_ts  # of a source that has not begun nothing is complete
            return min((each.time - 1 for each in uppers if each.time is not None), default=None)

        refreshes = [each.refresh for each in read if each.refresh is not None]
        return await self._ticks.brought(oracle, read_ts, refreshes, bound, deadline)

    async def _brought(self, oracle: Oracle, held: Sequence[Held], read_ts: int, deadline: Deadline) -> int:
        """The read time with what sources have brought by now, where no leader drives it by the clock.

        So have writers that append to a table's shard directly, as Spark does. Applied before any read
        is answered at it, so that no later read goes back. Tables in a log are complete at any time.
        """
        uppers = [each.upper.time for each in held if not (each.is_beside or (each.table and each.table.wal))]
        complete = [time - 1 for time in uppers if time is not None]
        until = min([*complete, self.location.runtime.now_ms()])
        if not uppers or until <= read_ts:
            return read_ts
        with contextlib.suppress(StoreReadOnly):
            await oracle.apply_write(until, timeout=seconds(deadline))
            return until
        return read_ts

    async def _observe(self, names: Names, timeline: Timeline, oracle: Oracle, deadline: Deadline) -> None:
        """Drive a timeline without a clock by what its sources have brought, as a leader does, too.

        Tables are complete whenever a reader says so, and hold nothing up.
        """
        sources = [
            each.data
            for each in names.items()
            if each.data is not None and _timeline_of(names, each) == timeline and _brings_times(each)
        ]
        # A source that has not begun has no shard, and nothing is complete in it.
        with contextlib.suppress(ShardNotFound):
            await oracle.observe(sources, timeout=seconds(deadline))

    async def _arrive(self, found: AtOneTime, deadline: Deadline) -> None:
        """Wait until the answer may be given, and tables may be completed, at the time. Raises NotYetAvailable.

        A clock's times come by themselves: a reader that waits for one applies it when it has passed.
        """
        timeline, choice = found.explanation.timeline, found.explanation.choice
        behind = [each for each in found.held.values() if not each.upper.beyond(choice.query_ts)]
        tables = any(each.table is not None or each.made_of for each in behind)
        if timeline is None or (choice.answer_after is None and not tables):
            return
        if choice.oracle_ts is not None and choice.query_ts <= choice.oracle_ts:
            return
        async with within(deadline):
            oracle, runtime = await self.oracle(timeline), self.location.runtime
        backoff = Backoff(runtime, self.location.settings, deadline)
        while (read_ts := await oracle.read_ts(timeout=seconds(deadline))) < choice.query_ts:
            early = choice.query_ts - runtime.now_ms()
            if timeline.has_clock and early <= 0:
                await oracle.apply_write(choice.query_ts, timeout=seconds(deadline))
                return
            if (early / 1000 > deadline.remaining() and timeline.has_clock) or not await backoff.pause():
                raise NotYetAvailable(
                    "this time is still to come",
                    hint="wait longer, or read at the read time of the timeline",
                    as_of=choice.query_ts,
                    read_ts=read_ts,
                    timeline=timeline,
                )

    async def snapshots(self, found: AtOneTime, deadline: Deadline) -> AtOneTime:
        """The same with the contents at its time. Waits for them. Raises NotYetAvailable, which names what lags."""
        ids = list(found.held)
        ts = found.ts
        beside = [asyncio.create_task(each) for each in (self._say(found), self._attend_on(found))]
        try:
            answers = await self._unless_stalled(
                found,
                asyncio.gather(*(found.held[id].snapshot(ts, deadline) for id in ids), return_exceptions=True),
            )
        finally:
            await ended(*beside)
        late = [found.held[id] for id, each in zip(ids, answers, strict=True) if isinstance(each, NotYetAvailable)]
        other = [each for each in answers if isinstance(each, BaseException) and not isinstance(each, NotYetAvailable)]
        if other:
            raise other[0]
        # Each of them looks for itself, too.
        for each in answers:
            if isinstance(each, ExportStalled):
                raise _with_way_round(found, each)
        if late:
            why = await lagging(self._access.client, late, ts)
            raise NotYetAvailable(
                f"{', '.join(sorted(why.uppers))} not complete at this time yet",
                hint=f"{why.hint}; wait longer; or read with isolation serializable",
                as_of=ts,
                objects=why.objects,
                timeline=found.explanation.timeline,
            )
        contents = {id: each for id, each in zip(ids, answers, strict=True) if isinstance(each, Snapshot | Overlaid)}
        return replace(found, snapshots=contents)

    async def _unless_stalled(self, found: AtOneTime, waiting: Awaitable[T]) -> T:
        """What ``waiting`` gives. Raises ExportStalled where what sources feed of it does not come by itself."""
        wanted = needed(each for held in found.held.values() for each in held.fed)
        try:
            return await self.location.stalls.unless_stalled(wanted, waiting)
        except ExportStalled as error:
            raise _with_way_round(found, error) from None

    async def _attend_on(self, found: AtOneTime) -> None:
        """Who leads may end before it has brought forward what is waited for: then another one does, or this one."""
        behind, waited = _kept_up_behind(found.held.values(), found.ts), 0.0
        while behind:
            await self.location.runtime.sleep(ATTENDED_SECONDS)
            waited += ATTENDED_SECONDS
            self._want(behind)
            if await self.attend() is Attended.SILENT and waited >= PATIENCE_SECONDS:
                await self._unattended()

    async def _say(self, found: AtOneTime) -> None:
        """Report what the read waits for, when that takes long."""
        await self.location.runtime.sleep(SAID_AFTER_SECONDS)
        behind = [each for each in found.held.values() if not each.upper.beyond(found.ts)]
        if behind and self.told is not _nobody:
            self.told(await lagging(self._access.client, behind, found.ts))


def _kept_up_behind(held: Iterable[Held], ts: int) -> list[Id]:
    """Those of views and indexes that are not complete at a time."""
    return [each.described.id for each in held if each.described.kind in KEPT_UP and not each.upper.beyond(ts)]


def _with_way_round(found: AtOneTime, stall: ExportStalled) -> ExportStalled:
    """The error with what else a reader may do who did not name the time."""
    is_strict = found.explanation.choice.is_strict
    hint = f"{stall.hint}, or with isolation serializable" if is_strict else stall.hint
    return ExportStalled(stall.message, hint=hint, **stall.details)


def _nobody(_: Lagging) -> None:
    """No program shows it."""


def _with_inputs(names: Names, each: Held, ts: int) -> Held:
    below = made_of(names, each.described) if each.described.kind in KEPT_UP else ()
    return replace(each, made_of=below, fed=() if each.upper.beyond(ts) else fed(names, each.described, ts))


def _refreshed(held: Iterable[Held], ts: int) -> Iterator[tuple[str, int]]:
    for each in held:
        refresh = each.described.refresh
        if not each.is_beside and refresh is not None and refresh.every is not None:
            yield str(each.described.name), shown_at(each.described, ts)


def _reached(names: Names, roots: Iterable[Described]) -> list[Described]:
    """What is read when these are read, views and what they are made of among it."""
    return [names.get(Id.parse(each.id)) for each in reached(names.timed(), [str(root.id) for root in roots])]


def readable(held: Held, as_of: int | None) -> bool:
    """Whether it is readable at the time; None: at some time."""
    return as_of is None or readable_at([held.input], as_of) is not None


def implied(held: Held) -> Antichain:
    """From here on the policy of a collection keeps it readable, as a reader sees it: never before its since."""
    since, retain = held.reader.since, held.described.retain
    if retain is None or retain.by is None or held.upper.time is None:
        return since
    return since.join(Antichain.of(max(held.upper.time - 1 - retain.by, 0)))


def _indexes(names: Names, of: Described) -> list[Described]:
    """Those that have all columns of a collection: one that was made before a column was added has it not."""
    return [
        each
        for each in names.items(ObjectType.INDEX)
        if of.id in each.depends_on and each.data is not None and set(of.column_names) <= set(each.column_names)
    ]


def _brings_times(each: Described) -> bool:
    return each.kind is not ObjectType.TABLE or each.fed_by is not None


def _timeline_of(names: Names, each: Described) -> Timeline:
    if each.fed_by is not None:
        return names.get(each.fed_by).timeline or EPOCH_MILLISECONDS
    return each.timeline or EPOCH_MILLISECONDS
