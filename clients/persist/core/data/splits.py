"""Key ranges: what a range covers, and splitting the keys of a snapshot into ranges of about equal rows.

Only metadata is looked at: the fences of each part's blocks. Source: kernel.md section 4.
"""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from persist.core.shard.batch import Part

_NARROW: Final = 2.0**-30
"""Spans narrower than this part of all keys count as one point."""

_SNAP: Final = 0.1
"""A fence this close to the ideal cut, in splits, is taken instead: it is the free edge of a block."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Canonical keys K with lower <= K < upper; None is unbounded."""

    lower: bytes | None = None
    upper: bytes | None = None

    def contains(self, key: bytes) -> bool:
        """The key lies in this range."""
        return (self.lower is None or self.lower <= key) and (self.upper is None or key < self.upper)

    def overlaps(self, lower: bytes, upper: bytes | None) -> bool:
        """Some key of [lower, upper], both inclusive (``upper`` None: unbounded), may lie in this range."""
        if self.upper is not None and self.upper <= lower:
            return False
        return self.lower is None or upper is None or self.lower <= upper

    def may_hold(self, fence: bytes, next_fence: bytes | None, upper: bytes | None) -> bool:
        """Some key of a block may lie in this range.

        ``fence``: the block's first key, truncated; ``next_fence``: that of the block after it, None for the last one,
        which ends at the part's ``upper``.
        """
        if next_fence is None:
            return self.overlaps(fence, upper)
        if self.upper is not None and self.upper <= fence:
            return False
        # The next first key was truncated: every key of this block is at most something that starts like it.
        return self.lower is None or self.lower <= next_fence or self.lower.startswith(next_fence)


EVERYTHING: Final = KeyRange()


def blocks_in(part: Part, key_range: KeyRange) -> tuple[int, ...]:
    """Which blocks of a part may hold keys of the range, ascending."""
    fences = [block.first_key for block in part.blocks]
    after: list[bytes | None] = [*fences[1:], None]
    return tuple(
        index
        for index, (fence, next_fence) in enumerate(zip(fences, after, strict=True))
        if key_range.may_hold(fence, next_fence, part.key_upper)
    )


def choose(parts: Sequence[Part], n: int) -> list[KeyRange]:
    """At most ``n`` ranges, in order, that cover all keys without overlap and hold about equally many rows each.

    Fewer when keys or fences are few. Every range may hold rows as far as fences tell.
    """
    spans = [span for part in parts for span in _spans(part)]
    if n <= 1 or not spans:
        return [EVERYTHING]
    cuts = _cuts(spans, n)
    edges: list[bytes | None] = [None, *cuts, None]
    ranges = [KeyRange(lower, upper) for lower, upper in itertools.pairwise(edges)]
    return _without_empty(ranges, parts)


@dataclass(frozen=True, slots=True)
class _Span:
    lower: bytes
    upper: bytes
    rows: int


def _spans(part: Part) -> list[_Span]:
    """The blocks of a part (or the part itself) as ranges of keys with their rows."""
    upper = part.key_upper if part.key_upper is not None else b"\xff" * 9
    if not part.blocks:
        return [_Span(part.key_lower, max(upper, part.key_lower), part.rows)]
    fences = [block.first_key for block in part.blocks]
    ends = [*fences[1:], max(upper, fences[-1])]
    return [_Span(fence, end, block.rows) for fence, end, block in zip(fences, ends, part.blocks, strict=True)]


def _cuts(spans: Sequence[_Span], n: int) -> list[bytes]:
    """Weighted quantiles, every span's rows spread evenly over its keys; ascending, distinct."""
    lowest, highest = min(span.lower for span in spans), max(span.upper for span in spans)
    base = _shared_prefix(lowest, highest)
    fences = sorted({span.lower for span in spans} | {span.upper for span in spans})
    at = np.array([_number(fence, base) for fence in fences])
    below = _rows_below(spans, base, at)
    share = sum(span.rows for span in spans) / n
    cuts: set[bytes] = set()
    for index in range(1, n):
        wanted = share * index
        right = min(bisect.bisect_left(below, wanted), len(fences) - 1)
        left = max(right - 1, 0)
        nearest = min((left, right), key=lambda place: abs(below[place] - wanted))
        if abs(below[nearest] - wanted) <= share * _SNAP or below[right] <= below[left]:
            cuts.add(fences[nearest])
            continue
        fraction = (wanted - below[left]) / (below[right] - below[left])
        number = int(at[left] + (at[right] - at[left]) * fraction)
        cuts.add(lowest[:base] + min(max(number, 0), (1 << 64) - 1).to_bytes(8, "big"))
    return sorted(cut for cut in cuts if lowest < cut <= highest)


def _rows_below(spans: Sequence[_Span], base: int, at: npt.NDArray[np.float64]) -> list[float]:
    """Estimated rows with keys below each of the ascending positions: spans are even, very narrow ones are points."""
    starts = np.array([_number(span.lower, base) for span in spans])
    ends = np.array([_number(span.upper, base) for span in spans])
    rows = np.array([span.rows for span in spans], np.float64)
    # Slopes are summed below: widths too unlike each other would drown the small slopes in rounding.
    narrow = ends - starts <= (ends.max() - starts.min()) * _NARROW
    order = np.argsort(starts[narrow], kind="stable")
    points = np.concatenate([[0.0], np.cumsum(rows[narrow][order])])
    below: npt.NDArray[np.float64] = points[np.searchsorted(starts[narrow][order], at, side="left")]
    if not narrow.all():
        starts, ends, slope = starts[~narrow], ends[~narrow], (rows / np.maximum(ends - starts, 1.0))[~narrow]
        edges = np.concatenate([starts, ends])
        order = np.argsort(edges, kind="stable")
        slopes = np.cumsum(np.concatenate([slope, -slope])[order])
        climbs = np.maximum(slopes[:-1], 0) * np.diff(edges[order])
        below = below + np.interp(at, edges[order], np.concatenate([[0.0], np.cumsum(climbs)]))
    return list(np.maximum.accumulate(below))


def _without_empty(ranges: list[KeyRange], parts: Sequence[Part]) -> list[KeyRange]:
    """The ranges with those that can hold no rows joined to a neighbour."""
    kept: list[KeyRange] = []
    pending: bytes | None = None
    joining = False
    for item in ranges:
        lower = pending if joining else item.lower
        if any(_holds(part, item) for part in parts):
            kept.append(KeyRange(lower, item.upper))
            joining = False
        elif kept:
            kept[-1] = KeyRange(kept[-1].lower, item.upper)
        else:
            pending, joining = lower, True
    return kept or [EVERYTHING]


def _holds(part: Part, key_range: KeyRange) -> bool:
    if not key_range.overlaps(part.key_lower, part.key_upper):
        return False
    return not part.blocks or bool(blocks_in(part, key_range))


def _number(key: bytes, base: int) -> float:
    """Key bytes after the shared prefix as a number, for interpolation."""
    return float(int.from_bytes(key[base : base + 8].ljust(8, b"\0"), "big"))


def _shared_prefix(first: bytes, second: bytes) -> int:
    same = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        same += 1
    return same
