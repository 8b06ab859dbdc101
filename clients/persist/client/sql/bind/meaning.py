"""Words of PostgreSQL that DuckDB has as well, and means another thing by: put so that both mean the same, or refused.

What differs is found by tests/client/sql/reading/test_against_postgres.py, which asks both.
Source: docs/sql.md, queries.
"""

import decimal
import math
import re
from collections.abc import Callable, Sequence
from typing import Final

from persist.client.sql.bind.integers import check_whole, is_integer
from persist.client.sql.errors import SqlFailed, SqlNotSupported
from persist.client.sql.parse.positions import where
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

DIGITS_MAX: Final = 38
"""Of a number that is exact."""
_AS_POSTGRES: Final = (
    (r"\.0$", ""),
    (r"^(-?\d)(\d{15})(?:\.(\d+))?$", r"\1.\2\3e+15"),
    (r"\.?0+e\+15$", "e+15"),
    ("^nan$", "NaN"),
    ("^(-?)inf$", r"\1Infinity"),
)
ROWS_MAX: Final = 64
"""In a list that is written out value by value."""
_PARTS: Final = {"SECOND": 1_000_000, "SECONDS": 1_000_000, "MILLISECOND": 1_000, "MILLISECONDS": 1_000}
"""Of these DuckDB gives whole numbers: how many microseconds are in one."""
_STRICTER: Final[dict[type, type[exp.Expr]]] = {exp.GT: exp.GT, exp.GTE: exp.GT, exp.LT: exp.LT, exp.LTE: exp.LT}
_FORMATS: Final = "YYYY, YY, MM, DD, DDD, HH24, HH12, MI, SS, US, TMMon, TMMonth, TMDy, TMDay"
_KNOWN_FORMAT: Final = re.compile(r"%-?[YymdjHIMSfbBaAzZGV]|[^A-Za-z%\"]")
_OCTAL: Final = re.compile(rb"\\([0-3][0-7]{2}|\\)")


def meant(query: exp.Expr) -> exp.Expr:
    """The query as DuckDB has to be asked for what PostgreSQL would answer. Raises SqlNotSupported, SqlFailed."""
    for node in reversed(list(query.walk())):
        change = next((_CHANGES[kind] for kind in type(node).__mro__ if kind in _CHANGES), None)
        put = node if change is None else change(node)
        if put is node:
            continue
        if node is query:
            query = put
        else:
            node.replace(put)
    return query


def _number(node: exp.Expr) -> exp.Expr:
    """A number with an exponent is exact, as all that are written: DuckDB takes it to be a floating-point one. Of a
    whole one with more digits than are exact it makes what no column holds.
    """
    text = str(node.this)
    if not isinstance(node, exp.Literal) or node.is_string:
        return node
    if text.isdecimal() and len(text.lstrip("0")) > DIGITS_MAX:
        raise SqlFailed(
            f"a number has more than {DIGITS_MAX} digits",
            hint="as a floating-point number: CAST('…' AS DOUBLE PRECISION)",
            got=text[:80],
        )
    if "e" not in text.lower():
        return node
    number = decimal.Decimal(text)
    if abs(number.adjusted()) > DIGITS_MAX:
        if number and (math.isinf(float(number)) or not float(number)):
            raise SqlFailed("a number is out of range", hint="none is as large, or as small", got=text[:80])
        return node
    scale = max(-int(number.as_tuple().exponent), 0)
    digits = max(len(f"{abs(number):f}".replace(".", "").lstrip("0")), scale, 1)
    if digits > DIGITS_MAX:
        return node
    return exp.cast(exp.Literal.string(f"{number:f}"), exp.DataType.build(f"decimal({digits}, {scale})"))


def _like(node: exp.Expr) -> exp.Expr:
    """A backslash stands before what is no wildcard, unless ESCAPE says otherwise."""
    pattern = node.args.get("expression")
    plain = isinstance(pattern, exp.Literal) and "\\" not in str(pattern.this)
    if plain or isinstance(node.parent, exp.Escape) or isinstance(pattern, exp.Any | exp.All):
        return node
    return exp.Escape(this=node.copy(), expression=exp.Literal.string("\\"))


def _similar(node: exp.Expr) -> exp.Expr:
    raise SqlNotSupported("SIMILAR TO is not supported", hint="use LIKE, or ~ with a regular expression", **where(node))


