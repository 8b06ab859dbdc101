"""A query in the words of Spark: those that mean there what they mean here, and no others.

What Spark answers is what DuckDB does, over the same rows, or the query is refused before it runs: only what is listed
here is let through, and what the two compute otherwise (a quotient of whole numbers, a mean of decimals, a day less an
interval) is put so that both mean the same. Types decide on that, so where the type of an operand is not known the
query is refused, too. Source: docs/sql.md, queries that Spark runs; tests/client/sql/spark compares both.
"""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import pyarrow as pa

from persist.client.sql.bind import functions
from persist.client.sql.bind.binding import BoundQuery, BoundRelation
from persist.client.sql.errors import SqlNotSupported
from persist.client.sql.parse.positions import where
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp
    from sqlglot.errors import ErrorLevel, SqlglotError, UnsupportedError
    from sqlglot.optimizer.annotate_types import annotate_types
    from sqlglot.optimizer.qualify import qualify

RUNNER: Final = "spark"
"""What SET runner and WITH (RUNNER = …) call it."""
DIGITS_MAX: Final = 38
"""Of a decimal."""
_HERE: Final = "SET runner = 'duckdb', or say it in another way"


class Kind(StrEnum):
    """What values are, as far as the two engines differ on them."""

    WHOLE = "a whole number"
    UNSIGNED = "an unsigned number"
    DECIMAL = "a decimal"
    REAL = "a real"
    DOUBLE = "a double"
    TEXT = "a text"
    BOOLEAN = "a boolean"
    DATE = "a date"
    TIMESTAMP = "a timestamp"
    ZONED = "a timestamp with a zone"
    INTERVAL = "an interval"
    NULL = "null"
    OTHER = "of a type that is not known here"


_T = exp.DataType.Type
_KINDS: Final[Mapping[object, Kind]] = {
    **dict.fromkeys((_T.TINYINT, _T.SMALLINT, _T.INT, _T.BIGINT, _T.INT128), Kind.WHOLE),
    **dict.fromkeys((_T.UTINYINT, _T.USMALLINT, _T.UINT, _T.UBIGINT), Kind.UNSIGNED),
    **dict.fromkeys((_T.DECIMAL,), Kind.DECIMAL),
    **dict.fromkeys((_T.TEXT, _T.VARCHAR), Kind.TEXT),
    _T.FLOAT: Kind.REAL,
    _T.DOUBLE: Kind.DOUBLE,
    _T.BOOLEAN: Kind.BOOLEAN,
    _T.DATE: Kind.DATE,
    **dict.fromkeys((_T.TIMESTAMP, _T.TIMESTAMPNTZ), Kind.TIMESTAMP),
    **dict.fromkeys((_T.TIMESTAMPTZ, _T.TIMESTAMPLTZ), Kind.ZONED),
    _T.INTERVAL: Kind.INTERVAL,
    _T.NULL: Kind.NULL,
}
_EXACT: Final = frozenset({Kind.WHOLE, Kind.DECIMAL})
_NUMBERS: Final = _EXACT | {Kind.DOUBLE, Kind.UNSIGNED}
_TIMES: Final = frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.ZONED})

_ARROW: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_int8, "TINYINT"),
    (pa.types.is_int16, "SMALLINT"),
    (pa.types.is_int32, "INT"),
    (pa.types.is_int64, "BIGINT"),
    (pa.types.is_uint8, "UTINYINT"),
    (pa.types.is_uint16, "USMALLINT"),
    (pa.types.is_uint32, "UINTEGER"),
    (pa.types.is_uint64, "UBIGINT"),
    (pa.types.is_float32, "REAL"),
    (pa.types.is_float64, "DOUBLE"),
    (pa.types.is_date32, "DATE"),
    (pa.types.is_string, "VARCHAR"),
    (pa.types.is_large_string, "VARCHAR"),
)

