"""Controller: what the leader of an environment does for its collections, from the moment it leads until it does not.

Run by the process that opened the catalog for writing, embedded or a CatalogService. It begins with what it finds:
nothing of it is remembered but what the catalog and the shards hold.
Source: collections: the controller; design 000; catalog-semantics.md sections 3.2 and 5.3; reliability.md I16, I21.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from persist.client.catalog.port import LedCatalog
from persist.client.collections.access import Access
from persist.client.collections.control.claims import TOLD_SECONDS
from persist.client.collections.control.duties.finalizer import LeftoverFinalizer
from persist.client.collections.control.duties.holds import Lags
from persist.client.collections.control.duties.since import Sinces, take_over
from persist.client.collections.control.duties.stalls import Stalls
from persist.client.collections.control.duties.ticker import Ticker
from persist.client.collections.control.duties.timelines import Timelines
from persist.client.collections.control.duty import Duty, Gauges, Unwatched
from persist.client.collections.control.handles import Handles
from persist.client.collections.control.room import Room
from persist.client.collections.control.storage import ShardStorage
from persist.client.collections.views.maintainer import PATIENCE_SECONDS, LateQueries, Maintainer
from persist.client.collections.views.materialized import Recomputing
from persist.client.shard.handles import Closes
from persist.core.catalog.control.tokens import token_of
from persist.core.catalog.errors import Fenced, NotWritable
from persist.core.catalog.lag import HoldStanding, HoldState
from persist.core.catalog.values import Id
from persist.core.ids import ShardId
from persist.errors import LocationError
from persist.retry.tasks import Tasks

PERIODS: Final[Mapping[str, float]] = {
    "since": 1.0,
    "holds": 1.0,
    "ticker": 1.0,
    "timelines": 1.0,
    "finalizer": 5.0,
    "leadership": 5.0,
    "views": 0.5,
}
"""Seconds between two passes of each duty."""

STALLED: Final = "persist_control_views_stalled"

_log = logging.getLogger("persist.control")


class Controller(Closes):
    """Of one environment. ``start`` it when the catalog is led, ``close`` it before the catalog and the client.

    ``storage`` is what executing statements needs; it may be used before ``start``. ``told_seconds``: how long
    frontiers that were returned can still be held. ``fenced`` is called once when a later
    leader was met: every duty has ended by itself then, and every call raises Fenced.
    """

    _noun = "controller"
    _again = "lead, and make another"

    def __init__(
        self,
        access: Access,
        environment: str,
        catalog: LedCatalog,
        *,
        gauges: Gauges | None = None,
        fenced: Callable[[Fenced], None] = lambda error: None,
        periods: Mapping[str, float] = PERIODS,
        told_seconds: float = TOLD_SECONDS,
    ) -> None:
        token = catalog.token
        if token is None:
            raise NotWritable("no process leads this catalog", hint="open it for writing first")
        self._told = fenced
        self._periods = {**PERIODS, **periods}
        self._tasks = Tasks()
        self._duties: dict[str, Duty] = {}
        self._begun = asyncio.Event()
        self.error: Fenced | None = None
        own = token_of(token, catalog.claim.incarnation)
        handles = Handles(access.client, environment, own, fenced=self._end)
        self.room = Room(access, catalog, environment, handles, gauges or Unwatched(), told_seconds)
        self._timelines = Timelines(self.room)
        self._lags = Lags(self.room, lambda: self.wake("since"))
        self.ticker = Ticker(self.room, self._timelines)
        self.storage = ShardStorage(self.room, self._settled)
        sinces = Sinces(self.room)
        self.add("since", sinces.work)
        self.add("holds", self._lags.work)
        self.add("timelines", self._timelines.work)
        self.add("ticker", self.ticker.work)
        self.add("finalizer", LeftoverFinalizer(self.room).work)
        self.add("leadership", catalog.confirm_leadership)
        self.views: Maintainer | None = None
        if access.queries is not None:
            now_ms = self.room.runtime.now_ms
            self.views = Maintainer(
                access.client,
                lambda: self.room.view,
                Recomputing(LateQueries(access.queries)),
                now_ms=now_ms,
                patience=PATIENCE_SECONDS,
                gives_up=sinces.give_up,
            )
            self._stalls = Stalls(self.room, self.views)
            self.add("views", self._views)

    def add(self, name: str, work: Callable[[], Awaitable[object]], period: float = 1.0) -> None:
        """One more duty, before ``start``: ``work`` may fail, and be cancelled, at any point. See Duty."""
        self._duties[name] = Duty(
            name,
            self._periods.get(name, period),
            work,
            runtime=self.room.runtime,
            gauges=self.room.gauges,
            check=self.room.handles.check,
            fenced=self.room.handles.end,
        )

    def start(self) -> None:
        """Begin: take over every handle, then go on with all duties. A few RPCs for each collection, beside the caller.

        What does not answer yet is taken over later; until then it refuses statements.
        """
        self._tasks.spawn(self._run(), "controlling collections")

    async def reconciled(self) -> None:
        """Return once every handle was looked at. Raises Fenced when a later leader was met."""
        await self._begun.wait()
        self.room.handles.check()

    async def _run(self) -> None:
        try:
            await self.room.apart("since", self._taken, sorted(self.room.picture().shards))
        except Fenced as error:
            self.room.handles.end(error)
            return
        finally:
            self._begun.set()
        for id, each in self.standings().items():
            if each.state is HoldState.LOST:
                _log.error("hold %s is lost: %s", id, each.reason)
        for duty in self._duties.values():
            self._tasks.spawn(duty.run(), f"controlling collections: {duty.name}")

    async def _views(self) -> None:
        assert self.views is not None
        try:
            await self.views.work()
        finally:
            self.room.gauges.gauge(STALLED, (), len(self.views.stalled))
        await self._stalls.work()

    async def _taken(self, shard: ShardId) -> None:
        try:
            await self.room.frontiers.look(shard)
            await take_over(self.room, shard)
        except LocationError as error:
            _log.warning("%s is taken over later: %s", shard, error)

    def _settled(self) -> None:
        self.wake("since", "finalizer", *(() if self.room.ticked.is_set() else ("ticker",)))

    def wake(self, *names: str) -> None:
        """These duties have something to do."""
        for name in names:
            self._duties[name].wake()

    async def passed(self, *names: str) -> None:
        """Return when these duties (none named: all) have done all there was to do when this was called."""
        await self.reconciled()
        self.room.frontiers.hurry()
        for name in names or self._duties:
            await self._duties[name].passed()

    def standings(self) -> dict[str, HoldStanding]:
        """How each hold stands, by its id. No RPC."""
        return self._lags.standings()

    @property
    def quarantined(self) -> frozenset[Id]:
        """Collections that claim milliseconds of now and are not believed."""
        return self.room.quarantined

    async def close(self) -> None:
        """Stop. What is under way may have happened or not; handles stay as they are, for the next leader."""
        await self._tasks.close()
        if self.views is not None:
            await self.views.close()

    def _end(self, error: Fenced) -> None:
        """A later leader was met: whatever this one still sends is refused by the handles that were taken over."""
        if self.error is None:
            self.error = error
            _log.warning("a later leader controls these collections: %s", error)
            self._told(error)
