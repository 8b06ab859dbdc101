"""What a query reads: stored collections, each under a lease of its own, and the tables that have to be completed.

Source: collections: queries; catalog-semantics.md section 6.2, timestamp choice: holds before the choice.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from persist.client.collections.access import Access
from persist.client.collections.reading.frozen import Overlaid, Uncopied, overlaid, uncopied
from persist.client.shard.read.handle import ReadHandle
from persist.client.shard.read.snapshot import Snapshot
from persist.client.table.opening import open_table
from persist.client.table.table import Table
from persist.client.timeline.register import seconds
from persist.core.catalog.ddl.described import Described, Session
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.ddl.system_tables import BY_NAME, SystemCollection
from persist.core.catalog.values import Id, ObjectType, Space
from persist.core.frontier import CLOSED, Antichain
from persist.core.ids import ShardId
from persist.core.time.collections import TimedObject
from persist.core.time.hold import NamedHold
from persist.core.time.holds import Holds
from persist.core.time.read_time import Input
from persist.core.time.timeline import EPOCH_MILLISECONDS
from persist.errors import InvalidArgument, PersistError, ShardClosed, ShardNotFound
from persist.retry.deadline import Deadline
from persist.storage.open import READ_ONLY

RELEASE_SECONDS: Final = 5.0
"""For giving up a lease, which runs out by itself: beyond the time of the call that held it."""
PURPOSE = "query"
"""What leases of queries say of themselves."""
KEPT_UP: Final = frozenset({ObjectType.MATERIALIZED_VIEW, ObjectType.INDEX})
"""What only a leader brings forward."""


class Names(Protocol):
    """What reading needs of a catalog, at one version of it."""

    def resolve(self, name: QualifiedName, session: Session) -> Described:
        """The item of a name. Raises UnknownObject, with near names."""
        ...

    def get(self, id: Id) -> Described:
        """The item of an id."""
        ...

    def items(self, kind: ObjectType | None = None) -> Iterable[Described]:
        """All items, or those of a kind."""
        ...

    def timed(self) -> Mapping[str, TimedObject]:
        """All items as far as time is concerned, by the text of their ids."""
        ...

    def holds(self, implied: Mapping[Id, Antichain]) -> Holds:
        """All holds, over objects that their policies keep readable from ``implied`` on."""
        ...

    def hold(self, id: Id) -> NamedHold:
        """A hold, or that of a cursor."""
        ...

    def acknowledged(self, id: Id) -> int | None:
        """The position of a cursor; None: nothing was acknowledged."""
        ...


@dataclass(frozen=True, slots=True)
class Fed:
    """A collection that a source feeds, which another one is computed from, or is. ``time``: it shows then what the
    other one shows at the time that is read."""

    name: str
    source: str
    shard: ShardId
    time: int


@dataclass(frozen=True, slots=True)
class Held:
    """A stored collection under a lease: its since cannot pass that of ``reader``, nor its parts go.

    ``stands_for``: the item that was asked for, where an index answers for it. ``table``: for tables that are written
    by users, which readers complete; everything else is completed by what feeds it. ``made_of``: the tables that one
    is computed from, through whatever is between: it goes no further than they are complete.
    """

    described: Described
    stands_for: Described
    reader: ReadHandle
    upper: Antichain
    table: Table | None = None
    is_beside: bool = False
    """It is only held, and nothing waits for it."""
    made_of: tuple[Described, ...] = ()
    fed: tuple[Fed, ...] = ()
    """What sources feed of all that it is computed from, and itself, where it is behind."""
    rest: Uncopied | None = None
    """What its log has besides, where nothing may be written: see ``frozen``."""

    @property
    def input(self) -> Input:
        """What decides on the time."""
        upper = CLOSED if self.is_beside else self.upper
        return Input(id=str(self.stands_for.name), since=self.reader.since, upper=upper)

    async def snapshot(self, as_of: int, deadline: Deadline) -> Snapshot | Overlaid:
        """The contents at a time; waits for it. Raises NotYetAvailable, NotReadable, LeaseExpired, LocationError."""
        if self.rest is not None:
            return await overlaid(self.reader, self.rest, as_of, deadline)
        return await self.reader.snapshot(as_of, timeout=seconds(deadline))

    async def expire(self) -> None:
        """Release it. What fails runs out by itself."""
        with contextlib.suppress(PersistError):
            await self.reader.expire(timeout=RELEASE_SECONDS)


def stored(names: Names, roots: Iterable[Described]) -> list[Described]:
    """The collections that are read when ``roots`` are read, each once: what views are made of, the others themselves.

    Raises InvalidArgument for what has no rows.
    """
    return list({each.id: each for root in roots for each in _stored(names, root)}.values())


def _stored(names: Names, root: Described) -> Iterator[Described]:
    waiting, seen = [root], set[Id]()
    while waiting:
        each = waiting.pop()
        if each.id in seen:
            continue
        seen.add(each.id)
        if each.data is not None:
            yield each
        elif each.kind is ObjectType.VIEW:
            waiting.extend(names.get(id) for id in each.depends_on)
        elif each is root and not is_computed(each):
            raise InvalidArgument(
                "this has no rows to read", hint="name a table, source, view or index", name=each.name, kind=each.kind
            )


def made_of(names: Names, item: Described) -> tuple[Described, ...]:
    """The tables, written by users, that a materialized view or an index is computed from, however far below it.

    Who reads it completes them, as who reads them does: a leader has many tables, and comes to one at rest by turns.
    """
    return tuple(each for each in _leaves(names, item) if is_completed_by_readers(each))


def brought(names: Names, item: Described) -> tuple[Described, ...]:
    """What something else than readers and leaders brings forward of what an item is computed from, and itself."""
    return tuple(each for each in _leaves(names, item) if not is_completed_by_readers(each))


def _leaves(names: Names, item: Described) -> Iterator[Described]:
    """What is stored, and not computed, of what an item is made of, however far below it, each once; or itself."""
    waiting, seen = [item], {item.id}
    while waiting:
        each = waiting.pop()
        if each.data is not None and each.kind not in KEPT_UP:
            yield each
            continue
        below = [id for id in each.depends_on if id not in seen]
        seen.update(below)
        waiting.extend(names.get(id) for id in reversed(below))


def is_completed_by_readers(item: Described) -> bool:
    """Whether it is a table that users write: nothing else says how far it is complete."""
    return item.kind is ObjectType.TABLE and item.fed_by is None and item.data is not None


def is_computed(item: Described) -> bool:
    """Whether the system computes the rows of an item."""
    return item.data is None and item.id.space is Space.SYSTEM and collection_of(item) is not None


def collection_of(item: Described) -> SystemCollection | None:
    """The system collection that an item is."""
    schema = item.name.schema
    return None if schema is None else BY_NAME.get((schema, item.name.item))


class Tables:
    """The tables that queries of one client complete, opened once."""

    def __init__(self, access: Access) -> None:
        self.client = access.client
        self.are_frozen = access.client.location.home == READ_ONLY
        """Nothing is written here, so none is completed."""
        self._access = access
        self._opened: dict[ShardId, Table] = {}

    async def get(self, described: Described, deadline: Deadline) -> Table | None:
        """The table that an item is, for those that users write; None for everything else."""
        if not is_completed_by_readers(described) or self.are_frozen:
            return None
        assert described.data is not None
        known = self._opened.get(described.data)
        if known is None:
            timeline = described.timeline or EPOCH_MILLISECONDS
            known = self._opened[described.data] = await open_table(
                self.client,
                described.data,
                schema=None,
                timeline=timeline,
                mode="wal" if described.mode == "wal" else "direct",
                oracle_of=lambda timeout: self._access.oracle_of(timeline),
                log_of=lambda timeout: self._access.log_of(timeline),
                is_kept=True,
                is_keyed=described.is_keyed,
                timeout=seconds(deadline),
            )
        return known

    def forget(self) -> None:
        """Open them anew: the location was restored, or this process slept for long."""
        self._opened.clear()


async def hold(
    tables: Tables,
    wanted: Sequence[tuple[Described, Described]],
    deadline: Deadline,
    purpose: str = PURPOSE,
    lease: float | None = None,
    *,
    all_of_them: bool = True,
) -> list[Held]:
    """Leases on all of these, pairs of what is read and what it stands for; on none if one cannot be had.

    ``all_of_them`` False: on those that are there.

    Four RPCs for each, all at once. Raises ShardNotFound, ShardClosed, LocationError.
    """
    found = await asyncio.gather(
        *(_hold(tables, one, other, deadline, purpose, lease) for one, other in wanted), return_exceptions=True
    )
    held = [each for each in found if isinstance(each, Held)]
    failed = [each for each in found if isinstance(each, BaseException)]
    if not all_of_them:
        failed = [each for each in failed if not isinstance(each, ShardNotFound | ShardClosed)]
    if failed:
        await asyncio.gather(*(each.expire() for each in held))
        raise failed[0]
    return held


async def _hold(
    tables: Tables,
    described: Described,
    stands_for: Described,
    deadline: Deadline,
    purpose: str,
    lease: float | None,
) -> Held:
    assert described.data is not None
    try:
        reader = await tables.client.open_reader(
            described.data, purpose=purpose, lease=lease, timeout=seconds(deadline)
        )
    except ShardNotFound as error:
        hint = "it is made when it is written for the first time, or it was dropped a moment ago"
        raise ShardNotFound(error.message, hint=hint, **error.details, object=described.name) from error
    if tables.are_frozen:
        is_table = is_completed_by_readers(described)
        rest = await uncopied(tables.client, described, reader, deadline) if is_table else None
        end = reader.upper if rest is None else Antichain.of(rest.upper)
        return Held(described, stands_for, reader, end, rest=rest)
    table = await tables.get(described, deadline)
    upper = reader.upper
    if table is not None:
        upper = upper.join(Antichain.of(await table.complete_before(timeout=seconds(deadline))))
    return Held(described, stands_for, reader, upper, table)
