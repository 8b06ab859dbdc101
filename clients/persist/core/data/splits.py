"""Key ranges: what a range covers, and splitting the keys of a snapshot into ranges of about equal rows.

Only metadata is looked at: the fences of each part's blocks. Source: kernel.md section 4.
"""

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from persist.core.shard.batch import Part

_SPANS_MAX: Final = 8192
"""Blocks looked at one by one; of more, neighbours are joined."""

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


def after_prefix(prefix: bytes) -> bytes | None:
    """The first bytes beyond all that begin with ``prefix``; None when there are none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


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

    Fewer when keys or fences are few. Every range may hold rows as far as fences show; a key that fills whole blocks
    gets a range of its own.
    """
    spans = _coarse([span for part in parts for span in _spans(part)])
    if n <= 1 or not spans:
        return [EVERYTHING]
    edges: list[bytes | None] = [None, *_Density(spans).cuts(n), None]
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


def _coarse(spans: list[_Span]) -> list[_Span]:
    """At most _SPANS_MAX spans: neighbouring ones of the same part joined."""
    each = -(-len(spans) // _SPANS_MAX)
    if each <= 1:
        return spans
    joined: list[_Span] = []
    count = 0
    for span in spans:
        last = joined[-1] if joined else None
        if last is not None and last.upper == span.lower and count < each:
            joined[-1] = _Span(last.lower, span.upper, last.rows + span.rows)
            count += 1
        else:
            joined.append(span)
            count = 1
    return joined


class _Density:
    """Estimated rows between neighbouring fences, and rows of the very key of a fence."""

    def __init__(self, spans: Sequence[_Span]) -> None:
        self._fences = sorted({span.lower for span in spans} | {span.upper for span in spans})
        self._prefix = _shared_prefix(self._fences[0], self._fences[-1])
        self._at = np.array([_number(fence, self._prefix) for fence in self._fences], np.uint64)
        widths = np.diff(self._at).astype(np.float64)
        place = {fence: index for index, fence in enumerate(self._fences)}
        between = np.zeros(len(widths))
        self._on = np.zeros(len(self._fences))
        for span in spans:
            start, end = place[span.lower], place[span.upper]
            if start == end:
                self._on[start] += span.rows
                continue
            share = widths[start:end]
            whole = float(share.sum())
            between[start:end] += span.rows * (share / whole if whole else 1 / (end - start))
        self._below = np.zeros(len(self._fences))
        np.cumsum(self._on[:-1] + between, out=self._below[1:])
        self._total = float(self._below[-1] + self._on[-1])

    def cuts(self, n: int) -> list[bytes]:
        """Keys at the quantiles, ascending and distinct: at most n - 1."""
        share = self._total / n
        found = {self._cut(share * index, share * _SNAP) for index in range(1, n)}
        return sorted(cut for cut in found if self._fences[0] < cut <= self._fences[-1] + b"\0")

    def _cut(self, wanted: float, near: float) -> bytes:
        """The key below which about ``wanted`` rows lie; a fence, when one is as near as that."""
        left = int(np.searchsorted(self._below, wanted, side="right")) - 1
        fence, inside = self._fences[left], wanted - float(self._below[left])
        on = float(self._on[left])
        if inside <= near:
            return fence
        if inside < on + near:
            return fence if inside < on / 2 else fence + b"\0"
        right = left + 1
        if right == len(self._fences):
            return fence + b"\0"
        room = float(self._below[right] - self._below[left]) - on
        if wanted >= float(self._below[right]) - near or self._at[right] == self._at[left]:
            return self._fences[right]
        width = int(self._at[right]) - int(self._at[left])
        number = int(self._at[left]) + int(width * (inside - on) / room)
        return self._fences[0][: self._prefix] + number.to_bytes(8, "big")


def touching(ranges: Sequence[KeyRange], parts: Iterable[Part]) -> Iterator[tuple[Part, range]]:
    """Each part with which of the ranges its keys may lie in, by number.

    ``ranges``: as of ``choose``. In few steps for each part: both may be many.
    """
    cuts = [item.lower or b"" for item in ranges[1:]]
    for part in parts:
        first = bisect.bisect_right(cuts, part.key_lower)
        last = len(cuts) if part.key_upper is None else bisect.bisect_right(cuts, part.key_upper)
        yield part, range(first, last + 1)


def _without_empty(ranges: list[KeyRange], parts: Sequence[Part]) -> list[KeyRange]:
    """The ranges with those that can hold no rows joined to a neighbour."""
    holds = [False] * len(ranges)
    for part, numbers in touching(ranges, parts):
        for number in numbers:
            holds[number] = holds[number] or not part.blocks or bool(blocks_in(part, ranges[number]))
    kept: list[KeyRange] = []
    pending: bytes | None = None
    joining = False
    for item, is_held in zip(ranges, holds, strict=True):
        lower = pending if joining else item.lower
        if is_held:
            kept.append(KeyRange(lower, item.upper))
            joining = False
        elif kept:
            kept[-1] = KeyRange(kept[-1].lower, item.upper)
        else:
            pending, joining = lower, True
    return kept or [EVERYTHING]


def _number(key: bytes, base: int) -> int:
    """8 key bytes after the shared prefix as a number, for interpolation."""
    return int.from_bytes(key[base : base + 8].ljust(8, b"\0"), "big")


def _shared_prefix(first: bytes, second: bytes) -> int:
    same = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        same += 1
    return same
