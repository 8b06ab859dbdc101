"""Rows of VALUES, without a query of their size: every literal is read by itself, whatever stands beside it."""

import decimal
import re
from collections.abc import Sequence
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray, ArrowChunks
from persist.client.sql.errors import SqlFailed, SqlSyntax
from persist.client.sql.fitting import Each, Numbers, Part, joined
from persist.client.sql.parse.known import is_only
from persist.client.sql.parse.literals import Literals
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

Cell: TypeAlias = "str | bool | decimal.Decimal | exp.Expr | None"
"""A text, a truth value, null, a number, or what only a query computes."""

EXPONENT_MAX: Final = 400
"""Of numbers, which are in no column beyond that: those of DOUBLE PRECISION end before."""
EXPRESSIONS_MAX: Final = 500
"""Values that one query computes."""
_NUMBER: Final = r"^[-0-9]"
_NEGATIVE_ZERO: Final = r"^-(0(?:\.0*)?)$"


def read(literals: Literals) -> list[Each]:
    """The columns of rows that are literals alone, as they were written."""
    return [_column(pa.array(column, pa.string())) for column in literals.columns]


def _column(written: ArrowArray) -> Each:
    parts: list[tuple[ArrowArray, Part]] = []

    def among(pattern: str) -> tuple[ArrowArray, ArrowArray]:
        places = pc.indices_nonzero(pc.match_substring_regex(written, pattern))
        return places, written.take(places)

    places, found = among(_NUMBER)
    parts.append((places, Numbers(pc.replace_substring_regex(found, _NEGATIVE_ZERO, r"\1"))))
    places, found = among("^'")
    texts = pc.replace_substring(pc.utf8_slice_codeunits(found, 1, -1), "''", "'")
    parts.append((places, pa.chunked_array([texts])))
    places, found = among("^[tTfF]")
    parts.append((places, pa.chunked_array([pc.match_substring_regex(found, "^[tT]")])))
    return Each(len(written), tuple((places, part) for places, part in parts if len(places)))


def rows_in(query: exp.Expr) -> list[list[exp.Expr]] | None:
    """The rows of a query that is VALUES and no more; None: it is another. Raises SqlSyntax: they differ in length."""
    source = query.args.get("from_")
    if not isinstance(query, exp.Select) or source is None or not is_only(query, "expressions", "from_"):
        return None
    values = source.this
    if not isinstance(values, exp.Values) or not is_only(values, "expressions", "alias"):
        return None
    alias = values.args.get("alias")
    if [type(each) for each in query.expressions] != [exp.Star] or not is_only(query.expressions[0], "this"):
        return None
    if alias is not None and alias.args.get("columns"):
        return None
    rows = [list(each.expressions) if isinstance(each, exp.Tuple) else [each] for each in values.expressions]
    if len({len(row) for row in rows}) > 1:
        raise SqlSyntax("rows of VALUES are of one length", hint="give every row as many values")
    return rows


def cell(node: exp.Expr) -> Cell:
    """A value of VALUES. Raises SqlFailed: a number of which no column holds any."""
    inner, negative = node, False
    while isinstance(inner, exp.Paren | exp.Neg):
        negative ^= isinstance(inner, exp.Neg)
        inner = inner.this
    if isinstance(inner, exp.Literal) and not inner.is_string:
        number = number_of(str(inner.this))
        return node if number is None else _signed(number, negative)
    if negative:
        return node
    if isinstance(inner, exp.Literal):
        return str(inner.this)
    if isinstance(inner, exp.Boolean):
        return bool(inner.this)
    return None if isinstance(inner, exp.Null) else node


def number_of(text: str) -> decimal.Decimal | None:
    """A number as it is written, to its last digit; None: it is none. Raises SqlFailed: it is beyond all columns."""
    if re.fullmatch(r"[\d_]*\.?[\d_]*(?:[eE][+-]?\d+)?", text) is None:
        return None
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:
        return None
    if not number.is_finite() or (number and abs(number.adjusted()) > EXPONENT_MAX):
        raise SqlFailed("a number is out of range", hint=f"up to 1e{EXPONENT_MAX}", got=text[:80])
    return number


def _signed(number: decimal.Decimal, negative: bool) -> decimal.Decimal:
    # PostgreSQL's numbers have one zero. Digits stay as they are: Python's unary minus rounds.
    return number.copy_negate() if negative and number else number


class Given:
    """The columns of VALUES: literals as they are, and expressions, which queries are to compute."""

    def __init__(self, rows: Sequence[Sequence[exp.Expr]]) -> None:
        """Raises SqlFailed: a number of which no column holds any."""
        self._cells = [[cell(each) for each in column] for column in zip(*rows, strict=True)]
        self._places = [
            (column, at)
            for column, cells in enumerate(self._cells)
            for at, each in enumerate(cells)
            if isinstance(each, exp.Expr)
        ]
        self._answers: list[ArrowChunks] = []

    def query(self) -> exp.Select | None:
        """What computes the next expressions, in one row, each as a column of a type of its own; None: all are."""
        begin = len(self._answers)
        some = self._places[begin : begin + EXPRESSIONS_MAX]
        if not some:
            return None
        row = exp.Tuple(expressions=[self._cells[column][at].copy() for column, at in some])  # type: ignore[union-attr]  # expressions are there
        alias = exp.TableAlias(this=exp.to_identifier("v"))
        return exp.select("*").from_(exp.Values(expressions=[row], alias=alias))

    def take(self, answer: pa.Table) -> None:
        """What came of the query."""
        self._answers += answer.columns

    def columns(self) -> list[Each]:
        """All of them."""
        computed: list[dict[pa.DataType, tuple[list[int], list[ArrowArray]]]] = [{} for _ in self._cells]
        for (column, at), answer in zip(self._places, self._answers, strict=True):
            places, values = computed[column].setdefault(answer.type, ([], []))
            places.append(at)
            values += answer.chunks
        return [_given(cells, found) for cells, found in zip(self._cells, computed, strict=True)]


def _given(cells: Sequence[Cell], computed: dict[pa.DataType, tuple[list[int], list[ArrowArray]]]) -> Each:
    """``computed``: places and values of expressions, by what their type is."""
    numbers = [at for at, each in enumerate(cells) if isinstance(each, decimal.Decimal)]
    texts = [at for at, each in enumerate(cells) if isinstance(each, str)]
    truths = [at for at, each in enumerate(cells) if isinstance(each, bool)]
    parts: list[tuple[list[int], Part]] = [
        (numbers, Numbers(pa.array([format(cells[at], "f") for at in numbers], pa.string()))),
        (texts, pa.chunked_array([pa.array([cells[at] for at in texts], pa.string())])),
        (truths, pa.chunked_array([pa.array([cells[at] for at in truths], pa.bool_())])),
        *((places, joined(values, kind)) for kind, (places, values) in computed.items()),
    ]
    return Each(len(cells), tuple((pa.array(places, pa.uint64()), part) for places, part in parts if places))
