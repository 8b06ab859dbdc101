"""From a shard to the splits of one Spark read, on the driver: which time, which filters, how many partitions.

Splits are by key range, so no split is wrong alone and no shuffle is needed. Source: architecture.md section 4.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

import persist
from persist import (
    Antichain,
    InvalidArgument,
    InvalidBounds,
    KeyRange,
    LocationError,
    NotReadable,
    NotYetAvailable,
    Predicate,
)
from persist.arrow import ArrowField
from persist.arrow.exact import cast_exactly
from persist.runtime import system
from persist_ingest.location import Target
from pyspark_persist.naming import find, shown_fields, shown_name, stored_name
from pyspark_persist.options.options import Filters, ReadOptions
from pyspark_persist.read.holds import Held

T = TypeVar("T")

Condition = tuple[str, str, object]
"""A column of the shard, an operator, and what it compares to."""
Where = Sequence[Condition | Predicate]
"""Conditions that must all hold; none: everything."""

TIMES_END: Final = 1 << 64
"""One beyond the last time: the upper of a closed shard as a number."""

PARALLEL_BYTES: Final = 8 << 20
"""Encoded bytes that take several times as long to read as a partition costs."""

_QUOTED: Final = re.compile(r"'(?:[^']|'')*'|`(?:[^`]|``)*`")
_ESCAPE: Final = re.compile(r"\\(?![%_])")
_LATEST_OF_CLOSED: Final = (1 << 63) - 1


class SplitPartition(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """One key range of one read; ``as_of`` None marks a range of updates rather than of a snapshot.

    ``held``: what keeps its parts from being deleted.
    """

    def __init__(self, split: "persist.Split", as_of: int | None) -> None:
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


def where_of(filters: Filters, schema: "persist.Schema") -> Where:
    """The filters as conditions that this persist.Schema can answer. Key bounds are about the first key column.

    Raises InvalidArgument: an unknown column, a value that does not fit, a text that cannot be read.
    """
    bounds = [(op, text) for op, text in ((">=", filters.key_min), ("<", filters.key_max)) if text is not None]
    if not bounds:
        return resolved(filters.where, schema) if filters.where is not None else ()
    if filters.where is not None:
        raise InvalidArgument("options where and keyMin/keyMax exclude each other", hint="write the bounds into where")
    if not len(schema.key):
        raise InvalidArgument("the shard has no key columns", hint="drop keyMin and keyMax")
    first = schema.key.field(0)
    return [(first.name, op, _literal(text, first)) for op, text in bounds]


def resolved(conditions: str | Where, schema: "persist.Schema") -> Where:
    """Conditions about Spark's columns as conditions about the shard's. Raises InvalidArgument."""
    known = [field.name for field in shown_fields(schema)]

    def stored(name: str) -> str:
        column = find(known, name)
        if column is None:
            raise _unknown(name, known)
        return stored_name(column)

    if isinstance(conditions, str):
        _check_quotes(conditions)
    predicate = Predicate.parse(conditions).renamed(stored)
    predicate.check(schema)
    return [predicate]


def _check_quotes(text: str) -> None:
    """Refuse what Spark reads otherwise: to it ``"a"`` is a text, and in texts a backslash begins an escape."""
    outside = _QUOTED.sub("''", text)
    if '"' in outside:
        raise InvalidArgument(
            "a double quote begins a text in Spark, and a column elsewhere",
            hint="write `column` and 'text'",
            at=outside[outside.index('"') :][:20],
        )
    escape = _ESCAPE.search(text)
    if escape is not None:
        raise InvalidArgument(
            "a backslash in a text is an escape in Spark, and none here",
            hint="only \\% and \\_ of 'like' are understood; choose by others with DataFrame.where",
            at=text[escape.start() :][:20],
        )


def _unknown(name: str, known: list[str]) -> InvalidArgument:
    if shown_name(name).lower() in ("ts", "diff"):
        return InvalidArgument(
            "a condition is about the shard's columns: times and counts are summed after it was applied",
            hint="choose a time with asOf, an interval with startingVersion; filter _ts and _diff with DataFrame.where",
            column=name,
        )
    close = difflib.get_close_matches(name.lower(), [each.lower() for each in known], n=1)
    meant = f"did you mean {find(known, close[0])}? " if close else ""
    return InvalidArgument("no such column", hint=f"{meant}the columns are: {', '.join(known)}", column=name)


def _literal(text: str, field: ArrowField) -> object:
    try:
        return cast_exactly(pa.array([text]), field.type)[0].as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
        raise InvalidArgument(
            "a key bound is not a value of the key's type", column=field.name, type=field.type, got=text
        ) from cause


def split_count(encoded_bytes: int, options: ReadOptions) -> int:
    """How many partitions: few, because each costs about 50 ms, but none above the target size.

    One for each core, where each then has more to do than it costs.
    """
    cut = options.partitioning
    parallel = min(cut.cores, encoded_bytes // PARALLEL_BYTES)
    return max(cut.min_partitions, -(-encoded_bytes // cut.partition_bytes), parallel, 1)


def snapshot_partitions(
    reader: "persist.ReadHandle", as_of: int, options: ReadOptions, where: Where, *, keys: KeyRange | None = None
) -> list[SplitPartition]:
    """The partitions of a snapshot at ``as_of``, of all keys or those; empty when it is. Waits as long as asked."""
    snapshot = _waited(options, as_of + 1, lambda timeout: reader.snapshot(as_of, timeout=timeout))
    return _partitions(snapshot, as_of, options, where, keys)


def diff_partitions(
    reader: "persist.ReadHandle", lower: int, upper: int, options: ReadOptions, where: Where
) -> list[SplitPartition]:
    """The partitions of the updates with lower <= t < upper."""
    end = Antichain(()) if upper >= TIMES_END else Antichain.of(upper)
    diffs = _waited(options, upper, lambda timeout: reader.diffs(lower, end, timeout=timeout))
    return _partitions(diffs, None, options, where, None)


def seconds_to_complete(options: ReadOptions) -> float:
    """How long completing a table that is written through a log may take, with the time until ``asOf`` comes."""
    wait, timeout = options.wait_ms / 1000, options.target.timeout
    ahead = 0.0 if options.as_of is None else (options.as_of - system().now_ms()) / 1000
    if ahead <= 0:
        return max(wait, timeout)
    return wait if ahead > wait else ahead + timeout


def _waited(options: ReadOptions, upper: int, read: Callable[[float], T]) -> T:
    """What is read, given the seconds that may take: up to ``waitForUpperMs`` until the shard has reached ``upper``,
    and the timeout of every call from then on. Raises NotYetAvailable: it has not.
    """
    target = options.target
    if not options.wait_ms or current_upper(target) >= upper:
        return read(target.timeout)
    try:
        return read(options.wait_ms / 1000)
    except (NotYetAvailable, LocationError):
        if current_upper(target) < upper:
            raise
        return read(target.timeout)


def held(partitions: list[SplitPartition], by: Held) -> list[InputPartition]:
    """The partitions of a plan that this reader keeps."""
    for partition in partitions:
        partition.held = by
    return list(partitions)


def _partitions(
    read: "persist.Snapshot | persist.Diffs",
    as_of: int | None,
    options: ReadOptions,
    where: Where,
    keys: KeyRange | None,
) -> list[SplitPartition]:
    if not read.rows:
        return []
    splits: Sequence[Any] = read.splits(split_count(read.encoded_bytes, options), where=list(where), keys=keys)
    return [SplitPartition(split, as_of) for split in splits]
