"""Conditions and values as users give them: SQL text, Columns, or plain values; checked before anything runs."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from persist import InvalidArgument, SchemaMismatch
from persist.runtime import system
from pyspark_persist.naming import DIFF_COLUMN, TIME_COLUMN, found
from pyspark_persist.spark_types import assignable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Condition: TypeAlias = str | Column | None
"""SQL text or a Column; None: every row."""
Values: TypeAlias = Mapping[str, object]
"""A value for each column: SQL text, a Column, or a plain value that is no text."""

_APART: Final = system().random_bytes(16).hex()
HIDDEN_COUNT, HIDDEN_ROW, HIDDEN_SOURCE, HIDDEN_ACTION = HIDDEN = tuple(f"_{place}_{_APART}" for place in range(4))
"""What a change adds to the rows that conditions and values are about: how often a row is there, which row of the read
it is, whether the source has it, and which clause's it is. No text says these names, and no column has them."""


@contextlib.contextmanager
def understood(names: Sequence[str]) -> Iterator[None]:
    """Say what Spark does not understand as an InvalidArgument. ``names``: the columns there are."""
    try:
        yield
    except AnalysisException as cause:
        if _last_name(cause) in (TIME_COLUMN, DIFF_COLUMN):
            raise InvalidArgument(
                "a condition or value is about the shard's columns: times and counts are summed before it is applied",
                hint=f"take back what came after a time with restore(asOf=); the columns are: {', '.join(names)}",
                column=_last_name(cause),
            ) from cause
        raise InvalidArgument(
            "Spark does not understand this",
            hint=f"the columns are: {', '.join(names)}",
            reason=str(cause).strip().splitlines()[0],
        ) from cause


def _last_name(cause: AnalysisException) -> str:
    """The column that Spark does not find, without its side; empty of another mistake."""
    given = cause.getMessageParameters() or {}
    name = given.get("objectName") or given.get("fieldName") or ""
    return name.rsplit(".", 1)[-1].strip("`").lower()


def _resolved(frame: "DataFrame", columns: Sequence[Column]) -> list[st.StructField]:
    """What columns come to on a frame without what is HIDDEN. Raises InvalidArgument, and what Spark raises."""
    # In a function, so that its name says all that a star stands for, and a generator is no value.
    each = [sf.coalesce(column) for column in columns]
    made: list[st.StructField] = frame.drop(*HIDDEN).select(*each).schema.fields
    if any(_APART in name for name in frame.select(*each).columns):
        raise InvalidArgument("a star is no condition and no value", hint="name the columns, or say whose: source.*")
    return made


def condition(given: Condition) -> Column:
    """A condition as a Column. Raises InvalidArgument."""
    if given is None:
        return sf.lit(True)
    if isinstance(given, str):
        return sf.expr(given)
    if isinstance(given, Column):
        return given
    raise InvalidArgument("this is no condition", hint="give SQL text, or a Column", got=repr(given)[:80])


def check_conditions(frame: "DataFrame", conditions: Sequence[Column]) -> None:
    """Refuse what is no condition on this frame. Raises InvalidArgument."""
    for field in _resolved(frame, conditions):
        if not isinstance(field.dataType, st.BooleanType | st.NullType):
            raise InvalidArgument(
                "a condition must be true or false", hint="compare it to something", type=field.dataType.simpleString()
            )


def value(given: object) -> Column:
    """A value as a Column."""
    if isinstance(given, Column):
        return given
    return sf.expr(given) if isinstance(given, str) else sf.lit(given)


def assigned(given: Values, names: Sequence[str]) -> dict[str, Column]:
    """The values by the columns' own spelling. Raises SchemaMismatch, InvalidArgument."""
    if not given:
        raise InvalidArgument("no column is given a value", hint='such as set={"name": "upper(name)"}')
    spelled = found(names, given)
    if len(set(spelled)) < len(spelled):
        raise InvalidArgument("a column is given two values", hint="keep one of them", columns=", ".join(spelled))
    return {name: value(each) for name, each in zip(spelled, given.values(), strict=True)}


def cast(frame: "DataFrame", values: Mapping[str, Column], kinds: Mapping[str, st.DataType]) -> dict[str, Column]:
    """The values in the types of their columns. Raises SchemaMismatch where one may be lost."""
    for name, field in zip(values, _resolved(frame, list(values.values())), strict=True):
        if not isinstance(field.dataType, st.NullType) and not assignable(field.dataType, kinds[name]):
            raise SchemaMismatch(
                "the value has another type than the column",
                hint=f"cast it to {kinds[name].simpleString()}",
                column=name,
                type=field.dataType.simpleString(),
            )
    return {name: each.cast(kinds[name]) for name, each in values.items()}
