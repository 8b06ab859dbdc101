"""Upserts as updates: what a key held before is taken back when something newer comes.

Keys are compared by their canonical bytes. What they held is looked up in ``newest``, a cache of what the shard holds.
Source: sources.md section 4, upsert; kernel.md section 1.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from persist import LocationError
from persist.arrow import ArrowArray, Numbers, array_of
from persist_ingest.pipeline.newest.gathering import Gathered, ranked
from persist_ingest.pipeline.newest.kept import Kept, bring
from persist_ingest.pipeline.newest.key_ranges import WHOLE, KeyRange
from persist_ingest.pipeline.newest.ordering import by_key
from persist_ingest.pipeline.newest.runs import PRESENT, RunWriter, flat, keys_of
from persist_ingest.pipeline.state import Contents

_log = logging.getLogger(__name__)

PLACES: Final = ("\0time", "\0partition", "\0offset", PRESENT)
"""Names of columns beside the rows' own, which cannot be called so: when, and in what order, they count."""


class Newest(Protocol):
    """What keys hold."""

    def found(self, hashes: Numbers, keys: ArrowArray) -> tuple[Numbers, pa.Table]:
        """For each of these distinct keys, in order of their hashes, the index of its row in the table, or -1."""
        ...


def gather(key_names: Sequence[str], **options: int) -> Gathered:
    """For upserts, with the columns of ``PLACES``: of those of one key at one time only the last counts."""
    return Gathered(key_names, PLACES[:3], 1, **options)