_PLAIN: Final[tuple[type[exp.Expr], ...]] = (
    exp.Select,
    exp.SetOperation,
    exp.Subquery,
    exp.With,
    exp.CTE,
    exp.TableAlias,
    exp.Table,
    exp.Identifier,
    exp.Column,
    exp.Alias,
    exp.From,
    exp.Join,
    exp.Where,
    exp.Group,
    exp.Having,
    exp.Order,
    exp.Ordered,
    exp.Limit,
    exp.Offset,
    exp.Literal,
    exp.Boolean,
    exp.Null,
    exp.Star,
    exp.Paren,
    exp.Tuple,
    exp.And,
    exp.Or,
    exp.Not,
    exp.Is,
    exp.Exists,
    exp.If,
    exp.Var,
    exp.DataType,
    exp.DataTypeParam,
    exp.Count,
    exp.LogicalAnd,
    exp.LogicalOr,
    exp.Min,
    exp.Max,
    exp.Filter,
    exp.Window,
    exp.WindowSpec,
    exp.RowNumber,
    exp.Rank,
    exp.DenseRank,
    exp.Lag,
    exp.Lead,
)
"""What means the same in both, whatever it is about; besides, what has a rule of its own below."""

_PARTS: Final = frozenset({"YEAR", "QUARTER", "MONTH", "DAY", "HOUR", "MINUTE"})
_UNITS: Final = frozenset({"YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND"})
_SELECT: Final = frozenset(
    {"expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset", "distinct", "with_"}
)
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT: Final = re.compile(rf"{_DAY.pattern}( [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]{{1,6}})?)?")
_NUMBER: Final = re.compile(r"([0-9]*)\.([0-9]*)")


def spark_text(bound: BoundQuery, ts: int) -> str:
    """The query as Spark has it, read at a time, over relations of the names that it has in ``bound``.

    Raises SqlNotSupported: it has something whose answer there may be another one; the place and a remedy are in it.
    """
    try:
        query = functions.with_time(bound.query, ts) if bound.asks_time else bound.query.copy()
        query = query.transform(_exact, copy=False)
        schema: dict[str, object] = {name: _typed(each) for name, each in bound.relations.items()}
        query = qualify(query, schema=schema, dialect="duckdb", quote_identifiers=True)
        query = annotate_types(query, schema=schema, dialect="duckdb")
        # Types are those of what was written: a node is looked at with all beneath it as it was.
        for node in list(query.walk()):
            _check(node)
        changed = [(node, rule(node)) for node in query.walk() if (rule := _CHANGES.get(type(node))) is not None]
        for node, put in reversed(changed):
            if put is not None:
                node.replace(put())
        return query.sql(dialect="spark", unsupported_level=ErrorLevel.RAISE)
    except (SqlglotError, UnsupportedError, RecursionError) as error:
        raise SqlNotSupported("Spark does not run this", hint=_HERE, why=str(error)[:200]) from error


def _typed(relation: BoundRelation) -> dict[str, str]:
    return {field.name: _name_of(field.type) for field in [*relation.schema.key, *relation.schema.val]}


