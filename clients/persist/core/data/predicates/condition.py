"""Comparisons of a column and values, each looked at in the column's type once, and what is joined by ``or``."""

import bisect
import decimal
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from persist.arrow import ArrowArray
from persist.arrow.exact import cast_exactly
from persist.core.data.encoding import encode_key
from persist.core.data.predicates.functions import result_type
from persist.core.data.predicates.text import Double
from persist.core.data.types import T, is_nested, is_text
from persist.core.data.values import stored
from persist.errors import InvalidArgument
from persist.typed import AnyValue

Made = TypeVar("Made")

OR: Final = "or"
ROWS: Final = "rows in"
ARROW: Final = "arrow"
FLOAT_BITS: Final = 64
APART_MAX: Final = 10**15
"""Numbers of so many units and more may be equal as doubles: these have 15 digits."""


class AllOf(Protocol):
    """What ``or`` joins: conditions that all hold."""

    @property
    def conditions(self) -> "tuple[Condition, ...]":
        """These."""
        ...


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a column, or of what a ``function`` of dates makes of it; or what ``or`` joins.

    ``value`` is a tuple or an Arrow array for ``in`` and ``not in``, None for ``is null`` and ``is not null``. Without
    a column: for ``or`` a tuple of Predicates, for ``rows in`` Conditions by ``in`` of equally many values, which hold
    together of one place in them, for ``arrow`` an expression. Picklable.
    """

    column: str
    op: str
    value: Any = None
    function: str = ""
    _made: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def sides(self) -> tuple[AllOf, ...]:
        """What ``or`` joins; nothing of a comparison."""
        return self.value if self.op == OR else ()

    @property
    def each(self) -> "tuple[Condition, ...]":
        """The comparisons of one column each that must all hold where it does: itself, if it is one."""
        if self.op == ROWS:
            return self.value  # type: ignore[no-any-return]  # what the op says
        return (self,) if self.column else ()

    def literals(self, column: pa.DataType) -> ArrowArray:
        """The values but null, in order, in the type of what it is about. Raises InvalidArgument: one does not fit."""
        return self._once(column, lambda: _literals(self, column))

    def fitted(self, column: pa.DataType) -> "Condition":
        """The same about values that the column can hold: between two floats of 32 bits lie many numbers, which equal
        neither. Raises InvalidArgument.
        """
        return self._once(("fitted", column), lambda: _fitted(self, column))

    def rows(self, columns: tuple[pa.DataType, ...]) -> ArrowArray:
        """The canonical bytes of the rows that are looked for, each column's type given. Raises InvalidArgument."""
        return self._once(columns, lambda: _rows(self, columns))

    def canonical(self, column: pa.DataType) -> ArrowArray:
        """The canonical bytes of those. Raises InvalidArgument."""
        return self._once(("canonical", column), lambda: encode_key([self.literals(column)]))

    def encoded(self, column: pa.DataType) -> list[bytes]:
        """The same, in order. Raises InvalidArgument."""
        return self._once(("in order", column), lambda: sorted(self.canonical(column).to_pylist()))  # type: ignore[arg-type]  # no nulls here

    def any_within(self, column: pa.DataType, lower: bytes | None, upper: bytes | None) -> bool:
        """Whether one of those lies within the bounds, both included; None: it is unbounded. Raises InvalidArgument."""
        found = self.encoded(column)
        place = 0 if lower is None else bisect.bisect_left(found, lower)
        return place < len(found) and (upper is None or found[place] <= upper)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.column, self.op, self.value, self.function)

    def _once(self, key: object, make: Callable[[], Made]) -> Made:
        if key not in self._made:
            self._made[key] = make()
        found: Made = self._made[key]
        return found


def any_of(sides: Iterable[Sequence[Condition]]) -> list[tuple[Condition, ...]]:
    """Fewer sides that hold together where these do: what they say that columns equal is one ``in`` for each column, or
    one ``rows in`` for several together.
    """
    flat = itertools.chain.from_iterable(
        (inner.conditions for inner in side[0].sides) if len(side) == 1 and side[0].sides else [side] for side in sides
    )
    return _rows_gathered(_gathered(flat, ("=", "in"), "in"))


