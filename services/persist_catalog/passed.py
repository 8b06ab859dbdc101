"""What was touched at times that left a mirror's tail: as hashes, so that of many times more can be remembered.

Two objects with one hash would only make a client run its transaction again. Source: catalog-semantics.md sections
1.2.7 and 1.3 (footprints).
"""

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from persist.core.catalog.conflicts import Footprint
from persist.runtime import system
from persist.wire.catalog.rpc_footprint import ToldFootprint, Touched, fingerprint

STEP: Final = 250
"""Changes that are looked at before others get their turn at the event loop."""
KEPT_MAX: Final = 2_000_000
"""Hashes that are kept, 16 bytes each; more where one waits that began before them."""
HELD_MAX: Final = 4 * KEPT_MAX
"""However many wait."""
PIECE: Final = 50_000
"""Hashes in one array, and more where one time has more."""

Found: TypeAlias = dict[tuple[str, object], None]
_Integers: TypeAlias = "npt.NDArray[np.int64]"
T = TypeVar("T")


class _Piece(NamedTuple):
    """Hashes in order, with the times at which they were touched; the newest time of each kind, and of all."""

    hashes: _Integers
    times: _Integers
    kinds: dict[str, int]
    last: int


class Passed:
    """All that was touched from ``since`` up to ``upper``. ``held``: from when on those who wait need it."""

    def __init__(self) -> None:
        self.since = self.upper = 0
        self.held: list[int] = []
        self._pieces: deque[_Piece] = deque()
        self._open: dict[int, int] = {}
        self._kinds: dict[str, int] = {}
        self._last = self._kept = 0

    def begin(self, at: int) -> None:
        """Forget all before a time."""
        self.since = self.upper = at
        self._pieces.clear()
        self._open, self._kinds, self._kept = {}, {}, 0

    async def add(self, ts: int, touched: Touched, hashes: Sequence[int] | None = None) -> None:
        """The next time at which anything was touched. ``hashes``: what ``hashed`` returned of it."""
        self._open.update(dict.fromkeys(await hashed(touched) if hashes is None else hashes, ts))
        self._kinds.update(dict.fromkeys(touched.kinds, ts))
        self._last = ts
        if len(self._open) >= PIECE:
            self._close()

    async def met_by(self, footprint: Footprint, lower: int) -> tuple[int, Found]:
        """Up to when it looked, and the objects touched from ``lower`` on that matter, as far as they have names."""
        self._close()
        pieces, upper = [each for each in self._pieces if each.last >= lower], self.upper
        tags = {kind.tag for kind in footprint.kinds}
        found: Found = {(tag, "any"): None for each in pieces for tag in tags if each.kinds.get(tag, -1) >= lower}
        wanted, names = list[int](), list[tuple[str, object]]()
        async for each, name in in_steps(_wanted(footprint)):
            wanted.append(each)
            names.append(name)
        hashes = np.array(wanted, dtype=np.int64)
        async for piece in in_steps(pieces, step=1):
            # The last of the equal ones is the newest.
            at = np.searchsorted(piece.hashes, hashes, side="right") - 1
            met = (at >= 0) & (piece.hashes[at] == hashes) & (piece.times[at] >= lower)
            found.update(dict.fromkeys(names[number] for number in np.flatnonzero(met)))
        return upper, found

    def _close(self) -> None:
        if not self._open:
            return
        hashes = np.fromiter(self._open.keys(), np.int64, len(self._open))
        times = np.fromiter(self._open.values(), np.int64, len(self._open))
        kinds = self._kinds
        if self._pieces and len(self._pieces[-1].hashes) + len(hashes) <= PIECE:
            before = self._pieces.pop()
            self._kept -= len(before.hashes)
            hashes, times = np.concatenate([before.hashes, hashes]), np.concatenate([before.times, times])
            kinds = {**before.kinds, **kinds}
        order = np.lexsort((times, hashes))
        self._pieces.append(_Piece(hashes[order], times[order], kinds, self._last))
        self._kept += len(hashes)
        self._open, self._kinds = {}, {}
        self.trim()

    def trim(self) -> None:
        """Forget the earliest of what is too much, unless one waits that needs it."""
        while len(self._pieces) > 1 and self._kept > KEPT_MAX and not self._needed(self._pieces[0]):
            gone = self._pieces.popleft()
            self._kept -= len(gone.hashes)
            self.since = gone.last + 1

    def _needed(self, piece: _Piece) -> bool:
        return self._kept <= HELD_MAX and any(lower <= piece.last for lower in self.held)


async def hashed(touched: Touched) -> list[int]:
    """What is remembered of what was touched."""
    return [each async for each in in_steps(_hashes(touched))]


def _hashes(touched: Touched) -> Iterator[int]:
    for kind, keys in touched.objects.items():
        yield from (_of_key(kind.tag, key) for key in keys)
    yield from (_of_name(kind.tag, name) for kind, name in touched.names)


def _wanted(footprint: Footprint) -> Iterator[tuple[int, tuple[str, object]]]:
    for kind, key in footprint.keys:
        yield _of_key(kind.tag, key), (kind.tag, key)
    for kind, name in footprint.names:
        yield _of_name(kind.tag, fingerprint(name)), (kind.tag, name)
    if isinstance(footprint, ToldFootprint):
        for kind, told in footprint.fingerprints:
            yield _of_name(kind.tag, told), (kind.tag, "a name")


def _of_key(tag: str, key: object) -> int:
    return hash((tag, key))


def _of_name(tag: str, name: bytes) -> int:
    return hash((tag, "name", name))


async def in_steps(items: Iterable[T], *, step: int = STEP) -> AsyncIterator[T]:
    """The items; others get their turn at the event loop between many of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % step == 0:
            await system().sleep(0)