def _name_of(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz is None else "TIMESTAMPTZ"
    return next((name for is_it, name in _ARROW if is_it(kind)), "UNKNOWN")


def _exact(node: exp.Expr) -> exp.Expr:
    """A number with a point is a decimal, of as many digits behind it as were written."""
    if not isinstance(node, exp.Literal) or node.is_string:
        return node
    found = _NUMBER.fullmatch(str(node.this))
    if found is None or isinstance(node.parent, exp.DataTypeParam):
        return node
    digits, scale = len(found[1].lstrip("0")) + len(found[2]), len(found[2])
    if digits > DIGITS_MAX:
        raise _refusal(node, "a number of so many digits")
    return exp.cast(node.copy(), exp.DataType.build(f"DECIMAL({max(1, digits)}, {scale})"))


def _refusal(node: exp.Expr, what: str, hint: str = "") -> SqlNotSupported:
    text = node.sql(dialect="postgres")[:80]
    return SqlNotSupported(f"{what} is not run by Spark here", hint=hint or _HERE, got=text, **where(node))


def _kind(node: exp.Expr | None) -> Kind:
    if isinstance(node, exp.Null):
        return Kind.NULL
    if node is None or node.type is None:
        return Kind.OTHER
    return _KINDS.get(node.type.this, Kind.OTHER)


def _check(node: exp.Expr) -> None:
    """Raise SqlNotSupported for what may mean another thing in Spark."""
    for kind in type(node).__mro__:
        if kind in _RULES:
            _RULES[kind](node)
            return
    if not isinstance(node, _PLAIN):
        raise _refusal(node, type(node).__name__.upper())


def _select(node: exp.Expr) -> None:
    for name, value in node.args.items():
        if value and name not in _SELECT:
            raise _refusal(node, name.strip("_").upper())
    distinct = node.args.get("distinct")
    if distinct is not None and distinct.args.get("on"):
        raise _refusal(node, "DISTINCT ON")
    group = node.args.get("group")
    if group is not None and any(value for name, value in group.args.items() if name != "expressions"):
        raise _refusal(group, "GROUP BY with sets")


def _set_operation(node: exp.Expr) -> None:
    assert isinstance(node, exp.SetOperation)
    for name, value in node.args.items():
        if value and name not in {"this", "expression", "distinct", "order", "limit", "offset", "with_"}:
            raise _refusal(node, name.upper())
    left, right = node.left.selects, node.right.selects
    for one, other in zip(left, right, strict=False):
        _alike(node, one, other)


def _with(node: exp.Expr) -> None:
    if node.args.get("recursive"):
        raise _refusal(node, "WITH RECURSIVE")


def _join(node: exp.Expr) -> None:
    if node.args.get("method") or node.args.get("using") or node.args.get("kind") in ("SEMI", "ANTI", "STRAIGHT"):
        raise _refusal(node, "this kind of join")


def _alike(node: exp.Expr, *sides: exp.Expr) -> None:
    """What is compared, or comes in one column, is of one kind: no engine has to make one of the other."""
    kinds = {_kind(side) for side in sides} - {Kind.NULL}
    texts = [side for side in sides if _kind(side) is Kind.TEXT]
    if Kind.OTHER in kinds:
        raise _refusal(node, "a comparison whose types are not known", "CAST both sides")
    if kinds <= _NUMBERS or len(kinds) <= 1 or kinds <= {Kind.DATE, Kind.TIMESTAMP}:
        return
    if kinds <= _TIMES | {Kind.TEXT} and all(_is_moment(each) for each in texts) and len(kinds) == 2:
        return
    raise _refusal(node, f"{' beside '.join(sorted(kinds))}", "CAST one side to the type of the other")


def _is_moment(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and _MOMENT.fullmatch(str(node.this)) is not None


def _binary(node: exp.Expr) -> None:
    _alike(node, node.this, node.expression)


def _between(node: exp.Expr) -> None:
    if node.args.get("symmetric"):
        raise _refusal(node, "BETWEEN SYMMETRIC")
    _alike(node, node.this, node.args["low"], node.args["high"])


def _in(node: exp.Expr) -> None:
    query = node.args.get("query")
    if any(value for name, value in node.args.items() if name not in {"this", "expressions", "query"}):
        raise _refusal(node, "this kind of IN")
    if isinstance(node.this, exp.Tuple):
        raise _refusal(node, "IN with rows")
    others = node.expressions if query is None else _selects(query)
    _alike(node, node.this, *others)


def _selects(query: exp.Expr) -> list[exp.Expr]:
    while isinstance(query, exp.Subquery):
        query = query.this
    return list(query.selects) if isinstance(query, exp.Query) else []


def _numbers(node: exp.Expr) -> None:
    kinds = {_kind(node.this), _kind(node.expression)} if isinstance(node, exp.Binary) else {_kind(node.this)}
    if not kinds <= _EXACT | {Kind.DOUBLE} and kinds != {Kind.REAL}:
        raise _refusal(node, f"arithmetic with {' and '.join(sorted(kinds))}", "CAST to bigint, numeric or double")


def _sum(node: exp.Expr) -> None:
    """Or what moves a day or a moment: by an interval, which is known, or by whole days."""
    left, right = _kind(node.this), _kind(node.expression)
    if left in _TIMES and right is Kind.INTERVAL and isinstance(node.expression, exp.Interval):
        return
    if left is Kind.DATE and right is Kind.WHOLE:
        return
    _numbers(node)


def _interval(node: exp.Expr) -> None:
    unit, amount = node.args.get("unit"), node.args.get("this")
    known = isinstance(unit, exp.Var) and unit.name.upper() in _UNITS
    if not known or not isinstance(amount, exp.Literal) or not str(amount.this).isdecimal():
        raise _refusal(node, "this interval", "a whole number of one unit, as INTERVAL '3' MONTH")
    if not isinstance(node.parent, exp.Add | exp.Sub):
        raise _refusal(node, "an interval by itself")


def _modulo(node: exp.Expr) -> None:
    if {_kind(node.this), _kind(node.expression)} != {Kind.WHOLE}:
        raise _refusal(node, "a remainder of other than whole numbers")


def _rounded(node: exp.Expr) -> None:
    decimals = node.args.get("decimals")
    if _kind(node.this) not in _EXACT or not (decimals is None or isinstance(decimals, exp.Literal)):
        raise _refusal(node, "rounding of other than decimals to a fixed digit", "CAST to numeric(p, s)")


def _mean(node: exp.Expr) -> None:
    if isinstance(node.this, exp.Distinct) or _kind(node.this) not in _EXACT | {Kind.DOUBLE}:
        raise _refusal(node, "this mean", "of numeric, integer or double, and not DISTINCT")


def _total(node: exp.Expr) -> None:
    of = node.this
    if isinstance(of, exp.Distinct) or _kind(of) not in _NUMBERS:
        raise _refusal(node, "this sum", "of numeric, integer or double, and not DISTINCT")


def _counted(node: exp.Expr) -> None:
    if (isinstance(node.this, exp.Distinct) and len(node.this.expressions) > 1) or node.expressions:
        raise _refusal(node, "a count of several columns")


def _distinct(node: exp.Expr) -> None:
    if not isinstance(node.parent, exp.Count | exp.Min | exp.Max | exp.Select):
        raise _refusal(node, "DISTINCT here")


def _case(node: exp.Expr) -> None:
    branches = [each.args["true"] for each in node.args["ifs"]]
    default = node.args.get("default")
    _alike(node, *branches, *([] if default is None else [default]))
    if node.this is not None:
        for each in node.args["ifs"]:
            _alike(node, node.this, each.this)


def _chosen(node: exp.Expr) -> None:
    _alike(node, node.this, *node.expressions)


def _nullif(node: exp.Expr) -> None:
    _alike(node, node.this, node.expression)


def _part(node: exp.Expr) -> None:
    if node.name.upper() not in _PARTS or _kind(node.expression) not in _TIMES:
        raise _refusal(node, f"EXTRACT of {node.name}")


def _piece(node: exp.Expr) -> None:
    numbers = [node.args.get("start"), node.args.get("length")]
    fixed = all(each is None or (isinstance(each, exp.Literal) and not each.is_string) for each in numbers)
    if not fixed or node.args.get("start") is None or _kind(node.this) is not Kind.TEXT:
        raise _refusal(node, "a substring of other than a text from a fixed place on")


def _texts(node: exp.Expr) -> None:
    sides = [node.this, node.expression] if isinstance(node, exp.Binary) else [node.this]
    if {_kind(each) for each in sides} - {Kind.NULL} != {Kind.TEXT}:
        raise _refusal(node, "this with other than texts", "CAST whole numbers and dates to text")


def _like(node: exp.Expr) -> None:
    pattern = node.expression
    if not isinstance(pattern, exp.Literal) or "\\" in str(pattern.this) or _kind(node.this) is not Kind.TEXT:
        raise _refusal(node, "LIKE with other than a fixed pattern without backslashes")


def _cast(node: exp.Expr) -> None:
    """What both make the same of: nothing that rounds one way or another, or that reads or writes numbers in texts."""
    target, given = _kind_of(node.args["to"]), _kind(node.this)
    if node.args.get("format") or node.args.get("default") or Kind.OTHER in (target, given):
        raise _refusal(node, "a cast between types that are not known")
    if isinstance(node.this, exp.Literal) and node.this.is_string:
        text = str(node.this.this)
        known = (_DAY if target is Kind.DATE else _MOMENT) if target in _TIMES else None
        if target is Kind.TEXT or (known is not None and known.fullmatch(text)):
            return
        raise _refusal(node, "this text as a value of that type", "such as DATE '2026-11-26'")
    if isinstance(node.this, exp.Literal) and target is Kind.DECIMAL and _NUMBER.fullmatch(str(node.this.this)):
        return
    if target is given or given is Kind.NULL or (given, target) in _CASTS:
        return
    raise _refusal(node, f"a cast of {given} to {target}")


def _kind_of(type_: exp.Expr) -> Kind:
    return _KINDS.get(type_.this, Kind.OTHER)


_CASTS: Final = frozenset(
    {
        (Kind.WHOLE, Kind.DECIMAL),
        (Kind.WHOLE, Kind.DOUBLE),
        (Kind.WHOLE, Kind.TEXT),
        (Kind.WHOLE, Kind.UNSIGNED),
        (Kind.UNSIGNED, Kind.WHOLE),
        (Kind.UNSIGNED, Kind.DECIMAL),
        (Kind.UNSIGNED, Kind.DOUBLE),
        (Kind.DECIMAL, Kind.DOUBLE),
        (Kind.REAL, Kind.DOUBLE),
        (Kind.DATE, Kind.TIMESTAMP),
        (Kind.DATE, Kind.TEXT),
        (Kind.TIMESTAMP, Kind.DATE),
    }
)

_RULES: Final[dict[type, Callable[[exp.Expr], None]]] = {
    exp.Select: _select,
    exp.SetOperation: _set_operation,
    exp.With: _with,
    exp.Join: _join,
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ), _binary),
    exp.Between: _between,
    exp.In: _in,
    **dict.fromkeys((exp.Add, exp.Sub), _sum),
    **dict.fromkeys((exp.Mul, exp.Div, exp.Neg, exp.Abs), _numbers),
    exp.Mod: _modulo,
    exp.Round: _rounded,
    exp.Interval: _interval,
    exp.Avg: _mean,
    exp.Sum: _total,
    exp.Count: _counted,
    exp.Distinct: _distinct,
    exp.Case: _case,
    exp.Coalesce: _chosen,
    exp.Nullif: _nullif,
    exp.Extract: _part,
    exp.Substring: _piece,
    exp.Length: _texts,
    exp.DPipe: _texts,
    exp.Like: _like,
    exp.Cast: _cast,
}


