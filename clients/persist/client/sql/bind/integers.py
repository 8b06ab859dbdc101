"""Texts that become integers: as in PostgreSQL they hold a whole number, or the query fails; DuckDB rounds them.

Which type a value has DuckDB alone knows, so it is what looks, wherever a value may be a text.
Source: docs/sql.md, queries; the documentation of PostgreSQL, numeric types.
"""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from persist.core.data.schema import Schema
from persist.extras import extra

with extra("sql"):
    import sqlglot
    from sqlglot import exp

INTEGERS: Final = frozenset(
    {"TINYINT", "SMALLINT", "INT", "BIGINT", "INT128", "UTINYINT", "USMALLINT", "UINT", "UBIGINT", "UINT128"}
)
"""Types of whole numbers, as sqlglot calls them."""
REFUSED: Final = "a text is no whole number"

_CHECKED: Final = sqlglot.parse_one(
    "list_extract(list_transform([x], lambda given: CASE WHEN typeof(given) = 'VARCHAR' AND NOT"
    " regexp_full_match(CAST(given AS TEXT), '\\s*[+-]?[0-9]+\\s*')"
    f" THEN error('{REFUSED}: ''' || left(CAST(given AS TEXT), 80) || '''') ELSE given END), 1)",
    dialect="duckdb",
)
"""Any value, once: of what it is computed is not repeated."""
_NUMBERS: Final = (
    exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Boolean, exp.Null, exp.Count, exp.Sum,
    exp.Avg, exp.Round, exp.Floor, exp.Ceil, exp.Abs, exp.Extract, exp.Length, exp.Predicate, exp.Not,
)  # fmt: skip
_TEXTS: Final = frozenset({"TEXT", "VARCHAR", "CHAR", "NCHAR", "NVARCHAR", "BPCHAR", "JSON", "USERDEFINED"})


def whole(query: exp.Expr, schemas: Iterable[Schema]) -> exp.Expr:
    """The query, where a text that is no whole number, and becomes one, fails. ``schemas``: of what it reads."""
    casts = [each for each in query.find_all(exp.Cast, bfs=True) if _is_integer(each)]
    if not casts:
        return query
    fields = [field for each in schemas for field in [*each.key, *each.val]]
    numbers = {each.name for each in fields if _is_number(each.type)}
    numbers -= {each.name for each in fields if not _is_number(each.type)}
    # A name may be one that the query itself gives.
    numbers -= {each.alias for each in query.find_all(exp.Alias)}
    numbers -= {name.name for each in query.find_all(exp.TableAlias) for name in each.args.get("columns") or ()}
    for cast in reversed(casts):  # those inside of others first: they are copied with these
        if _may_be_text(cast.this, numbers):
            checked = _CHECKED.copy()
            value = checked.find(exp.Array)
            assert value is not None
            value.set("expressions", [cast.this.copy()])
            cast.set("this", checked)
    return query


def _is_integer(cast: exp.Cast) -> bool:
    return getattr(getattr(cast.args.get("to"), "this", None), "name", "") in INTEGERS


def _is_number(type: pa.DataType) -> bool:
    return pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)


def _may_be_text(node: exp.Expr, numbers: set[str]) -> bool:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Literal):
        return bool(node.is_string)
    if isinstance(node, exp.Cast):
        return getattr(getattr(node.args.get("to"), "this", None), "name", "TEXT") in _TEXTS
    if isinstance(node, exp.Column):
        return node.name not in numbers
    return not isinstance(node, _NUMBERS)
