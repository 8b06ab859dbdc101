"""Texts that become days and times mean what they do in PostgreSQL: DuckDB cuts what is behind a microsecond, passes
over BC and PM, writes ``(BC)`` amid its own, and knows no digits that a time is rounded to.

Source: docs/sql.md, queries; ``time_texts`` is the same for values that are put into tables.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from persist.client.sql.bind.time_texts import CLOCK, DATE, ZONE, times_of
from persist.client.sql.bind.typed import Change, Columns, bare, comparisons, element, once, put, word_of
from persist.client.sql.errors import NO_TIME, TIME_HINT, TIME_MARK, SqlFailed, SqlNotSupported
from persist.client.sql.parse.positions import where
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

_KINDS: Final[dict[str, tuple[str, pa.DataType]]] = {
    "DATE": ("DATE", pa.date32()),
    "TIME": ("TIME", pa.time64("us")),
    "TIMESTAMP": ("TIMESTAMP", pa.timestamp("us")),
    "TIMESTAMPNTZ": ("TIMESTAMP", pa.timestamp("us")),
    "TIMESTAMPTZ": ("TIMESTAMPTZ", pa.timestamp("us", "UTC")),
    "TIMESTAMPLTZ": ("TIMESTAMPTZ", pa.timestamp("us", "UTC")),
}
"""Types as sqlglot calls them, as DuckDB does, and as Arrow does."""
DIGITS: Final = 6
"""Behind the point of a second."""
_MOMENT: Final = rf"(?i)^\s*([+-]?infinity|epoch|{DATE}(\s*\(bc\))?((t|\s+){CLOCK}\s*{ZONE}?)?(\s*bc)?)\s*$"
_TIME: Final = rf"(?i)^\s*({DATE}(t|\s+))?{CLOCK}\s*{ZONE}?\s*$"
_PLAIN: Final = rf"(?i)^\s*({DATE}([ T]{CLOCK})?|{CLOCK}|-?infinity|epoch)$"
"""What DuckDB reads as PostgreSQL does, if no digits are cut off."""
_LATE: Final = r"23:59:(59\.999999[5-9]|60)|24:00"
"""What a TIME of Arrow does not hold."""
_REFUSED: Final = f"concat('{TIME_MARK}', x)"
_TEXT: Final = (
    "regexp_replace(regexp_replace(regexp_replace(x, '^\\s*[+]', ''), "
    "'(?i)^\\s*(\\S+?)(t\\S*|\\s.*?)?\\s*bc\\s*$', '\\1 (BC)\\2'), '(?i)\\s*(z|utc|gmt)\\s*$', 'Z')"
)
_GUARDED: Final = f"CASE WHEN regexp_matches(x, '{{pattern}}') THEN {_TEXT} ELSE {_REFUSED} END"
_FINE: Final = "regexp_matches(x, '[.]\\d{7}')"
_BEHIND: Final = (
    "to_microseconds(CAST(round_even(CAST(regexp_extract(x, ':\\d+([.]\\d+)', 1) AS DOUBLE) * 1000000, 0) AS BIGINT))"
)
_ROUGH: Final = "regexp_replace(x, '(:\\d+)[.]\\d+', '\\1')"
_SINCE: Final = 946_684_800_000_000
"""2000-01-01, on both sides of which PostgreSQL rounds halves away."""


class Times:
    """Of one query; see ``checks.Finder``."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def changes(self, query: exp.Expr) -> Iterator[Change]:
        """Casts to days and times, and texts that are compared with some. Raises SqlFailed for texts in the query that
        are none, SqlNotSupported.
        """
        for node in query.walk(bfs=False):
            if isinstance(node, exp.Cast):
                if word_of(element(node.to)) in _KINDS and self._is_to_change(node):
                    yield node, functools.partial(self._cast, node)
                elif word_of(node.to) in ("TEXT", "VARCHAR") and self._kind(bare(node.this)) is not None:
                    yield node, functools.partial(_written, node)
            for one, others in comparisons(node):
                yield from self._compared(one, others)

    def _is_to_change(self, node: exp.Cast) -> bool:
        given, kind = bare(node.this), element(node.to)
        assert isinstance(kind, exp.DataType)
        if isinstance(given, exp.Literal) and given.is_string and kind is node.to:
            return _is_odd(given, kind, is_tried=isinstance(node, exp.TryCast)) or _digits(kind) is not None
        return _digits(kind) is not None or self._columns.may_be_text(given)

    def _cast(self, node: exp.Cast) -> None:
        kind = element(node.to)
        assert isinstance(kind, exp.DataType)
        digits, is_list = _digits(kind), kind is not node.to
        plain, given = node.copy(), node.this
        if digits is not None:
            element(plain.to).set("expressions", [])  # type: ignore[union-attr]  # there is one
        made: exp.Expr = plain
        if self._columns.may_be_text(given):
            made = once(given, lambda value: _either(plain, value, is_list=is_list))
        if digits is not None:
            made = once(made, lambda value: _rounded(value, kind, digits))
        node.replace(made)

    def _compared(self, one: exp.Expr, others: Iterable[exp.Expr]) -> Iterator[Change]:
        kind = self._kind(bare(one))
        for other in others if kind is not None else ():
            literal = bare(other)
            is_text = isinstance(literal, exp.Literal) and literal.is_string
            if is_text and kind is not None and _is_odd(literal, kind, is_tried=False):
                cast = exp.cast(literal.copy(), kind.copy())
                yield literal, functools.partial(_compare, literal, cast)

    def _kind(self, node: exp.Expr) -> exp.DataType | None:
        if isinstance(node, exp.Cast):
            return node.to if word_of(node.to) in _KINDS and _digits(node.to) is None else None
        found = self._columns.times.get(node.name) if isinstance(node, exp.Column) else None
        word = next((word for word, kind in _KINDS.values() if found is not None and _is_alike(kind, found)), None)
        return None if word is None else exp.DataType.build(word, dialect="duckdb")