def _row(node: exp.Expr | None) -> Sequence[exp.Expr] | None:
    """The values of ``(a, b)`` and ``ROW(a, b)``; None: it is no row."""
    while isinstance(node, exp.Paren):
        node = node.this
    is_row = isinstance(node, exp.Tuple) or (isinstance(node, exp.Anonymous) and node.name.lower() == "row")
    return node.expressions if is_row and node is not None else None


def _compared(node: exp.Expr) -> exp.Expr:
    """Rows are compared value by value, and what a null decides is null; in DuckDB nulls are values of rows."""
    left, right = _row(node.args.get("this")), _row(node.args.get("expression"))
    if left is None or right is None:
        return node
    if len(left) != len(right) or not left:
        raise SqlNotSupported("rows that are compared have as many values", hint="", **where(node))
    return exp.paren(_by_value(type(node), left, right))


def _by_value(kind: type[exp.Expr], left: Sequence[exp.Expr], right: Sequence[exp.Expr]) -> exp.Expr:
    pairs = [(_value(one), _value(other)) for one, other in zip(left, right, strict=True)]
    if kind in (exp.EQ, exp.NEQ):
        each = [kind(this=one.copy(), expression=other.copy()) for one, other in pairs]
        return exp.and_(*each, copy=False) if kind is exp.EQ else exp.or_(*each, copy=False)
    strict = _STRICTER[kind]
    *before, (one, other) = pairs
    found: exp.Expr = kind(this=one.copy(), expression=other.copy())
    for one, other in reversed(before):
        same = exp.and_(exp.EQ(this=one.copy(), expression=other.copy()), found, copy=False)
        found = exp.or_(strict(this=one.copy(), expression=other.copy()), same, copy=False)
    return found


def _value(node: exp.Expr) -> exp.Expr:
    return node if isinstance(node, exp.Column | exp.Literal | exp.Paren) else exp.paren(node.copy())


def _in(node: exp.Expr) -> exp.Expr:
    """A list of rows. One that is long stays as it is, since only its NOT distinguishes it from what is meant."""
    left = _row(node.args.get("this"))
    rows = [_row(each) for each in node.expressions]
    if left is None or not rows or None in rows:
        return node
    if any(len(row or ()) != len(left) for row in rows):
        raise SqlNotSupported("rows that are compared have as many values", hint="", **where(node))
    if len(rows) <= ROWS_MAX:
        found = [_by_value(exp.EQ, left, row) for row in rows if row is not None]
        return exp.paren(exp.or_(*found, copy=False))
    if node.find_ancestor(exp.Not, exp.Case, exp.Is) is not None or node.find_ancestor(exp.Where) is None:
        raise SqlNotSupported(
            "so long a list of rows is not supported here", hint="IN (VALUES (…), (…))", most=ROWS_MAX, **where(node)
        )
    empty = [exp.Is(this=_value(each).copy(), expression=exp.Null()) for each in left]
    return exp.and_(exp.not_(exp.or_(*empty, copy=False), copy=False), node.copy(), copy=False)


def _between(node: exp.Expr) -> exp.Expr:
    low, high = node.args.get("low"), node.args.get("high")
    if _row(node.args.get("this")) is None or node.args.get("symmetric"):
        return node
    sides = ((exp.GTE, low), (exp.LTE, high))
    parts = [_compared(kind(this=node.this.copy(), expression=side and side.copy())) for kind, side in sides]
    return exp.paren(exp.and_(*parts))


def _extract(node: exp.Expr) -> exp.Expr:
    """Seconds with what is behind their point."""
    # SUBTLE: of a cast that is seen sqlglot says that a session's zone may make a difference. Here it is UTC.
    if isinstance(node.expression, exp.Cast):
        node.set("expression", exp.paren(node.expression))
    count = _PARTS.get(node.name.upper())
    if count is None:
        return node
    parts = exp.Extract(this=exp.var("MICROSECONDS"), expression=node.expression.copy())
    return exp.paren(exp.Div(this=parts, expression=exp.Literal.number(f"{count}.0")))


