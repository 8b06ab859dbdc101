"""Sorting rows in canonical order, by 8-byte words of their canonical bytes.

A whole word is compared at a time: one SIMD sort of (word's top bits | row number), then only rows that are still tied
look at the bytes, or columns, that follow. Sort at most about a million rows at once: temporaries beyond the cache cost
half the speed. Source: kernel.md section 2.
"""

import itertools
import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray, Numbers, py_buffer
from persist.core.data.encoding import (
    I64,
    U64,
    Bools,
    Bytes,
    Column,
    encode_key,
    one_chunk,
    raw_buffers,
    sort_key,
    words,
)
from persist.core.data.gather import gather
from persist.core.data.types import T, has_words
from persist.errors import CorruptData

__all__ = [
    "Permutation",
    "encode_key",
    "has_word_order",
    "key_words",
    "may_repeat",
    "order_in_groups",
    "settle",
    "sort_few",
    "sort_many",
    "sort_rows",
    "tied",
]

Permutation = I64 | None
"""Row numbers in output order; None when rows stay where they are."""

_PREFIX_MAX: Final = 64
"""Bytes looked at for a prefix all keys share."""

_SMALL: Final = 1024
"""Below this many rows a plain stable sort wins."""

_FEW: Final = 256
"""Up to this many rows Python's own sort wins: numpy takes longer to call than to do its work."""

_ROUNDS: Final = 4
"""Words of tied rows that are looked at one by one. Who is tied still has long values, and these are compared whole."""

_MASKS: Final = np.array([((1 << 64) - 1) ^ ((1 << (64 - 8 * count)) - 1) for count in range(9)], np.uint64)
"""Keeps the first ``count`` of 8 bytes."""


def has_word_order(key: pa.Schema) -> bool:
    """Keys are single integers or times: rows without nulls can be ordered by one u64 each."""
    return len(key) == 1 and has_words(key.field(0).type)


def key_words(columns: Sequence[Column]) -> U64 | None:
    """One u64 per row in canonical order, for a single integer or time column without nulls; None otherwise."""
    if len(columns) != 1 or columns[0].null_count or not has_words(columns[0].type):
        return None
    return words(one_chunk(columns[0]))


def sort_rows(
    columns: Sequence[Column], runs: I64 | None = None, keys: pa.LargeBinaryArray | None = None
) -> tuple[Permutation, Bools]:
    """Stable canonical order of rows, and for each output row whether it equals the one before it.

    Rows that are in order already stay where they are. ``runs``: row numbers (not 0) where a new sorted run starts; a
    descent elsewhere raises CorruptData.
    ``keys``: the canonical bytes of the rows, where they are at hand.
    """
    if runs is None and keys is None and len(columns[0]) <= _FEW:
        return sort_few(columns)
    return sort_many(columns, runs, keys)


def sort_few(columns: Sequence[Column]) -> tuple[Permutation, Bools]:
    """As sort_rows, quicker for few rows."""
    rows = len(columns[0])
    tie = np.zeros(rows, bool)
    if rows < 2:
        return None, tie
    single = key_words(columns)
    values: list[Any] = sort_key(columns).to_pylist() if single is None else single.tolist()
    order = sorted(range(rows), key=values.__getitem__)
    ordered = [values[row] for row in order]
    tie[1:] = list(map(operator.eq, ordered[1:], ordered))
    return (None if ordered == values else np.array(order, np.int64)), tie


def sort_many(
    columns: Sequence[Column], runs: I64 | None = None, keys: pa.LargeBinaryArray | None = None
) -> tuple[Permutation, Bools]:
    """As sort_rows, quicker for many rows."""
    rows = len(columns[0])
    if rows < 2:
        return None, np.zeros(rows, bool)
    single = key_words(columns)
    if single is not None:
        perm, tie, _ = _by_word(single, runs)
        return perm, tie
    keys = sort_key(columns).cast(pa.large_binary()) if keys is None else keys  # type: ignore[assignment]  # narrower than Arrow is
    offsets, data = raw_buffers(keys)  # type: ignore[arg-type]  # no nulls here
    at, first, full = _common_prefix(offsets, data)
    perm, tie, _ = _by_word(first, runs)
    whole = full and int(np.diff(offsets).max()) == at + 8
    if whole or not tie.any():
        return perm, tie
    return _settle(perm, tie, [keys], already=at + 8 if full else at, encoded=True)


def settle(perm: Permutation, tie: Bools, columns: Sequence[Column]) -> tuple[Permutation, Bools]:
    """Order rows that are tied so far by further columns. Other rows are not touched."""
    return _settle(perm, tie, columns, already=0, encoded=False)


def tied(tie: Bools) -> I64:
    """Output positions in groups of two or more equal rows."""
    group = tie.copy()
    group[:-1] |= tie[1:]
    return np.flatnonzero(group)


