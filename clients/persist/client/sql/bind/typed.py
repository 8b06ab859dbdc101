"""What is known of the types of a query's parts, by the names of columns; and how parts are put in the place of others.

A name counts only where every column of it that is read is of one kind, and the query gives it to nothing itself.
Source: docs/sql.md, queries.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa

from persist.arrow import ArrowField
from persist.core.data.schema import Schema
from persist.extras import extra

with extra("sql"):
    import sqlglot
    from sqlglot import exp

TEXTS: Final = frozenset({"TEXT", "VARCHAR", "CHAR", "NCHAR", "NVARCHAR", "BPCHAR", "USERDEFINED"})
"""Types of texts, as sqlglot calls them, and those that it does not know."""
ARITHMETIC: Final = (exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod)
COMPARED: Final = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ)
NUMBERS: Final = (
    *ARITHMETIC, exp.Boolean, exp.Null, exp.Count, exp.Sum, exp.Avg, exp.Round, exp.Floor, exp.Ceil, exp.Abs,
    exp.Extract, exp.Length, exp.Predicate, exp.Not,
)  # fmt: skip
"""What gives no text."""
_ONCE: Final = "list_extract(list_transform([x], lambda given: y), 1)"
"""Any value, once: of what it is computed is not repeated."""

Change = tuple[exp.Expr, Callable[[], None]]
"""A part of a query, and what puts another one in its place."""


class Columns:
    """The names of columns that are of one kind, in what a query reads."""

    def __init__(self, query: exp.Expr, schemas: Iterable[Schema]) -> None:
        fields = [field for each in schemas for field in [*each.key, *each.val]]
        # A name may be one that the query itself gives.
        given = {each.alias for each in query.find_all(exp.Alias)}
        given |= {name.name for each in query.find_all(exp.TableAlias) for name in each.args.get("columns") or ()}
        self.numbers = _only(fields, is_number) - given
        self.integers = _only(fields, pa.types.is_integer) - given
        self.texts = _only(fields, is_text) - given
        self.large = _only(fields, is_large) - given
        self.truths = _only(fields, pa.types.is_boolean) - given
        self.times = {each.name: each.type for each in fields if is_time(each.type)}
        for name in [*self.times]:
            if name in given or len({each.type for each in fields if each.name == name}) > 1:
                del self.times[name]

    def is_text(self, node: exp.Expr) -> bool:
        """Whether it is sure to be a text."""
        node = bare(node)
        if isinstance(node, exp.Cast):
            return word_of(node.args.get("to")) in TEXTS - {"USERDEFINED"}
        return isinstance(node, exp.Column) and node.name in self.texts

    def is_number(self, node: exp.Expr) -> bool:
        """Whether it is sure to be a number."""
        is_literal = isinstance(node, exp.Literal) and not node.is_string
        is_column = isinstance(node, exp.Column) and node.name in self.numbers
        return is_literal or is_column or isinstance(node, ARITHMETIC)

    def may_be_text(self, node: exp.Expr) -> bool:
        """Whether it is not sure to be something else."""
        node = bare(node)
        if isinstance(node, exp.Literal):
            return bool(node.is_string)
        if isinstance(node, exp.Cast):
            return getattr(getattr(node.args.get("to"), "this", None), "name", "TEXT") in TEXTS | {"ARRAY", "LIST"}
        if isinstance(node, exp.Column):
            return not (node.name in self.numbers or node.name in self.truths or node.name in self.times)
        return not isinstance(node, NUMBERS)


def bare(node: exp.Expr) -> exp.Expr:
    """What stands in parentheses."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def comparisons(node: exp.Expr) -> Iterator[tuple[exp.Expr, list[exp.Expr]]]:
    """What a node compares: each side, and what that is compared with. Nothing where it is no comparison."""
    if isinstance(node, COMPARED):
        yield node.this, [node.expression]
        yield node.expression, [node.this]
    elif isinstance(node, exp.In):
        yield node.this, node.expressions
    elif isinstance(node, exp.Between):
        yield node.this, [node.args["low"], node.args["high"]]


def word_of(kind: object) -> str:
    """What sqlglot calls a type; empty: it is none."""
    return str(getattr(getattr(kind, "this", None), "name", ""))


def element(kind: exp.Expr | None) -> exp.Expr | None:
    """Of an array, what is in it."""
    while isinstance(kind, exp.DataType) and kind.this in (exp.DataType.Type.ARRAY, exp.DataType.Type.LIST):
        kind = kind.expressions[0] if kind.expressions else None
    return kind


def put(text: str, **values: exp.Expr) -> exp.Expr:
    """An expression, with values in the places of names."""

    def replaced(node: exp.Expr) -> exp.Expr:
        is_name = isinstance(node, exp.Column) and not node.args.get("table")
        return values[node.name].copy() if is_name and node.name in values else node

    return _parsed(text).copy().transform(replaced, copy=False)


def once(node: exp.Expr, made: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """What ``made`` gives of a value that it names several times, and that is computed, and written, once."""
    if node.find(exp.Query, exp.Case, exp.Lambda) is None:
        return made(node)
    return put(_ONCE, x=node, y=made(exp.column("given")))


def unnamed(node: exp.Expr) -> Iterator[exp.Expr]:
    """The columns without a name that a node is in, of its query and of those around it."""
    while (parent := node.parent) is not None:
        is_named = isinstance(node, exp.Alias | exp.Aliases)
        if isinstance(parent, exp.Select) and node.arg_key == "expressions" and not is_named:
            yield node
        node = parent


def is_number(kind: pa.DataType) -> bool:
    """Whether values are numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_large(kind: pa.DataType) -> bool:
    """Whether values are whole numbers of 8 bytes."""
    return bool(pa.types.is_int64(kind) or pa.types.is_uint64(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether values are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_time(kind: pa.DataType) -> bool:
    """Whether values are days or times."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind))


def _only(fields: Iterable[ArrowField], is_it: Callable[[pa.DataType], bool]) -> set[str]:
    """The names that columns of such a type have, and no others."""
    known = list(fields)
    return {each.name for each in known if is_it(each.type)} - {each.name for each in known if not is_it(each.type)}


@functools.cache
def _parsed(text: str) -> exp.Expr:
    return sqlglot.parse_one(text, dialect="duckdb")
