"""Rows of a source beside the rows of the table that they match, without a join: tasks look for them in the shard.

The source is cut by ranges of the table's first key column, and each task reads that range alone. Where other columns
must be equal, a small source goes to tasks that read the whole table, a split each, and what none of them found is
looked at when all have. So the table is neither shuffled nor passed through Spark but where it matches, each row of it
is in one task, and those that it becomes come one after the other. Source: spark.md section 0 fact 10; architecture.md
section 4.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from persist import Determinate, InvalidArgument
from persist.arrow import ArrowArray, ArrowField, Numbers
from pyspark_persist.change.expressions import HIDDEN_COUNT, HIDDEN_ROW
from pyspark_persist.change.matching import PAIRS_MAX, Matching
from pyspark_persist.change.source import ChangeSource
from pyspark_persist.change.taking import bytes_of, carried, table_of
from pyspark_persist.change.target import COUNT, ROW, ROW_BITS, Base, Keys, Reach, counter_of
from pyspark_persist.change.tasks import INSERT, KIND, Batches, new, old
from pyspark_persist.naming import shown_name, stored_name
from pyspark_persist.read.dealing import Dealt
from pyspark_persist.read.splitting import pieces
from pyspark_persist.read.view import View

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame

    import persist

ROWS_MAX: Final = 1_000_000
"""Rows of a source that one task holds, about."""
_ALIKE: Final = (
    st.StringType, st.BooleanType, st.DateType, st.TimestampType, st.TimestampNTZType, st.BinaryType, st.DecimalType,
)  # fmt: skip
"""Besides whole numbers, the types whose values are equal in Arrow where they are in Spark."""
_MINE: Final = "t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """``source``, cut into ranges, and the ``task`` that makes pairs of it: columns of the table, then ``kinds``.

    ``pair``: what the task does once it has the rows of its range. ``rest``: asked when all tasks are done, the rows
    that none of them found in the table; None of none, or where the tasks themselves know.
    """

    reach: Reach
    source: "DataFrame"
    kinds: st.StructType
    pair: "Pair"
    task: Batches
    rest: "Callable[[], Pairing | None]" = lambda: None

    def base_of(self, frame: "DataFrame") -> Base:
        """The rows of a frame that this led to."""
        return Base(rows=frame, names=self.reach.names, kinds=self.reach.kinds, counter=self.pair.counter)

    def shown(self, columns: Sequence[str], sides: tuple[str, str]) -> "DataFrame":
        """The pairs as structs named like the sides, beside what is HIDDEN. ``columns``: the source's."""
        mine = [st.StructField(f"{_MINE}{place}", kind) for place, kind in enumerate(self.reach.kinds)]
        marks = [st.StructField(f"{_MINE}{name}", st.LongType()) for name in (COUNT, ROW)]
        found = self.source.mapInArrow(self.task, st.StructType([*mine, *marks, *self.kinds]))
        target, alias = sides
        return found.select(
            _struct([field.name for field in mine], self.reach.names).alias(target),
            _struct(self.kinds.fieldNames(), columns).alias(alias),
            *[sf.col(mark.name).alias(name) for mark, name in zip(marks, (HIDDEN_COUNT, HIDDEN_ROW), strict=True)],
        )


