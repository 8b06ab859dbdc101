"""Texts that become whole numbers are whole numbers, as in PostgreSQL: DuckDB rounds ``'1.5'`` and takes ``'1e2'``.

Where DuckDB is to make a whole number of a text that does not look like one, a mark is put into it which no cast takes.
What values are only DuckDB knows, so it is asked: of a number nothing is looked at. Sums of whole numbers that are
divided are put so that both mean the same. Source: docs/sql.md, queries.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Final

from persist.client.sql.bind.typed import Change, Columns, bare, comparisons, element, once, put, word_of
from persist.client.sql.errors import NOT_WHOLE, REFUSED_MARK, WHOLE_HINT, SqlFailed
from persist.client.sql.parse.positions import where
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

INTEGERS: Final = frozenset(
    {"TINYINT", "SMALLINT", "INT", "BIGINT", "INT128", "UTINYINT", "USMALLINT", "UINT", "UBIGINT", "UINT128"}
)
"""Types of whole numbers, as sqlglot calls them."""
UNSIGNED: Final = frozenset({"utinyint", "usmallint", "uinteger", "ubigint"})
"""What DuckDB calls those of them that have no name in PostgreSQL."""
_WHOLE: Final = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)

_MARKED: Final = f"regexp_replace(CAST(x AS TEXT), '[^0-9\\s+-]', '{REFUSED_MARK}\\0')"
_LISTED: Final = f"list_transform(CAST(x AS TEXT[]), lambda y: regexp_replace(y, '[^0-9\\s+-]', '{REFUSED_MARK}\\0'))"
_EITHER: Final = "CASE WHEN typeof(x) = '{kind}' THEN marked ELSE plain END"

_WHOLES: Final = (exp.Count, exp.Length)
_OF_WHOLES: Final = (exp.Column, exp.Identifier, exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Literal)
"""What a whole number is computed of that is as large as its columns."""


def is_integer(kind: object) -> bool:
    """Whether a type of a query is one of whole numbers."""
    word = word_of(kind)
    return word in INTEGERS or (word == "USERDEFINED" and _user_defined(kind) in UNSIGNED)


def check_whole(literal: exp.Expr | None) -> None:
    """Raise SqlFailed for a text in a query that is no whole number."""
    if isinstance(literal, exp.Literal) and literal.is_string and _WHOLE.fullmatch(str(literal.this)) is None:
        got = str(literal.this)[:80]
        raise SqlFailed(NOT_WHOLE, hint=WHOLE_HINT, got=got, **where(literal))


class Integers:
    """Of one query; see ``checks.Finder``."""

    def __init__(self, query: exp.Expr, columns: Columns) -> None:
        self._columns = columns
        self._sums: set[str] = set()
        self._sums = {each.alias for each in query.find_all(exp.Alias) if self._is_large_sum(each.this)}

    def changes(self, query: exp.Expr) -> Iterator[Change]:
        """Texts that become whole numbers; and sums of large whole numbers that are divided. These are NUMERIC in
        PostgreSQL; DuckDB has them as whole numbers, which divide without a rest. Raises SqlFailed.
        """
        for node, is_cast in self._found(query):
            yield node, functools.partial(self._mark, node, is_cast=is_cast)
        for node in query.find_all(exp.Div):
            for each in (node.this, node.expression):
                if self._is_large_sum(each):
                    yield each, functools.partial(_exact, each)

    def _is_large_sum(self, node: exp.Expr) -> bool:
        node = bare(node)
        if isinstance(node, exp.Column):
            return node.name in self._sums
        while isinstance(node, exp.Window | exp.Filter):
            node = node.this
        if not isinstance(node, exp.Sum):
            return False
        summed = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
        names = {each.name for each in summed.find_all(exp.Column)}
        is_plain = all(isinstance(each, _OF_WHOLES) for each in summed.walk())
        return is_plain and bool(names & self._columns.large) and names <= self._columns.integers

    def _mark(self, node: exp.Expr, *, is_cast: bool) -> None:
        cast = node.parent
        if not is_cast or self._columns.is_text(node):
            node.replace(put(_MARKED, x=node))
            return
        assert isinstance(cast, exp.Cast)
        cast.replace(once(node, lambda value: _either(cast, value)))

    def _found(self, query: exp.Expr) -> Iterator[tuple[exp.Expr, bool]]:
        """What is to be looked at, and whether a cast makes it a whole number; else it is compared with one."""
        for node in query.walk(bfs=False):
            if isinstance(node, exp.Cast):
                kind = node.args.get("to")
                if is_integer(element(kind)) and self._columns.may_be_text(node.this):
                    yield node.this, True
            for one, others in comparisons(node):
                yield from self._compared(one, others)

    def _compared(self, one: exp.Expr, others: Iterable[exp.Expr]) -> Iterator[tuple[exp.Expr, bool]]:
        if self._is_whole(one):
            for other in others:
                check_whole(bare(other))
                if self._columns.is_text(other):
                    yield other, False

    def _is_whole(self, node: exp.Expr) -> bool:
        node = bare(node)
        if isinstance(node, exp.Cast):
            return is_integer(node.args.get("to"))
        if isinstance(node, exp.Neg):
            return self._is_whole(node.this)
        return isinstance(node, _WHOLES) or (isinstance(node, exp.Column) and node.name in self._columns.integers)


def _exact(node: exp.Expr) -> None:
    node.replace(put("CAST(x AS DECIMAL(38, 0))", x=node))


def _either(cast: exp.Cast, value: exp.Expr) -> exp.Expr:
    """The cast of a value whose type DuckDB alone knows."""
    is_list = element(cast.to) is not cast.to
    marked, plain = cast.copy(), cast.copy()
    marked.set("this", put(_LISTED if is_list else _MARKED, x=value))
    plain.set("this", value.copy())
    return put(_EITHER.format(kind="VARCHAR[]" if is_list else "VARCHAR"), x=value, marked=marked, plain=plain)


def _user_defined(kind: object) -> str:
    found = kind.args.get("kind") if isinstance(kind, exp.DataType) else None
    return str(getattr(found, "name", found)).lower()
