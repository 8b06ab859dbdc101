"""Rows in order of their keys: by hash, which decides nearly always, and by the key itself only where hashes are equal.

Source: sources.md section 4, upsert.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import Numbers, array_of
from persist_ingest.pipeline.newest.runs import keys_of


def by_key(
    hashes: Numbers, rows: pa.Table | pa.RecordBatch, key_names: Sequence[str], columns: Sequence[Numbers]
) -> tuple[Numbers, Numbers]:
    """(order, is first): the rows in order of (hash, key, columns…), and which of these are the first of their keys.

    ``hashes``: of the rows' keys. Keys of one hash are in any order, each of them together; the same rows are in the
    same order by whatever columns put the rows of each key in one.
    """
    order = np.argsort(hashes)
    ordered = hashes[order]
    is_first = np.r_[True, ordered[1:] != ordered[:-1]][: len(order)]
    if is_first.all():
        return order, is_first
    # What is beside one of the same hash; the others have their places.
    tied = np.flatnonzero(~(is_first & np.r_[is_first[1:], True]))
    at = np.sort(order[tied])
    at = at[_sorted(hashes[at], [column[at] for column in columns])]
    keys, same = _keys(rows, key_names, at), hashes[at][1:] == hashes[at][:-1]
    equal = _equal(keys)
    if (same & ~equal).any():
        codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        # Stable: rows of one key stay in order of their columns.
        again = np.lexsort((codes, hashes[at]))
        at, codes = at[again], codes[again]
        equal = codes[1:] == codes[:-1]
    order[tied] = at
    is_first[tied] = np.r_[True, ~equal]
    return order, is_first


def _keys(rows: pa.Table | pa.RecordBatch, key_names: Sequence[str], at: Numbers) -> pa.LargeBinaryArray:
    return keys_of(rows.select(list(key_names)).take(array_of(at)), key_names)


def _equal(keys: pa.LargeBinaryArray) -> Numbers:
    """Whether each key is that of the one before, from the second on."""
    equal: Numbers = pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return equal.astype(np.bool_)


def _sorted(hashes: Numbers, columns: Sequence[Numbers]) -> Numbers:
    """The order of (hash, columns…); what is in order of its columns already is only sorted by its hashes."""
    if _ascend(columns):
        return np.argsort(hashes, kind="stable")
    return np.lexsort((*reversed(columns), hashes))


def _ascend(columns: Sequence[Numbers]) -> bool:
    undecided = np.ones(max(0, len(columns[0]) - 1), np.bool_) if columns else np.zeros(0, np.bool_)
    for column in columns:
        if (undecided & (column[1:] < column[:-1])).any():
            return False
        undecided &= column[1:] == column[:-1]
    return True
