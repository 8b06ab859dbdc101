"""Translating between source times and times: frontiers both ways, and whole columns of offsets.

Source: catalog-semantics.md section 4.2; sources.md section 4.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persist.arrow import ArrowArray, ArrowColumn, Numbers, Piece
from persist.core.binding.remap import RemapTrace
from persist.core.frontier import Antichain
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import OFFSET_MAX, Partition, SourceKind
from persist.errors import InvalidArgument, NotReadable, NotYetAvailable

U64Array: TypeAlias = NDArray[np.uint64]


def reclock_frontier(trace: RemapTrace, frontier: SourceFrontier) -> Antichain:
    """The greatest frontier such that every message at or beyond ``frontier`` gets a time at or beyond it.

    Raises NotYetAvailable (nothing is bound at all), NotReadable (such a message may have a time before since).
    """
    if not trace.is_initialized:
        raise NotYetAvailable("nothing is bound yet", hint="bind first", upper=trace.upper)
    found = trace.first(lambda each: not each.releases_within(frontier))
    return trace.upper if found is None else Antichain.of(found.ts)


def source_upper_at_frontier(trace: RemapTrace, frontier: Antichain) -> SourceFrontier:
    """All messages with a time before ``frontier`` lie before this source frontier, and no others.

    It is safe to forget what lies strictly before it, when everything before ``frontier`` is durable; it is no
    compaction frontier of the upstream's state: that must step back once more. At or before since it is the minimum:
    everything must be read again. Raises NotYetAvailable beyond the upper: wait for it.
    """
    ts = frontier.time
    if ts is None:
        return SourceFrontier.closed(trace.kind)
    if frontier.less_equal(trace.since):
        return SourceFrontier.minimum(trace.kind)
    if trace.upper.less_than(frontier):
        raise NotYetAvailable("this is beyond what is bound", hint="wait", frontier=frontier, upper=trace.upper)
    return trace.at(ts - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Reclocker:
    """The bindings of some partitions as columns, to be sent to the processes that read those. Plain data, picklable.

    ``times``: when R changes, ascending. ``bounds``: for each partition its exclusive bound at each of those times.
    ``others``: the same for partitions that are not known; None when only some were asked for.
    """

    kind: SourceKind
    times: U64Array
    bounds: Mapping[Any, U64Array]
    others: U64Array | None

    @staticmethod
    def of(trace: RemapTrace, partitions: Iterable[Partition] | None = None) -> "Reclocker":
        """The bindings for these partitions, or for all that are known."""
        frontiers = [binding.frontier for binding in trace.bindings]
        # A closed frontier no longer names the partitions, the one before it does.
        known = [key for frontier in frontiers[-2:] for key in frontier.keys]
        keys = dict.fromkeys(known if partitions is None else map(trace.kind.check_key, partitions))
        columns = {key: np.array([each.bound(key) or 0 for each in frontiers], np.uint64) for key in keys}
        times = np.array([binding.ts for binding in trace.bindings], np.uint64)
        ends = np.array([OFFSET_MAX if each.is_closed else 0 for each in frontiers], np.uint64)
        return Reclocker(trace.kind, times, columns, ends if partitions is None else None)

    @staticmethod
    def between(trace: RemapTrace, begin: SourceFrontier, end: SourceFrontier) -> "Reclocker":
        """The bindings of what lies between two frontiers: of the partitions that moved, however many others there are.

        Raises InvalidArgument where the frontiers are not of the trace's kind.
        """
        moved = None if begin.is_closed or end.is_closed else end.moved_since(begin)
        return Reclocker.of(trace, moved)

    def reclock(
        self, offsets: Numbers, codes: Numbers | None = None, names: Sequence[Partition] | None = None
    ) -> U64Array:
        """The time of each message, u64: the lowest binding whose bound exceeds its offset.

        ``codes``: for each message the index of its partition in ``names``, or without names its number; not given
        for a log. Raises InvalidArgument (shapes, types, signs), NotYetAvailable (an offset is not bound yet: bind
        it or hold it back), NotReadable (an offset is covered at since: read from the resumption frontier on).
        """
        wanted = _unsigned(offsets)
        if (codes is None) != (self.kind is SourceKind.LSN):
            raise InvalidArgument("partitions have codes, a log has none", kind=self.kind.value)
        if codes is None:
            return self._of_one(0, wanted) if len(wanted) else wanted
        if len(codes) != len(wanted) or not np.issubdtype(codes.dtype, np.integer):
            raise InvalidArgument("every offset needs the code of its partition", offsets=len(wanted), codes=len(codes))
        if not len(codes):
            return wanted
        least, most = int(codes.min()), int(codes.max())
        if least == most:
            return self._of_one(_name(least, names), wanted)
        # Short integers are sorted by radix, in a fraction of the time.
        order = np.argsort(codes.astype(np.uint16) if least >= 0 and most < 1 << 16 else codes, kind="stable")
        ordered = codes[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        out = np.empty(len(wanted), np.uint64)
        for start, rows in zip(starts, np.split(order, starts[1:]), strict=True):
            out[rows] = self._of_one(_name(int(ordered[start]), names), wanted[rows])
        return out

    def reclock_arrow(self, offsets: ArrowColumn, partitions: ArrowColumn | None = None) -> ArrowArray:
        """``reclock`` for Arrow columns: integer offsets, and numbers, paths or a dictionary of them as partitions.

        Raises InvalidArgument for nulls.
        """
        if offsets.null_count or (partitions is not None and partitions.null_count):
            raise InvalidArgument("a message has a partition and an offset", hint="drop the nulls")
        numbers = _flat(offsets).to_numpy(zero_copy_only=False)
        if partitions is None:
            return pa.array(self.reclock(numbers))
        flat = _flat(partitions)
        coded = flat if pa.types.is_dictionary(flat.type) else flat.dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False)
        return pa.array(self.reclock(numbers, codes, coded.dictionary.to_pylist()))

    def _of_one(self, partition: Partition, offsets: U64Array) -> U64Array:
        bounds = self.bounds.get(partition, self.others)
        if bounds is None:
            raise InvalidArgument("these are the bindings of other partitions", partition=partition)
        index = np.searchsorted(bounds, offsets, side="right")
        if index.max() == len(self.times):
            late = int(offsets.max())
            raise NotYetAvailable(
                "an offset is not bound yet", hint="bind it or hold it back", partition=partition, offset=late
            )
        if index.min() == 0:
            raise NotReadable(
                "an offset was bound at since or before it: its time is forgotten",
                hint="read the source from the resumption frontier on",
                partition=partition,
                offset=int(offsets.min()),
                since=int(self.times[0]),
            )
        return self.times[index]


def _unsigned(offsets: Numbers) -> U64Array:
    # SUBTLE: numpy compares int64 with uint64 as floats, which would round large offsets.
    if offsets.ndim != 1 or not np.issubdtype(offsets.dtype, np.integer):
        raise InvalidArgument("offsets are one column of integers", dtype=offsets.dtype, shape=offsets.shape)
    if len(offsets) and offsets.min() < 0:
        raise InvalidArgument("an offset is not negative", offset=int(offsets.min()))
    return offsets.astype(np.uint64, copy=False)


def _name(code: int, names: Sequence[Partition] | None) -> Partition:
    if names is None:
        return code
    if not 0 <= code < len(names):
        raise InvalidArgument("a code has no name", hint="codes are indices of names", code=code, names=len(names))
    return names[code]


def _flat(column: ArrowColumn) -> Piece:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.unify_dictionaries().combine_chunks()
