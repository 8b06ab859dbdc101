"""All materialized views and indexes of an environment, kept up by its leader: a duty of the controller.

One that cannot go on is stalled with a reason, and the others go on. Source: collections: the controller (views).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import pyarrow as pa

from persist.client.collections.views.feeding import FeedingClient
from persist.client.collections.views.index import Index
from persist.client.collections.views.materialized import MaterializedView, Passed, ViewDefinition
from persist.client.collections.views.query import QueryAt, QueryRunner, Refresher
from persist.client.collections.views.turns import Turns
from persist.core.catalog.control.controlled import EVERYTHING, stored_inputs
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.ddl.statements import QualifiedName, Refresh
from persist.core.catalog.errors import Fenced
from persist.core.catalog.values import Id, ObjectType
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.errors import LeaseExpired, LocationError, PersistError
from persist.retry.tasks import Tasks, ended

_log = logging.getLogger("persist.views")

EACH_COMMIT: Final = Refresh(None)
REASON_CHARS_MAX: Final = 500
LOOK_SECONDS: Final = 1.0
"""For a look at where one stands that failed."""
PATIENCE_SECONDS: Final = 2.0
"""How long those that are at rest wait for one that takes long, before their next turn."""


class View(Protocol):
    """What keeping views up needs of a catalog; see ``CatalogView``."""

    def items(self, kind: ObjectType | None = None) -> Iterable[Described]:
        """All items."""
        ...


@dataclass(frozen=True, slots=True)
class Stalled:
    """Why a view or an index does not go on at ``upper`` (None: that cannot be seen), and since when: milliseconds
    since 1970."""

    name: QualifiedName
    reason: str
    upper: Antichain | None
    since_ms: int


@dataclass(frozen=True, slots=True)
class UpkeepPlan:
    """What is kept up, and from which items: one that was defined anew is begun anew."""

    item: Described
    definition: ViewDefinition | None
    on: ShardId | None


class Maintainer:
    """Of one process. ``view`` gives the catalog as it is now."""

    def __init__(
        self,
        client: FeedingClient,
        view: Callable[[], View],
        refresher: Refresher,
        *,
        runner: str = "",
        now_ms: Callable[[], int],
        patience: float | None = None,
        gives_up: Callable[[Id, Antichain], Awaitable[None]] | None = None,
        wanted: Callable[[], Collection[Id]] | None = None,
    ) -> None:
        """``runner``: those views are kept up that were made for it, and no others; empty: those that were made for
        none, and indexes. ``patience``: seconds after which ``work`` leaves what takes long to itself; None: never.

        ``wanted``: those are kept up, with what they are computed from; None: all.

        ``gives_up``: see ``GivesUp``; without it what fell behind computes all that its shard keeps readable.
        """
        self._client = client
        self._patience = patience
        self._tasks = Tasks()
        self._turns = Turns(patience)
        self._under_way: dict[Id, asyncio.Task[Passed]] = {}
        self._view = view
        self._refresher = refresher
        self._for = runner
        self._gives_up = gives_up
        self._wanted = wanted
        self._now_ms = now_ms
        self._at_work: dict[Id, tuple[UpkeepPlan, MaterializedView | Index]] = {}
        self._stalled: dict[Id, Stalled] = {}
        self._uppers: dict[Id, Antichain] = {}

    @property
    def stalled(self) -> Mapping[Id, Stalled]:
        """What does not go on, by id."""
        return dict(self._stalled)

    @property
    def uppers(self) -> Mapping[Id, Antichain]:
        """How far each was, when it was looked at last."""
        return dict(self._uppers)

    async def work(self) -> bool:
        """Bring each up to what its inputs have; whether any moved. May be cancelled at any point, and repeated.

        Inputs come before what is computed from them. One that takes longer than ``patience`` goes on beside what
        follows, and keeps no other from its turn. What is wrong with one is said of that one, which is tried again
        later each time. Raises LocationError where none of those that ended was answered, Fenced.
        """
        items = {each.id: each for each in self._view().items()}
        await self._follow(items)
        begun: dict[Id, asyncio.Task[Passed]] = {}
        for id in in_order(self._at_work, items):
            if id not in self._under_way and not self._turns.rests(id):
                inputs = [begun[each] for each in stored_inputs(items[id], items) if each in begun]
                begun[id] = self._under_way[id] = self._tasks.start(self._turn(id, self._at_work[id][1], inputs))
        try:
            if begun:
                await asyncio.wait(begun.values(), timeout=self._patience)
        except asyncio.CancelledError:
            await self._end(*self._under_way)
            raise
        return await self._taken()

    async def close(self) -> None:
        """Release all inputs."""
        await self._end(*self._under_way)
        for _, keeper in self._at_work.values():
            await keeper.close()
        self._at_work.clear()
        self._refresher.close()

    async def _turn(self, id: Id, keeper: MaterializedView | Index, inputs: "Sequence[asyncio.Task[Passed]]") -> Passed:
        if inputs:
            await asyncio.wait(inputs, timeout=self._patience)
        return await self._turns.take(id, keeper.work)

    async def _taken(self) -> bool:
        """What came of those that have ended; whether any moved."""
        moved, went, lost, fenced = False, False, list[tuple[UpkeepPlan, LocationError]](), None
        for id in [id for id, task in self._under_way.items() if task.done()]:
            task = self._under_way.pop(id)
            plan, keeper = self._at_work[id]
            try:
                passed = task.result()
            except LeaseExpired:
                await keeper.close()  # opened anew at its next turn
                continue
            except Fenced as error:
                fenced = error
            except LocationError as error:
                lost.append((plan, error))
            except Exception as error:
                # Its shard is damaged, or what runs a query met a thing of its own in it: whatever it is, it is of
                # this one alone.
                is_known = isinstance(error, PersistError)
                reason = str(error) if is_known else f"unexpected: {type(error).__name__}: {error}"[:REASON_CHARS_MAX]
                self._fails(plan.item, reason, await self._upper(plan.item), None if is_known else error)
            else:
                went, moved = True, moved or bool(passed.appended)
                self._turns.went(id)
                self._passed(plan.item, passed)
                continue
            await keeper.close()
        if fenced is not None:
            raise fenced
        if lost and not went:
            raise lost[0][1]
        for plan, doubt in lost:
            # The location answers others.
            self._fails(plan.item, str(doubt), self._uppers.get(plan.item.id))
        return moved

    async def _upper(self, item: Described) -> Antichain | None:
        """Where it stands, also if another process took it there; what is known here where its shard is silent."""
        assert item.data is not None
        try:
            return await self._client.recent_upper(item.data, timeout=LOOK_SECONDS)
        except PersistError:
            return self._uppers.get(item.id)

    def _fails(self, item: Described, reason: str, upper: Antichain | None, cause: Exception | None = None) -> None:
        self._turns.failed(item.id)
        self._stall(item, reason, upper, cause)

    async def _end(self, *ids: Id) -> None:
        await ended(*[self._under_way.pop(id) for id in ids if id in self._under_way])

    def _passed(self, item: Described, passed: Passed) -> None:
        self._uppers[item.id] = passed.upper
        if passed.failed:
            self._stall(item, passed.failed, passed.upper)
        else:
            self._stalled.pop(item.id, None)

    def _stall(self, item: Described, reason: str, upper: Antichain | None, cause: Exception | None = None) -> None:
        before = self._stalled.get(item.id)
        if before is None or before.reason != reason:
            at = "" if upper is None else f" at {upper}"
            _log.warning("%s does not go on%s: %s", item.name, at, reason, exc_info=cause)
        since = self._now_ms() if before is None else before.since_ms
        self._stalled[item.id] = Stalled(item.name, reason, upper, since)

    async def _follow(self, items: Mapping[Id, Described]) -> None:
        ours = [each for each in items.values() if each.runner == self._for and (not self._for or _is_view(each))]
        if self._wanted is not None:
            wanted = below(self._wanted(), items)
            ours = [each for each in ours if each.id in wanted]
        plans = {each.id: plan for each in ours if (plan := planned(each, items)) is not None}
        for id in [id for id, (plan, _) in self._at_work.items() if plans.get(id) != plan]:
            await self._end(id)
            self._turns.forget(id)
            _, keeper = self._at_work.pop(id)
            with contextlib.suppress(PersistError):
                await keeper.close()
            self._stalled.pop(id, None)
            self._uppers.pop(id, None)
        for id, plan in plans.items():
            if id not in self._at_work:
                self._at_work[id] = plan, self._keeper(plan)

    def _keeper(self, plan: UpkeepPlan) -> MaterializedView | Index:
        if plan.definition is not None:
            gives_up = None if self._gives_up is None else partial(self._gives_up, plan.item.id)
            return MaterializedView(self._client, plan.definition, self._refresher, gives_up)
        assert plan.on is not None
        assert plan.item.data is not None
        assert plan.item.schema is not None
        return Index(self._client, plan.item.data, plan.item.schema, plan.on)


class LateQueries:
    """A QueryRunner that is made at its first query: making it may raise MissingExtra, and then a view is stalled."""

    def __init__(self, made: Callable[[], QueryRunner]) -> None:
        self._made = made
        self._runner: QueryRunner | None = None

    async def run(self, asked: QueryAt) -> pa.Table:
        """See QueryRunner."""
        if self._runner is None:
            self._runner = self._made()
        return await self._runner.run(asked)

    def close(self) -> None:
        """Release it."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


