"""Delete, update, overwrite and restore as DataFrames of changes: each looks at one row of the table at a time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as sf

from persist import InvalidArgument
from pyspark_persist.change.choosing import chosen
from pyspark_persist.change.expressions import (
    HIDDEN_COUNT,
    Condition,
    Values,
    assigned,
    cast,
    condition,
    understood,
)
from pyspark_persist.change.running import Compute, Made
from pyspark_persist.change.target import COUNT, Base, Reach
from pyspark_persist.change.tasks import DELETE, INSERT, KIND, STRAY, UPDATE, new, old
from pyspark_persist.change.touching import about_where
from pyspark_persist.write.columns import columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def deletion(where: Condition) -> Compute:
    """Take away the rows for which the condition holds."""

    def compute(reach: Reach) -> Made:
        about = about_where(where, reach.schema)
        base = reach.contents(about)
        with understood(base.names):
            found = chosen(reach, base, where)
            return Made(base=found, frame=_taken(found), about=lambda: about)

    return compute


def update(values: Values, where: Condition) -> Compute:
    """Give columns other values, in the rows for which the condition holds."""

    def compute(reach: Reach) -> Made:
        about = about_where(where, reach.schema)
        base = reach.contents(about)
        with understood(base.names):
            found = chosen(reach, base, where)
            given = cast(found.rows, assigned(values, base.names), base.types)
            after = [given.get(name, quoted(name)).alias(new(place)) for place, name in enumerate(base.names)]
            return Made(
                base=found, frame=found.rows.select(*_marks(UPDATE), *before(base.names), *after), about=lambda: about
            )

    return compute


def overwriting(df: "DataFrame", where: Condition) -> Compute:
    """Put the DataFrame's rows in the place of those for which the condition holds, and which they must meet."""

    def compute(reach: Reach) -> Made:
        about = about_where(where, reach.schema)
        base = reach.contents(about)
        columns = columns_of(df.schema, reach.schema)
        if columns.times is not None or columns.diffs is not None:
            raise InvalidArgument(
                "an overwrite gives rows, all at one time: they cannot carry _ts or _diff", hint="drop the column"
            )
        with understood(base.names):
            there = chosen(reach, base, where)
            sources = zip(columns.sources, base.names, base.kinds, strict=True)
            given = df.select(
                *[
                    (sf.lit(None) if source is None else quoted(source)).cast(kind).alias(name)
                    for source, name, kind in sources
                ]
            )
            kind = sf.when(condition(where), INSERT).otherwise(STRAY)
            after = [quoted(name).alias(new(place)) for place, name in enumerate(base.names)]
            added = given.select(kind.alias(KIND), sf.lit(1).cast("long").alias(COUNT), *after)
            frame = _taken(there).unionByName(added, allowMissingColumns=True)
            return Made(base=there, frame=frame, about=lambda: about)

    return compute


def restoration(as_of: int) -> Compute:
    """Take back what all updates later than that time come to."""

    def compute(reach: Reach) -> Made:
        base = reach.later(as_of)
        return Made(base=base, frame=_taken(base))

    return compute


def quoted(name: str, side: str = "") -> Column:
    """The column of exactly this name, dots and all; of one ``side`` of a join."""
    column = f"`{name.replace('`', '``')}`"
    return sf.col(f"`{side}`.{column}" if side else column)


def before(names: Sequence[str], side: str = "") -> list[Column]:
    """What is there, by place."""
    return [quoted(name, side).alias(old(place)) for place, name in enumerate(names)]


def _taken(base: Base) -> "DataFrame":
    return base.rows.select(*_marks(DELETE), *before(base.names))


def _marks(kind: int) -> list[Column]:
    return [sf.lit(kind).alias(KIND), sf.col(HIDDEN_COUNT).alias(COUNT)]
