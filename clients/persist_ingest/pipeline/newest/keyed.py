"""Changes that say of earlier rows only the key: what those were is looked up in what the export holds.

All of a key's changes come, in order, so each of them says something of the one before: that its row was there, or was
not. Where that is not so, what is held is not what the upstream had, and nothing is written.
Source: sources.md sections 1 (semantics seen, replica identity) and 4.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from persist.arrow import ArrowArray, Numbers, array_of
from persist.runtime import system
from persist_ingest.pipeline.newest.hashes import key_hashes
from persist_ingest.pipeline.newest.ordering import by_key
from persist_ingest.pipeline.newest.runs import Run, keys_of, merged
from persist_ingest.pipeline.newest.upserts import PLACES, changes_of, given_back, taken, updates
from persist_ingest.pipeline.state import Contents
from persist_ingest.sources.port import Keyed, TableAltered

_AGAIN: Final = "snapshot it again (persist source resnapshot)"


class ByKey:
    """What an export holds by its keys in one step, from ``lower`` on, as it is changed event by event.

    Raises NotReadable (also where the shard is known to be beyond ``lower``), LocationError. To be closed.
    """

    def __init__(self, contents: Contents, lower: int, fields: pa.Schema, key_names: Sequence[str]) -> None:
        self._contents = contents
        self._lower = lower
        self._names = list(fields.names)
        self._key_names = list(key_names)
        self._runs: list[Run] = []
        self._is_emptied = False
        self._is_closed = False
        self._kept = taken(contents, fields, key_names)
        try:
            self._kept.at(lower)
        except BaseException:
            self.close()
            raise

    def found(self, hashes: Numbers, keys: ArrowArray) -> tuple[Numbers, pa.Table]:
        """See Newest: what these keys hold now."""
        return self._kept.found_in(self._all(), hashes, keys)

    def put(self, rows: pa.RecordBatch, at: int) -> Iterator[pa.RecordBatch]:
        """Rows of keys that had none. The updates that it comes to."""
        count = rows.num_rows
        event = Keyed(
            export="",
            rows=rows,
            offsets=pa.nulls(count, pa.uint64()),
            present=pa.array(np.ones(count, np.bool_)),
            fresh=pa.array(np.ones(count, np.bool_)),
            before=pa.array(np.full(count, -1, np.int64)),
        )
        return self.changed(event, pa.array(np.full(count, at, np.uint64)))

    def changed(self, event: Keyed, times: ArrowArray) -> Iterator[pa.RecordBatch]:
        """The updates that these come to: key…, val…, ts, diff; those before ``lower`` are durable already.

        ``times``: ascending. Raises TableAltered: they contradict what is held.
        """
        ts = times.to_numpy(zero_copy_only=False)
        first = int(np.searchsorted(ts, self._lower))
        ts, rows = ts[first:], event.rows.slice(first)
        if not rows.num_rows:
            return
        hashes, versions = key_hashes(keys_of(rows, self._key_names)), _Versions(rows, self._key_names, self)
        present, fresh = (_flags(each)[first:] for each in (event.present, event.fresh))
        _check(versions.is_there(present), present, fresh, event.export)
        before = event.before.to_numpy(zero_copy_only=False)[first:]
        # One change has one time: what came before a row by name is durable only where the row is.
        before = np.where(before < 0, -1, before - first)
        unchanged = {name: _flags(same)[first:] for name, same in event.unchanged.items()}
        columns = versions.filled(unchanged, before, event.export)
        order = pa.array(np.arange(rows.num_rows))
        table = pa.table([*columns, pa.array(ts), order, order, pa.array(present)], names=[*self._names, *PLACES])
        with self._kept.writer() as writer:
            yield from changes_of(table, hashes, versions, writer, self._names, self._key_names)
        self._runs = self._kept.compacted([writer.finish(), *self._runs], whole=self._is_emptied)

    def emptied(self, at: int) -> Iterator[pa.RecordBatch]:
        """What takes everything back at this time, unless that is durable already."""
        if at < self._lower:
            return
        there = [run for run in self._all() if run.file.rows]
        with self._kept.sound():
            for _, rows in merged(there, self._key_names, whole=True) if there else ():
                if rows.num_rows:
                    yield updates(rows, np.full(rows.num_rows, at), -1, self._names)
        self._runs, self._is_emptied = [], True

    def finish(self, upper: int) -> str:
        """What the append of exactly these updates, up to ``upper``, is called, see ``upserts.appended``."""
        mark = system().random_bytes(16).hex()
        self._kept.prepare(self._runs, upper, mark, is_all=self._is_emptied)
        self._leave(keep=True)
        return mark

    def close(self) -> None:
        """Leave what is kept to the next step, which looks again at what it is where this one did not ``finish``."""
        self._leave(keep=False)

    def _leave(self, *, keep: bool) -> None:
        if not self._is_closed:
            self._is_closed = True
            given_back(self._contents, self._kept, keep=keep)

    def _all(self) -> list[Run]:
        return [*self._runs, *(() if self._is_emptied else self._kept.runs)]


class _Versions:
    """Rows, and for each the place of the version before: among these rows, or behind them in what the keys held."""

    def __init__(self, rows: pa.RecordBatch, key_names: Sequence[str], newest: ByKey) -> None:
        self._rows = rows
        count = rows.num_rows
        keys = keys_of(rows, key_names)
        hashes = key_hashes(keys)
        # As ``changes_of`` asks for them: times ascend as these do.
        order, is_first = by_key(hashes, rows, key_names, [np.arange(count)])
        firsts = order[is_first]
        self._index, self._held = newest.found(hashes[firsts], keys.take(array_of(firsts)))
        before = np.r_[-1, order[:-1]]
        held = self._index[np.cumsum(is_first) - 1]
        self._previous = np.empty(count, np.int64)
        self._previous[order] = np.where(is_first, np.where(held >= 0, held + count, -1), before)

    def found(self, hashes: Numbers, keys: ArrowArray) -> tuple[Numbers, pa.Table]:
        """See Newest: of all of these keys."""
        return self._index, self._held

    def is_there(self, present: Numbers) -> Numbers:
        """Of each row whether its key had one just before."""
        count = len(present)
        known: Numbers = np.append(present, np.ones(len(self._held), np.bool_))
        return np.where(self._previous < 0, False, known[self._previous]) if count else known

    def filled(self, unchanged: "dict[str, Numbers]", before: Numbers, export: str) -> list[ArrowArray]:
        """The columns, where they are unchanged with the values of the version before. Raises TableAltered."""
        count = self._rows.num_rows
        earlier = self._previous[np.where(before < 0, np.arange(count), before)]
        columns = []
        for name, column in zip(self._rows.schema.names, self._rows.columns, strict=True):
            same = unchanged.get(name)
            if same is None or not same.any():
                columns.append(column)
                continue
            if (earlier[same] < 0).any():
                raise TableAltered(
                    "a value that was not sent again is unknown, as its row was not read", hint=_AGAIN, export=export
                )
            at = np.arange(count + len(self._held))
            at[:count][same] = earlier[same]
            # Each round doubles how many versions a value is followed through.
            while not np.array_equal(further := at[at], at):
                at = further
            both = pa.chunked_array([column, *self._held.column(name).chunks], column.type)
            columns.append(both.take(array_of(at[:count])).combine_chunks())
        return columns


def _check(there: Numbers, present: Numbers, fresh: Numbers, export: str) -> None:
    wrong = np.where(fresh, there, ~there)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise TableAltered(
            "a row came whose key has one already" if fresh[at] else "a row was changed, or went, that is not there",
            hint=_AGAIN,
            export=export,
            rows=int(wrong.sum()),
        )


def _flags(array: ArrowArray) -> Numbers:
    flags: Numbers = np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)
    return flags
