"""Whether what was committed meanwhile matters to a transaction: in what many changes touched is looked up, not gone
through, for each of those who began before.

Source: catalog-semantics.md sections 1.2.7 and 1.3 (footprints).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from persist.core.catalog.conflicts import Footprint
from persist.core.catalog.kinds import AnyKind, kind_of
from persist.core.catalog.rows import Row, RowCodec, RowUpdate, by_time
from persist.core.catalog.snapshot import Change
from persist.wire.catalog.rpc_footprint import Touched
from persist_catalog.mirror import TAIL_UPDATES, Mirror
from persist_catalog.passed import Passed, in_steps

KEPT_FROM: Final = 100
"""What so many changes touched is kept for the next one who asks."""


class Conflicts:
    """Of transactions with what a mirror remembers, and longer than that: what came, by hashes."""

    def __init__(self, mirror: Mirror, codec: RowCodec) -> None:
        self._mirror = mirror
        self._codec = codec
        self._known: OrderedDict[int, Touched] = OrderedDict()
        self._kept = 0
        self._hashed: dict[int, Sequence[int]] = {}
        self._passed = Passed()
        self._taking = asyncio.Lock()

    @contextmanager
    def held(self, lower: int) -> Iterator[None]:
        """Until the end of the block, remember what came from ``lower`` on: for one that waits, however many others go
        before it."""
        self._passed.held.append(lower)
        try:
            yield
        finally:
            self._passed.held.remove(lower)
            self._passed.trim()

    async def take(self, begun: int) -> None:
        """Remember what came since the last call, while the mirror does. ``begun``: what was before is not asked for.

        Where more came than the mirror remembers, all before is forgotten.
        """
        async with self._taking:
            if self._passed.upper < begun:
                self._passed.begin(begun)
            while (upper := self._mirror.upper) > self._passed.upper:
                times = self._mirror.times_since(self._passed.upper)
                if times is None:
                    self._passed.begin(self._mirror.lower)
                    continue
                async for updates in in_steps(times):
                    ts = updates[0].ts
                    await self._passed.add(ts, await self._touched(updates), self._hashed.pop(ts, None))
                self._passed.upper = upper

    async def met(self, footprint: Footprint, lower: int, begun: int) -> tuple[int, list[tuple[str, object]]] | None:
        """How many changes came from ``lower`` on, and the objects among them that matter. None: not remembered.

        Raises InvalidArgument for an upper that was never returned.
        """
        await self.take(begun)
        count, found = 0, dict[tuple[str, object], None]()
        while (times := self._mirror.times_since(lower)) is None:
            if lower < self._passed.since:
                return None
            lower, met = await self._passed.met_by(footprint, lower)
            found.update(met)
            count += len(met)
            await self.take(begun)
        for updates in times:
            touched = await self._touched(updates)
            count += touched.changes
            found.update(touched.met_by(footprint))
        return count, list(found)

    def keep(self, ts: int, touched: Touched, hashes: Sequence[int] | None = None) -> None:
        """Remember what the changes at a time touched, as long as what many others did allows it.

        ``hashes``: of them, made before the changes were; the next ``take`` needs no more time for them than for few.
        """
        if hashes is not None:
            self._hashed = {ts: hashes}
        if touched.changes < KEPT_FROM or ts in self._known:
            return
        self._known[ts] = touched
        self._kept += touched.changes
        while self._kept > TAIL_UPDATES and len(self._known) > 1:
            self._kept -= self._known.popitem(last=False)[1].changes

    async def _touched(self, updates: list[RowUpdate]) -> Touched:
        ts = updates[0].ts
        known = self._known.get(ts)
        if known is None:
            known = await touched_by(changes_of(self._codec, updates))
            self.keep(ts, known)
        return known


async def touched_by(changes: Iterable[Change]) -> Touched:
    """What changes of one time touch."""
    touched = Touched()
    async for change in in_steps(changes):
        touched.add(change)
    return touched


def changes_of(codec: RowCodec, updates: Iterable[RowUpdate]) -> Iterator[Change]:
    """The changes of objects in updates, time by time."""
    for _, changes in by_time(updates):
        for kind, key_bytes, before, after in sides(changes):
            old = None if before is None else codec.decode(Row(kind.tag, key_bytes, before))
            new = None if after is None else codec.decode(Row(kind.tag, key_bytes, after))
            key = (old or new or (None,))[0]
            yield Change(kind, key, None if old is None else old[1], None if new is None else new[1])


def sides(changes: Iterable[tuple[Row, int]]) -> Iterator[tuple[AnyKind, bytes, bytes | None, bytes | None]]:
    """For each key its value before and after, None where there is none."""
    before: dict[tuple[str, bytes], bytes] = {}
    after: dict[tuple[str, bytes], bytes] = {}
    for row, diff in changes:
        (before if diff < 0 else after)[row.kind, row.key] = row.value
    for tag, key in {**before, **after}:
        yield kind_of(tag), key, before.get((tag, key)), after.get((tag, key))
