"""Which rows a change is about, as shard and Arrow find by themselves: a superset of what Spark would choose.

It cuts what is read before Spark sees it, and decides whether a write that came between matters. Only what both sides
certainly mean alike is taken: comparisons of whole numbers, and tests for null. All else stays with Spark.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from persist import InvalidArgument, Predicate
from persist.arrow import ArrowArray
from pyspark_persist.change.expressions import Condition
from pyspark_persist.naming import find, shown_fields, stored_name
from pyspark_persist.read.planning import Condition as Bound
from pyspark_persist.read.planning import Where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    import persist

KEYS_MAX: Final = 1_000_000
"""Of a source with more rows the keys are not looked at: 8 MB of them go to every task."""
_AND: Final = re.compile(r"\s+and\s+", re.IGNORECASE)
_EQUAL: Final = re.compile(r"\s*(\w+)\.(\w+)\s*==?\s*(\w+)\.(\w+)\s*")
_ALIKE: Final = ("=", "<", "<=", ">", ">=", "in", "is null", "is not null")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Conditions on the shard's columns that all hold, and the values that one of them has, if these are known."""

    where: Where = ()
    column: str = ""
    keys: ArrowArray | None = None

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of a batch that meets the conditions which have one of the values."""
        if self.keys is None:
            return batch
        return batch.filter(pc.is_in(batch.column(self.column).cast(pa.int64()), value_set=self.keys))


ANYTHING: Final = About()
"""Any row may be meant."""


def about_where(where: Condition, schema: "persist.Schema") -> About:
    """Every row for which the condition holds, and others."""
    # In Spark a text in double quotes is no column, and a dot leads into a struct.
    if not isinstance(where, str) or '"' in where:
        return ANYTHING
    known = {field.name: field for field in shown_fields(schema)}
    kept: list[Bound] = []
    try:
        for each in Predicate.parse(where).conditions:
            name = find(known, each.column)
            if (
                name is None
                or each.function
                or "." in name
                or each.op not in _ALIKE
                or not pa.types.is_integer(known[name].type)
            ):
                continue
            values = each.value if each.op == "in" else () if each.value is None else (each.value,)
            if all(type(value) is int for value in values):
                kept.append((stored_name(name), each.op, each.value))
        Predicate.parse(kept).check(schema)
    except InvalidArgument:
        return ANYTHING
    return About(where=tuple(kept))


def about_keys(source: "DataFrame", pairs: list[tuple[str, str]], schema: "persist.Schema") -> About:
    """Every row that equals one of the source in these columns, the table's before its own, and others.

    ``source``: one that is the same whenever it is computed.
    """
    known = {field.name: field for field in shown_fields(schema)}
    for mine, theirs in pairs:
        kind = known[mine].type
        if pa.types.is_uint64(kind) or not pa.types.is_integer(kind):
            continue
        if isinstance(source.schema[theirs].dataType, st.IntegralType):
            keys = _keys(source, theirs)
            return (
                ANYTHING
                if keys is None
                else About(where=_range(stored_name(mine), keys, schema), column=stored_name(mine), keys=keys)
            )
    return ANYTHING


def equated(
    on: str, sides: tuple[str, str], names: Sequence[str], columns: Sequence[str]
) -> list[tuple[str, str]] | None:
    """The columns that a text says are equal, if it says no more: ``names`` of the table, ``columns`` of the source."""
    pairs = []
    for term in _AND.split(on):
        found = _EQUAL.fullmatch(term)
        if found is None:
            return None
        by_side = {found[1].lower(): found[2], found[3].lower(): found[4]}
        mine, theirs = (
            find(known, by_side.get(side.lower(), "")) for side, known in zip(sides, (names, columns), strict=True)
        )
        if mine is None or theirs is None:
            return None
        pairs.append((mine, theirs))
    return pairs


def _keys(source: "DataFrame", name: str) -> ArrowArray | None:
    """The distinct values of a column of whole numbers but null, in order; None of a large source."""
    if source.count() > KEYS_MAX:
        return None
    column = sf.col(f"`{name.replace('`', '``')}`").cast("long").alias("key")
    values = source.select(column).where("key is not null").toArrow().column("key").unique()
    return values.sort()  # type: ignore[no-any-return]  # kernels and pyspark have no types


def _range(column: str, keys: ArrowArray, schema: "persist.Schema") -> Where:
    """The conditions that parts can be left out by."""
    if not len(keys):
        return ()
    bounds: list[Bound] = [(column, ">=", keys[0].as_py()), (column, "<=", keys[-1].as_py())]
    try:
        Predicate.parse(bounds).check(schema)
    except InvalidArgument:  # a key that the column cannot hold
        return ()
    return bounds
