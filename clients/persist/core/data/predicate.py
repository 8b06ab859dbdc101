"""Predicates on columns: comparisons joined by ``and`` and ``or``, to filter rows and to skip parts by statistics.

Values compare in canonical order: NaN equals NaN and lies beyond infinity, -0.0 equals 0.0, text by UTF-8 bytes.
Numbers are compared as the numbers they are, not rounded to the type of the column: a float32 of 0.1 is more than 0.1.
As in SQL a comparison with null does not hold; only ``is null`` finds nulls. Source: kernel.md sections 1 and 7.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.core.data.encoding import VALUE, encode, encode_key, one_chunk
from persist.core.data.predicates.arrow import check_depth, chosen, columns_in
from persist.core.data.predicates.condition import ARROW, OR, ROWS, Condition, all_of, any_of
from persist.core.data.predicates.functions import after, prefix_of, within
from persist.core.data.predicates.holding import Rows, holds
from persist.core.data.predicates.text import Term, parse_text
from persist.core.data.schema import DIFF, TS, Schema
from persist.core.data.splits import KeyRange, after_prefix
from persist.core.data.stats import VALUE_BYTES
from persist.core.data.types import T
from persist.core.shard.batch import ColumnStats, Part
from persist.errors import InvalidArgument

PredicateLike: TypeAlias = Any
"""A Predicate, a text, a triple (column, op, value), a pyarrow expression, or a sequence of these (all must hold)."""

_SAME: Final = {"==": "=", "<>": "!=", "is": "is null", "is not": "is not null"}
_COMPARISONS: Final = ("=", "!=", "<", "<=", ">", ">=")
_OPS: Final = (*_COMPARISONS, "in", "not in", "like", "not like", "is null", "is not null")
_SUMMED: Final = "choose a time by as_of, an interval by a change feed; filter the rows that were read by their diff"
_HINT: Final = "such as \"id >= 5 and (name = 'x' or name like 'y%')\", or [('id', '>=', 5)]"


@dataclass(frozen=True, slots=True)
class Predicate:
    """Conditions that must all hold. Picklable.

    Numbers are not rounded to the type of a column: a float32 of 0.1 is more than 0.1, and equals no such number. In
    text one with an exponent is a double. A Python float beside whole numbers and decimals is meant by its digits.
    """

    conditions: tuple[Condition, ...] = ()

    @classmethod
    def parse(cls, where: PredicateLike) -> "Predicate":
        """The predicate a user means. Raises InvalidArgument with an example of what is understood."""
        try:
            return cls(all_of(_conditions(where)))
        except RecursionError:
            raise InvalidArgument("lists within each other too often", hint=_HINT) from None

    def columns(self, schema: pa.Schema) -> set[str]:
        """The columns it looks at, of these. Raises InvalidArgument for an expression that they cannot answer."""
        found: set[str] = set()
        for condition in self.conditions:
            found.update(each.column for each in condition.each)
            found.update(columns_in(condition.value, schema) if condition.op == ARROW else ())
            found.update(*(side.columns(schema) for side in _sides(condition)))
        return found

    def renamed(self, name: Callable[[str], str]) -> "Predicate":
        """The same about columns of other names. Raises InvalidArgument for an expression, and what ``name`` raises."""
        return Predicate(tuple(_renamed(condition, name) for condition in self.conditions))

    def check(self, schema: Schema, *, times: bool = False) -> None:
        """Accept a predicate this schema can answer, also about ``ts`` where rows keep their ``times``.

        ``diff`` is never asked about, nor ``ts`` of what is summed over times: rows are chosen before they are summed.
        Raises InvalidArgument (unknown column, unfit value).
        """
        fields = {field.name: field for field in [*schema.key, *schema.val, *([TS] if times else [])]}
        for condition in self.conditions:
            for side in _sides(condition):
                side.check(schema, times=times)
            if condition.op == ARROW:
                columns_in(condition.value, pa.schema(fields.values()))
            for each in condition.each:
                if each.column not in fields:
                    summed = each.column in (TS.name, DIFF.name)
                    raise InvalidArgument(
                        "updates cannot be chosen by this before they are summed" if summed else "no such column",
                        hint=_SUMMED if summed else f"the columns are {list(fields)}",
                        column=each.column,
                    )
                each.literals(fields[each.column].type)

    def may_match(self, part: Part, schema: Schema) -> bool:
        """False only when no row of the part can match. ``schema`` is the part's or a newer one.

        Raises InvalidArgument for a value that its column cannot be compared with.
        """
        stats = {item.name: item for item in part.stats}
        types = {field.name: field.type for field in [*schema.key, *schema.val]}
        return all(
            any(side.may_match(part, schema) for side in _sides(condition))
            if _sides(condition)
            else _any_row_may_hold(condition, stats, types, part.rows)
            if condition.op == ROWS
            else all(
                _may_hold(each, stats[each.column], types[each.column], part.rows)
                for each in _of_column(condition, types.get(condition.column))
                if each.column in stats
            )
            for condition in self.conditions
            if condition.op != ARROW
        )

    def keys(self, schema: Schema) -> KeyRange | None:
        """A range of keys that holds every row for which it holds; None where it says nothing of the first key column.

        Raises InvalidArgument for a value that the column cannot be compared with.
        """
        if not len(schema.key):
            return None
        first, alone = schema.key.field(0), len(schema.key) == 1
        found: list[KeyRange] = []
        for condition in self.conditions:
            if _sides(condition):
                found += _hull([side.keys(schema) for side in _sides(condition)])
            for equal in condition.each:
                if equal.column == first.name:
                    found += [_key_bounds(each, first.type, alone=alone) for each in _of_column(equal, first.type)]
        lower = max((keys.lower for keys in found if keys.lower is not None), default=None)
        upper = min((keys.upper for keys in found if keys.upper is not None), default=None)
        return None if lower is None and upper is None else KeyRange(lower=lower, upper=upper)

    def filter(self, table: pa.Table) -> pa.Table:
        """The rows for which every condition holds, in order. Raises InvalidArgument as ``check`` does."""
        mask = self._mask(Rows(table))
        kept = table if mask is None or bool(pc.all(mask).as_py() is not False) else table.filter(mask)
        for condition in self.conditions:
            kept = chosen(condition.value, kept) if condition.op == ARROW else kept
        return kept

    def _mask(self, rows: Rows) -> pa.BooleanArray | None:
        """For each row whether it holds, expressions aside; None: of every row."""
        mask: Any = None
        for condition in self.conditions:
            if condition.op == ARROW:
                continue
            sides = _sides(condition)
            found = (
                functools.reduce(pc.or_, [_all_or(side._mask(rows), rows) for side in sides])
                if sides
                else holds(condition, rows)
            )
            mask = found if mask is None else pc.and_(mask, found)
        return mask  # type: ignore[no-any-return]  # kernels have no types


def _conditions(where: PredicateLike) -> Iterable[Condition]:
    if isinstance(where, Predicate):
        return where.conditions
    if isinstance(where, pc.Expression):
        check_depth(where)
        return [Condition("", ARROW, where)]
    if isinstance(where, str):
        return _of_terms(parse_text(where))
    if isinstance(where, tuple) and len(where) in (2, 3) and all(isinstance(part, str) for part in where[:2]):
        return [_condition(*where)]
    if isinstance(where, list | tuple):
        return [condition for item in where for condition in _conditions(item)]
    raise InvalidArgument("this is not a predicate", hint=_HINT, got=repr(where)[:80])


def _of_terms(terms: Iterable[Term]) -> tuple[Condition, ...]:
    return all_of(condition for term in terms for condition in _of_term(term))


def _of_term(term: Term) -> tuple[Condition, ...]:
    if term[1] != OR:
        return (_condition(*term),)
    sides = any_of(map(_of_terms, term[2]))
    return sides[0] if len(sides) == 1 else (Condition("", OR, tuple(map(Predicate, sides))),)


def _condition(column: str, op: str, value: object = None, function: str = "") -> Condition:
    name = " ".join(op.lower().split())
    name = _SAME.get(name, name)
    if name not in _OPS:
        raise InvalidArgument("no such operator", hint=f"one of {', '.join(_OPS)}", op=op)
    if name in ("in", "not in"):
        if isinstance(value, pa.Array | pa.ChunkedArray):
            return Condition(column, name, one_chunk(value), function)
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise InvalidArgument(f"'{name}' takes a list of values", hint=_HINT, got=repr(value)[:80])
        values = tuple(value)
        if name == "not in" and None in values:
            raise InvalidArgument("nothing compares to null", hint="leave it out, and add 'is not null'", column=column)
        return Condition(column, name, values, function)
    if name in _COMPARISONS and value is None:
        raise InvalidArgument("nothing compares to null", hint="use 'is null' or 'is not null'", column=column)
    if name.endswith("like") and (function or not isinstance(value, str)):
        raise InvalidArgument("'like' compares a column to a text", hint="such as \"name like 'x%'\"", column=column)
    return Condition(column, name, value, function)


def _renamed(condition: Condition, name: Callable[[str], str]) -> Condition:
    if _sides(condition):
        return replace(condition, value=tuple(side.renamed(name) for side in _sides(condition)))
    if condition.op == ARROW:
        raise InvalidArgument(
            "an expression names columns as they are", hint="give a text", got=str(condition.value)[:80]
        )
    if condition.op == ROWS:
        return replace(condition, value=tuple(_renamed(each, name) for each in condition.each))
    return replace(condition, column=name(condition.column))


def _all_or(mask: pa.BooleanArray | None, rows: Rows) -> pa.BooleanArray:
    return pa.array(np.ones(rows.table.num_rows, dtype=np.bool_)) if mask is None else mask


def _sides(condition: Condition) -> tuple[Predicate, ...]:
    """What ``or`` joins; nothing of a comparison."""
    return tuple(side for side in condition.sides if isinstance(side, Predicate))


def _hull(ranges: list[KeyRange | None]) -> list[KeyRange]:
    """One range around these; nothing when one of them is unknown."""
    known = [keys for keys in ranges if keys is not None]
    if len(known) < len(ranges):
        return []
    lowers, uppers = [keys.lower for keys in known], [keys.upper for keys in known]
    lower = None if None in lowers else min(lowers)  # type: ignore[type-var]  # no nulls here
    return [KeyRange(lower=lower, upper=None if None in uppers else max(uppers))]  # type: ignore[type-var]  # the same


def _of_column(condition: Condition, given: pa.DataType | None) -> list[Condition]:
    """Comparisons of the column alone that hold wherever the condition does: itself, if it is one."""
    column = condition.column
    if condition.op in ("like", "not like"):
        prefix = prefix_of(condition.value) if condition.op == "like" else ""
        beyond = [Condition(column, "<", after(prefix))] if after(prefix) else []
        return [Condition(column, ">=", prefix), *beyond] if prefix else [Condition(column, "is not null")]
    if condition.op == "not in" and condition.function:
        return [Condition(column, "is not null")]
    if not condition.function or given is None:
        return [] if condition.function else [condition]
    if condition.op.startswith("is "):
        return [replace(condition, function="")]
    literals = condition.literals(given)
    whole = literals.cast(pa.int32() if condition.function == "date" else pa.int64()).to_pylist()
    values = [value for value in whole if value is not None]
    found = (
        [Condition(column, op, text) for op, text in within(condition.op, condition.function, values)] if values else []
    )
    return [each for each in found if _fits(each, given)]


def _fits(condition: Condition, given: pa.DataType) -> bool:
    try:
        condition.literals(given)
    except InvalidArgument:  # a day that the column cannot hold
        return False
    return True


def _may_hold(condition: Condition, stats: ColumnStats, given: pa.DataType, rows: int) -> bool:
    if condition.op == "is null":
        return stats.null_count > 0
    if stats.null_count >= rows:
        return False
    if condition.op == "is not null":
        return True
    if isinstance(condition.value, pa.Array):
        # Bounds that are said beside it skip parts for less than to look at each value.
        return True
    condition = condition.fitted(given)
    condition.literals(given)
    if stats.lower is None and stats.upper is None:
        # No bounds: unknown, or nothing but NaN.
        return True
    nan = _nan(given) if T.is_floating(given) and stats.has_nan else None
    lower, upper = stats.lower, stats.upper
    if condition.op == "in":
        return condition.any_within(given, lower, upper) or (nan is not None and condition.any_within(given, nan, nan))
    if condition.op == "not in":
        # Only exact bounds prove that every value is one of these.
        if (
            lower is None
            or lower != upper
            or len(lower) >= VALUE_BYTES
            or not condition.any_within(given, lower, lower)
        ):
            return True
        return nan is not None and not condition.any_within(given, nan, nan)
    [literal] = condition.encoded(given)
    return _in_bounds(condition.op, literal, stats) or _nan_holds(condition.op, literal, nan)


def _any_row_may_hold(
    condition: Condition, stats: Mapping[str, ColumnStats], types: Mapping[str, pa.DataType], rows: int
) -> bool:
    """Some row that is looked for lies within the bounds of all its columns."""
    possible: Any = None
    for each in condition.each:
        known = stats.get(each.column)
        if known is None or each.function:
            continue
        given = types[each.column]
        if not _may_hold(each, known, given, rows):
            return False
        if known.lower is None and known.upper is None:
            continue
        values = each.canonical(given)
        inside: Any = None
        for compare, bound in ((pc.greater_equal, known.lower), (pc.less_equal, known.upper)):
            if bound is not None:
                within_bound = compare(values, pa.scalar(bound, values.type))
                inside = within_bound if inside is None else pc.and_(inside, within_bound)
        if T.is_floating(given) and known.has_nan:
            inside = pc.or_(inside, pc.equal(values, pa.scalar(_nan(given), values.type)))
        possible = inside if possible is None else pc.and_(possible, inside)
    return possible is None or bool(pc.any(possible).as_py())


def _nan(given: pa.DataType) -> bytes:
    """The canonical bytes of NaN."""
    return encode_key([pa.array([float("nan")], given)])[0].as_py()


def _key_bounds(condition: Condition, given: pa.DataType, *, alone: bool) -> KeyRange:
    """Where all keys lie whose first column is so. ``alone``: it is the whole key."""
    if condition.op == "is null":
        return KeyRange(lower=None, upper=VALUE)
    condition = condition.fitted(given)
    if condition.op in ("is not null", "!=", "not in"):
        return KeyRange(lower=VALUE, upper=None)
    encoded = encode([condition.literals(given)], last=alone).to_pylist()
    if not encoded:
        return KeyRange(lower=VALUE, upper=VALUE)
    low, high = min(encoded), max(encoded)  # type: ignore[type-var]  # no nulls here
    lower = low if condition.op in ("=", "in", ">", ">=") else VALUE
    if condition.op in (">", ">="):
        return KeyRange(lower=lower, upper=None)
    # Every key that begins so lies before the next prefix.
    return KeyRange(lower=lower, upper=high if condition.op == "<" else after_prefix(high))  # type: ignore[arg-type]  # no nulls here


def _in_bounds(op: str, literal: bytes, stats: ColumnStats) -> bool:
    """Some value within the bounds may compare so to the literal; a missing bound is unbounded."""
    lower, upper = stats.lower, stats.upper
    if op == "!=":
        # Only exact bounds prove that every value is the literal.
        return not (lower == upper == literal and len(literal) < VALUE_BYTES)
    if op in ("<", "<="):
        return lower is None or lower < literal or (op == "<=" and lower == literal)
    if op in (">", ">="):
        return upper is None or upper > literal or (op == ">=" and upper == literal)
    return (lower is None or lower <= literal) and (upper is None or literal <= upper)


def _nan_holds(op: str, literal: bytes, nan: bytes | None) -> bool:
    if nan is None:
        return False
    if op in ("=", "in"):
        return literal == nan
    return {"!=": nan != literal, "<": nan < literal, "<=": nan <= literal, ">": nan > literal, ">=": True}[op]
