"""Streaming reads: a micro-batch is an interval ``[a, b)`` of the shard's frontier, so it is a definite set of updates.

Offsets are ``{"v": 1, "shard": …, "upper": "t", "place": …}``; the place distinguishes locations, and a location from
itself before a restore. The interval that starts at 0 is the snapshot at ``b - 1``; every other is the exact updates
with a <= t < b. Where limits ask for it the snapshot comes in pieces, and offsets within it have a ``below``: the key,
in hexadecimal, that has been reached.
Source: spark.md sections 2.2, 2.3; architecture.md section 7.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

import persist
from persist import Antichain, InvalidArgument, KeyRange, LeaseExpired, NotReadable, PersistError
from pyspark_persist.finding import current_schema, found
from pyspark_persist.options.options import ReadOptions
from pyspark_persist.read import holds, planning
from pyspark_persist.read.admission import Outstanding, Position, key_within, time_within
from pyspark_persist.read.planning import TIMES_END, SplitPartition, Where
from pyspark_persist.read.reading import earliest, read_split
from pyspark_persist.read.view import View, all_shown, check_columns, view_of

_LOG: Final = logging.getLogger(__name__)
_ROWS_MAX: Final = 1 << 62


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark is untyped here
    """Follows a shard. The driver's copy holds a lease at what is not committed yet; executors get the view only."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        # SUBTLE: no lease here. Spark builds a second reader only to pickle it, and its lease would never be ended.
        self.options = options = found(options)
        stored = current_schema(options.target)
        self.view: View = view_of(options, stored, schema, streaming=True)
        self.where: Where = planning.where_of(options.filters, stored)
        self._columns = all_shown(options, stored, self.view)
        self._reader: Any = None
        self._place: str | None = None
        self._initial: int | None = None
        self._target: int | None = None
        self._reached: Position | None = None
        self._pins: list[tuple[Position, object]] = []

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_reader": None, "_initial": None, "_target": None, "_reached": None, "_pins": []}

    # ---- offsets -------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, object]:
        """Where a new query starts. The same at every call of one query."""
        if self._initial is None:
            self._leased()
            self._initial = self._start()
        return self._offset(Position(self._initial))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The first of the limits asked for; ``latestOffset`` applies them all."""
        limits = self.options.admission
        if limits.files is not None:
            return ReadMaxFiles(limits.files)
        if limits.bytes is not None:
            return ReadMaxBytes(limits.bytes)
        if limits.rows is not None or limits.times is not None:
            return ReadMaxRows(limits.rows or _ROWS_MAX)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """How far the next micro-batch goes, within the limits and AvailableNow's end."""
        lower = self._position(start)
        self._check_reached(lower)
        self._leased()
        self._reached = self._next(lower, limited=not isinstance(limit, ReadAllAvailable))
        return self._offset(self._reached)

    def _next(self, lower: Position, *, limited: bool) -> Position:
        end = self._upper() if self._target is None else self._target
        if lower.below is not None:
            return self._within_snapshot(lower.upper, lower.below, limited)
        if end <= lower.upper:
            return lower
        if lower.in_snapshot:
            return self._within_snapshot(self._end_of_snapshot(end), None, limited)
        return Position(self._admitted(lower.upper, end) if limited else end)

    def reportLatestOffset(self) -> dict[str, object]:
        """The shard's upper, and what lies between the newest micro-batch and it, for progress reports alone."""
        upper = self._upper()
        offset = self._offset(Position(upper))
        reached = self._reached
        if reached is None or (reached.upper >= upper and reached.below is None):
            return offset if reached is None else {**offset, **Outstanding().figures}
        with contextlib.suppress(PersistError):  # a report fails no query
            offset |= self._outstanding(reached).figures
        return offset

    def _outstanding(self, reached: Position) -> Outstanding:
        reader, timeout = self._leased(), self.options.target.timeout
        found = Outstanding()
        if reached.below is not None:
            snapshot = reader.snapshot(self._snapshot_time(reached.upper, reader), timeout=timeout)
            for split in snapshot.splits(1, where=list(self.where), keys=KeyRange(lower=reached.below)):
                found = found.plus(split.rows, split.encoded_bytes, len(split.parts))
        for batch in reader.changes_since(reached.upper, timeout=timeout) if 0 < reached.upper < TIMES_END else ():
            found = found.plus(batch.rows, batch.encoded_bytes, batch.parts)
        return found

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the upper of this moment."""
        self._target = self._upper()

    # ---- data ----------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """The splits of one interval. Raises NotReadable when history was compacted past it (see failOnDataLoss), and
        SchemaMismatch when the shard has got columns since, which a query that shows all of them would leave out.
        """
        lower, upper = self._position(start), self._position(end)
        reader, pin = self._pinned()
        planned = self._plan(reader, lower, upper)
        if planned and self._columns is not None:
            check_columns(planned[0].split.reading.schema, self._columns)
        self._pins.append((upper, pin))
        return planning.held(planned, holds.held_by(reader, pin))

    def _plan(self, reader: "persist.ReadHandle", lower: Position, upper: Position) -> list[SplitPartition]:
        if lower.in_snapshot:
            keys = KeyRange(lower=lower.below, upper=upper.below)
            as_of = self._snapshot_time(upper.upper, reader)
            return planning.snapshot_partitions(reader, as_of, self.options, self.where, keys=keys)
        begin = self._readable_from(lower.upper, reader)
        if begin >= upper.upper:
            return []
        return planning.diff_partitions(reader, begin, upper.upper, self.options, self.where)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        return read_split(partition, self.view, self.options.target)

    def commit(self, end: dict[str, object]) -> None:
        """Hold no longer what the query will not read again, as far as the query decides that (see _let_go)."""
        reached = self._position(end)
        self._pins = [(until, pin) for until, pin in self._pins if until.order > reached.order]
        if 0 < reached.upper < TIMES_END:
            with contextlib.suppress(LeaseExpired):
                self._let_go(reached.upper - 1)

    def stop(self) -> None:
        """Give the hold back. Spark rarely calls this; the lease runs out in any case."""
        if self._reader is not None:
            with contextlib.suppress(PersistError):
                self._reader.expire(timeout=self.options.target.timeout)
            self._reader = None

    # ---- below: the lease, the start, the limits -------------------------------------------------------------------

    def _fresh_reader(self) -> "persist.ReadHandle":
        return holds.open_reader(self.options.target, ttl_seconds=self.options.partitioning.hold_ttl_seconds)

    def _leased(self) -> "persist.ReadHandle":
        return self._pinned()[0]

    def _pinned(self) -> "tuple[persist.ReadHandle, object]":
        """A reader whose lease was renewed just now, and a pin of what is planned from now on."""
        pin = None if self._reader is None else holds.pinned(self._reader, self.options.target)
        if pin is None:
            self._reader = self._fresh_reader()
            pin = self._reader.pin(timeout=self.options.target.timeout)
        return self._reader, pin

    def _let_go(self, passed: int) -> None:
        """Move the hold up to ``passed`` with downgradeSince, else only as far as all other readers have gone.

        SUBTLE: since is the meet of all holds, so the only reader of a shard ends its history by following it. That is
        not what a query is for: without the option since is where it would be if there were no such query.
        """
        reader = self._leased()
        if not reader.since.less_than(Antichain.of(passed)):
            return
        if not self.options.downgrade_since:
            others = holds.since_of_others(reader, self.options.target)
            if others is None:
                return
            passed = min(passed, others)
        reader.downgrade_since(passed, timeout=self.options.target.timeout)

    def _upper(self) -> int:
        return planning.current_upper(self.options.target)

    def _start(self) -> int:
        start = self.options.interval.start if self.options.interval else "snapshot"
        if start == "latest":
            return self._upper()
        if isinstance(start, int) and start > 0:
            return self._readable_from(start, self._leased())
        return 0

    def _end_of_snapshot(self, upper: int) -> int:
        """The snapshot is at the oldest readable time for ``earliest`` (the rest comes as changes), else the newest."""
        start = self.options.interval.start if self.options.interval else "snapshot"
        if start == "snapshot":
            return upper
        since = self._leased().since.time
        return upper if since is None else min(since + 1, upper)

    def _snapshot_time(self, upper: int, reader: "persist.ReadHandle") -> int:
        """The time at which the initial snapshot that ends at ``upper`` is read: the same for all its pieces."""
        since = reader.since.time
        as_of = planning.resolve_as_of(None, upper=upper, since=since, wait_ms=0) or 0
        if since is None or as_of >= since:
            return as_of
        self._lose(as_of, since)
        return int(since)

    def _readable_from(self, lower: int, reader: "persist.ReadHandle") -> int:
        first = earliest(reader.since.time)
        if lower < first:
            self._lose(lower, reader.since.time)
        return max(lower, first)

    def _lose(self, position: int, since: int | None) -> None:
        if self.options.fail_on_data_loss:
            raise NotReadable(
                "the shard's history was compacted past the stream's position: changes in between are gone",
                hint="start anew with startingVersion=snapshot, or set failOnDataLoss=false to go on after the gap",
                position=position,
                since=since,
            )
        _LOG.warning(
            "changes from %s to %s are gone: the stream goes on after them (failOnDataLoss=false)", position, since
        )

    def _within_snapshot(self, upper: int, below: bytes | None, limited: bool) -> Position:
        """How far the next piece of the initial snapshot goes."""
        limits = self.options.admission
        if not limited or (limits.files is None and limits.bytes is None and limits.rows is None):
            return Position(upper)
        reader = self._leased()
        snapshot = reader.snapshot(self._snapshot_time(upper, reader), timeout=self.options.target.timeout)
        return Position(upper, key_within(snapshot, self.where, below, limits))

    def _admitted(self, lower: int, end: int) -> int:
        limits = self.options.admission
        if limits.times is not None:
            end = min(end, lower + limits.times)
        if limits.files is None and limits.bytes is None and limits.rows is None:
            return end
        files = size = rows = 0
        reached = lower
        for batch in self._leased().changes_since(lower, timeout=self.options.target.timeout):
            files, size, rows = files + batch.parts, size + batch.encoded_bytes, rows + batch.rows
            over = _over(files, limits.files) or _over(size, limits.bytes) or _over(rows, limits.rows)
            upper = planning.upper_time(batch.upper)
            if reached > lower and (over or upper > end):
                return reached
            if over or upper > end:
                return self._within_batch(lower, min(upper, end))
            reached = upper
        return reached if reached > lower else end

    def _within_batch(self, lower: int, upper: int) -> int:
        """How far a micro-batch goes into a batch that alone is beyond the limits."""
        reader = self._leased()
        first = max(lower, earliest(reader.since.time))
        if first >= upper:
            return upper
        end = Antichain(()) if upper >= TIMES_END else Antichain.of(upper)
        read = reader.diffs(first, end, timeout=self.options.target.timeout).splits(1)
        return time_within(read[0].parts, first, upper, self.options.admission) if read else upper

    def _offset(self, position: Position) -> dict[str, object]:
        return position.offset(self.options.target, self._placed())

    def _position(self, offset: Mapping[str, object]) -> Position:
        return Position.of(offset, self.options.target, self._placed())

    def _placed(self) -> str:
        """Identifies this location among others, and from itself before a restore. Asked once."""
        if self._place is None:
            target = self.options.target
            self._place = str(target.client().place(target.shard_id, timeout=target.timeout))
        return self._place

    def _check_reached(self, position: Position) -> None:
        """Raise InvalidArgument when the shard is behind the stream's position: it was replaced."""
        upper = self._upper()
        start = self.options.interval.start if self.options.interval else None
        # What starts at a time that is still to come waits for it.
        if upper < position.upper != start:
            raise InvalidArgument(
                "the checkpoint lies beyond the shard's upper: the shard is not the one that the stream has read",
                hint="was the location restored from a backup? start with a new checkpoint directory, by"
                " startingVersion from a time that both have in common",
                position=position.upper,
                upper=upper,
                **self.options.target.described,
            )


def _over(count: int, limit: int | None) -> bool:
    return limit is not None and count > limit
