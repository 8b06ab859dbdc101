"""An export's keys in ranges of their hashes, each of which one task works on, wherever it runs.

Source: sources.md section 4, upsert.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from persist.arrow import Numbers, array_of

_HALF: Final = np.uint64(32)
RANGES_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The ``number``-th, from 0 on, of ``count`` equal ranges of all hashes. Picklable."""

    number: int = 0
    count: int = 1

    @property
    def label(self) -> str:
        """What files of it are named by; empty: all keys."""
        return "" if self.count == 1 else f"{self.number}-of-{self.count}"

    def within(self, rows: pa.Table, hashes: Numbers) -> tuple[pa.Table, Numbers]:
        """Of these rows those with keys in it, and their hashes."""
        if self.count == 1:
            return rows, hashes
        mine = np.flatnonzero(numbers_of(hashes, self.count) == self.number)
        return (rows, hashes) if len(mine) == len(hashes) else (rows.take(array_of(mine)), hashes[mine])


WHOLE: Final = KeyRange()


def key_ranges(count: int) -> tuple[KeyRange, ...]:
    """All of so many, ascending as their hashes do."""
    return tuple(KeyRange(number, count) for number in range(count))


def numbers_of(hashes: Numbers, count: int) -> Numbers:
    """Of each hash the number of its range."""
    numbers: Numbers = ((hashes >> _HALF) * np.uint64(count)) >> _HALF
    return numbers


def cut(rows: pa.Table, hashes: Numbers, count: int) -> Iterator[tuple[int, pa.Table]]:
    """Rows by the numbers of their ranges, of those that have any."""
    of = numbers_of(hashes, count).astype(np.int64)
    order = np.argsort(of, kind="stable")
    cuts = np.searchsorted(of[order], np.arange(count + 1))
    rows = rows.take(array_of(order))
    for number in map(int, np.flatnonzero(np.diff(cuts))):
        yield number, rows.slice(cuts[number], cuts[number + 1] - cuts[number])
