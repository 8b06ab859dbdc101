"""Keys that are far from each other, in groups between which no block of any part is read.

Only what descriptions of parts say is looked at: which keys a block may hold. Source: kernel.md section 4.
"""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from persist.core.data.splits import after_prefix
from persist.core.shard.batch import Part

ROWS_MIN: Final = 4_096
"""Rows in blocks that are passed over are worth another read from so many on: that costs about as much."""
GROUPS_MAX: Final = 128
BLOCKS_MAX: Final = 100_000
"""Of more blocks parts are taken whole: looking at each would cost more than it may save."""


def key_groups(parts: Sequence[Part], keys: Sequence[bytes]) -> list[tuple[int, int]]:
    """Groups of ascending keys as places ``[begin, end)``: all of them, in order; at least one key each.

    Between two groups lie blocks that can hold none of the keys, of ``ROWS_MIN`` rows more than blocks have that both
    groups have to read.
    """
    passed, shared = np.zeros(len(keys) + 1, np.int64), np.zeros(len(keys) + 1, np.int64)
    for lower, upper, rows in _blocks(parts):
        first = bisect.bisect_left(keys, lower)
        # ``upper`` may be the beginning of a key: what begins so may be in the block, too.
        after = after_prefix(upper)
        beyond = len(keys) if after is None else bisect.bisect_left(keys, after, lo=first)
        if first == beyond:
            passed[first] += rows
        elif first + 1 < beyond:
            shared[first + 1] += rows
            shared[beyond] -= rows
    worth = passed - np.cumsum(shared)
    # Nothing is before the first and behind the last.
    inner = worth[1 : len(keys)]
    best = np.flatnonzero(inner >= ROWS_MIN)
    chosen = best[np.argsort(-inner[best], kind="stable")[: GROUPS_MAX - 1]]
    cuts = sorted((chosen + 1).tolist())
    return [*zip([0, *cuts], [*cuts, len(keys)], strict=True)]


def _blocks(parts: Iterable[Part]) -> Iterator[tuple[bytes, bytes, int]]:
    """Of each block its first key, what its last one is at most or begins with, and its rows."""
    left = BLOCKS_MAX
    for part in parts:
        upper = part.key_upper
        left -= max(1, len(part.blocks))
        if not part.blocks or left < 0:
            if upper is not None:
                yield part.key_lower, upper, part.rows
            continue
        fences = [block.first_key for block in part.blocks]
        yield from zip(fences, fences[1:], (block.rows for block in part.blocks), strict=False)
        if upper is not None:
            yield fences[-1], max(upper, fences[-1]), part.blocks[-1].rows
