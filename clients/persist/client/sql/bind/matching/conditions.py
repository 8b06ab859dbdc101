"""Conditions are true, false or unknown, as in PostgreSQL: DuckDB takes numbers and texts for conditions.

What a part of a query is DuckDB alone knows, if anything, so it is asked while it looks at the query, and refuses it
before it reads a row. Source: docs/sql.md, queries.
"""

import functools
from collections.abc import Iterator
from typing import Final

from persist.client.sql.bind.typed import ARITHMETIC, Change, Columns, bare, put, word_of
from persist.client.sql.errors import CONDITION_HINT, CONDITION_MARK, NO_CONDITION, SqlError
from persist.client.sql.parse.positions import where
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

_BOOLEAN: Final = (
    exp.Predicate,
    exp.And,
    exp.Or,
    exp.Xor,
    exp.Not,
    exp.Boolean,
    exp.Null,
    exp.LogicalAnd,
    exp.LogicalOr,
)
_CHECKED: Final = (
    "CASE WHEN regexp_matches('', '', CASE WHEN typeof(asked) IN ('BOOLEAN', 'NULL', '\"NULL\"') THEN 'c' "
    f"ELSE '{CONDITION_MARK}' END) THEN x END"
)
"""SUBTLE: the options of regexp_matches are looked at while the query is, and none is the mark. Of a condition nothing
of all this is left in DuckDB's plan."""
_EQUAL: Final = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ)


class Conditions:
    """Of one query; see ``checks.Finder``."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def changes(self, query: exp.Expr) -> Iterator[Change]:
        """Conditions of which it is not seen that they are. Raises SqlError for those that are none for sure."""
        for node in query.walk(bfs=False):
            for each in _conditions(node):
                found = bare(each)
                if self._is_none(found):
                    raise SqlError(NO_CONDITION, hint=CONDITION_HINT, **where(found))
                if not self._is_sure(found):
                    yield found, functools.partial(_check, found, found.copy())

    def _is_none(self, node: exp.Expr) -> bool:
        is_time = isinstance(node, exp.Column) and node.name in self._columns.times
        return is_time or self._columns.is_number(node) or self._columns.is_text(node) or isinstance(node, ARITHMETIC)

    def _is_sure(self, node: exp.Expr) -> bool:
        if isinstance(node, exp.Cast):
            return word_of(node.args.get("to")) == "BOOLEAN"
        # A text in the query is what it has to be, in PostgreSQL too.
        is_text = isinstance(node, exp.Literal) and node.is_string
        is_column = isinstance(node, exp.Column) and node.name in self._columns.truths
        return is_text or is_column or isinstance(node, _BOOLEAN)


def _conditions(node: exp.Expr) -> Iterator[exp.Expr]:
    """What has to be a condition in a part of a query."""
    match node:
        case exp.Where() | exp.Having() | exp.Qualify() | exp.Not() | exp.LogicalAnd() | exp.LogicalOr():
            yield node.this
        case exp.And() | exp.Or() | exp.Xor():
            yield from (node.this, node.expression)
        case exp.Join():
            if (on := node.args.get("on")) is not None:
                yield on
        case exp.If():
            if not isinstance(node.parent, exp.Case) or node.parent.args.get("this") is None:
                yield node.this
        case exp.Is():
            if isinstance(node.expression, exp.Boolean):
                yield node.this
        case _:
            if isinstance(node, _EQUAL):
                sides = (node.this, node.expression)
                yield from (one for one, other in (sides, sides[::-1]) if isinstance(bare(other), exp.Boolean))


def _check(node: exp.Expr, asked: exp.Expr) -> None:
    """``asked``: as it was, before what stands in it was changed."""
    node.replace(put(_CHECKED, asked=asked, x=node))
