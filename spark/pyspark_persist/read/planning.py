"""From a shard to the splits of one Spark read, on the driver: which time, which filters, how many partitions.

Splits are by key range, so no split is wrong alone and no shuffle is needed. Source: architecture.md section 4.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from persist import Antichain, InvalidArgument, InvalidBounds, NotReadable
from pyspark_persist.holds import Held
from pyspark_persist.location import Target
from pyspark_persist.options import Filters, ReadOptions

Where = list[tuple[str, str, object]] | str | None

TIMES_END: Final = 1 << 64
"""One beyond the last time: the upper of a closed shard as a number."""

_LATEST_OF_CLOSED: Final = (1 << 63) - 1


class SplitPartition(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """One key range of one read; ``as_of`` None marks a range of updates rather than of a snapshot.

    ``held``: what keeps its parts from being deleted.
    """

    def __init__(self, split: Any, as_of: int | None) -> None:
        super().__init__(None)
        self.split = split
        self.as_of = as_of
        self.held: Held | None = None

    def __repr__(self) -> str:
        return f"SplitPartition(as_of={self.as_of})"


def upper_time(upper: Antichain) -> int:
    """The upper as a number; TIMES_END when closed."""
    return TIMES_END if upper.time is None else upper.time


def current_upper(target: Target) -> int:
    """The shard's upper at this moment, as a number."""
    return upper_time(target.client().recent_upper(target.shard_id, timeout=target.timeout))


def current_schema(target: Target) -> Any:
    """The shard's newest schema. Raises ShardNotFound."""
    return target.client().schema(target.shard_id, timeout=target.timeout)


def resolve_as_of(as_of: int | None, *, upper: int, since: int | None, wait_ms: int) -> int | None:
    """The time to read at: as asked, or the newest complete one. None: nothing is complete yet.

    Raises InvalidBounds when ``as_of`` is not complete and no waiting was asked for, NotReadable below since.
    """
    if as_of is None:
        if upper == TIMES_END:
            return _LATEST_OF_CLOSED if since is None else max(since, _LATEST_OF_CLOSED)
        if upper > 0:
            return upper - 1
        return 0 if wait_ms else None
    if since is not None and as_of < since:
        raise NotReadable(
            "the shard's history no longer reaches back to asOf",
            hint="use an asOf at or beyond since",
            as_of=as_of,
            since=since,
        )
    if as_of >= upper and not wait_ms:
        raise InvalidBounds(
            "asOf is not complete yet",
            hint="wait with option waitForUpperMs, or drop asOf to read the newest",
            as_of=as_of,
            upper=upper,
        )
    return as_of


def where_of(filters: Filters, schema: Any) -> Where:
    """The filters as persist understands them. Key bounds are about the first key column. Raises InvalidArgument."""
    bounds = [(">=", filters.key_min), ("<", filters.key_max)]
    if all(text is None for _, text in bounds):
        return filters.where
    if filters.where is not None:
        raise InvalidArgument("options where and keyMin/keyMax exclude each other", hint="write the bounds into where")
    if not len(schema.key):
        raise InvalidArgument("the shard has no key columns", hint="drop keyMin and keyMax")
    first = schema.key.field(0)
    return [(first.name, op, _literal(text, first)) for op, text in bounds if text is not None]


def _literal(text: str, field: pa.Field) -> object:
    try:
        return pa.scalar(text).cast(field.type).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
        raise InvalidArgument(
            "a key bound is not a value of the key's type", column=field.name, type=field.type, got=text
        ) from cause


def split_count(encoded_bytes: int, options: ReadOptions) -> int:
    """How many partitions: few, because each costs about 50 ms, but none above the target size."""
    return max(options.partitioning.min_partitions, -(-encoded_bytes // options.partitioning.partition_bytes), 1)


def snapshot_partitions(reader: Any, as_of: int, options: ReadOptions, where: Where) -> list[SplitPartition]:
    """The partitions of a snapshot at ``as_of``; empty when the snapshot is. Waits for the upper as long as asked."""
    timeout = max(options.wait_ms / 1000, options.target.timeout)
    snapshot = reader.snapshot(as_of, timeout=timeout)
    return _partitions(snapshot, as_of, options, where)


def diff_partitions(reader: Any, lower: int, upper: int, options: ReadOptions, where: Where) -> list[SplitPartition]:
    """The partitions of the updates with lower <= t < upper."""
    timeout = max(options.wait_ms / 1000, options.target.timeout)
    end = Antichain(()) if upper >= TIMES_END else Antichain.of(upper)
    diffs = reader.diffs(lower, end, timeout=timeout)
    return _partitions(diffs, None, options, where)


def held(partitions: list[SplitPartition], by: Held) -> list[InputPartition]:
    """The partitions of a plan that this reader keeps."""
    for partition in partitions:
        partition.held = by
    return list(partitions)


def _partitions(read: Any, as_of: int | None, options: ReadOptions, where: Where) -> list[SplitPartition]:
    if not read.rows:
        return []
    splits: Sequence[Any] = read.splits(split_count(read.encoded_bytes, options), where=where)
    return [SplitPartition(split, as_of) for split in splits]
