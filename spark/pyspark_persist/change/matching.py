"""Which rows of a source a row of the table matches: equal in some columns, as SQL has it. Vectorised.

Values become numbers, column by column, so what a look-up costs depends on neither types nor on how many columns there
are. A null equals nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow.compute as pc

from persist.arrow import ArrowArray, Numbers

PAIRS_MAX: Final = 65_536
"""Pairs of rows in one piece."""


@dataclass(frozen=True, slots=True)
class _Column:
    """The distinct values of a column of the source, and the pairs of theirs and what the columns before came to."""

    values: ArrowArray
    pairs: Numbers

    def numbers(self, before: Numbers, column: ArrowArray) -> Numbers:
        """A number for each row, -1 where no row of the source is so up to this column."""
        found = _places(column, self.values)
        paired = before * len(self.values) + found
        place = np.minimum(np.searchsorted(self.pairs, paired), len(self.pairs) - 1)
        known = (before >= 0) & (found >= 0) & (self.pairs[place] == paired)
        return np.where(known, place, -1)


class Matching:
    """The rows of a source by the values of some columns, of which none is empty."""

    def __init__(self, columns: Sequence[ArrowArray]) -> None:
        self._columns: list[_Column] = []
        numbers = np.zeros(len(columns[0]), dtype=np.int64)
        for column in columns:
            values = pc.unique(column.drop_null())
            found = _places(column, values)
            known = (numbers >= 0) & (found >= 0)
            pairs = np.unique(numbers[known] * len(values) + found[known])
            self._columns.append(_Column(values, pairs))
            numbers = self._columns[-1].numbers(numbers, column) if len(pairs) else np.full_like(numbers, -1)
        self._empty = not len(self._columns[-1].pairs)
        self._rows = np.argsort(numbers, kind="stable")
        groups = np.arange(0 if self._empty else len(self._columns[-1].pairs))
        self._first = np.searchsorted(numbers[self._rows], groups, side="left")
        self._count = np.searchsorted(numbers[self._rows], groups, side="right") - self._first
        self._matched = np.zeros(len(groups), dtype=np.bool_)
        self._numbers = numbers

    def pairs(self, columns: Sequence[ArrowArray]) -> Iterator[tuple[Numbers, Numbers]]:
        """Rows of the table that match, beside each row of the source that they match, in the order of the table's."""
        if self._empty:
            return
        numbers = np.zeros(len(columns[0]), dtype=np.int64)
        for known, column in zip(self._columns, columns, strict=True):
            numbers = known.numbers(numbers, column)
        mine = np.flatnonzero(numbers >= 0)
        groups = numbers[mine]
        self._matched[groups] = True
        counts = self._count[groups]
        ends = np.cumsum(counts)
        start = 0
        while start < len(mine):
            before = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, before + PAIRS_MAX, side="right")), start + 1)
            repeated = counts[start:stop]
            left = np.repeat(mine[start:stop], repeated)
            within = np.arange(len(left)) - np.repeat(ends[start:stop] - repeated - before, repeated)
            yield left, self._rows[np.repeat(self._first[groups[start:stop]], repeated) + within]
            start = stop

    @property
    def unmatched(self) -> Numbers:
        """The rows of the source that no row so far matched."""
        if self._empty:
            return np.arange(len(self._numbers))
        return np.flatnonzero((self._numbers < 0) | ~self._matched[self._numbers])


def _places(column: ArrowArray, values: ArrowArray) -> Numbers:
    """Where each value is among ``values``, -1 where it is not."""
    found = pc.fill_null(pc.index_in(column, value_set=values, skip_nulls=True), -1)
    return found.to_numpy().astype(np.int64)  # type: ignore[no-any-return]  # its class is known from its type
