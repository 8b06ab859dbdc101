"""What all duties of a controller share: the client, the catalog it leads, its handles, and what it knows of shards."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from persist.client.catalog.port import LedCatalog
from persist.client.collections.access import Access
from persist.client.collections.control.begun import Begun
from persist.client.collections.control.claims import TimeClaims
from persist.client.collections.control.duty import FAILED, Gauges
from persist.client.collections.control.frontiers import AT_ONCE, Uppers
from persist.client.collections.control.handles import Handles
from persist.core.catalog.control.capability import Known, implied_all
from persist.core.catalog.control.controlled import Controlled, controlled
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import Fenced, OutOfSync
from persist.core.catalog.kinds import ITEM, STORAGE_COLLECTION_METADATA
from persist.core.catalog.values import Id
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.time.holds import Holds
from persist.core.time.timeline import Timeline
from persist.errors import LocationError, PersistError

S = TypeVar("S")
T = TypeVar("T")

_log = logging.getLogger("persist.control")

_DEFINING: Final = frozenset({ITEM, STORAGE_COLLECTION_METADATA})


@dataclass(frozen=True, slots=True)
class Picture:
    """The stored collections as of one version of the catalog in memory."""

    version: int
    collections: Mapping[Id, Controlled]

    @property
    def shards(self) -> frozenset[ShardId]:
        """Where they are stored."""
        return frozenset(each.shard for each in self.collections.values())


class Room:
    """Of one controller."""

    def __init__(
        self,
        access: Access,
        catalog: LedCatalog,
        environment: str,
        handles: Handles,
        gauges: Gauges,
        told_seconds: float,
    ) -> None:
        self.access = access
        self.client = client = access.client
        self.catalog = catalog
        self.handles = handles
        self.gauges = gauges
        self._troubles: dict[tuple[str, object], str] = {}
        self.runtime = client.location.runtime
        self.frontiers = Uppers(client)
        self.claims = TimeClaims(self.runtime, told_seconds)
        self.begun = Begun(client, environment)
        self.quarantined: frozenset[Id] = frozenset()
        self.applied: dict[Timeline, int] = {}
        """Read times of timelines, as of the last tick: what is asked for now is at or after them."""
        self.ticked = asyncio.Event()
        """The read time of clocks is known."""
        self._picture: Picture | None = None
        self._holds: tuple[int, Holds] | None = None

    @property
    def view(self) -> CatalogView:
        """The catalog as statements see it, as it is in memory now: what this process committed is there."""
        return CatalogView.at(self.catalog.transaction().snapshot)

    def picture(self) -> Picture:
        """What the catalog has now. No RPC; costs what the catalog's items do, once for each of its versions."""
        view = self.view
        if self._picture is not None and self._is_same(self._picture):
            self._picture = Picture(view.version, self._picture.collections)
        elif self._picture is None or self._picture.version != view.version:
            collections = controlled(view.items(), view.timed())
            if self._picture is None or collections != self._picture.collections:
                self._picture = Picture(view.version, collections)
                self.frontiers.follow(self._picture.shards)
            else:
                self._picture = Picture(view.version, self._picture.collections)
        return self._picture

    def _is_same(self, picture: Picture) -> bool:
        """Nothing was defined since: holds are moved all the time."""
        changes = self.catalog.transaction().snapshot.since(picture.version)
        return changes is not None and not any(change.kind in _DEFINING for change in changes)

    def known(self, picture: Picture) -> dict[Id, Known]:
        """What is known of the shards, those taken over only."""
        found: dict[Id, Known] = {}
        for id, each in picture.collections.items():
            given, upper = self.handles.given(each.shard), self.frontiers.upper(each.shard)
            if given is not None and upper is not None:
                found[id] = Known(given, upper, self.frontiers.since(each.shard))
        return found

    def uppers(self, picture: Picture) -> dict[Id, Antichain]:
        """Their uppers, as far as known."""
        heard = ((id, self.frontiers.upper(each.shard)) for id, each in picture.collections.items())
        return {id: upper for id, upper in heard if upper is not None}

    def holds(self, picture: Picture, known: Mapping[Id, Known]) -> Holds:
        """All holds, over what is known."""
        if self._holds is None or self._holds[0] != picture.version:
            self._holds = picture.version, self.view.holds({})
        implied = implied_all(picture.collections, known, self.applied)
        return replace(self._holds[1], implied={str(id): since for id, since in implied.items()})

    async def apart(
        self, duty: str, call: Callable[[S], Awaitable[object]], arguments: Iterable[S], *, at_most: int = AT_ONCE
    ) -> None:
        """``at_once`` for what has nothing to do with each other: what is wrong with one, such as a shard that is
        damaged or does not answer, keeps no other from its turn. It is counted each time, and logged when it is new.

        Raises what is wrong with all: Fenced, OutOfSync; LocationError where none was answered.
        """

        async def one(argument: S) -> tuple[S, LocationError | None]:
            try:
                await call(argument)
            except (Fenced, OutOfSync):
                raise
            except LocationError as error:
                return argument, error
            except PersistError as error:
                self._left_out(duty, argument, error)
            else:
                self._troubles.pop((duty, argument), None)
            return argument, None

        answers = await at_once(one, arguments, at_most=at_most)
        lost = [(argument, error) for argument, error in answers if error is not None]
        if lost and len(lost) == len(answers):
            raise lost[0][1]
        for argument, error in lost:
            self._left_out(duty, argument, error)

    def _left_out(self, duty: str, argument: object, error: PersistError) -> None:
        self.gauges.count(FAILED, (("duty", duty),))
        if self._troubles.get((duty, argument)) != str(error):
            self._troubles[duty, argument] = str(error)
            _log.error("%s: %s is left out: %s", duty, argument, error)


async def at_once(call: Callable[[S], Awaitable[T]], arguments: Iterable[S], *, at_most: int = AT_ONCE) -> list[T]:
    """All answers, a few calls at a time; the first error after all have ended."""
    room = asyncio.Semaphore(at_most)

    async def one(argument: S) -> T:
        async with room:
            return await call(argument)

    results = await asyncio.gather(*map(one, arguments), return_exceptions=True)
    answers: list[T] = []
    for each in results:
        if isinstance(each, BaseException):
            raise each
        answers.append(each)
    return answers