def upserted(
    gathered: Gathered,
    contents: Contents,
    lower: int,
    upper: int,
    fields: pa.Schema,
    key_names: Sequence[str],
    mark: str,
    *,
    of: Sequence[KeyRange] = (WHOLE,),
    marks: Collection[str] = (),
    keep: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The updates that upserts at times in ``[lower, upper)`` come to: key…, val…, ts, diff.

    ``gathered``: as ``gather`` begins it, all of whose keys are in the ranges ``of``. ``mark``: what ``appended`` is
    called with once exactly these updates are in the shard, by an append of this pipeline; no other step's. ``marks``:
    what it was called with, here or elsewhere. ``keep``: for the next step of this process, and of no other; else
    whatever process comes next on this machine has it, and is given the mark. Raises NotReadable (also where the shard
    is known to be beyond ``lower``), LocationError.
    """
    with contextlib.ExitStack() as held:
        newest, incarnation = [], contents.incarnation()
        for each in of:
            newest.append(taken(contents, fields, key_names, each, incarnation))
            held.push(_back(contents, newest[-1], keep=keep))
        for kept in newest:
            kept.confirm(*marks)
        bring(newest, lower)
        with contextlib.ExitStack() as writing:
            writers = [writing.enter_context(kept.writer()) for kept in newest]
            for rows, hashes in gathered.ranges():
                for kept, writer in zip(newest, writers, strict=True):
                    yield from changes_of(*kept.of.within(rows, hashes), kept, writer, fields.names, key_names)
            runs = [writer.finish() for writer in writers]
        for kept, run in zip(newest, runs, strict=True):
            kept.prepare([run], upper, mark)


def appended(contents: Contents, *marks: str) -> None:
    """What was made under these is in the shard, appended by this pipeline and by no other: it is known from now on.

    Without this call, or where files cannot be written, the next step reads the shard's changes.
    """
    for kept in _held.pop((contents.key, os.getpid()), {}).values():
        try:
            kept.confirm(*marks)
        except LocationError as error:
            _log.warning("changes of shard %s are read again: %s", contents.shard, error)
            given_back(contents, kept, keep=False)
        else:
            given_back(contents, kept)


def changes_of(
    rows: pa.Table, hashes: Numbers, newest: Newest, writer: RunWriter, names: Sequence[str], key_names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The updates that these upserts come to; ``writer`` gets the newest rows after them.

    ``rows``: with the columns of ``PLACES``, in any order, and all of each key: they count in order of (time,
    partition, offset). Of several upserts of one key at one time only the last counts. ``hashes``: of their keys.
    """
    if not rows.num_rows:
        return
    ts, partitions, offsets, present = (flat(rows.column(name)) for name in PLACES)
    # Once: each ``take`` would join the chunks again.
    rows = rows.select([*names, PRESENT]).combine_chunks()
    times = ts.to_numpy(zero_copy_only=False)
    # Keys in order of their hashes, which are those of runs.
    columns = times, ranked(partitions), offsets.to_numpy(zero_copy_only=False)
    order, is_first = by_key(hashes, rows, key_names, columns)
    is_last = np.r_[is_first[1:] | (times[order[1:]] != times[order[:-1]]), True]
    kept, key_numbers = order[is_last], np.cumsum(is_first)[is_last]
    kept_ts = times[kept]
    first_of_key = np.r_[True, key_numbers[1:] != key_numbers[:-1]]
    last_of_key = np.r_[first_of_key[1:], True]
    alive = present.to_numpy(zero_copy_only=False).astype(bool)[kept]

    ends = kept[last_of_key]
    newest_rows = rows.take(array_of(ends))
    old_index, before_rows = newest.found(hashes[ends], keys_of(newest_rows, key_names))
    held = np.flatnonzero(old_index >= 0)
    if len(held):
        yield _taken_back(before_rows, old_index[held], kept_ts[first_of_key][held], names)
    # What a later upsert of the same key in this batch takes back.
    replaced = np.flatnonzero(~last_of_key & alive)
    if len(replaced):
        yield updates(rows.take(array_of(kept[replaced])), kept_ts[replaced + 1], -1, names)
    fresh = np.flatnonzero(alive)
    if len(fresh):
        is_all = len(fresh) == len(ends) == len(kept)
        yield updates(newest_rows if is_all else rows.take(array_of(kept[fresh])), kept_ts[fresh], 1, names)
    writer.write(hashes[ends], newest_rows)


def _taken_back(rows: pa.Table, places: Numbers, ts: Numbers, names: Sequence[str]) -> pa.RecordBatch:
    """The rows at these places, each at its time, in the order they stand in: few are not among them."""
    times, is_held = np.zeros(rows.num_rows, ts.dtype), np.zeros(rows.num_rows, np.bool_)
    times[places], is_held[places] = ts, True
    if not is_held.all():
        rows, times = rows.filter(array_of(is_held)), times[is_held]
    return updates(rows, times, -1, names)


_held: Final[dict[tuple[str, int], dict[KeyRange, Kept]]] = {}
"""Those of this process that no step is at work with, by the key of its contents."""


def let_go(contents: Contents) -> None:
    """Leave what is kept of these to other processes."""
    for kept in _held.pop((contents.key, os.getpid()), {}).values():
        kept.close()


def taken(
    contents: Contents,
    fields: pa.Schema,
    key_names: Sequence[str],
    of: KeyRange = WHOLE,
    incarnation: str | None = None,
) -> Kept:
    """What is kept of these, for this step alone, until it is ``given_back``. ``incarnation``: as Kept takes it."""
    now = contents.incarnation() if incarnation is None else incarnation
    # SUBTLE: the pid is part of the key because a forked child would write into its parent's files.
    kept = _held.get((contents.key, os.getpid()), {}).pop(of, None)
    if kept is not None and kept.is_of(contents, fields, now):
        return kept
    if kept is not None:
        kept.close()
    return Kept(contents, fields, key_names, of, now)


def _back(contents: Contents, kept: Kept, *, keep: bool) -> Callable[..., None]:
    def left(kind: type[BaseException] | None, *_: object) -> None:
        given_back(contents, kept, keep=keep and kind is None)

    return left


def given_back(contents: Contents, kept: Kept, *, keep: bool = True) -> None:
    """Leave it to the next step of this process, or to any process.

    ``keep``: not after an error: what is opened next finds whether its files, and its folder, are what they were.
    """
    if not keep or _held.setdefault((contents.key, os.getpid()), {}).setdefault(kept.of, kept) is not kept:
        kept.close()


def updates(rows: pa.Table, ts: Numbers, diff: int, names: Sequence[str]) -> pa.RecordBatch:
    """Rows with their times, and one diff."""
    columns = [flat(rows.column(name)) for name in names]
    columns += [pa.array(ts.astype(np.uint64)), pa.array(np.full(len(ts), diff, np.int64))]
    return pa.RecordBatch.from_arrays(columns, names=[*names, "ts", "diff"])