def may_repeat(columns: Sequence[Column]) -> bool:
    """Whether some row may equal the row before it. Columns without a cheap comparison count as equal."""
    rows = len(columns[0])
    equal = np.ones(max(rows - 1, 0), bool)
    for column in columns:
        if not equal.any():
            return False
        one = _neighbours(one_chunk(column))
        if one is not None:
            equal &= one
    return bool(equal.any())


def order_in_groups(group: Numbers, word: U64) -> I64:
    """Stable order by (group, word); ``group`` is ascending."""
    rows = len(word)
    index_bits = (rows - 1).bit_length()
    group_bits = int(group[-1]).bit_length()
    room = 64 - index_bits - group_bits
    if rows < _SMALL or room < 8:
        return np.lexsort((word, group))
    low = word.min()
    shift = max(0, int(word.max() - low).bit_length() - room)
    packed = ((word - low) >> np.uint64(shift)) << np.uint64(index_bits)
    packed |= np.arange(rows, dtype=np.uint64)
    if group_bits:
        packed |= group.astype(np.uint64) << np.uint64(64 - group_bits)
    packed.sort()
    perm: I64 = (packed & np.uint64((1 << index_bits) - 1)).astype(np.int64)
    if shift:
        # Bits were cut off: rows that differ only there are out of order, but nearly sorted.
        ordered = word[perm]
        if bool(((group[1:] == group[:-1]) & (ordered[1:] < ordered[:-1])).any()):
            perm = perm[np.lexsort((ordered, group))]
    return perm


def _by_word(word: U64, runs: I64 | None) -> tuple[Permutation, Bools, U64]:
    """Order by a word per row: (permutation, ties, words in output order)."""
    rows = len(word)
    tie = np.zeros(rows, bool)
    falls = word[1:] < word[:-1]
    descents = int(np.count_nonzero(falls))
    if runs is not None and descents > int(np.count_nonzero(falls[runs - 1])):
        raise CorruptData("rows of a part are not sorted", hint="the part was written wrongly; report it")
    perm = _order_words(word, descents) if descents else None
    ordered = word if perm is None else word[perm]
    np.equal(ordered[1:], ordered[:-1], out=tie[1:])
    return perm, tie, ordered


def _order_words(word: U64, descents: int) -> I64:
    rows = len(word)
    if descents <= rows >> 8 or rows < _SMALL:
        # A few sorted runs, or nearly sorted: timsort is close to linear.
        return np.argsort(word, kind="stable")
    low = word.min()
    index_bits = (rows - 1).bit_length()
    shift = max(0, int(word.max() - low).bit_length() - (64 - index_bits))
    packed = ((word - low) >> np.uint64(shift)) << np.uint64(index_bits)
    packed |= np.arange(rows, dtype=np.uint64)
    packed.sort()
    packed &= np.uint64((1 << index_bits) - 1)
    perm: I64 = packed.astype(np.int64)
    if shift:
        ordered = word[perm]
        if bool((ordered[1:] < ordered[:-1]).any()):
            perm = perm[np.argsort(ordered, kind="stable")]
    return perm


def _word(offsets: I64, data: Bytes, at: int, rows: I64 | None = None) -> tuple[U64, I64 | None]:
    """8 key bytes from byte ``at`` of each row, zero padded, and how many are real (None: all 8, everywhere)."""
    starts = (offsets[:-1] if rows is None else offsets[rows]) + at
    ends = offsets[1:] if rows is None else offsets[rows + 1]
    left = ends - starts
    windows: Numbers = np.ndarray((len(data) - 7,), ">u8", data, 0, (1,))
    if int(left.min()) >= 8:
        return windows[starts].astype(np.uint64), None
    count = np.clip(left, 0, 8)
    return windows[np.minimum(starts, len(data) - 8)].astype(np.uint64) & _MASKS[count], count


def _common_prefix(offsets: I64, data: Bytes) -> tuple[int, U64, bool]:
    """(bytes all rows share, up to a limit; the word after them; whether every row has all 8 of its bytes)."""
    at = 0
    while True:
        word, count = _word(offsets, data, at)
        low, high = int(word.min()), int(word.max())
        same = 8 if low == high else (64 - (low ^ high).bit_length()) // 8
        if count is not None:
            same = min(same, int(count.min()))
        if same == 0 or at >= _PREFIX_MAX:
            return at, word, count is None
        at += same


