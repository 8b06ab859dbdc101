"""Hashes of keys: 64 bits that are spread evenly, so that ranges of them are parts of equal size.

Equal keys have equal hashes on every machine. Different keys may have one, too: who looks a key up compares it.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from persist.arrow import Numbers, frombuffer

_FIRST: Final = np.uint64(0x9E3779B97F4A7C15)
_SECOND: Final = np.uint64(0xBF58476D1CE4E5B9)
_THIRD: Final = np.uint64(0x94D049BB133111EB)
_WORD: Final = 8


def key_hashes(keys: pa.LargeBinaryArray) -> Numbers:
    """One for each key, given by its canonical bytes."""
    if not len(keys):
        return np.zeros(0, np.uint64)
    offsets = frombuffer(keys.buffers()[1], np.int64, len(keys) + 1, keys.offset * _WORD)
    first, last = int(offsets[0]), int(offsets[-1])
    given = np.zeros(0, np.uint8) if first == last else frombuffer(keys.buffers()[2], np.uint8, last - first, first)
    data = np.concatenate([given, np.zeros(_WORD, np.uint8)])
    starts, lengths = offsets[:-1] - first, np.diff(offsets)
    # A word that begins at every byte.
    words: Numbers = np.ndarray((len(data) - _WORD + 1,), "<u8", data, 0, (1,))
    hashes = lengths.astype(np.uint64) * _FIRST
    rows, at = np.arange(len(keys)), 0
    while len(rows):
        left = lengths[rows] - at
        word = words[starts[rows] + at]
        if int(left.min()) < _WORD:
            word = word & _low_bytes(left)
        hashes[rows] = _mixed(hashes[rows] ^ word)
        at += _WORD
        rows = rows[left > _WORD]
    return hashes


def _low_bytes(left: Numbers) -> Numbers:
    """A mask of so many bytes, at most a word of them."""
    bits = (np.clip(_WORD - left, 0, _WORD) * 8).astype(np.uint64)
    mask = np.full(len(left), np.iinfo(np.uint64).max, np.uint64) >> np.minimum(bits, np.uint64(63))
    return np.where(bits > 63, np.uint64(0), mask)


def _mixed(words: Numbers) -> Numbers:
    words = (words ^ (words >> np.uint64(30))) * _SECOND
    words = (words ^ (words >> np.uint64(27))) * _THIRD
    mixed: Numbers = words ^ (words >> np.uint64(31))
    return mixed