def paired(
    reach: Reach, source: ChangeSource, places: Sequence[int], pairs: Sequence[tuple[str, int]], *, rest: bool
) -> Pairing | None:
    """The rows of a source beside those of the table that they match; None: they must be joined.

    ``places``: of the columns of the source that are needed. ``pairs``: columns of the table, and places among those,
    that are equal. ``rest``: rows of the source that match none, too.
    """
    first = shown_name(reach.schema.key.field(0).name) if len(reach.schema.key) else None
    ordered = sorted(pairs, key=lambda pair: pair[0] != first)
    kinds = source.kinds(places)
    snapshot = reach.snapshot()
    if snapshot is None or not _comparable(kinds, ordered, reach.types):
        return None
    by_range = ordered[0][0] == first
    if not by_range and not _may_be_sent(reach, source, rest=rest):
        return None
    [whole] = snapshot.splits(1)
    pair = Pair(
        split=whole,
        schema=reach.schema,
        view=reach.view,
        as_of=reach.upper - 1,
        first=stored_name(ordered[0][0]),
        keys=tuple((reach.names.index(mine), theirs) for mine, theirs in ordered),
        rest=rest,
        counter=counter_of(reach.spark),
    )
    if not by_range:
        return _searched(reach, source, places, kinds, pair, snapshot)
    tasks = max(pieces(reach.spark, snapshot.encoded_bytes), -(-(source.rows or 0) // ROWS_MAX))
    # Of few rows each is a range of its own: there is no work for more tasks.
    tasks = tasks if source.rows is None else min(tasks, max(1, source.rows))
    keys = [theirs for _, theirs in pair.keys]
    brought = source.slices(places, keys[0], tasks)
    if brought is None:
        return Pairing(reach=reach, source=source.cut(places, keys, tasks), kinds=kinds, pair=pair, task=pair)
    numbers = reach.spark.range(0, tasks, 1, numPartitions=tasks)
    return Pairing(reach=reach, source=numbers, kinds=kinds, pair=pair, task=_Brought(slices=brought, task=pair))


def _may_be_sent(reach: Reach, source: ChangeSource, *, rest: bool) -> bool:
    """It goes to each task as a whole, and tasks can say what they found, if that matters."""
    kept = source.table is not None or (source.rows is None and source.may_be_kept)
    return kept and (not rest or getattr(reach.spark, "_sc", None) is not None)


def _searched(
    reach: Reach,
    source: ChangeSource,
    places: Sequence[int],
    kinds: st.StructType,
    pair: "Pair",
    snapshot: "persist.Snapshot",
) -> Pairing:
    """Each task looks for the whole source in a split of the table."""
    splits = Dealt(snapshot.splits(pieces(reach.spark, snapshot.encoded_bytes)))
    chosen = source.chosen(places)
    found = None
    if pair.rest and chosen is not None and chosen.num_rows:
        looked = np.zeros(chosen.num_rows + len(splits), dtype=np.bool_)
        found = reach.spark.sparkContext.accumulator(looked, _Either())
    finding = None if found is None else _Finding(found=found, splits=len(splits))
    task = _Searched(
        source=b"" if chosen is None else bytes_of(chosen),
        splits=splits,
        pair=replace(pair, rest=False, finding=finding),
    )

    def unmatched() -> Pairing | None:
        if found is None or chosen is None:
            return None
        matched, answers = np.split(found.value, [chosen.num_rows])
        if not answers.all():
            # SUBTLE: Spark goes on where an accumulator's update is lost, and then what matched would be inserted.
            raise Determinate(
                "what tasks found did not come back to the driver: nothing was changed",
                hint="an accumulator of this application raised an error (see the driver's log): restart the session",
            )
        if matched.all():
            return None
        left = bytes_of(chosen.filter(pa.array(~matched)))
        last = replace(pair, split=None)
        one = reach.spark.range(0, 1, 1, numPartitions=1)
        return Pairing(reach=reach, source=one, kinds=kinds, pair=last, task=_Brought(slices=[left], task=last))

    source_of = splits.numbers(reach.spark)
    return Pairing(reach=reach, source=source_of, kinds=kinds, pair=pair, task=task, rest=unmatched)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """Says which rows of a source a task found, and which of so many splits it looked at for that."""

    found: "Accumulator[Numbers]"
    splits: int
    place: int = 0

    def add(self, rows: int, unmatched: Numbers) -> None:
        looked = np.zeros(rows + self.splits, dtype=np.bool_)
        looked[:rows] = True
        looked[unmatched] = False
        looked[rows + self.place] = True
        self.found.add(looked)


class _Either(AccumulatorParam["Numbers"]):  # type: ignore[misc]  # pyspark is untyped here
    """Rows that some task found. A task that runs twice finds the same."""

    def zero(self, value: Numbers) -> Numbers:
        return np.zeros_like(value)

    def addInPlace(self, value1: Numbers, value2: Numbers) -> Numbers:
        return value1 | value2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Searched:
    """A task to which a whole source is sent, and which splits to look for it in, by the numbers that come in."""

    source: bytes
    splits: "Dealt[persist.Split]"
    pair: "Pair"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, split in list(self.splits.of(batches)):
            finding = self.pair.finding and replace(self.pair.finding, place=number)
            pair = replace(self.pair, split=split, finding=finding)
            yield from pair(iter(table_of(self.source).to_batches()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Brought:
    """A task to which slices are sent, by the numbers that come in."""

    slices: list[bytes]
    task: Batches

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [int(number) for batch in batches for number in batch.column(0).to_numpy()]
        yield from self.task(batch for number in numbers for batch in table_of(self.slices[number]).to_batches())


def _struct(columns: Sequence[str], names: Sequence[str]) -> Column:
    return sf.struct(*[sf.col(column).alias(name) for column, name in zip(columns, names, strict=True)])


def _comparable(theirs: st.StructType, pairs: Sequence[tuple[str, int]], kinds: dict[str, st.DataType]) -> bool:
    """The columns are equal to Arrow where they are to Spark, and all others come through it as they are."""
    given = [field.dataType for field in theirs]
    if not all(map(carried, given)):
        return False
    for mine, place in pairs:
        whole = isinstance(kinds[mine], st.IntegralType) and isinstance(given[place], st.IntegralType)
        if not whole and not (isinstance(kinds[mine], _ALIKE) and kinds[mine] == given[place]):
            return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What executors run: rows of the source in, of a range of keys; the pairs out, and what is unmatched if asked.

    ``keys``: the places of the columns that are equal, on both sides; the first is called ``first`` in the shard.
    ``split``: None: no row of the table. ``finding``: what the rows of the source that match are said by.
    """

    split: "persist.Split | None"
    schema: "persist.Schema"
    view: View
    as_of: int
    first: str
    keys: tuple[tuple[int, int], ...]
    rest: bool
    counter: "Accumulator[int] | None"
    finding: "_Finding | None" = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = [batch for batch in batches if batch.num_rows]
        if not held:
            return
        source = pa.Table.from_batches(held).combine_chunks()
        wanted = [self._alike(_array(source, theirs), mine) for mine, theirs in self.keys]
        matching = Matching(wanted)
        context = TaskContext.get()
        number = (0 if context is None else context.partitionId()) << ROW_BITS
        for batch in self.view.batches(self._read(wanted[0]), as_of=self.as_of):
            columns = [self._alike(batch.column(mine), mine) for mine, _ in self.keys]
            for left, right in matching.pairs(columns):
                if self.counter is not None:
                    self.counter.add(1 + int(np.count_nonzero(np.diff(left))))
                mine = [*batch.take(pa.array(left)).columns, pa.array(number + left)]
                yield self._beside(mine, source, right)
            number += batch.num_rows
        rows = matching.unmatched
        if self.finding is not None:
            self.finding.add(source.num_rows, rows)
        if self.rest:
            for start in range(0, len(rows), PAIRS_MAX):
                right = rows[start : start + PAIRS_MAX]
                nothing: list[ArrowArray] = [pa.nulls(len(right), field.type) for field in self._mine]  # type: ignore[call-overload]  # narrower than Arrow is
                yield self._beside(nothing, source, right)

    @property
    def _mine(self) -> list[ArrowField]:
        """The columns of the table, then COUNT and ROW."""
        kinds = [*self.view.output.types, pa.int64()]
        names = [*range(len(kinds) - 2), COUNT, ROW]
        return [pa.field(f"{_MINE}{name}", kind) for name, kind in zip(names, kinds, strict=True)]

    def _beside(self, mine: Sequence[ArrowArray], source: pa.Table, rows: Numbers) -> pa.RecordBatch:
        theirs = source.take(pa.array(rows)).combine_chunks()
        fields: list[ArrowField] = [*self._mine, *source.schema]
        columns = [*mine, *(_array(theirs, place) for place in range(theirs.num_columns))]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _alike(self, column: ArrowArray, place: int) -> ArrowArray:
        """Values that are compared, in one type for both sides."""
        kind = self.view.output.field(place).type
        return column.cast(pa.int64() if pa.types.is_integer(kind) else kind)

    def _read(self, keys: ArrowArray) -> Iterator[pa.RecordBatch]:
        """The rows of the table that may match: with one of the keys."""
        if self.split is None:
            return
        try:
            split = Keys(column=self.first, values=keys, schema=self.schema).of(self.split)
        except InvalidArgument:  # the column holds them otherwise: all that is there is looked at
            split = self.split
        if split is not None:
            yield from split.read(columns=list(self.view.needed))


def _array(table: pa.Table, place: int) -> ArrowArray:
    column = table.column(place)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # type: ignore[return-value]  # narrower than Arrow is


@dataclass(frozen=True, slots=True, kw_only=True)
class Straight:
    """Pairs as the changes that they are where no expression decides: what is matched becomes ``kind``.

    ``kind`` None: it stays. ``values``: for each column of the table the place of the source's; none where nothing is
    added.
    """

    task: Batches
    kind: int | None
    values: tuple[int, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in self.task(batches):
            row = batch.column(f"{_MINE}{ROW}")
            if self.kind is None and not row.null_count:
                continue
            kinds = pc.if_else(row.is_valid(), INSERT if self.kind is None else self.kind, INSERT)
            fields = {KIND: kinds.cast(pa.int32()), COUNT: batch.column(f"{_MINE}{COUNT}"), ROW: row}
            width = batch.schema.get_field_index(f"{_MINE}{COUNT}")
            fields |= {old(place): batch.column(place) for place in range(width)}
            fields |= {new(place): batch.column(width + 2 + theirs) for place, theirs in enumerate(self.values)}
            yield pa.RecordBatch.from_pydict(fields)
