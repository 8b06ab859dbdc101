"""Numbers that look random and are a function of a position and a salt: the same everywhere and for ever.

Source: the finaliser of SplitMix64 (Steele, Lea, Flood 2014), on counters.
"""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]
Ints: TypeAlias = NDArray[np.int64]

_STEP: Final = 0x9E3779B97F4A7C15
_MASK: Final = 2**64 - 1


def words(positions: Ints, salt: int) -> Words:
    """A pseudo-random u64 for each position. Different salts give independent ones."""
    start = _mixed(salt)
    mixed = positions.astype(np.uint64) * np.uint64(_STEP) + np.uint64(start)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def below(positions: Ints, salt: int, limits: int | Ints) -> Ints:
    """For each position a number in ``[0, limit)``; limits are at least 1."""
    limit = np.asarray(limits).astype(np.uint64)
    return (words(positions, salt) % limit).astype(np.int64)


def _mixed(salt: int) -> int:
    """One step of the generator on a plain integer, so that near salts are far apart."""
    value = (salt * _STEP + 0xD1B54A32D192ED03) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