Put = Callable[[], exp.Expr]
"""Makes what stands in the place of a node, from what has by then been put in the places of those beneath it."""


def _quotient(node: exp.Expr) -> Put:
    """Whole numbers give a whole number, all others a double."""
    if _kind(node.this) is _kind(node.expression) is Kind.WHOLE:
        return lambda: exp.IntDiv(this=node.this.copy(), expression=node.expression.copy())
    return lambda: exp.paren(exp.Div(this=_double(node.this), expression=_double(node.expression)), copy=False)


def _double(node: exp.Expr) -> exp.Expr:
    return exp.cast(node.copy(), exp.DataType.build("double"))


def _mean_of_doubles(node: exp.Expr) -> Put:
    return lambda: exp.Avg(this=_double(node.this))


def _whole_sum(node: exp.Expr) -> Put | None:
    """A sum of whole numbers may have more digits than they."""
    if _kind(node.this) not in (Kind.WHOLE, Kind.UNSIGNED):
        return None
    return lambda: exp.Sum(this=exp.cast(node.this.copy(), exp.DataType.build(f"DECIMAL({DIGITS_MAX}, 0)")))


def _moved(node: exp.Expr) -> Put | None:
    """A day that is moved by an interval is a moment."""
    if _kind(node.this) is not Kind.DATE or not isinstance(node.expression, exp.Interval):
        return None
    moment = exp.DataType(this=_T.TIMESTAMPNTZ)
    return lambda: type(node)(this=exp.cast(node.this.copy(), moment), expression=node.expression.copy())


_NAMES: Final = {
    _T.TIMESTAMP: _T.TIMESTAMPNTZ,
    _T.TIMESTAMPTZ: _T.TIMESTAMP,
    _T.UTINYINT: _T.SMALLINT,
    _T.USMALLINT: _T.INT,
    _T.UINT: _T.BIGINT,
}


def _named(node: exp.Expr) -> Put | None:
    """Types by the names that Spark has for them."""
    if node.this == _T.UBIGINT:
        return lambda: exp.DataType.build("DECIMAL(20, 0)")
    found = _NAMES.get(node.this)
    return None if found is None else lambda: exp.DataType(this=found)


_CHANGES: Final[dict[type, Callable[[exp.Expr], Put | None]]] = {
    exp.Div: _quotient,
    exp.Avg: _mean_of_doubles,
    exp.Sum: _whole_sum,
    exp.Add: _moved,
    exp.Sub: _moved,
    exp.DataType: _named,
}