def _is_view(item: Described) -> bool:
    return item.kind is ObjectType.MATERIALIZED_VIEW


def planned(item: Described, items: Mapping[Id, Described]) -> UpkeepPlan | None:
    """How an item is kept up; None: it is not. An index on a view that is not stored runs that view's query."""
    if item.data is None or item.schema is None:
        return None
    if item.kind is ObjectType.MATERIALIZED_VIEW:
        return UpkeepPlan(item, _definition(item, item.query, item.refresh or Refresh(), items), None)
    if item.kind is not ObjectType.INDEX or len(item.depends_on) != 1:
        return None
    on = items.get(item.depends_on[0])
    if on is None:
        return None
    if on.data is not None:
        return UpkeepPlan(item, None, on.data)
    columns = ", ".join(
        '"' + name.replace('"', '""') + '"' for name in [*item.schema.key.names, *item.schema.val.names]
    )
    return UpkeepPlan(item, _definition(item, f"SELECT {columns} FROM {on.name}", EACH_COMMIT, items), None)


def _definition(item: Described, query: str, refresh: Refresh, items: Mapping[Id, Described]) -> ViewDefinition:
    assert item.data is not None
    assert item.schema is not None
    stored = [items[id] for id in stored_inputs(item, items)]
    return ViewDefinition(
        shard=item.data,
        schema=item.schema,
        query=query,
        refresh=refresh,
        inputs={each.id: each.data for each in stored if each.data is not None},
        items=(*stored, *_unstored(item, items)),
        asks_time=item.asks_time,
        known=item.known,
        retain=item.retain or EVERYTHING,
    )