def _rows_gathered(sides: Iterable[Sequence[Condition]]) -> list[tuple[Condition, ...]]:
    """Sides of equations of the same columns are one; all others stay."""
    found: list[tuple[Condition, ...]] = []
    values: dict[tuple[tuple[str, str], ...], tuple[int, list[tuple[AnyValue, ...]]]] = {}
    for side in sides:
        if len(side) == 1 and side[0].op == ROWS:
            parts, rows = side[0].each, list(zip(*(each.value for each in side[0].each), strict=True))
        elif len(side) > 1 and all(each.op == "=" for each in side):
            parts = tuple(sorted(side, key=_about))
            rows = [tuple(each.value for each in parts)]
        else:
            parts, rows = (), []
        about = tuple(map(_about, parts))
        if len({column for column, _ in about}) < max(1, len(about)):
            found.append(tuple(side))
            continue
        if about not in values:
            values[about] = len(found), []
            found.append(tuple(side))
        values[about][1].extend(rows)
    for about, (place, rows) in values.items():
        if len(rows) > 1:
            columns = zip(about, zip(*rows, strict=True), strict=True)
            found[place] = (
                Condition("", ROWS, tuple(Condition(name, "in", each, by) for (name, by), each in columns)),
            )
    return found


def _about(condition: Condition) -> tuple[str, str]:
    return condition.column, condition.function


