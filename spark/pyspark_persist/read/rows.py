"""From updates to the rows Spark shows: repeated by multiplicity, as raw diffs, or as a change feed. Vectorised.

Updates carry their time and count in ``_ts`` (u64) and ``_diff``, beside columns under Spark's names.

Source: spark.md section 0 fact 8; architecture.md section 8.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist import UsageError
from persist.arrow import ArrowColumn, Numbers
from pyspark_persist.read.repeating import repeat, taken
from pyspark_persist.read.row_codes import row_codes

DIFF: Final = pa.field("_diff", pa.int64(), nullable=False)
TS: Final = pa.field("_ts", pa.uint64(), nullable=False)
SPARK_TS: Final = pa.field("_ts", pa.int64(), nullable=False)
CHANGE_FIELDS: Final = (
    pa.field("_change_type", pa.string(), nullable=False),
    pa.field("_commit_version", pa.int64(), nullable=False),
    pa.field("_commit_timestamp", pa.timestamp("us", tz="UTC")),
)

_TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000

INSERT, DELETE, PRE, POST = "insert", "delete", "update_preimage", "update_postimage"


def diffs_of(table: pa.Table) -> Numbers:
    """The ``_diff`` column as a numpy array of i64."""
    return table.column(DIFF.name).to_numpy()


def snapshot_rows(table: pa.Table) -> Iterator[pa.Table]:
    """A snapshot's rows, each as often as it is there. Raises UsageError when a count is negative."""
    counts = diffs_of(table)
    if len(counts) and int(counts.min()) < 0:
        raise UsageError(
            "the snapshot holds rows with a negative count, which plain rows cannot show",
            hint='add .option("mode", "diffs") to read counts in _diff',
            smallest=int(counts.min()),
        )
    return repeat(table, counts)


def inserted_rows(table: pa.Table, *, ignore_deletes: bool) -> Iterator[pa.Table]:
    """A stream's rows when only insertions are shown. Raises UsageError on a deletion unless ``ignore_deletes``."""
    counts = diffs_of(table)
    if len(counts) and int(counts.min()) < 0:
        if not ignore_deletes:
            raise UsageError(
                "the stream holds deletions, which plain rows cannot show",
                hint='add .option("readChangeFeed", "true") or .option("mode", "diffs"); ignoreDeletes drops them',
            )
        counts = np.maximum(counts, 0)
    return repeat(table, counts)


def raw_diffs(table: pa.Table, as_of: int | None) -> pa.Table:
    """``_ts`` as Spark has it; a snapshot's rows all carry ``as_of``."""
    times = table.column(TS.name) if as_of is None else pa.array(np.full(table.num_rows, as_of, dtype=np.uint64))
    kept = table if as_of is not None else table.drop_columns([TS.name])
    return kept.append_column(SPARK_TS, signed(times))


def signed(times: ArrowColumn) -> ArrowColumn:
    """Times as i64, which is what Spark has. Raises UsageError beyond 2^63."""
    try:
        return times.cast(pa.int64())
    except pa.ArrowInvalid as cause:
        raise UsageError(
            "a time lies beyond 2^63, which Spark cannot show", hint="read it with the Python client"
        ) from cause


def change_rows(table: pa.Table, kinds: Numbers | None = None) -> Iterator[pa.Table]:
    """Updates as a change feed: ``_change_type``, ``_commit_version``, ``_commit_timestamp``, |diff| rows each.

    ``_commit_timestamp`` reads the time as milliseconds since 1970 (null beyond what a timestamp can hold).
    """
    counts = diffs_of(table)
    if kinds is None:
        kinds = np.where(counts > 0, INSERT, DELETE)
    versions = signed(table.column(TS.name))
    in_range = pc.if_else(pc.less_equal(versions, _TIMESTAMP_MS_MAX), versions, pa.scalar(None, pa.int64()))
    stamps = in_range.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
    kept = table.drop_columns([TS.name, DIFF.name])
    for field, column in zip(CHANGE_FIELDS, (pa.array(kinds, pa.string()), versions, stamps), strict=True):
        kept = kept.append_column(field, column)  # type: ignore[arg-type]  # narrower than Arrow is
    return repeat(kept, np.abs(counts))


