"""Conditions and values as users give them: SQL text, Columns, or plain values; checked before anything runs."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from persist import InvalidArgument, SchemaMismatch
from pyspark_persist.naming import found
from pyspark_persist.spark_types import fits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Condition: TypeAlias = str | Column | None
"""SQL text or a Column; None: every row."""
Values: TypeAlias = Mapping[str, object]
"""A value for each column: SQL text, a Column, or a plain value that is no text."""


@contextlib.contextmanager
def understood(names: Sequence[str]) -> Iterator[None]:
    """Say what Spark does not understand as an InvalidArgument. ``names``: the columns there are."""
    try:
        yield
    except AnalysisException as cause:
        raise InvalidArgument(
            "Spark does not understand this",
            hint=f"the columns are: {', '.join(names)}",
            reason=str(cause).strip().splitlines()[0],
        ) from cause


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
    for field in frame.select(*[each.alias(f"c{place}") for place, each in enumerate(conditions)]).schema:
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
    made = frame.select(*[each.alias(f"v{place}") for place, each in enumerate(values.values())]).schema
    for name, field in zip(values, made, strict=True):
        if not isinstance(field.dataType, st.NullType) and not fits(field.dataType, kinds[name]):
            raise SchemaMismatch(
                "the value has another type than the column",
                hint=f"cast it to {kinds[name].simpleString()}",
                column=name,
                type=field.dataType.simpleString(),
            )
    return {name: each.cast(kinds[name]) for name, each in values.items()}
