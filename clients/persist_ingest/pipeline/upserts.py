"""Upserts as updates: what a key held before is taken back when something newer comes.

The newest value of every key is kept in memory, as a cache of what the shard holds at one frontier: it is rebuilt from
the shard whenever the frontier is another one. Keys are compared by their canonical bytes.
Source: sources.md section 4, upsert; kernel.md section 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray, ArrowChunks, array_of
from persist.sources import encode_key
from persist_ingest.pipeline.state import Contents

RUNS_MAX: Final = 8
"""Runs of newer values before they are merged with the older ones."""


@dataclass(slots=True)
class Newest:
    """The newest row of every key: ``runs``, newest first, each keys (canonical bytes) and rows; none for deletions."""

    names: list[str]
    key_names: list[str]
    runs: list[tuple[ArrowArray, pa.Table, ArrowArray]] = field(default_factory=list)

    def found(self, keys: ArrowArray) -> tuple[np.ndarray, pa.Table]:
        """For each of these distinct keys the index of its row in the table, or -1."""
        index = np.full(len(keys), -1, np.int64)
        settled = np.zeros(len(keys), bool)
        tables: list[pa.Table] = []
        offset = 0
        for run_keys, rows, present in self.runs:
            at = pc.index_in(run_keys, value_set=keys)
            hit_rows = np.flatnonzero(pc.is_valid(at).to_numpy(zero_copy_only=False))
            targets = at.take(array_of(hit_rows)).to_numpy(zero_copy_only=False).astype(np.int64)
            fresh = ~settled[targets]
            hit_rows, targets = hit_rows[fresh], targets[fresh]
            settled[targets] = True
            alive = present.take(array_of(hit_rows)).to_numpy(zero_copy_only=False).astype(bool)
            index[targets[alive]] = offset + np.arange(int(alive.sum()))
            tables.append(rows.take(pa.array(hit_rows[alive])))
            offset += int(alive.sum())
        return index, pa.concat_tables(tables) if tables else pa.table({})

    def put(self, keys: ArrowArray, rows: pa.Table, present: ArrowArray) -> None:
        """These keys, each once, hold these rows from now on."""
        self.runs.insert(0, (keys, rows, present))
        if len(self.runs) > RUNS_MAX:
            self._merge()

    def _merge(self) -> None:
        """One run of what is alive."""
        seen: ArrowArray | None = None
        kept: list[tuple[ArrowArray, pa.Table]] = []
        for keys, rows, present in self.runs:
            alive = present if seen is None else pc.and_(present, pc.invert(pc.is_in(keys, value_set=seen)))
            kept.append((keys.filter(alive), rows.filter(alive)))
            seen = keys if seen is None else pa.concat_arrays([seen, keys])
        keys = pa.concat_arrays([each for each, _ in kept])
        self.runs = [(keys, pa.concat_tables([rows for _, rows in kept]), pa.array(np.ones(len(keys), bool)))]


_CACHE: dict[str, tuple[int, Newest]] = {}
"""For each shard the newest values at one frontier. Lost at any time."""


def newest_at(contents: Contents, lower: int, fields: pa.Schema, key_names: list[str]) -> Newest:
    """The newest values just before ``lower``: those kept here, or those the shard holds."""
    known = _CACHE.pop(contents.shard, None)
    if known is not None and known[0] == lower and known[1].names == fields.names:
        return known[1]
    newest = Newest(list(fields.names), key_names)
    pieces = [pa.Table.from_batches([batch]).select(fields.names) for batch in contents.batches(lower)]
    if pieces:
        rows = pa.concat_tables(pieces).combine_chunks()
        newest.put(keys_of(rows, key_names), rows, pa.array(np.ones(rows.num_rows, bool)))
    return newest


def keep(contents: Contents, upper: int, newest: Newest) -> None:
    """Remember the values for a step that begins at ``upper``."""
    _CACHE[contents.shard] = (upper, newest)


def keys_of(rows: pa.Table | pa.RecordBatch, key_names: list[str]) -> ArrowArray:
    """The canonical bytes of each row's key."""
    columns = [_flat(rows.column(name)) for name in key_names]
    return encode_key(columns)


def changes_of(
    rows: pa.RecordBatch, times: ArrowArray, present: ArrowArray, newest: Newest
) -> Iterator[pa.RecordBatch]:
    """The updates that these upserts come to, and the newest values after them.

    ``rows``: key…, val…, in the upstream's order for each key; ``times`` never fall for a key. Yields key…, val…, ts,
    diff. Of several upserts of one key at one time only the last counts.
    """
    if not rows.num_rows:
        return
    keys = keys_of(rows, newest.key_names)
    coded = keys.dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    ts = times.to_numpy(zero_copy_only=False)
    order = np.lexsort((np.arange(len(codes)), ts, codes))
    ordered_codes, ordered_ts = codes[order], ts[order]
    last = np.r_[(ordered_codes[1:] != ordered_codes[:-1]) | (ordered_ts[1:] != ordered_ts[:-1]), True]
    kept = order[last]
    kept_codes, kept_ts = codes[kept], ts[kept]
    first_of_key = np.r_[True, kept_codes[1:] != kept_codes[:-1]]
    last_of_key = np.r_[first_of_key[1:], True]
    alive = present.to_numpy(zero_copy_only=False).astype(bool)[kept]
    table = pa.Table.from_batches([rows])

    before, before_rows = newest.found(coded.dictionary)
    old_index = before[kept_codes[first_of_key]]
    had = np.flatnonzero(old_index >= 0)
    if len(had):
        yield _updates(before_rows.take(pa.array(old_index[had])), kept_ts[first_of_key][had], -1, newest.names)
    # What a later upsert of the same key in this batch takes back.
    replaced = np.flatnonzero(~last_of_key & alive)
    if len(replaced):
        yield _updates(table.take(array_of(kept[replaced])), kept_ts[replaced + 1], -1, newest.names)
    fresh = np.flatnonzero(alive)
    if len(fresh):
        yield _updates(table.take(array_of(kept[fresh])), kept_ts[fresh], 1, newest.names)

    ends = kept[last_of_key]
    newest.put(
        coded.dictionary.take(array_of(kept_codes[last_of_key])),
        table.select(newest.names).take(array_of(ends)),
        pa.array(alive[last_of_key]),
    )


def _updates(rows: pa.Table, ts: np.ndarray, diff: int, names: list[str]) -> pa.RecordBatch:
    columns = [_flat(rows.column(name)) for name in names]
    columns += [pa.array(ts.astype(np.uint64)), pa.array(np.full(len(ts), diff, np.int64))]
    return pa.RecordBatch.from_arrays(columns, names=[*names, "ts", "diff"])


def _flat(column: ArrowArray | ArrowChunks) -> ArrowArray:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