def _cast(node: exp.Expr) -> exp.Expr:
    """Texts of a length are cut to it, bytes are written as PostgreSQL writes them."""
    kind = node.args.get("to")
    word = getattr(getattr(kind, "this", None), "name", "")
    if word in ("VARBINARY", "BINARY") and isinstance(node.this, exp.Literal) and node.this.is_string:
        return exp.convert(bytes_of(str(node.this.this)))
    if is_integer(kind) and not isinstance(node, exp.TryCast):
        check_whole(node.this)
    if word in ("TEXT", "VARCHAR") and (real := _is_real(node.this)):
        return _text_of_real(node, double=real == "DOUBLE")
    if word not in ("VARCHAR", "CHAR", "BPCHAR", "NCHAR", "NVARCHAR") or kind is None:
        return node
    length = kind.expressions[0].copy() if kind.expressions else exp.Literal.number(1)
    if word == "VARCHAR" and not kind.expressions:
        return node
    text = exp.Anonymous(this="left", expressions=[exp.cast(node.this.copy(), "text"), length])
    return text if word in ("VARCHAR", "NVARCHAR") else exp.Anonymous(this="rtrim", expressions=[text])


def _is_real(node: exp.Expr) -> str:
    """DOUBLE or FLOAT, where a value says that it is one of these; else empty."""
    while isinstance(node, exp.Paren):
        node = node.this
    word = getattr(node.to.this, "name", "") if isinstance(node, exp.Cast) else ""
    return word if word in ("DOUBLE", "FLOAT") else ""


def _text_of_real(node: exp.Expr, *, double: bool) -> exp.Expr:
    """``1``, ``1e+15``, ``NaN`` and ``Infinity``, where DuckDB writes 1.0, 1000000000000000.0, nan and inf."""
    if not double:
        hint = "x::float8::text, or x::numeric::text"
        raise SqlNotSupported("a REAL is written in another way than here", hint=hint, **where(node))
    text: exp.Expr = node.copy()
    for pattern, put in _AS_POSTGRES:
        text = exp.Anonymous(
            this="regexp_replace", expressions=[text, exp.Literal.string(pattern), exp.Literal.string(put)]
        )
    return text


def _matches(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Anonymous) and node.name.lower() == "regexp_matches":
        hint = "x ~ pattern says whether it matches, regexp_extract(x, pattern, 1) what a group did"
        raise SqlNotSupported("regexp_matches is not supported", hint=hint, **where(node))
    return node


def _bits(node: exp.Expr) -> exp.Expr:
    raise SqlNotSupported("texts of bits are not supported", hint="write the number", **where(node))


def bytes_of(text: str) -> bytes:
    """Bytes as PostgreSQL reads them: in hexadecimal digits behind ``\\x``, or with octal ones behind ``\\``.

    Raises SqlFailed. Source: the documentation of PostgreSQL, binary data types.
    """
    try:
        if text.startswith("\\x"):
            return bytes.fromhex(text[2:])
        if "\\" not in text:
            return text.encode()
        rest = _OCTAL.sub(b"", text.encode())
        if b"\\" in rest:
            raise ValueError
        return _OCTAL.sub(lambda found: b"\\" if found[1] == b"\\" else bytes([int(found[1], 8)]), text.encode())
    except ValueError:
        raise SqlFailed("malformed bytes", hint=r"such as '\x00ff'", got=text[:80]) from None


def _formatted(node: exp.Expr) -> exp.Expr:
    """Formats of times, of which sqlglot leaves as they are those that it does not know."""
    given = node.args.get("format")
    if given is None:
        return node
    if not isinstance(given, exp.Literal) or _KNOWN_FORMAT.sub("", str(given.this)):
        raise SqlNotSupported(
            "this format is not supported", hint=f"a text with {_FORMATS}, and no other letters", **where(node)
        )
    # It begins a new day in UTC.
    return exp.cast(node.copy(), "timestamptz") if isinstance(node, exp.StrToTime) else node


def _hex(node: exp.Expr) -> exp.Expr:
    return exp.Lower(this=node.copy())


def _substring(node: exp.Expr) -> exp.Expr:
    start = node.args.get("start")
    if isinstance(start, exp.Neg) or (isinstance(start, exp.Literal) and not start.is_string and int(start.name) < 1):
        raise SqlNotSupported("a substring begins at 1", hint="or later", **where(node))
    return node


_CHANGES: Final[dict[type, Callable[[exp.Expr], exp.Expr]]] = {
    exp.Literal: _number,
    exp.Like: _like,
    exp.ILike: _like,
    exp.SimilarTo: _similar,
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE), _compared),
    exp.In: _in,
    exp.Between: _between,
    exp.Extract: _extract,
    exp.Cast: _cast,
    **dict.fromkeys((exp.TimeToStr, exp.StrToTime, exp.StrToDate, exp.ToChar), _formatted),
    exp.Hex: _hex,
    exp.Anonymous: _matches,
    exp.BitString: _bits,
    exp.Substring: _substring,
}
