"""Cursor: the updates of a collection, taken over step by step, without loss across whatever restarts.

A position p says: all times before p were taken over. Going on from p is reading the times from p on, without a
snapshot, which needs the collection to be held at p - 1: the cursor's hold is there once p is acknowledged.
Source: catalog-semantics.md section 3.2, resume contract; collections: cursors.
"""

import asyncio
import re
from collections.abc import Awaitable
from typing import Final, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from persist.client.collections.naming import name_of
from persist.client.collections.reading.choosing import AskedTime, AtOneTime
from persist.client.collections.reading.inputs import Held, Names
from persist.client.collections.reading.reads import Reads, columns_of, lost_index
from persist.client.collections.reading.subscribing import Completing
from persist.client.collections.sinks.delivering import deliver
from persist.client.collections.sinks.port import Fetched, Target
from persist.client.shard.handles import Stays
from persist.client.shard.location import Location
from persist.client.shard.receiver import Receiver, receiver
from persist.client.shard.same_history import restored
from persist.client.timeline.register import seconds
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.ddl.statements import Acknowledge, QualifiedName
from persist.core.catalog.values import ObjectType
from persist.core.data.schema import TS
from persist.core.data.update import consolidate
from persist.core.frontier import TIME_MAX, Antichain, check_time
from persist.core.time.isolation import Isolation
from persist.core.time.read_time import AsOf
from persist.errors import HistoryRewound, InvalidArgument, LeaseExpired, NotReadable, UsageError
from persist.retry.deadline import Deadline

LOOK_SECONDS: Final = 0.1
"""Between two looks for news while a fetch waits."""
LEASE_SECONDS: Final = 30.0
"""After so long nothing is held for a subscriber that died, but by the cursor."""
_WHOLE: Final = re.compile(r"\s*(?:select\s+\*\s+from\s+)?(\S.*?)\s*;?\s*", re.IGNORECASE | re.DOTALL)


class Execute(Protocol):
    """Has a statement executed by the leader."""

    def __call__(self, statement: Acknowledge, /, *, timeout: float | None = None) -> Awaitable[object]:
        """Raises as ``Environment.execute``."""
        ...


