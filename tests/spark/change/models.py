"""What a change must come to, said in plain Python: rows with their counts, nulls as SQL has them."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

Row = tuple[Any, ...]
Rows = Counter[Row]
"""Rows and how often each is there."""


def rows_of(listed: Iterable[Row]) -> Rows:
    return Counter(listed)


def changed(rows: Rows, becomes: Callable[[Row], Row | None]) -> Rows:
    """Every row as it becomes; those that become None are gone."""
    after: Rows = Counter()
    for row, count in rows.items():
        new = becomes(row)
        if new is not None:
            after[new] += count
    return after


def merged(
    rows: Rows,
    source: Iterable[Row],
    *,
    matched: Callable[[Row, Row], Row | None],
    not_matched: Callable[[Row], Row | None],
    by_source: Callable[[Row], Row | None],
) -> Rows:
    """A merge on the first column, in which every row of the table matches one row of the source at most."""
    listed = list(source)
    after: Rows = Counter()
    for row, count in rows.items():
        mates = [each for each in listed if each[0] is not None and each[0] == row[0]]
        assert len(mates) <= 1
        new = matched(row, mates[0]) if mates else by_source(row)
        if new is not None:
            after[new] += count
    keys = {row[0] for row in rows if row[0] is not None}
    for each in listed:
        if each[0] not in keys and (added := not_matched(each)) is not None:
            after[added] += 1
    return after
