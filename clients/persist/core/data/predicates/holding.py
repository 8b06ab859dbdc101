"""For which rows of a table a comparison holds. What is looked at often is computed once for each table."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray
from persist.core.data.encoding import encode_key, one_chunk
from persist.core.data.predicates.condition import ROWS, Condition
from persist.core.data.predicates.functions import applied
from persist.core.data.types import T, has_words, is_text
from persist.errors import InvalidArgument

Made = TypeVar("Made")


class Rows:
    """A table as conditions look at it: its columns, what functions make of them, and their canonical bytes."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._made: dict[object, Any] = {}

    def column(self, name: str) -> ArrowArray:
        """A column. Raises InvalidArgument when there is none of this name."""
        if name not in self.table.schema.names:
            raise InvalidArgument("no such column", hint=f"the columns are {self.table.schema.names}", column=name)
        return self._once(name, lambda: one_chunk(self.table.column(name)))

    def seen(self, condition: Condition) -> ArrowArray:
        """What a condition is about, null where there is nothing; in canonical bytes if Arrow compares otherwise.

        Arrow's own comparisons see NaN and -0.0 otherwise, among others.
        """
        about = condition.column, condition.function
        return self._once(about, lambda: _comparable(applied(condition.function, self.column(condition.column))))

    def together(self, conditions: Sequence[Condition]) -> tuple[ArrowArray, ArrowArray]:
        """The canonical bytes of all that these are about, row by row, and whether none of it is null."""
        about = tuple((condition.column, condition.function) for condition in conditions)

        def made() -> tuple[ArrowArray, ArrowArray]:
            columns = [applied(condition.function, self.column(condition.column)) for condition in conditions]
            return encode_key(columns), functools.reduce(pc.and_, [column.is_valid() for column in columns])

        return self._once(about, made)

    def _once(self, key: object, make: Callable[[], Made]) -> Made:
        if key not in self._made:
            self._made[key] = make()
        found: Made = self._made[key]
        return found


def holds(condition: Condition, rows: Rows) -> pa.BooleanArray:
    """For each row, whether the condition holds; never null."""
    if condition.op == ROWS:
        return _any_row(condition, rows)
    column = rows.column(condition.column)
    if condition.op == "is null":
        return column.is_null()
    if condition.op == "is not null":
        return column.is_valid()
    given = column.type
    condition = condition.fitted(given)
    values = condition.literals(given)
    if condition.op.endswith("like"):
        like = pc.fill_null(pc.match_like(column, condition.value), condition.op == "not like")
        return pc.invert(like) if condition.op == "not like" else like  # type: ignore[no-any-return]  # kernels have no types
    seen = rows.seen(condition)
    if not _as_they_are(values.type):
        values = condition.canonical(given)
    if condition.op == "in":
        return pc.is_in(seen, value_set=values, skip_nulls=True)  # type: ignore[no-any-return]  # the same
    if condition.op == "not in":
        return pc.and_(seen.is_valid(), pc.invert(pc.is_in(seen, value_set=values, skip_nulls=True)))  # type: ignore[no-any-return]  # the same
    return pc.fill_null(_COMPARE[condition.op](seen, values[0]), False)  # type: ignore[no-any-return]  # the same


def _any_row(condition: Condition, rows: Rows) -> pa.BooleanArray:
    types = tuple(rows.column(each.column).type for each in condition.each)
    seen, valid = rows.together(condition.each)
    return pc.and_(valid, pc.is_in(seen, value_set=condition.rows(types)))  # type: ignore[no-any-return]  # the same


def _as_they_are(given: pa.DataType) -> bool:
    return has_words(given) or is_text(given) or T.is_binary(given)


def _comparable(column: ArrowArray) -> ArrowArray:
    if _as_they_are(column.type):
        return column
    encoded = encode_key([column])
    return pc.if_else(column.is_valid(), encoded, pa.scalar(None, encoded.type))  # type: ignore[no-any-return]  # the same


_COMPARE: Final[dict[str, Callable[..., Any]]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