class Cursor(Stays):
    """One subscriber's way along a cursor. An async context manager; a fetch at a time.

    It begins where the cursor was acknowledged up to, at the time of opening, or at ``position``, where the subscriber
    keeps its own. Positions are explicit: each opened cursor goes its own way, and several of one name each see all
    updates. Acknowledging only moves what is kept, and never back: who then begins before it is refused, unless what it
    asks for is still there. So two subscribers of one name cannot lose anything without an error; that their effects do
    not double is for the target to see to, which keeps the position with them: see ``persist.sinks``.
    """

    def __init__(
        self,
        reads: Reads,
        execute: Execute,
        item: Described,
        of: Described,
        position: int | None,
        acknowledged: int | None,
        found: AtOneTime,
        history: int,
    ) -> None:
        """``open_cursor`` makes them. ``history``: of the collection, whichever shard answers for it."""
        self._reads = reads
        self._history = history
        self._execute = execute
        self._item = item
        self._of = of
        self._position = self._begun = position
        self._acknowledged = acknowledged
        self._found = found
        self._rows: pa.Table | None = None
        self._until = 0
        self._given: tuple[Receiver, int | None] | None = None
        self._turn = asyncio.Lock()
        self._rests = False

    @property
    def name(self) -> str:
        """The full name of the cursor."""
        return str(self._item.name)

    @property
    def collection(self) -> str:
        """The full name of what it follows."""
        return str(self._of.name)

    @property
    def key(self) -> str:
        """What a target knows it by: its name, and what it follows, which another cursor of this name may not. A sink
        by its id: renamed it is the same one, and made anew it is another. Beside ``history``: after a restore the
        target has what that took back, and its position says nothing of what came instead."""
        name = f"sink {self._item.id}" if self._item.kind is ObjectType.SINK else self._item.name
        return f"{name} over {self._of.data}"

    @property
    def history(self) -> int:
        """Which of the histories of its location it follows: a restore begins another. Kept beside a position."""
        return self._history

    @property
    def location(self) -> Location:
        """Where it reads."""
        return self._reads.readers.location

    @property
    def begins_at(self) -> int:
        """The time of the contents with which the next fetch begins; without them the time before its position."""
        return self._found.ts if self.position is None else max(self.position - 1, 0)

    @property
    def position(self) -> int | None:
        """Where the next fetch goes on: all times before were fetched. None: it begins with the contents."""
        self._look()
        return self._position

    @property
    def schema(self) -> pa.Schema:
        """The columns of updates."""
        assert self._of.schema is not None
        return self._of.schema.updates

    async def fetch(self, count: int | None = None, *, timeout: float = 0.0) -> Fetched:
        """The next updates: all there are now, after the contents if it begins there; or whole times with ``count``
        updates at least, if there are so many.

        Waits up to ``timeout`` seconds for some; without any it returns how far the collection is complete. Nothing is
        acknowledged by it. A fetch that failed, was cancelled or interrupted gave nothing, and is repeated. Raises
        NotReadable (what the cursor had held is gone; details say from when on there is something), UnknownObject (it
        was dropped), LocationError.
        """
        if count is not None and count < 1:
            raise InvalidArgument("at least one update is fetched", hint="count from 1, or None for all", got=count)
        location = self._reads.readers.location
        patience = Deadline(location.runtime, max(timeout, 0.0))
        async with self._turn:
            self._look()
            while True:
                fetched = await self._fetched(count)
                if fetched.updates.num_rows or fetched.before is None or patience.passed:
                    self._take(fetched)
                    return fetched
                self._rows = None  # what there is then is read again
                await location.runtime.sleep(min(LOOK_SECONDS, max(patience.remaining(), 0.001)))

    async def acknowledge(self, up_to: int | None = None, *, timeout: float | None = None) -> None:
        """All times before ``up_to``, by default all that was fetched, were taken over, and need not be kept.

        Never beyond what was fetched here. Returning means it is durable. Raises InvalidArgument, and what the leader
        refuses it with.
        """
        position = self.position
        to = position if up_to is None else up_to
        if to is None or position is None or to > position:
            raise InvalidArgument(
                "only what was fetched can be acknowledged", hint="fetch first", up_to=to, position=position
            )
        await self._execute(Acknowledge(self._item.name, to, str(self._item.id)), timeout=timeout)
        self._acknowledged = max(to, self._acknowledged or 0)
        async with self._turn:
            await self._let_go(to)

    @property
    def acknowledged(self) -> int | None:
        """Up to where the cursor was acknowledged when this was opened, or has been since, here."""
        return self._acknowledged

    @property
    def over(self) -> bool:
        """Nothing more will ever come: the collection was closed, and all of it was fetched."""
        return self.position == TIME_MAX

    async def seek(self, position: int | None) -> None:
        """Go on from a position that the subscriber keeps; None: begin with the contents, at the time of the hold.

        Raises as ``open_cursor``; then this stays where it is.
        """
        async with self._turn:
            if position == self.position:
                return
            if position is None:
                at = (await self._reads.names(strict=True)).hold(self._item.id).at
            else:
                at = max(check_time(position) - 1, 0)
            await self._hold(at)
            self._go_back(position)

    async def deliver(
        self,
        target: Target,
        *,
        up_to: int | None = None,
        idle: float | None = None,
        count: int = 10_000,
        acknowledge_seconds: float = 1.0,
    ) -> int | None:
        """Write every update into a target once, whatever dies meanwhile, and acknowledge what is there.

        The target keeps the position with the updates, in one transaction, and begins from its own. For ever; or until
        all times before ``up_to`` are there; or until none came for ``idle`` seconds. ``count``: updates in one
        transaction, more where one time has more. The position that the target has then. Raises PositionMoved (another
        process writes there), InvalidArgument (it has nothing of what was acknowledged), and as ``fetch``.
        """
        runtime = self.location.runtime
        return await deliver(
            self, target, runtime, up_to=up_to, idle=idle, count=count, acknowledge_seconds=acknowledge_seconds
        )

    async def rest(self) -> None:
        """Hold nothing here until the next fetch, for a caller that may come back late or never.

        What was not acknowledged the cursor itself keeps. If others acknowledge further than this has come, the next
        fetch is NotReadable.
        """
        async with self._turn:
            if not self._rests:
                self._rests = True
                await self._found.release()

    async def aclose(self) -> None:
        """Release what this process holds; the cursor itself stays. Closing again does nothing."""
        if not self._rests:
            await self._found.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Cursor {self.name} over {self.collection} position={self._position}>"

    async def _fetched(self, count: int | None) -> Fetched:
        """SUBTLE: a dropped collection ends like one that was closed, and would be taken for whole. So does an index
        that was dropped, of which the collection itself, or another index, goes on.
        """
        while True:
            try:
                fetched = await self._next(count)
            except UsageError:
                if not await self._has_lost_index():
                    raise
            else:
                if fetched.position != TIME_MAX or not await self._has_lost_index():
                    return fetched
            await self._hold_instead()

    async def _has_lost_index(self) -> bool:
        return await self._reads.has_lost(self._found.held[self._of.id], self._item)

    async def _hold_instead(self) -> None:
        lost, self._rows = self._found.held[self._of.id], None
        try:
            await self._hold(self.begins_at)
        except NotReadable as error:
            raise lost_index(lost, **error.details) from error

    async def _next(self, count: int | None) -> Fetched:
        if self._rows is None or count is None:
            await self._load_held(count)
        rows, until = self._rows, self._until
        assert rows is not None
        if count is not None and count < rows.num_rows:
            last = rows.column(TS.name)[count - 1].as_py()
            whole = rows.filter(pc.less_equal(rows.column(TS.name), last))
            if whole.num_rows < rows.num_rows:
                rows, until = whole, last + 1
        return Fetched(rows, self._position, until)

    def _take(self, fetched: Fetched) -> None:
        assert self._rows is not None
        rest = self._rows.slice(fetched.updates.num_rows)
        self._rows = rest if rest.num_rows else None
        to = receiver()
        if to is None:
            self._given = None
        elif self._given is None or self._given[0] is not to:
            # What one call fetched step by step, as a text with several FETCH does, is returned together.
            self._given = to, self._position
        self._position = fetched.position

    def _go_back(self, position: int | None) -> None:
        """To where this was: what was fetched since reached no caller. No RPC."""
        self._given, self._position, self._rows = None, position, None

    def _look(self) -> None:
        """SUBTLE: what was fetched for another thread is not there yet when it is returned: an interrupt may meet it on
        its way. Then no caller has it, and to go on behind it would acknowledge it.
        """
        if self._given is None:
            return
        to, before = self._given
        if to.left and not to.took:
            self._go_back(before)
        elif to.took:
            self._given = None

    async def _load_held(self, count: int | None) -> None:
        """``_load``, under another lease as often as one ended: what the cursor's own hold keeps is still there.

        A process that sleeps, or whose machine is busy, for longer than its lease does so more than once.
        """
        attempts = self._reads.readers.location.attempts
        backoff = attempts.backoff(attempts.deadline(None))
        if self._rests:
            await self._hold(self.begins_at)
        while True:
            try:
                return await self._load(count)
            except LeaseExpired:
                self._reads.readers.forget()
                if not await backoff.pause():
                    raise
            await self._hold(self.begins_at)

    async def _hold(self, at: int) -> None:
        """Hold the collection at a time. Raises LeaseExpired once it is another history than where this was opened."""
        names = await self._reads.names(strict=True)
        before, found = self._found, await _held(self._reads, names, self._of, at)
        try:
            if await _history(self._reads, found, self._of) != self._history:
                raise restored(found.held[self._of.id].reader.shard)
        except BaseException:
            await found.release()
            raise
        self._found = found
        rested, self._rests = self._rests, False
        if not rested:
            await before.release()

    async def _load(self, count: int | None) -> None:
        """Read what comes after the position: all of it, or as many batches as hold ``count`` updates."""
        held = self._found.held[self._of.id]
        location = self._reads.readers.location
        deadline = location.attempts.deadline(None)
        columns = columns_of(held, None)
        if self._position is None:
            await self._reads.readers.reach(self._found, deadline)
            read = await self._reads.readers.snapshots(self._found, deadline)
            contents = await read.snapshots[self._of.id].to_arrow(columns)
            times = pa.repeat(pa.scalar(self._found.ts, TS.type), contents.num_rows)
            self._rows = self._known(contents.append_column(TS, times))
            self._until = self._found.ts + 1
            if count is None:
                contents_now = self._rows
                await self._load_changes(held, self._until, None, deadline)
                self._rows = pa.concat_tables([contents_now, self._rows])
            return
        await self._load_changes(held, self._position, count, deadline)

    async def _load_changes(self, held: Held, position: int, count: int | None, deadline: Deadline) -> None:
        """Read what is complete from ``position`` on."""
        columns = columns_of(held, None)
        completing: Completing | None = await self._reads.completing(held, deadline)
        if completing is not None:
            await completing.once(deadline)
        begin = Antichain.of(position)
        batches = await held.reader.changes_since(begin, timeout=seconds(deadline))
        until, rows = begin, 0
        for batch in batches:
            until, rows = batch.upper, rows + batch.rows
            if count is not None and rows >= count:
                break
        if until == begin:
            self._rows, self._until = self.schema.empty_table(), position
            return
        changes = await (await held.reader.diffs(begin, until, timeout=seconds(deadline))).to_arrow(columns)
        self._rows = self._known(changes).sort_by(TS.name)
        self._until = TIME_MAX if until.time is None else until.time

    def _known(self, updates: pa.Table) -> pa.Table:
        """The updates with the columns that the cursor has. What differs in those alone that were added since is one
        row here, and that one became the other no change.
        """
        known = updates.select(self.schema.names)
        if known.num_columns == updates.num_columns:
            return known
        assert self._of.schema is not None
        return consolidate(known, self._of.schema)

    async def _let_go(self, up_to: int) -> None:
        if self._rests:
            return
        held = self._found.held[self._of.id]
        try:
            await held.reader.downgrade_since(max(up_to - 1, 0))
        except LeaseExpired:
            return  # the next fetch opens another one


