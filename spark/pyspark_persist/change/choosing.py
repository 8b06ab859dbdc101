"""The rows for which a condition holds, found by their keys: no others pass through Spark as a whole.

Of a large table Spark is first shown the columns that the condition is about, and the first key column, as they were
written: runs are not merged for that. Whole rows are then read of the keys that are left, and it looks at these again.
Source: spark.md section 0 fact 4.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from persist.arrow import ArrowArray
from pyspark_persist.change.expressions import Condition, check_conditions, condition
from pyspark_persist.change.taking import Within
from pyspark_persist.change.target import Base, Keys, Reach
from pyspark_persist.change.touching import KEYS_MAX
from pyspark_persist.naming import find, shown_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LOOKED_AT_BYTES: Final = 4 << 20
"""Encoded bytes of a table from which on it is worth a job of its own to look at it first."""
KEY_BYTES_MAX: Final = 16 << 20
"""Of the keys that are found: they come to the driver, and go to every task."""


def chosen(reach: Reach, base: Base, where: Condition) -> Base:
    """``base`` with the rows for which the condition holds. Raises InvalidArgument, what Spark says of it."""
    wanted = condition(where)
    check_conditions(base.rows, [wanted])
    if where is None:
        return base
    rows = base.rows.where(wanted)
    keys = _keys(reach, base, wanted, [find(base.names, name) for name in _columns_of(rows)])
    if keys is None:
        return replace(base, rows=rows)
    found = reach.with_keys(base, keys)
    return replace(found, rows=found.rows.where(wanted))


def _keys(reach: Reach, base: Base, wanted: "Column", about: list[str | None]) -> Keys | None:
    """The keys of all rows for which the condition, about those columns, holds, and of others.

    ``about``: None is a column that is not the table's: how often a row is there only shows when runs are merged.
    None: they are too many, or not worth looking for.
    """
    task, key = base.task, reach.schema.key
    # What the shard chooses by conditions of its own it does not read as a whole either.
    if task is None or task.about.where or task.encoded_bytes < LOOKED_AT_BYTES:
        return None
    if not about or None in about or not len(key) or not _is_plain(key.field(0).type):
        return None
    name = shown_name(key.field(0).name)
    columns = reach.columns_of({name, *filter(None, about)})
    if len(columns) == len(base.names):
        return None
    looked = replace(task, view=reach.view_of(columns), as_of=None, counter=None, as_updates=True)
    found = looked.frame(reach.spark, columns).where(wanted).select(f"`{name.replace('`', '``')}`")
    found = found.limit(KEYS_MAX + 1)
    if not pa.types.is_primitive(key.field(0).type):
        # What it is limited to comes to one task, which stops at the bound.
        found = found.mapInArrow(Within(KEY_BYTES_MAX), found.schema)
    values: ArrowArray = found.toArrow().column(0).combine_chunks()
    if len(values) > KEYS_MAX or values.null_count:
        return None
    return Keys(column=key.field(0).name, values=values, schema=reach.schema)


def _columns_of(filtered: "DataFrame") -> list[str]:
    """The columns of the table that the condition of a filter is about.

    None where they are not known (Spark Connect), and where it may not hold again where it held (chance, the present
    time, subqueries).
    """
    plan = getattr(filtered, "_jdf", None)
    if plan is None:
        return []
    plan = plan.queryExecution().analyzed()
    if plan.getClass().getSimpleName() != "Filter":
        return []
    asked = plan.condition()
    catalyst = filtered.sparkSession.sparkContext._jvm.org.apache.spark.sql.catalyst
    if not asked.deterministic() or catalyst.expressions.SubqueryExpression.hasSubquery(asked):
        return []
    # SUBTLE: to Spark the present time is no chance, but the second look at the rows is at another one.
    if asked.containsPattern(catalyst.trees.TreePattern.CURRENT_LIKE()):
        return []
    names = asked.references().toSeq()
    return [str(names.apply(place).name()) for place in range(names.size())]


def _is_plain(kind: pa.DataType) -> bool:
    """Values come back from Spark as they went in, and are equal where they are in Arrow."""
    whole = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    return bool(whole or pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_date32(kind))
