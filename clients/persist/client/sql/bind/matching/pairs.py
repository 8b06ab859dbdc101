"""Booleans are no numbers, and texts none either: what PostgreSQL has no operator for is refused, which DuckDB casts.

Source: docs/sql.md, queries; the documentation of PostgreSQL, type conversion.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Final, NoReturn

import pyarrow as pa

from persist.client.sql.bind.integers import is_integer
from persist.client.sql.bind.matching.kinds import Kind, Kinds, branches, columns_of
from persist.client.sql.bind.typed import COMPARED, Change, bare, word_of
from persist.client.sql.errors import SqlError, SqlFailed
from persist.client.sql.parse.positions import where
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

_OF_NUMBERS: Final = (exp.Sum, exp.Avg, exp.Min, exp.Max, exp.Stddev, exp.StddevSamp, exp.StddevPop, exp.Variance)
_HINT: Final = "cast one of both: a condition is a number with ::int, and a number is one with <> 0"
_SURE: Final = frozenset({"boolean", "number", "text", "time"})
_WORDS: Final = {True: ("true", "yes", "on", "1"), False: ("false", "no", "off", "0")}
"""Texts of booleans, which may be cut where it is clear what they mean."""


class Pairs:
    """Of one query; see ``checks.Finder``."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    def changes(self, query: exp.Expr) -> Iterator[Change]:
        """Texts in the query that are booleans by what they stand beside. Raises SqlError, SqlFailed."""
        for node in query.walk(bfs=False):
            for one, other in _compared(node):
                yield from self._pair(node, one, other)
            for together in _together(node):
                yield from self._matched(node, together)
            yield from self._alone(node)

    def _pair(self, node: exp.Expr, one: exp.Expr, other: exp.Expr) -> Iterator[Change]:
        kinds = (self._kinds.of(one), self._kinds.of(other))
        if "boolean" in kinds and kinds[0] != kinds[1] and _SURE.issuperset(kinds):
            _refuse(node, f"{kinds[0]} with {kinds[1]} is not compared")
        yield from _truths(kinds, (one, other))

    def _matched(self, node: exp.Expr, together: list[exp.Expr]) -> Iterator[Change]:
        kinds = [self._kinds.of(each) for each in together]
        sure = {each for each in kinds if each in _SURE}
        if len(sure) > 1:
            _refuse(node, f"{' and '.join(sorted(map(str, sure)))} are not matched")
        if "literal" in kinds and sure & {"number", "time"} and isinstance(node, exp.SetOperation):
            _refuse(node, f"a text and a {sure.pop()} are not matched")
        yield from _truths(kinds, together)

    def _alone(self, node: exp.Expr) -> Iterator[Change]:
        if isinstance(node, _OF_NUMBERS) and self._kinds.of(node.this) == "boolean":
            _refuse(
                node, f"{node.sql_name().lower()} of booleans does not exist", "bool_and, bool_or, or count(*) FILTER"
            )
        if isinstance(node, exp.GroupConcat) and self._kinds.of(node.this) in ("boolean", "number", "time"):
            _refuse(node, f"string_agg of a {self._kinds.of(node.this)} does not exist", "cast it to text")
        if isinstance(node, exp.DPipe):
            kinds = [self._kinds.of(each) for each in (node.this, node.expression)]
            if all(each in ("boolean", "number", "time") for each in kinds):
                _refuse(node, f"{kinds[0]} || {kinds[1]} does not exist", "cast one to text")
        if isinstance(node, exp.Limit | exp.Offset) and self._kinds.of(node.expression) == "boolean":
            _refuse(node, "LIMIT and OFFSET are numbers")
        if isinstance(node, exp.Cast):
            yield from self._cast(node)

    def _cast(self, node: exp.Cast) -> Iterator[Change]:
        kind, word = self._kinds.of(node.this), word_of(node.to)
        if word == "BOOLEAN":
            yield from _truths(["boolean", kind], [node, node.this])
            if kind == "time" or (kind == "number" and self._is_no_int(node.this)):
                _refuse(node, f"this {kind} is not cast to boolean", "compare it, such as with <> 0")
        is_other_number = word in ("FLOAT", "DOUBLE", "DECIMAL") or (is_integer(node.to) and word != "INT")
        if kind == "boolean" and is_other_number:
            _refuse(node, "booleans are cast to int, and to no other number", "::int")

    def _is_no_int(self, node: exp.Expr) -> bool:
        """Whether it is sure to be a number but of PostgreSQL's ``integer``, which alone is cast to boolean."""
        node = bare(node)
        if isinstance(node, exp.Literal):
            return not str(node.this).isdecimal()
        if isinstance(node, exp.Cast):
            return word_of(node.to) != "INT"
        types = self._kinds.types_of(node)
        return bool(types) and not any(map(pa.types.is_int32, types))