async def open_cursor(
    reads: Reads,
    execute: Execute,
    name: str | QualifiedName,
    *,
    position: int | None = None,
    history: int | None = None,
) -> Cursor:
    """A subscriber's way along a cursor, from ``position`` on, or from where the cursor was acknowledged up to.

    Raises UnknownObject, PrivilegeMissing, InvalidArgument (no cursor; it follows more than one collection as a whole),
    NotReadable and BelowHold (what comes after the position is gone), HistoryRewound (``history`` is over).
    """
    names = await reads.names(strict=True)
    item = names.resolve(name_of(name), reads.session)
    if item.kind not in (ObjectType.CURSOR, ObjectType.SINK):
        raise InvalidArgument("this is no cursor", hint="CREATE CURSOR makes one", name=item.name, kind=item.kind)
    of = _followed(names, item)
    reads.check_may_read(names, of)
    while True:
        acknowledged = names.acknowledged(item.id)
        begin = acknowledged if position is None else position
        at = names.hold(item.id).at if begin is None else max(begin - 1, 0)
        try:
            found = await _held(reads, names, of, at)
            try:
                current = await _history(reads, found, of)
                _check_history(history, current, item)
            except BaseException:
                await found.release()
                raise
            return Cursor(reads, execute, item, of, begin, acknowledged, found, current)
        except NotReadable:
            # Of a subscriber that was there before a last acknowledgement may have come between looking and holding.
            names = await reads.names(strict=True)
            if position is not None or names.acknowledged(item.id) == acknowledged:
                raise


