"""What a read waits for: of views and indexes, what they are computed from, down to the source that is not ingested.

Source: collections: queries; catalog-semantics.md section 6.2.
"""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from persist.client.collections.reading.inputs import KEPT_UP, Fed, Held, Names
from persist.client.shard.client import ShardClient
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.values import Id
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.dates import dated
from persist.errors import PersistError

SAID_AFTER_SECONDS: Final = 3.0
"""After that what a read waits for is reported."""
_KEPT_UP: Final = (
    "SHOW MATERIALIZED VIEWS and SHOW INDEXES say why one does not go on, or one that it is made of; so does the log "
    "of the process that leads the environment (persist.views)"
)


@dataclass(frozen=True, slots=True)
class Lagging:
    """What is not complete at a time. ``uppers``: what was asked for, and how far each is. ``behind``: what sources
    feed of what these are computed from, and how far that is, where it is what holds them up."""

    uppers: dict[str, Antichain]
    behind: dict[Fed, Antichain]
    is_kept_up: bool

    @property
    def hint(self) -> str:
        """What to do about it."""
        if self.behind:
            sources = dict.fromkeys(each.source for each in self.behind)
            asked = "; ".join(f"persist source run {name}" for name in sources)
            return f"is it ingested? {asked}; or is the table stalled? persist source status says why, and what to do"
        return _KEPT_UP if self.is_kept_up else "see that what feeds these objects runs"

    @property
    def objects(self) -> str:
        """What lags, and how far each is."""
        found = {name: str(upper) for name, upper in self.uppers.items()}
        found |= {each.name: str(upper) for each, upper in self.behind.items()}
        return ", ".join(f"{name} (upper {upper})" for name, upper in sorted(found.items()))

    def __str__(self) -> str:
        """For who waits: what holds it up, and what to do."""
        behind = {each.name: upper for each, upper in self.behind.items()} or self.uppers
        told = ", ".join(f"{name}, complete before {_shown(upper)}" for name, upper in sorted(behind.items()))
        return f"waiting for {told}: {self.hint}"


def fed(names: Names, item: Described, ts: int) -> tuple[Fed, ...]:
    """What sources feed of all that an item is computed from, however far below it, and itself, to show it at a time.

    Views that are refreshed every so often show what was there at an earlier one.
    """
    found: dict[Id, Fed] = {}
    waiting, needed = [(item, ts)], {item.id: ts}
    while waiting:
        each, time = waiting.pop()
        if each.fed_by is not None and each.data is not None:
            found[each.id] = Fed(str(each.name), names.get(each.fed_by).name.item, each.data, time)
        elif each.data is None or each.kind in KEPT_UP:
            time = shown_at(each, time)
            below = [id for id in each.depends_on if needed.get(id, -1) < time]
            needed.update(dict.fromkeys(below, time))
            waiting.extend((names.get(id), time) for id in below)
    return tuple(found.values())


def needed(below: Iterable[Fed]) -> dict[ShardId, int]:
    """The last time that is needed of each shard."""
    wanted: dict[ShardId, int] = {}
    for each in below:
        wanted[each.shard] = max(each.time, wanted.get(each.shard, 0))
    return wanted


def shown_at(item: Described, ts: int) -> int:
    """The time as of which an item shows what it is computed from, at a time."""
    every = None if item.refresh is None else item.refresh.every
    return ts if every is None else ts - ts % every


async def lagging(client: ShardClient, late: Collection[Held], ts: int) -> Lagging:
    """Why these are not complete at a time. One RPC for each, and for each collection of a source below it; what does
    not answer is left out. Raises nothing."""
    below = {each: None for one in late for each in one.fed}
    asked = [each.reader.shard for each in late] + [each.shard for each in below]
    answers = await asyncio.gather(*map(client.recent_upper, asked), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, PersistError):
            raise answer
    known = dict(zip(asked, answers, strict=True))
    behind = {
        each: upper
        for each in below
        if isinstance(upper := known[each.shard], Antichain) and not upper.beyond(each.time)
    }
    uppers = {
        str(each.stands_for.name): upper if isinstance(upper := known[each.reader.shard], Antichain) else each.upper
        for each in late
    }
    return Lagging(uppers, behind, any(each.described.kind in KEPT_UP for each in late))


def _shown(upper: Antichain) -> str:
    return str(upper) if upper.time is None else dated(upper.time)
