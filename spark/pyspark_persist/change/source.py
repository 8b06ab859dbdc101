"""The source of a merge: computed once, whatever it is, and kept for all attempts.

A small one is kept by the driver, and goes to the tasks with what they are to do: no job but theirs looks at it again.
Any other is kept by the executors. Source: spark.md section 2.3.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from pyspark_persist.change.taking import bytes_of, carried, taken
from pyspark_persist.naming import check_distinct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SMALL_BYTES: Final = 16 << 20
"""The most that a source comes to which the driver keeps, or which is sent to every process; as tasks count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSource:
    """A source. ``frame``: what it was, or what computes it from where executors keep it.

    ``rows``: how many it has, None of one that has not been computed. ``is_small``: whether it comes
    to SMALL_BYTES at most; None of one that cannot be counted, or was not. ``table``: it, if the driver keeps it.
    There is none whose columns differ by case alone, so a name means one of them. Raises SchemaMismatch.
    """

    frame: "DataFrame"
    rows: int | None = None
    is_small: bool | None = None
    table: pa.Table | None = None

    def __post_init__(self) -> None:
        check_distinct(self.frame.columns)

    def fixed(self, *, small: bool) -> "ChangeSource":
        """It, computed. ``small``: the driver may keep it."""
        # SUBTLE: what looks at it first computes it; every attempt, and all that follows, is of one source.
        kept = self.frame.localCheckpoint(eager=False)
        if not self.may_be_kept:
            return ChangeSource(frame=kept, rows=kept.count())
        found = taken(kept, SMALL_BYTES, wanted=small)
        if found.table is not None:
            return ChangeSource(frame=self.frame, rows=found.rows, is_small=True, table=found.table)
        rows = kept.count() if found.rows is None else found.rows
        return ChangeSource(frame=kept, rows=rows, is_small=found.rows is not None)

    @property
    def may_be_kept(self) -> bool:
        """Whether the driver may keep it if it is small: not with Connect, nor what Arrow does not carry."""
        return hasattr(self.frame, "_jdf") and carried(self.frame.schema)

    @property
    def definite(self) -> "DataFrame":
        """Its rows, the same whenever they are looked at."""
        if self.table is None:
            return self.frame
        return self.frame.sparkSession.createDataFrame(self.table, schema=self.frame.schema)

    @property
    def all_places(self) -> tuple[int, ...]:
        """The places of all its columns."""
        return tuple(range(len(self.frame.schema)))

    def kinds(self, places: Sequence[int]) -> st.StructType:
        """Columns of it under new names, by place."""
        fields = self.frame.schema.fields
        return st.StructType([st.StructField(_name(new), fields[old].dataType) for new, old in enumerate(places)])

    def cut(self, places: Sequence[int], keys: Sequence[int], tasks: int) -> "DataFrame":
        """Those columns, under the new names, by ranges of some of them."""
        every = self.frame.toDF(*[f"of{place}" for place in self.all_places])
        given = every.select(*[sf.col(f"of{old}").alias(_name(new)) for new, old in enumerate(places)])
        return given.repartitionByRange(tasks, *map(_name, keys)) if tasks > 1 else given.coalesce(1)

    def slices(self, places: Sequence[int], key: int, tasks: int) -> list[bytes] | None:
        """The same of a source that the driver keeps, by ranges of one column; None of another."""
        chosen = self.chosen(places)
        return None if chosen is None else slices(chosen, key, tasks)

    def chosen(self, places: Sequence[int]) -> pa.Table | None:
        """Columns of a source that the driver keeps, under new names by place; None of another."""
        if self.table is None:
            return None
        return self.table.select(list(places)).rename_columns([_name(place) for place in range(len(places))])


def slices(table: pa.Table, column: int, count: int) -> list[bytes]:
    """The rows by ranges of a column, about equally many each; equal values are in one."""
    ordered = table.take(pc.sort_indices(table.column(column)))
    keys = ordered.column(column).combine_chunks()
    changes = pc.fill_null(pc.not_equal(keys[1:], keys[:-1]), True).to_numpy(zero_copy_only=False)
    ends = np.append(np.flatnonzero(changes) + 1, len(keys))
    inner = [int(ends[np.searchsorted(ends, len(keys) * each // count)]) for each in range(1, count)]
    return [bytes_of(ordered.slice(start, stop - start)) for start, stop in itertools.pairwise([0, *inner, len(keys)])]


def _name(place: int) -> str:
    return f"s{place}"
