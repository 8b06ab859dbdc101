"""Streaming reads: a micro-batch is an interval ``[a, b)`` of the shard's frontier, so it is a definite set of updates.

Offsets are ``{"v": 1, "shard": …, "upper": "t"}``. The interval that starts at 0 is the snapshot at ``b - 1``; every
other is the exact updates with a <= t < b. Source: spark.md sections 2.2, 2.3; architecture.md section 7.
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

from persist import Antichain, InvalidArgument, LeaseExpired, NotReadable, PersistError
from pyspark_persist import holds, planning
from pyspark_persist.options import ReadOptions
from pyspark_persist.planning import TIMES_END, SplitPartition, Where
from pyspark_persist.reading import earliest, read_split
from pyspark_persist.view import View, view_of

_LOG: Final = logging.getLogger(__name__)
_ROWS_MAX: Final = 1 << 62


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark is untyped here
    """Follows a shard. The driver's copy holds a lease at what is not committed yet; executors get the view only."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        # SUBTLE: no lease here. Spark builds a second reader only to pickle it, and nobody would ever end its lease.
        self.options = options
        stored = planning.current_schema(options.target)
        self.view: View = view_of(options, stored, schema, streaming=True)
        self.where: Where = planning.where_of(options.filters, stored)
        self._reader: Any = None
        self._initial: int | None = None
        self._target: int | None = None
        self._pins: list[tuple[int, object]] = []

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_reader": None, "_initial": None, "_target": None, "_pins": []}

    # ---- offsets -------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, object]:
        """Where a new query starts. The same at every call of one query."""
        if self._initial is None:
            self._leased()
            self._initial = self._start()
        return self._offset(self._initial)

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
        """How far the next micro-batch goes: at batch boundaries, within the limits and AvailableNow's end."""
        lower = self._time(start)
        self._leased()
        end = self._upper() if self._target is None else self._target
        if end <= lower:
            return self._offset(lower)
        if lower == 0:
            end = self._end_of_snapshot(end)
        elif not isinstance(limit, ReadAllAvailable):
            end = self._admitted(lower, end)
        return self._offset(end)

    def reportLatestOffset(self) -> dict[str, object]:
        """The shard's upper, for progress reports."""
        return self._offset(self._upper())

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the upper of this moment."""
        self._target = self._upper()

    # ---- data ----------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """The splits of one interval. Raises NotReadable when history was compacted past it (see failOnDataLoss)."""
        lower, upper = self._time(start), self._time(end)
        reader, pin = self._pinned()
        planned = self._plan(reader, lower, upper)
        self._pins.append((upper, pin))
        return planning.held(planned, holds.held_by(reader, pin))

    def _plan(self, reader: Any, lower: int, upper: int) -> list[SplitPartition]:
        if lower == 0:
            as_of = planning.resolve_as_of(
                None if upper == TIMES_END else upper - 1, upper=upper, since=reader.since.time, wait_ms=0
            )
            return [] if as_of is None else planning.snapshot_partitions(reader, as_of, self.options, self.where)
        lower = self._readable_from(lower, reader)
        return [] if lower >= upper else planning.diff_partitions(reader, lower, upper, self.options, self.where)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        return read_split(partition, self.view, self.options.target)

    def commit(self, end: dict[str, object]) -> None:
        """Hold no longer what the query will not read again, as far as that is the query's to decide (see _let_go)."""
        upper = self._time(end)
        self._pins = [(until, pin) for until, pin in self._pins if until > upper]
        if 0 < upper < TIMES_END:
            with contextlib.suppress(LeaseExpired):
                self._let_go(upper - 1)

    def stop(self) -> None:
        """Give the hold back. Spark rarely calls this; the lease runs out in any case."""
        if self._reader is not None:
            with contextlib.suppress(PersistError):
                self._reader.expire(timeout=self.options.target.timeout)
            self._reader = None

    # ---- below: the lease, the start, the limits -------------------------------------------------------------------

    def _fresh_reader(self) -> Any:
        return holds.open_reader(self.options.target, ttl_seconds=self.options.partitioning.hold_ttl_seconds)

    def _leased(self) -> Any:
        return self._pinned()[0]

    def _pinned(self) -> tuple[Any, Any]:
        """A reader whose lease was renewed just now, and a pin of what is planned from now on."""
        pin = None if self._reader is None else holds.pinned(self._reader, self.options.target)
        if pin is None:
            self._reader = self._fresh_reader()
            pin = self._reader.pin(timeout=self.options.target.timeout)
        return self._reader, pin

    def _let_go(self, passed: int) -> None:
        """Move the hold up to ``passed`` with downgradeSince, else only as far as everybody else has gone.

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

    def _readable_from(self, lower: int, reader: Any) -> int:
        since = reader.since.time
        first = earliest(since)
        if lower >= first:
            return lower
        if self.options.fail_on_data_loss:
            raise NotReadable(
                "the shard's history was compacted past the stream's position: changes in between are gone",
                hint="start anew with startingVersion=snapshot, or set failOnDataLoss=false to go on after the gap",
                position=lower,
                since=since,
            )
        _LOG.warning("changes in [%s, %s) are gone: the stream goes on after them (failOnDataLoss=false)", lower, first)
        return first

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
            if (over and reached > lower) or upper > end:
                break
            reached = upper
            if over:
                break
        # A batch that alone reaches past the end (AvailableNow, times) is cut there.
        return reached if reached > lower else end

    def _offset(self, upper: int) -> dict[str, object]:
        return {"v": 1, "shard": self.options.target.shard, "upper": str(upper)}

    def _time(self, offset: Mapping[str, object]) -> int:
        if offset.get("v") != 1 or offset.get("shard") != self.options.target.shard:
            raise InvalidArgument(
                "the checkpoint's offset belongs to another shard or release",
                hint="use a checkpoint of this query, or a new checkpoint directory",
                offset=dict(offset),
                shard=self.options.target.shard,
            )
        return int(str(offset["upper"]))


def _over(count: int, limit: int | None) -> bool:
    return limit is not None and count > limit