def _unstored(item: Described, items: Mapping[Id, Described]) -> list[Described]:
    """The views that are not stored and that an item is made of."""
    found: dict[Id, Described] = {}
    waiting = list(item.depends_on)
    while waiting:
        each = items.get(waiting.pop())
        if each is not None and each.data is None and each.kind is ObjectType.VIEW and each.id not in found:
            found[each.id] = each
            waiting.extend(each.depends_on)
    return list(found.values())


def below(ids: Iterable[Id], items: Mapping[Id, Described]) -> set[Id]:
    """These, and all that they are computed from."""
    found, waiting = set[Id](), list(ids)
    while waiting:
        id = waiting.pop()
        if id not in found and id in items:
            found.add(id)
            waiting.extend(items[id].depends_on)
    return found


def in_order(wanted: Iterable[Id], items: Mapping[Id, Described]) -> list[Id]:
    """What others are computed from first. Dependencies have no cycles, as they are there before what names them.

    However deep they are: nothing calls itself here.
    """
    chosen = list(wanted)
    order: dict[Id, None] = {}
    seen: set[Id] = set()
    waiting = [(id, False) for id in reversed(chosen)]
    while waiting:
        id, is_below_done = waiting.pop()
        if is_below_done:
            order[id] = None
        elif id not in seen and id in items:
            seen.add(id)
            waiting.append((id, True))
            waiting.extend((each, False) for each in items[id].depends_on)
    known = set(chosen)
    return [id for id in order if id in known]