def all_of(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Fewer conditions that all hold where these do: what they say that one column does not equal is one ``not in``."""
    return tuple(side[0] for side in _gathered(([each] for each in conditions), ("!=", "not in"), "not in"))


def _gathered(sides: Iterable[Sequence[Condition]], ops: tuple[str, str], to: str) -> list[Sequence[Condition]]:
    """Sides of one condition by one of the ``ops`` each, about one column, are one by ``to``; all others stay."""
    found: list[Sequence[Condition]] = []
    values: dict[tuple[str, str], tuple[int, list[AnyValue]]] = {}
    for side in sides:
        only = side[0] if len(side) == 1 else None
        if only is None or only.op not in ops or isinstance(only.value, pa.Array):
            found.append(side)
            continue
        about = only.column, only.function
        if about not in values:
            values[about] = len(found), []
            found.append(side)
        values[about][1].extend(only.value if only.op == to else [only.value])
    for place, each in values.values():
        if len(each) > 1:
            found[place] = [replace(found[place][0], op=to, value=tuple(each))]
    return found


def _literals(condition: Condition, column: pa.DataType) -> ArrowArray:
    given = result_type(condition.function, column, condition.column)
    if condition.op.startswith("is "):
        return pa.array([], given)
    if is_nested(given):
        raise InvalidArgument("nested columns cannot be compared", hint="only tested for null", column=condition.column)
    if condition.op.endswith("like") and not is_text(given):
        raise InvalidArgument("'like' is of texts", hint=f"it holds {given}", column=condition.column)
    values = condition.value if condition.op in ("in", "not in") else (condition.value,)
    try:
        if isinstance(values, pa.Array):
            return stored(cast_exactly(values.drop_null(), given), given, condition.column)
        kinds = _by_type(values)
        if not kinds:
            return pa.array([], given)
        found = pa.concat_arrays([_alike([value for _, value in each], given) for each in kinds])
        if len(kinds) > 1:
            found = found.take(pa.array(np.argsort([place for each in kinds for place, _ in each])))
        return stored(found, given, condition.column)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, decimal.DecimalException) as error:
        raise InvalidArgument(
            "the value does not fit the column",
            hint=f"it holds {given}",
            column=condition.column,
            value=repr(values)[:80],
        ) from error


def _rows(condition: Condition, columns: tuple[pa.DataType, ...]) -> ArrowArray:
    about = list(zip(condition.each, columns, strict=True))
    sought = encode_key([each.literals(column) for each, column in about])
    between = [_between(each, column) for each, column in about if _is_narrow(column)]
    return sought.filter(pa.array(~np.logical_or.reduce(between))) if between else sought


def _is_narrow(column: pa.DataType) -> bool:
    return T.is_floating(column) and column.bit_width < FLOAT_BITS


def _fitted(condition: Condition, column: pa.DataType) -> Condition:
    op = condition.op
    if not _is_narrow(column) or op.startswith("is ") or not condition.column:
        return condition
    literals, between = condition.literals(column), _between(condition, column)
    if not between.any():
        return condition
    if op in ("=", "in", "!=", "not in"):
        kept = tuple(literals.filter(pa.array(~between)).to_pylist())
        return replace(condition, op="in" if op in ("=", "in") else "not in", value=kept)
    [near] = literals.to_numpy(zero_copy_only=False)
    # SUBTLE: numpy rounds a float of Python's to the width of what it is compared with.
    above = np.nextafter(near, near.dtype.type(np.inf)) if float(near) < float(condition.value) else near
    return replace(condition, op="<" if op in ("<", "<=") else ">=", value=float(above))


def _between(condition: Condition, column: pa.DataType) -> Any:
    """For each literal of a column of narrow floats whether it is none of them: a mask, as numpy has them."""
    values = condition.value if condition.op in ("in", "not in") else (condition.value,)
    near = condition.literals(column).cast(pa.float64())
    if isinstance(values, pa.Array):
        return np.zeros(len(near), dtype=np.bool_)
    exact = [value.as_py() if isinstance(value, pa.Scalar) else value for value in values if value is not None]
    meant = np.array([float(value) for value in exact], dtype=np.float64)
    return (meant != near.to_numpy(zero_copy_only=False)) & ~np.isnan(meant)


def _by_type(values: Iterable[AnyValue]) -> Collection[list[tuple[int, AnyValue]]]:
    """The values but null with their places, those of a type together."""
    found: dict[type, list[tuple[int, AnyValue]]] = {}
    for place, value in enumerate(values):
        if value is not None:
            found.setdefault(type(value), []).append((place, value))
    return found.values()


def _alike(values: list[Any], given: pa.DataType) -> ArrowArray:
    """Values that are of one type."""
    first = values[0]
    if isinstance(first, bool) != T.is_boolean(given):
        raise TypeError("only bool columns compare to bool")
    if isinstance(first, pa.Scalar):
        return pa.concat_arrays([cast_exactly(pa.repeat(value, 1), given) for value in values])
    if isinstance(first, int | float | decimal.Decimal) and (T.is_date(given) or T.is_timestamp(given)):
        raise TypeError("dates and times are written as text, or given as such")
    if isinstance(first, Double) and (T.is_integer(given) or T.is_decimal(given)):
        _check_apart(values, given)
    if T.is_decimal(given) and not isinstance(first, decimal.Decimal | str):
        return cast_exactly(pa.array([str(value) for value in values]), given)
    if isinstance(first, str) and not is_text(given):
        return pa.concat_arrays([_from_text(value, given) for value in values])
    if T.is_integer(given) and isinstance(first, decimal.Decimal | float):
        # Arrow would cut the fraction off.
        if any(value != int(value) for value in values):
            raise ValueError("not a whole number")
        values = [int(value) for value in values]
    if T.is_floating(given):
        return _floats(values, given)
    return pa.array(values, given)


def _floats(values: list[Any], given: pa.DataType) -> ArrowArray:
    """Those next to these: ``Condition.fitted`` knows which of them are others."""
    if isinstance(values[0], decimal.Decimal | Double):
        values = [float(value) for value in values]
        if any(map(math.isinf, values)):
            raise OverflowError("beyond all doubles")
    return pa.array(values, pa.float64()).cast(given, safe=False)


def _check_apart(values: list[Double], given: pa.DataType) -> None:
    """Refuse doubles that may be next to several values of the column: engines differ in what equals them."""
    unit = 10 ** (given.scale if T.is_decimal(given) else 0)
    wide = T.is_decimal(given) or given.bit_width == FLOAT_BITS
    for value in values:
        if wide and math.isfinite(value) and abs(decimal.Decimal(value)) * unit >= APART_MAX:
            raise InvalidArgument(
                "as a double this is next to several values of the column",
                hint="write all its digits, without an exponent",
                value=value,
                type=str(given),
            )


def _from_text(value: str, given: pa.DataType) -> ArrowArray:
    """A date, time, timestamp or bytes written as text; a zoned timestamp without a zone is UTC."""
    if T.is_integer(given) or T.is_floating(given) or T.is_decimal(given):
        raise TypeError("numbers are not quoted")
    if T.is_timestamp(given) and given.tz is not None:
        try:
            return pa.array([value]).cast(given)
        except pa.ArrowInvalid:
            return pa.array([value]).cast(pa.timestamp(given.unit)).view(given)
    return (
        cast_exactly(pa.array([value]), given)
        if not T.is_fixed_size_binary(given)
        else pa.array([value.encode()], given)
    )
