"""Reads of names: what an environment reads, explains and subscribes to, for one session.

Source: collections: readers, queries.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from persist.client.collections.in_time import within
from persist.client.collections.naming import name_of
from persist.client.collections.reading.choosing import AskedTime, AtOneTime, Readers, timed
from persist.client.collections.reading.contents import Contents
from persist.client.collections.reading.explaining import Explanation
from persist.client.collections.reading.inputs import KEPT_UP, Held, Names, is_computed
from persist.client.collections.reading.lagging import fed, needed
from persist.client.collections.reading.subscribing import (
    Attending,
    Completing,
    CompletingTables,
    Followed,
    Subscription,
)
from persist.client.shard.times import TimeLike, time_of
from persist.client.table.table import Table
from persist.client.timeline.register import seconds
from persist.core.catalog.ddl.described import Described, Session
from persist.core.catalog.ddl.privileges import check_may
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import UnknownObject
from persist.core.catalog.values import Space
from persist.core.data.predicate import PredicateLike
from persist.core.data.schema import DIFF, TS, Schema
from persist.core.ids import ShardId
from persist.core.time.isolation import Isolation
from persist.core.time.read_time import AsOf
from persist.core.time.timeline import Timeline
from persist.errors import InvalidArgument, NotReadable, StoreReadOnly
from persist.retry.deadline import Deadline
from persist.storage.open import READ_ONLY

NameLike = str | QualifiedName
STRICT: Final = Isolation.STRICT_SERIALIZABLE


class Reads:
    """Reads by name and time. ``names``: the catalog as it is known, or, if that is asked for, as it is now."""

    def __init__(
        self,
        readers: Readers,
        names: Callable[[bool], Awaitable[Names]],
        session: Session,
    ) -> None:
        self.readers = readers
        self.session = session
        self._names = names

    async def names(self, *, strict: bool) -> Names:
        """The catalog; ``strict``: with all that was committed before this call."""
        return await self._names(strict)

    async def _view(self, deadline: Deadline) -> Names:
        async with within(deadline):
            return await self.names(strict=True)

    def resolve(self, names: Names, name: NameLike) -> Described:
        """The item of a name, which the session's role may read. Raises UnknownObject, PrivilegeMissing."""
        found = names.resolve(name_of(name), self.session)
        self.check_may_read(names, found)
        return found

    def check_may_read(self, names: Names, item: Described) -> None:
        """Raise PrivilegeMissing unless the session's role may. What the system has every role may read."""
        if isinstance(names, CatalogView) and item.id.space is not Space.SYSTEM:
            check_may(names, names.role(self.session.role), "r", item.kind, str(item.name), item)

    async def check_there(self, *items: Described) -> Names:
        """The names as of now. Raises UnknownObject when one of these was dropped: that is no end of its updates."""
        names = await self.names(strict=True)
        for item in items:
            try:
                names.get(item.id)
            except UnknownObject:
                raise UnknownObject(
                    "this was dropped while it was followed",
                    hint="what was committed just before may be missing; what has its name now begins anew",
                    name=item.name,
                    kind=item.kind,
                ) from None
        return names

    async def has_lost(self, held: Held, *more: Described) -> bool:
        """Whether an index answered that was dropped: its end is not that of what it answered for.

        Raises as ``check_there``, for what it answered for and for ``more``.
        """
        names = await self.check_there(held.stands_for, *more)
        try:
            names.get(held.described.id)
        except UnknownObject:
            return True
        return False

    async def read(
        self,
        name: NameLike,
        *,
        as_of: TimeLike | None = None,
        at_least: TimeLike | None = None,
        isolation: Isolation | str = STRICT,
        columns: Sequence[str] | None = None,
        where: PredicateLike = None,
        timeout: float | None = None,
    ) -> Contents:
        """The rows of a name at one time. See ``Environment.read``."""
        (contents,) = await self._read(
            [name], self._asked(as_of, at_least, isolation), columns=columns, where=where, timeout=timeout
        )
        return contents

    async def read_together(
        self,
        names: Sequence[NameLike],
        *,
        as_of: TimeLike | None = None,
        at_least: TimeLike | None = None,
        isolation: Isolation | str = STRICT,
        timeout: float | None = None,
    ) -> dict[str, Contents]:
        """The rows of several names at one time, by the names given. See ``Environment.read_together``."""
        found = await self._read(names, self._asked(as_of, at_least, isolation), timeout=timeout)
        return {str(name): contents for name, contents in zip(names, found, strict=True)}

    async def explain(
        self,
        names: Sequence[NameLike],
        *,
        as_of: TimeLike | None = None,
        at_least: TimeLike | None = None,
        isolation: Isolation | str = STRICT,
        timeout: float | None = None,
    ) -> Explanation:
        """The time at which these would be read together now, and why. Raises as ``read_together``."""
        deadline = self.readers.location.attempts.deadline(timeout)
        view = await self._view(deadline)
        roots = [self.resolve(view, name) for name in names]
        asked = self._asked(as_of, at_least, isolation)
        return await self.readers.explain(view, roots, asked, timeout=seconds(deadline))

    async def subscribe(
        self,
        name: NameLike,
        *,
        as_of: TimeLike | None = None,
        at_least: TimeLike | None = None,
        isolation: Isolation | str = STRICT,
        snapshot: bool = True,
        progress: bool = True,
        up_to: int | None = None,
        columns: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> Subscription:
        """The rows of a name at a time, and its updates from then on. See ``Environment.subscribe``."""
        deadline = self.readers.location.attempts.deadline(timeout)
        view = await self._view(deadline)
        root = self.resolve(view, name)
        timed(view, [root])
        _check_rows(root)
        if is_computed(root):
            raise InvalidArgument("what the system computes has no updates", hint="read it again", name=root.name)
        if self.readers.location.home == READ_ONLY:
            raise StoreReadOnly(
                "nothing is followed in a location that is only read", hint="read it, or follow the original"
            )
        asked = self._asked(as_of, at_least, isolation, purpose="subscription")
        found = await self.readers.held(view, [root], asked, deadline)
        try:
            wanted = {} if up_to is None else needed(fed(view, root, up_to - 1))
            return await self._subscribed(found, root, snapshot, progress, up_to, wanted, columns, deadline)
        except BaseException:
            await found.release()
            raise

    async def _subscribed(
        self,
        found: AtOneTime,
        root: Described,
        snapshot: bool,
        progress: bool,
        up_to: int | None,
        wanted: Mapping[ShardId, int],
        columns: Sequence[str] | None,
        deadline: Deadline,
    ) -> Subscription:
        held = found.held[root.id]
        if up_to is not None and up_to <= found.ts:
            raise InvalidArgument("UP TO lies before the time it begins at", up_to=up_to, as_of=found.ts)
        chosen = columns_of(held, columns)
        schema = held.reader.schema
        if chosen is not None:
            unknown = [name for name in chosen if name not in _names_of(held.described)]
            if unknown:
                raise InvalidArgument("no such column", hint=", ".join(_names_of(held.described)), columns=unknown)

        async def instead(followed: Followed, at: int | None, *, snapshot: bool) -> Followed | None:
            if await self.has_lost(followed.held):
                return await self._followed_instead(followed.held, at, snapshot, up_to)
            return None

        return Subscription(
            await self._followed(found, root, snapshot, up_to, deadline),
            found.explanation,
            instead=instead,
            # These, to its end: columns may be added while it runs.
            shown=schema.updates if chosen is None else _updates(schema, chosen),
            snapshot=snapshot,
            progress=progress,
            up_to=up_to,
            unless_stalled=partial(self.readers.location.stalls.unless_stalled, wanted),
        )

    async def _followed(
        self, found: AtOneTime, root: Described, snapshot: bool, up_to: int | None, deadline: Deadline
    ) -> Followed:
        held = found.held[root.id]
        if snapshot:
            await self.readers.reach(found, deadline)
            # SUBTLE: the timeout of the handle's call ends a subscription without news, too. This is what it waits for.
            await self.readers.snapshots(found, deadline)
            async with within(deadline):
                listen = await held.reader.subscribe(found.ts, downgrade=True)
        else:
            async with within(deadline):
                listen = await held.reader.listen(found.ts, downgrade=True)
        return Followed(held, listen, await self.completing(held, deadline, up_to))

    async def _followed_instead(self, lost: Held, at: int | None, snapshot: bool, up_to: int | None) -> Followed:
        """What answers from ``at`` on in the place of an index that was dropped. Raises NotReadable."""
        root, deadline = lost.stands_for, self.readers.location.attempts.deadline(None)
        if at is None:
            raise lost_index(lost)  # nothing else has its updates in the order in which some of them were given
        asked = AskedTime(as_of=AsOf(at), isolation=Isolation.SERIALIZABLE, purpose="subscription")
        try:
            found = await self.readers.held(await self.names(strict=True), [root], asked, deadline)
        except NotReadable as error:
            raise lost_index(lost, **error.details) from error
        try:
            return await self._followed(found, root, snapshot, up_to, deadline)
        except BaseException:
            await found.release()
            raise

    async def completing(self, held: Held, deadline: Deadline, up_to: int | None = None) -> Completing | None:
        """What brings a collection forward, for a reader that waits for its updates; None: something else does."""
        runtime = self.readers.location.runtime
        if held.described.kind in KEPT_UP:
            inputs = await self._completing(await self.readers.beneath([held], deadline), None)
            async with within(deadline):
                names = await self.names(strict=False)
            ticked = partial(self.readers.ticked, names, held)
            return Attending(self.readers.attend, ticked, held, runtime, inputs)
        if held.table is None:
            return None
        (tables,) = await self._completing([held.table], up_to)
        return tables

    async def _completing(self, tables: Iterable[Table], up_to: int | None) -> list[CompletingTables]:
        by_timeline: dict[Timeline, list[Table]] = {}
        for each in tables:
            by_timeline.setdefault(each.timeline, []).append(each)
        runtime = self.readers.location.runtime
        return [
            CompletingTables(each, await self.readers.oracle(timeline), runtime, up_to)
            for timeline, each in by_timeline.items()
        ]

    async def _read(
        self,
        names: Sequence[NameLike],
        asked: AskedTime,
        *,
        columns: Sequence[str] | None = None,
        where: PredicateLike = None,
        timeout: float | None,
    ) -> list[Contents]:
        deadline = self.readers.location.attempts.deadline(timeout)
        view = await self._view(deadline)
        roots = [self.resolve(view, name) for name in names]
        timed(view, roots)
        for root in roots:
            _check_rows(root)
        found = await self.readers.at_one_time(view, roots, asked, timeout=seconds(deadline))
        try:
            return [self._contents(found, root, columns, where) for root in roots]
        except BaseException:
            await found.release()
            raise

    def _contents(
        self, found: AtOneTime, root: Described, columns: Sequence[str] | None, where: PredicateLike
    ) -> Contents:
        if (rows := found.computed.get(root.id)) is not None:
            return Contents(root.name, rows, found.explanation, _nothing, columns=columns, where=where)
        held = found.held[root.id]
        return Contents(
            root.name,
            found.snapshots[root.id],
            found.explanation,
            held.expire,
            shard=held.described.data,
            columns=columns_of(held, columns),
            where=where,
        )

    def _asked(
        self,
        as_of: TimeLike | None,
        at_least: TimeLike | None,
        isolation: Isolation | str,
        purpose: str = "query",
    ) -> AskedTime:
        if as_of is not None and at_least is not None:
            raise InvalidArgument("AS OF is exact, AT LEAST is a bound", hint="give one of as_of and at_least")
        given = as_of if as_of is not None else at_least
        time = None if given is None else time_of(given, self.readers.location.runtime.now_ms())
        return AskedTime(
            as_of=None if time is None else AsOf(time, at_least=at_least is not None),
            isolation=isolation_of(isolation),
            purpose=purpose,
            role=self.session.role,
        )


def lost_index(held: Held, **details: object) -> NotReadable:
    """The error where an index that answered was dropped, and nothing else has what it would have given next."""
    return NotReadable(
        "the index that answered for this was dropped, and nothing else can go on where it came to",
        hint="begin anew, with the contents; a hold on the collection itself keeps what an index has beyond it",
        **{**details, "object": held.stands_for.name, "index": held.described.name},
    )


async def _nothing() -> None:
    """Nothing is held."""


def isolation_of(given: Isolation | str) -> Isolation:
    """The isolation of this name. Raises InvalidArgument."""
    try:
        return Isolation(given)
    except ValueError:
        hint = " or ".join(each.value for each in Isolation)
        raise InvalidArgument("no such isolation", hint=hint, got=repr(given)[:80]) from None


def _check_rows(root: Described) -> None:
    if root.data is None and not is_computed(root):
        raise InvalidArgument(
            "this has no stored rows of its own",
            hint="read a view by sql(), or make a materialized view of it",
            name=root.name,
            kind=root.kind,
        )


def _updates(schema: Schema, columns: Sequence[str]) -> pa.Schema:
    """The columns of updates that show these columns, in this order."""
    return pa.schema([schema.updates.field(name) for name in (*columns, TS.name, DIFF.name)])


def columns_of(held: Held, columns: Sequence[str] | None) -> list[str] | None:
    """The columns to read; of an index that answers for another item the columns of that, in its order."""
    if columns is not None:
        return list(columns)
    return None if held.described.id == held.stands_for.id else _names_of(held.stands_for)


def _names_of(described: Described) -> list[str]:
    schema = described.schema
    return [] if schema is None else [*schema.key.names, *schema.val.names]