def _compared(node: exp.Expr) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    """What a node compares with each other; rows by their columns."""
    if isinstance(node, (*COMPARED, exp.Nullif)):
        yield from _columns(node.this, node.expression)
    elif isinstance(node, exp.In):
        for each in node.expressions:
            yield from _columns(node.this, each)
        if (inside := node.args.get("query")) is not None and len(columns_of(inside)) == 1:
            yield node.this, columns_of(inside)[0]
    elif isinstance(node, exp.Between):
        yield node.this, node.args["low"]
        yield node.this, node.args["high"]
    elif isinstance(node, exp.Case) and (asked := node.args.get("this")) is not None:
        yield from ((asked, each.this) for each in node.args.get("ifs") or ())


def _columns(one: exp.Expr, other: exp.Expr) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    one, other = bare(one), bare(other)
    if isinstance(one, exp.Tuple) and isinstance(other, exp.Tuple):
        yield from zip(one.expressions, other.expressions, strict=False)
        return
    if isinstance(other, exp.Any | exp.All):
        inside = bare(other.this)
        listed = inside.expressions if isinstance(inside, exp.Array) else columns_of(inside)[:1]
        yield from ((one, each) for each in listed)
        return
    yield one, other


def _together(node: exp.Expr) -> Iterator[list[exp.Expr]]:
    """What has to be of one type in a node."""
    if isinstance(node, exp.Case):
        yield branches(node)
    elif isinstance(node, exp.Coalesce | exp.Greatest | exp.Least):
        yield [node.this, *node.expressions]
    elif isinstance(node, exp.SetOperation):
        yield from map(list, zip(columns_of(node.this), columns_of(node.expression), strict=False))
    elif isinstance(node, exp.Values):
        rows = [each.expressions for each in node.expressions if isinstance(each, exp.Tuple)]
        yield from map(list, itertools.zip_longest(*rows, fillvalue=exp.null()))


def _truths(kinds: Iterable[Kind | None], nodes: Iterable[exp.Expr]) -> Iterator[Change]:
    """Texts beside a boolean, as the booleans that they are. Raises SqlFailed: they are none."""
    known = list(kinds)
    if "boolean" not in known:
        return
    for kind, each in zip(known, nodes, strict=True):
        if kind == "literal" and isinstance(literal := bare(each), exp.Literal):
            yield literal, functools.partial(_replace, literal, _truth(literal))


def _truth(literal: exp.Literal) -> bool:
    """As PostgreSQL reads it."""
    text = str(literal.this).strip().lower()
    for value, words in _WORDS.items():
        if any(word.startswith(text) for word in words) and text not in ("", "o"):
            return value
    got = str(literal.this)[:80]
    raise SqlFailed("a text is no boolean", hint="such as 'true', 'off' or '1'", got=got, **where(literal))


def _replace(literal: exp.Literal, value: bool) -> None:
    literal.replace(exp.Boolean(this=value))


def _refuse(node: exp.Expr, what: str, hint: str = _HINT) -> NoReturn:
    raise SqlError(what, hint=hint, **where(node))
