"""Texts that become integers: as in PostgreSQL they hold a whole number, or the query fails; DuckDB rounds them.

Which type a value has DuckDB alone knows, so it is what looks, wherever a value may be a text: ``typeof`` is decided
before a query runs, and of the two ways one is left. A text that is no whole number is put so that the cast itself
refuses it: nothing in a query says ``error``, which may not stand everywhere, and ``TRY_CAST`` gives NULL.
Source: docs/sql.md, queries; the documentation of PostgreSQL, numeric types.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa

from persist.arrow import ArrowField
from persist.client.sql.errors import NOT_WHOLE, REFUSED_MARK, WHOLE_HINT, SqlError, SqlFailed, SqlNotSupported
from persist.client.sql.parse.positions import where
from persist.core.data.schema import Schema
from persist.extras import extra

with extra("sql"):
    import sqlglot
    from sqlglot import exp

Named = Callable[[str], str]
"""What DuckDB calls a column that is an expression, and has no name."""

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
_ONCE: Final = "list_extract(list_transform([x], lambda given: y), 1)"
"""Any value, once: of what it is computed is not repeated."""

_NUMBERS: Final = (
    exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Boolean, exp.Null, exp.Count, exp.Sum,
    exp.Avg, exp.Round, exp.Floor, exp.Ceil, exp.Abs, exp.Extract, exp.Length, exp.Predicate, exp.Not,
)  # fmt: skip
_ARITHMETIC: Final = (exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod)
_WHOLES: Final = (exp.Count, exp.Length)
_OF_WHOLES: Final = (exp.Column, exp.Identifier, exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Literal)
"""What a whole number is computed of that is as large as its columns."""
_COMPARED: Final = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_TEXTS: Final = frozenset({"TEXT", "VARCHAR", "CHAR", "NCHAR", "NVARCHAR", "BPCHAR", "USERDEFINED"})


def whole(query: exp.Expr, schemas: Iterable[Schema], named: Named) -> exp.Expr:
    """The query, where a text that is no whole number, and becomes one, fails; its columns keep their names.

    ``schemas``: of what it reads. Raises SqlFailed for texts that stand in the query itself; SqlNotSupported.
    """
    return _Integers(query, schemas).checked(named)


def is_integer(kind: object) -> bool:
    """Whether a type of a query is one of whole numbers."""
    word = getattr(getattr(kind, "this", None), "name", "")
    return word in INTEGERS or (word == "USERDEFINED" and _user_defined(kind) in UNSIGNED)


def check_whole(literal: exp.Expr | None) -> None:
    """Raise SqlFailed for a text in a query that is no whole number."""
    if isinstance(literal, exp.Literal) and literal.is_string and _WHOLE.fullmatch(str(literal.this)) is None:
        got = str(literal.this)[:80]
        raise SqlFailed(NOT_WHOLE, hint=WHOLE_HINT, got=got, **where(literal))


class _Integers:
    def __init__(self, query: exp.Expr, schemas: Iterable[Schema]) -> None:
        self._query = query
        fields = [field for each in schemas for field in [*each.key, *each.val]]
        # A name may be one that the query itself gives.
        given = {each.alias for each in query.find_all(exp.Alias)}
        given |= {name.name for each in query.find_all(exp.TableAlias) for name in each.args.get("columns") or ()}
        self._numbers = _only(fields, _is_number) - given
        self._integers = _only(fields, pa.types.is_integer) - given
        self._texts = _only(fields, _is_text) - given
        self._large = _only(fields, _is_large) - given
        self._sums: set[str] = set()
        self._sums = {each.alias for each in query.find_all(exp.Alias) if self._is_large_sum(each.this)}

    def checked(self, named: Named) -> exp.Expr:
        self._check_conditions()
        if next(self._found(self._query), None) is None and next(self._quotients(self._query), None) is None:
            return self._query
        query = self._query.copy()
        found, quotients = list(self._found(query)), list(self._quotients(query))
        for each in (node for node, _ in found if node.find(exp.Columns) is not None):
            raise SqlNotSupported("what COLUMNS gives is not cast to integers", hint="name the columns", **where(each))
        changed = [*(node for node, _ in found), *quotients]
        columns = {id(each): each for node in changed for each in _unnamed(node)}.values()
        names = [(column, named(column.sql(dialect="duckdb"))) for column in columns]
        for column, name in names:
            alias = exp.alias_(exp.Null(), name, quoted=True)
            column.replace(alias)
            alias.set("this", column)
        self._change(found)
        for each in quotients:
            each.replace(_put("CAST(x AS DECIMAL(38, 0))", x=each))
        return query

    def _quotients(self, query: exp.Expr) -> Iterator[exp.Expr]:
        """Sums of large whole numbers that are divided: NUMERIC in PostgreSQL; DuckDB has them as whole numbers, which
        divide without a rest.
        """
        for node in query.find_all(exp.Div):
            yield from (each for each in (node.this, node.expression) if self._is_large_sum(each))

    def _is_large_sum(self, node: exp.Expr) -> bool:
        node = _bare(node)
        if isinstance(node, exp.Column):
            return node.name in self._sums
        while isinstance(node, exp.Window | exp.Filter):
            node = node.this
        if not isinstance(node, exp.Sum):
            return False
        summed = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
        names = {each.name for each in summed.find_all(exp.Column)}
        is_plain = all(isinstance(each, _OF_WHOLES) for each in summed.walk())
        return is_plain and bool(names & self._large) and names <= self._integers

    def _check_conditions(self) -> None:
        """A number is no condition: DuckDB takes all but zero to hold."""
        todo = [each.this for each in self._query.find_all(exp.Where, exp.Having)]
        todo += [each.args["on"] for each in self._query.find_all(exp.Join) if each.args.get("on") is not None]
        while todo:
            node = todo.pop()
            if isinstance(node, exp.And | exp.Or):
                todo += [node.this, node.expression]
            elif isinstance(node, exp.Not | exp.Paren):
                todo.append(node.this)
            elif self._is_number(node):
                raise SqlError("a number is no condition", hint="compare it, such as with <> 0", **where(node))

    def _is_number(self, node: exp.Expr) -> bool:
        is_literal = isinstance(node, exp.Literal) and not node.is_string
        is_column = isinstance(node, exp.Column) and node.name in self._numbers
        return is_literal or is_column or isinstance(node, _ARITHMETIC)

    def _change(self, found: Iterable[tuple[exp.Expr, bool]]) -> None:
        # Those inside of others first: they are copied with these.
        for node, is_cast in reversed(list(found)):
            cast = node.parent
            if not is_cast or self._is_text(node):
                node.replace(_put(_MARKED, x=node))
                continue
            assert isinstance(cast, exp.Cast)
            if node.find(exp.Query, exp.Case, exp.Lambda) is None:
                cast.replace(_either(cast, node))
            else:
                cast.replace(_put(_ONCE, x=node, y=_either(cast, exp.column("given"))))

    def _found(self, query: exp.Expr) -> Iterator[tuple[exp.Expr, bool]]:
        """What is to be looked at, and whether a cast makes it a whole number; else it is compared with one."""
        for node in query.walk(bfs=False):
            if isinstance(node, exp.Cast):
                kind = node.args.get("to")
                if is_integer(_element(kind)) and self._may_be_text(node.this):
                    yield node.this, True
            elif isinstance(node, _COMPARED):
                yield from self._compared(node.this, [node.expression])
                yield from self._compared(node.expression, [node.this])
            elif isinstance(node, exp.In):
                yield from self._compared(node.this, node.expressions)
            elif isinstance(node, exp.Between):
                yield from self._compared(node.this, [node.args["low"], node.args["high"]])

    def _compared(self, one: exp.Expr, others: Iterable[exp.Expr]) -> Iterator[tuple[exp.Expr, bool]]:
        if self._is_whole(one):
            for other in others:
                check_whole(_bare(other))
                if self._is_text(other):
                    yield other, False

    def _is_whole(self, node: exp.Expr) -> bool:
        node = _bare(node)
        if isinstance(node, exp.Cast):
            return is_integer(node.args.get("to"))
        if isinstance(node, exp.Neg):
            return self._is_whole(node.this)
        return isinstance(node, _WHOLES) or (isinstance(node, exp.Column) and node.name in self._integers)

    def _is_text(self, node: exp.Expr) -> bool:
        node = _bare(node)
        if isinstance(node, exp.Cast):
            return getattr(getattr(node.args.get("to"), "this", None), "name", "") in _TEXTS - {"USERDEFINED"}
        return isinstance(node, exp.Column) and node.name in self._texts

    def _may_be_text(self, node: exp.Expr) -> bool:
        node = _bare(node)
        if isinstance(node, exp.Literal):
            return bool(node.is_string)
        if isinstance(node, exp.Cast):
            return getattr(getattr(node.args.get("to"), "this", None), "name", "TEXT") in _TEXTS | {"ARRAY", "LIST"}
        if isinstance(node, exp.Column):
            return node.name not in self._numbers
        return not isinstance(node, _NUMBERS)


def _either(cast: exp.Cast, value: exp.Expr) -> exp.Expr:
    """The cast of a value whose type DuckDB alone knows."""
    is_list = _element(cast.to) is not cast.to
    marked, plain = cast.copy(), cast.copy()
    marked.set("this", _put(_LISTED if is_list else _MARKED, x=value))
    plain.set("this", value.copy())
    return _put(_EITHER.format(kind="VARCHAR[]" if is_list else "VARCHAR"), x=value, marked=marked, plain=plain)


def _put(text: str, **values: exp.Expr) -> exp.Expr:
    """An expression, with values in the places of names."""

    def put(node: exp.Expr) -> exp.Expr:
        is_name = isinstance(node, exp.Column) and not node.args.get("table")
        return values[node.name].copy() if is_name and node.name in values else node

    return _parsed(text).copy().transform(put, copy=False)


@functools.cache
def _parsed(text: str) -> exp.Expr:
    return sqlglot.parse_one(text, dialect="duckdb")


def _bare(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _element(kind: exp.Expr | None) -> exp.Expr | None:
    """Of an array, what is in it."""
    while isinstance(kind, exp.DataType) and kind.this in (exp.DataType.Type.ARRAY, exp.DataType.Type.LIST):
        kind = kind.expressions[0] if kind.expressions else None
    return kind


def _user_defined(kind: object) -> str:
    found = kind.args.get("kind") if isinstance(kind, exp.DataType) else None
    return str(getattr(found, "name", found)).lower()


def _only(fields: Iterable[ArrowField], is_it: Callable[[pa.DataType], bool]) -> set[str]:
    """The names that columns of such a type have, and no others."""
    known = list(fields)
    return {each.name for each in known if is_it(each.type)} - {each.name for each in known if not is_it(each.type)}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int64(kind) or pa.types.is_uint64(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _unnamed(node: exp.Expr) -> Iterator[exp.Expr]:
    """The columns without a name that a node is in, of its query and of those around it."""
    while (parent := node.parent) is not None:
        is_named = isinstance(node, exp.Alias | exp.Aliases)
        if isinstance(parent, exp.Select) and node.arg_key == "expressions" and not is_named:
            yield node
        node = parent
