"""What must be in a shard: every update that was acknowledged, and what readers saw of it.

Observations are kept and judged in the end, when it is known what became of every append. A time that was complete
once stays as it was, so judging late loses nothing. Source: reliability.md section 2, I4 to I6.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

Row = tuple[int, str]
"""Key and value."""
Update = tuple[int, str, int, int]
"""Key, value, time, diff."""


class Violation(AssertionError):
    """A promise was broken."""


def net(rows: Iterable[tuple[Row, int]]) -> dict[Row, int]:
    """Sums by row, none zero."""
    sums: Counter[Row] = Counter()
    for row, diff in rows:
        sums[row] += diff
    return {row: diff for row, diff in sums.items() if diff}


@dataclass
class Ledger:
    """One shard as its writers and readers know it."""

    updates: list[Update] = field(default_factory=list)
    snapshots: list[tuple[int, dict[Row, int], str]] = field(default_factory=list)
    changes: list[tuple[int, int, dict[tuple[int, str, int], int], str]] = field(default_factory=list)

    def add(self, rows: Iterable[Update]) -> None:
        """These updates are in the shard for ever, once."""
        self.updates += rows

    def at(self, as_of: int) -> dict[Row, int]:
        """The contents at a time."""
        return net(((key, val), diff) for key, val, ts, diff in self.updates if ts <= as_of)

    def between(self, lower: int, upper: int) -> dict[tuple[int, str, int], int]:
        """The updates at times in ``[lower, upper)``, summed."""
        sums: Counter[tuple[int, str, int]] = Counter()
        for key, val, ts, diff in self.updates:
            if lower <= ts < upper:
                sums[key, val, ts] += diff
        return {update: diff for update, diff in sums.items() if diff}

    def saw(self, as_of: int, found: dict[Row, int], who: str) -> None:
        """A snapshot was read."""
        self.snapshots.append((as_of, found, who))

    def heard(self, lower: int, upper: int, found: dict[tuple[int, str, int], int], who: str) -> None:
        """Every change was returned in ``[lower, upper)``."""
        self.changes.append((lower, upper, found, who))

    def judge(self) -> None:
        """Raise Violation unless everything seen was what is in the ledger. Forgets what was judged."""
        for as_of, found, who in self.snapshots:
            wanted = self.at(as_of)
            if found != wanted:
                raise Violation(f"I5: snapshot at {as_of} by {who}: {_difference(found, wanted)}")
        for lower, upper, told, who in self.changes:
            due = self.between(lower, upper)
            if told != due:
                raise Violation(f"I6: changes in [{lower}, {upper}) returned to {who}: {_difference(told, due)}")
        self.snapshots.clear()
        self.changes.clear()


def _difference(found: dict[object, int] | object, wanted: dict[object, int] | object) -> str:
    assert isinstance(found, dict)
    assert isinstance(wanted, dict)
    more = {row: diff for row, diff in found.items() if wanted.get(row) != diff}
    less = {row: diff for row, diff in wanted.items() if found.get(row) != diff}
    return f"found {list(more.items())[:5]}, wanted {list(less.items())[:5]}"