def _settle(
    perm: Permutation, tie: Bools, columns: Sequence[Column], *, already: int, encoded: bool
) -> tuple[Permutation, Bools]:
    positions = tied(tie)
    if not len(positions):
        return perm, tie
    rows = positions if perm is None else perm[positions]
    same = tie[positions]
    if perm is None and len(positions) == len(tie):
        chosen = [one_chunk(column) for column in columns]
    else:
        # One column at a time: the others are not copied meanwhile.
        chosen = [gather(one_chunk(column), rows) for column in columns]
    # Most ties are rows that are equal all through: one compare of neighbours finishes those groups.
    unequal = same.copy()
    unequal[1:] &= ~_adjacent_equal(chosen)
    if not unequal.any():
        return perm, tie
    group = np.cumsum(~same) - 1
    open_group = np.zeros(int(group[-1]) + 1, bool)
    open_group[group[unequal]] = True
    hits = np.flatnonzero(open_group[group])
    subset = [gather(column, hits) for column in chosen]
    offsets, data = raw_buffers(subset[0] if encoded else encode_key(subset))  # type: ignore[arg-type]  # narrower than Arrow is
    moved, refined = _refine(same[hits], offsets, data, already)
    if moved is not None:
        perm = np.arange(len(tie)) if perm is None else perm
        perm[positions[hits]] = rows[hits][moved]
    tie = tie.copy()
    tie[positions[hits]] = refined
    return perm, tie


def _refine(tie: Bools, offsets: I64, data: Bytes, at: int) -> tuple[Permutation, Bools]:
    """Order inside tie groups by the bytes from ``at`` on; tie flags of the result are exact."""
    total = len(tie)
    perm: Permutation = None
    result = tie.copy()
    for left in itertools.count(_ROUNDS, -1):
        positions = tied(tie)
        if not len(positions):
            break
        rows = positions if perm is None else perm[positions]
        same = tie[positions]
        if len(positions) <= _FEW or not left:
            order, result[positions] = _by_bytes(same, offsets, data, rows)
            if order is not None:
                perm = np.arange(total) if perm is None else perm
                perm[positions] = rows[order]
            break
        word, count = _word(offsets, data, at, rows)
        falls = word[1:] < word[:-1]
        if count is not None:
            falls |= (word[1:] == word[:-1]) & (count[1:] < count[:-1])
        if bool((same[1:] & falls).any()):
            group = np.cumsum(~same)
            order = order_in_groups(group, word) if count is None else np.lexsort((count, word, group))
            word = word[order]
            count = None if count is None else count[order]
            perm = np.arange(total) if perm is None else perm
            perm[positions] = rows[order]
        same[1:] &= word[1:] == word[:-1]
        if count is not None:
            same[1:] &= count[1:] == count[:-1]
        result[positions] = same
        tie = np.zeros(total, bool)
        # Rows equal up to the end of both are equal for good; the others look at the next word.
        tie[positions] = same if count is None else same & (count == 8)
        at += 8
    return perm, result


def _by_bytes(same: Bools, offsets: I64, data: Bytes, rows: I64) -> tuple[Permutation, Bools]:
    """As _refine, by all bytes at once: quicker for few rows, and for values that share much."""
    buffers = [None, py_buffer(offsets), py_buffer(data)]
    keys = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers).take(pa.array(rows))
    table = pa.table({"group": np.cumsum(~same), "key": keys})
    order = pc.sort_indices(table, [("group", "ascending"), ("key", "ascending")]).to_numpy().astype(np.int64)
    same = same.copy()
    if bool((order[1:] < order[:-1]).any()):
        keys = keys.take(pa.array(order))
    else:
        order = None
    same[1:] &= _bools(pc.equal(keys[1:], keys[:-1]))
    return order, same


def _adjacent_equal(columns: Sequence[ArrowArray]) -> Bools:
    """For rows 1…: certainly equal to the row before. False also where the type has no cheap comparison."""
    rows = len(columns[0])
    equal = np.ones(max(rows - 1, 0), bool)
    for column in columns:
        one = _neighbours(column)
        if one is None:
            return np.zeros(max(rows - 1, 0), bool)
        equal &= one
        if not equal.any():
            break
    return equal


def _neighbours(column: ArrowArray) -> Bools | None:
    given = column.type
    if T.is_struct(given):
        equal = _bools(pc.equal(column.is_valid()[1:], column.is_valid()[:-1]))
        for child in column.flatten():  # type: ignore[attr-defined]  # its type says what it is
            one = _neighbours(child)
            if one is None:
                return None
            equal &= one
        return equal
    if T.is_floating(given):
        # Equal bits are equal values; unequal bits (0.0 and -0.0, NaNs) are left to the encoding.
        column = column.view(pa.int64() if given.bit_width == 64 else pa.int32()) if given.bit_width > 16 else None  # type: ignore[assignment]  # narrower than Arrow is
    elif T.is_nested(given) or T.is_interval(given):
        return None
    if column is None:
        return None  # type: ignore[unreachable]  # callers without a type checker
    equal = _bools(pc.fill_null(pc.equal(column[1:], column[:-1]), False))
    if column.null_count:
        absent = _bools(column.is_null())
        equal |= absent[1:] & absent[:-1]
    return equal


def _bools(array: ArrowArray) -> Bools:
    flags: Bools = array.to_numpy(zero_copy_only=False)
    return flags if flags.flags.writeable else flags.copy()