def _check_history(history: int | None, current: int, item: Described) -> None:
    if history is not None and history != current:
        raise HistoryRewound(
            "the location was restored from a backup since this position was kept",
            hint="what is before it may have been taken back: make a new cursor, which begins with the contents",
            cursor=item.name,
        )


async def _held(reads: Reads, names: Names, of: Described, at: int) -> AtOneTime:
    # What was committed by then is complete or is waited for; which time it is was decided when the cursor was made.
    location = reads.readers.location
    # What the cursor's own hold keeps needs no lease: what is fetched does, and who dies leaves it behind.
    lease = min(LEASE_SECONDS, location.settings.reader_lease_ms / 1000)
    asked = AskedTime(as_of=AsOf(at), isolation=Isolation.SERIALIZABLE, purpose="cursor", lease=lease)
    found = await reads.readers.held(names, [of], asked, location.attempts.deadline(None))
    # SUBTLE: a lease begins at the shard's since. Subscribers that are killed and started again within a lease would
    # hand that on to each other for ever.
    try:
        await found.held[of.id].reader.downgrade_since(at)
    except LeaseExpired:
        pass  # the next fetch opens another one
    except BaseException:
        await found.release()
        raise
    return found


async def _history(reads: Reads, found: AtOneTime, of: Described) -> int:
    """Of the collection itself: an index that stands in for it may have been made in a later one. One RPC then."""
    reader, location = found.held[of.id].reader, reads.readers.location
    shard = reader.shard if of.data is None else of.data
    if reader.shard == shard:
        return reader.incarnation
    info = await location.attempts.repeat(
        location.attempts.deadline(None),
        lambda seconds: location.shards.open(shard, create=False, timeout=seconds),
    )
    return info.incarnation


def _followed(names: Names, item: Described) -> Described:
    """The one collection that a cursor follows."""
    read = [names.get(id) for id in item.depends_on]
    found = _WHOLE.fullmatch(item.query) if item.query else None
    whole = not item.query or (found is not None and _names(found[1], read))
    if len(read) != 1 or not whole or read[0].data is None:
        raise InvalidArgument(
            "a cursor follows one stored collection as a whole",
            hint="make a materialized view of the query, and a cursor over that",
            cursor=item.name,
            query=item.query,
        )
    # It goes on with the columns that it was made of.
    return read[0].narrowed(item.known)


def _names(text: str, read: list[Described]) -> bool:
    try:
        name = name_of(text)
    except InvalidArgument:
        return False
    given = tuple(part for part in name if part is not None)
    return all(each.name[: len(given)] == given for each in read)