def _compare(literal: exp.Expr, cast: exp.Cast) -> None:
    literal.replace(_of_text(cast, literal))


def _written(cast: exp.Cast) -> None:
    """BC stands at the end."""
    cast.replace(put("regexp_replace(x, '^(\\S+) [(]BC[)](.*)$', '\\1\\2 BC')", x=cast))


def _is_alike(kind: pa.DataType, found: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(found):
        return (kind.tz is None) == (found.tz is None)
    is_date = pa.types.is_date(kind) and pa.types.is_date(found)
    return is_date or (pa.types.is_time(kind) and pa.types.is_time(found))


def _is_odd(literal: exp.Expr, kind: exp.DataType, *, is_tried: bool) -> bool:
    """Whether DuckDB reads a text in the query in another way. Raises SqlFailed: it is no time."""
    text, arrow = str(literal.this), _KINDS[word_of(kind)][1]
    try:
        times_of(pa.chunked_array([pa.array([text])]), arrow)
    except (ValueError, pa.ArrowException) as error:
        if is_tried:
            return True
        raise SqlFailed(NO_TIME, hint=TIME_HINT, got=text[:80], **where(literal)) from error
    return re.fullmatch(_PLAIN, text, re.ASCII) is None or re.search(r"[.]\d{7}", text, re.ASCII) is not None


def _digits(kind: exp.DataType) -> int | None:
    """To how many digits of a second a type rounds; None: to all. Raises SqlNotSupported."""
    given = kind.expressions
    if not given:
        return None
    digits = int(given[0].name) if given[0].name.isdecimal() else DIGITS
    if digits >= DIGITS:
        return None
    if word_of(kind) == "TIME":
        raise SqlNotSupported("a TIME of fewer digits is not supported", hint="TIME, or TIMESTAMP(n)", digits=digits)
    return digits


def _either(cast: exp.Cast, value: exp.Expr, *, is_list: bool) -> exp.Expr:
    """The cast of a value whose type DuckDB alone knows."""
    plain = cast.copy()
    plain.set("this", value.copy())
    if is_list:
        one = cast.copy()
        one.set("to", element(cast.to))
        each = put("list_transform(CAST(x AS TEXT[]), lambda y: z)", x=value, z=_of_text(one, exp.column("y")))
        return put("CASE WHEN typeof(x) = 'VARCHAR[]' THEN z ELSE plain END", x=value, z=each, plain=plain)
    text = put("CAST(x AS TEXT)", x=value)
    return put("CASE WHEN typeof(x) = 'VARCHAR' THEN z ELSE plain END", x=value, z=_of_text(cast, text), plain=plain)


def _of_text(cast: exp.Cast, text: exp.Expr) -> exp.Expr:
    """The cast of what is a text, or refused."""
    word = word_of(cast.to)
    pattern = (_TIME if word == "TIME" else _MOMENT).replace("'", "''")
    guarded = put(_GUARDED.format(pattern=pattern), x=text)
    if word == "TIME":
        refused = put(_REFUSED, x=text)
        guarded = put(f"CASE WHEN regexp_matches(x, '{_LATE}') THEN r ELSE y END", x=text, r=refused, y=guarded)
    plain = cast.copy()
    plain.set("this", guarded)
    if word == "DATE":
        return plain
    rough = cast.copy()
    rough.set("this", put(_ROUGH, x=guarded))
    return put(f"CASE WHEN {_FINE} THEN y + {_BEHIND} ELSE z END", x=text, y=rough, z=plain)


def _rounded(value: exp.Expr, kind: exp.DataType, digits: int) -> exp.Expr:
    """A moment, to so many digits."""
    if word_of(kind) == "DATE":
        return value
    made = "make_timestamp" if _KINDS[word_of(kind)][0] == "TIMESTAMP" else "make_timestamptz"
    micros = f"{made}(round(epoch_us(x) - {_SINCE}, {digits - DIGITS}) + {_SINCE})"
    return put(f"CASE WHEN isfinite(x) THEN {micros} ELSE x END", x=value)