def paired_changes(table: pa.Table, key: Sequence[str], *, net: bool) -> Iterator[pa.Table]:
    """A change feed in which a key's deletions and insertions at one time are shown as updates.

    Of d deletions and i insertions of one key at one time (anywhere in the table when ``net``), min(d, i) of each
    become pre and post images; which ones is fixed by the order of the rows. The table must hold whole keys.
    """
    counts = diffs_of(table)
    if not len(counts):
        return
    groups = row_codes(table, [*key] if net else [*key, TS.name])
    deleted, inserted = np.maximum(-counts, 0), np.maximum(counts, 0)
    pairs = np.minimum(_sums(deleted, groups), _sums(inserted, groups))[groups]
    pre = _first_of_group(deleted, groups, pairs)
    post = _first_of_group(inserted, groups, pairs)
    # Up to two rows stand for one update: its paired copies and the others; `order` keeps the deletions first.
    pieces = ((PRE, pre, -1), (POST, post, 1), (DELETE, deleted - pre, -1), (INSERT, inserted - post, 1))
    rows, kinds, diffs = [], [], []
    for kind, copies, sign in pieces:
        index = np.flatnonzero(copies)
        rows.append(index)
        kinds.append(np.full(len(index), kind))
        diffs.append(copies[index] * sign)
    order = np.lexsort((np.concatenate([np.full(len(r), n) for n, r in enumerate(rows)]), groups[np.concatenate(rows)]))
    chosen, kind_of, diff_of = (np.concatenate(each)[order] for each in (rows, kinds, diffs))
    for piece, place in taken(table, chosen):
        index = piece.schema.get_field_index(DIFF.name)  # type: ignore[assignment]  # narrower than Arrow is
        counted = piece.set_column(index, DIFF, pa.array(diff_of[place], pa.int64()))  # type: ignore[arg-type]  # narrower than Arrow is
        yield from change_rows(counted, kind_of[place])


def net_changes(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """One row for each distinct value of ``columns`` whose diffs do not sum to zero, at the last time it changed."""
    if not table.num_rows:
        return table
    groups = row_codes(table, columns)
    sums = np.zeros(int(groups.max()) + 1, dtype=np.int64)
    np.add.at(sums, groups, diffs_of(table))
    times = np.zeros(len(sums), dtype=np.uint64)
    np.maximum.at(times, groups, table.column(TS.name).to_numpy())
    first = np.unique(groups, return_index=True)[1]
    kept = first[sums != 0]
    net = table.take(pa.array(kept))
    net = net.set_column(net.schema.get_field_index(TS.name), TS, pa.array(times[sums != 0]))
    return net.set_column(net.schema.get_field_index(DIFF.name), DIFF, pa.array(sums[sums != 0]))


def whole_keys(batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> Iterator[pa.Table]:
    """Batches of key-sorted updates regrouped so that no key is cut in two. Holds one batch plus one key's updates."""
    carried: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        cut = _start_of_last_key(batch, key)
        if carried and _same_key(carried[-1], batch, key):
            if cut == 0:
                carried.append(batch)
                continue
            yield pa.Table.from_batches([*carried, batch.slice(0, cut)])
        else:
            head = [*carried, batch.slice(0, cut)] if cut else carried
            if head:
                yield pa.Table.from_batches(head)
        carried = [batch.slice(cut)]
    if carried:
        yield pa.Table.from_batches(carried)


def _same_key(left: pa.RecordBatch, right: pa.RecordBatch, key: Sequence[str]) -> bool:
    ends = pa.Table.from_batches([left.slice(left.num_rows - 1), right.slice(0, 1)])
    codes = row_codes(ends, key)
    return bool(codes[0] == codes[1])


def _start_of_last_key(batch: pa.RecordBatch, key: Sequence[str]) -> int:
    codes = row_codes(batch, key)
    different = np.flatnonzero(codes != codes[-1])
    return int(different[-1]) + 1 if len(different) else 0


def _sums(counts: Numbers, groups: Numbers) -> Numbers:
    sums = np.zeros(int(groups.max()) + 1, dtype=np.int64)
    np.add.at(sums, groups, counts)
    return sums


def _first_of_group(counts: Numbers, groups: Numbers, wanted: Numbers) -> Numbers:
    """Of each group's copies the first ``wanted``: how many each row gives."""
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(counts[order])
    starts_group = np.r_[True, groups[order][1:] != groups[order][:-1]]
    group_base = np.where(starts_group, ends - counts[order], 0)
    before = ends - counts[order] - np.maximum.accumulate(group_base)
    given = np.clip(wanted[order] - before, 0, counts[order])
    taken = np.empty_like(given)
    taken[order] = given
    return taken  # type: ignore[no-any-return]  # its class is known from its type
