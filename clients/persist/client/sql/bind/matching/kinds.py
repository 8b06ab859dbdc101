"""Of which kind a part of a query is, as far as the query and the columns it reads show.

Source: docs/sql.md, queries.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

import pyarrow as pa

from persist.client.sql.bind.integers import is_integer
from persist.client.sql.bind.typed import ARITHMETIC, TEXTS, bare, is_number, is_text, is_time, word_of
from persist.core.data.schema import Schema
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

Kind: TypeAlias = Literal["boolean", "number", "text", "time", "bytes", "literal", "null"]
"""``literal``: a text in the query, which is whatever stands beside it; ``null``: that, or nothing."""

_TRUTHS: Final = (
    exp.Predicate, exp.And, exp.Or, exp.Xor, exp.Not, exp.Boolean, exp.LogicalAnd, exp.LogicalOr, exp.StartsWith,
    exp.RegexpLike,
)  # fmt: skip
_NUMBERS: Final = (exp.Count, exp.Length, exp.Extract, exp.Abs, exp.Floor, exp.Ceil, exp.Round, exp.Avg)
_TEXTS: Final = (exp.Upper, exp.Lower, exp.Substring, exp.Trim, exp.Concat)
_FLOATING: Final = frozenset({"FLOAT", "DOUBLE", "DECIMAL"})
_TIMES: Final = frozenset({"DATE", "TIME", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPNTZ", "DATETIME"})
_SAME: Final = (exp.Coalesce, exp.Greatest, exp.Least)
"""Of one kind with all that is in it."""
_OF_ONE: Final = (exp.Sum, exp.Min, exp.Max, exp.Window, exp.Filter, exp.Alias, exp.Nullif, exp.Distinct)


class Kinds:
    """Of one query. A column counts where all that its name may mean is of one kind."""

    def __init__(self, query: exp.Expr, schemas: Iterable[Schema]) -> None:
        self._types: dict[str, list[pa.DataType]] = {}
        for field in (field for each in schemas for field in [*each.key, *each.val]):
            self._types.setdefault(field.name, []).append(field.type)
        self._given: dict[str, list[exp.Expr]] = {}
        for each in query.find_all(exp.Alias):
            self._given.setdefault(each.alias, []).append(each.this)
        self._renamed = {
            name.name for each in query.find_all(exp.TableAlias) for name in each.args.get("columns") or ()
        }
        self._columns: dict[str, Kind | None] = {}

    def of(self, node: exp.Expr) -> Kind | None:
        """The kind of a part; None: it is not known."""
        node = bare(node)
        match node:
            case exp.Literal():
                return "literal" if node.is_string else "number"
            case exp.Null() | exp.Placeholder() | exp.Parameter():
                return "null"
            case exp.Any() | exp.All():
                return None
            case exp.Cast():
                return _of_word(node.args.get("to"))
            case exp.Column():
                return self._of_column(node.name)
            case exp.Case():
                return self.common(branches(node))
            case exp.Subquery() | exp.Select():
                found = columns_of(node)
                return self.of(found[0]) if len(found) == 1 else None
            case exp.HexString() | exp.ByteString():
                return "bytes"
            case exp.DPipe():
                # SUBTLE: of the last alone, or a long chain of them would exhaust the stack.
                last = self.of(node.expression)
                return last if last in ("text", "bytes") else None
        if isinstance(node, _TRUTHS):
            return "boolean"
        if isinstance(node, ARITHMETIC):
            return "number" if all(self.of(each) in ("number", "null") for each in _leaves(node)) else None
        if isinstance(node, _SAME):
            return self.common([node.this, *node.expressions])
        if isinstance(node, _OF_ONE):
            inner = node.expressions[0] if isinstance(node, exp.Distinct) else node.this
            return self.of(inner) if isinstance(inner, exp.Expr) else None
        return "number" if isinstance(node, _NUMBERS) else "text" if isinstance(node, _TEXTS) else None

    def common(self, nodes: Iterable[exp.Expr]) -> Kind | None:
        """The kind of what several parts come to together; None: it is not known, or there is none."""
        found = {self.of(each) for each in nodes}
        if len(found - {"null"}) == 1:
            return next(iter(found - {"null"}))
        found -= {"null", "literal"}
        return next(iter(found)) if len(found) == 1 else None

    def types_of(self, node: exp.Expr) -> list[pa.DataType]:
        """What a column may be that the query gives to no other; empty: it is no such column."""
        node = bare(node)
        is_column = isinstance(node, exp.Column) and node.name not in self._given and node.name not in self._renamed
        return self._types.get(node.name, []) if is_column else []

    def _of_column(self, name: str) -> Kind | None:
        if name not in self._columns:
            self._columns[name] = None  # where it is made of a column of its own name
            found = {_of_type(each) for each in self._types.get(name, ())}
            found |= {self.of(each) for each in self._given.get(name, ()) if not _is_itself(each, name)}
            is_sure = len(found) == 1 and name not in self._renamed
            self._columns[name] = found.pop() if is_sure else None
        return self._columns[name]


def branches(node: exp.Case) -> list[exp.Expr]:
    """What a CASE comes to."""
    default = node.args.get("default")
    return [each.args["true"] for each in node.args.get("ifs") or ()] + ([default] if default is not None else [])


def columns_of(node: exp.Expr) -> list[exp.Expr]:
    """What a query selects, of its first part where it is several; empty: it is not known."""
    while isinstance(node, exp.Subquery | exp.SetOperation | exp.Paren):
        node = node.this
    if not isinstance(node, exp.Select) or any(each.is_star for each in node.expressions):
        return []
    return node.expressions


def _leaves(node: exp.Expr) -> Iterator[exp.Expr]:
    """SUBTLE: without recursion, which a long sum would exhaust."""
    left = [node]
    while left:
        each = bare(left.pop())
        if isinstance(each, ARITHMETIC):
            left.extend(one for one in (each.this, each.args.get("expression")) if one is not None)
        else:
            yield each


def _is_itself(node: exp.Expr, name: str) -> bool:
    node = bare(node)
    return isinstance(node, exp.Column) and node.name == name


def _of_word(kind: object) -> Kind | None:
    word = word_of(kind)
    if word == "BOOLEAN":
        return "boolean"
    if is_integer(kind) or word in _FLOATING:
        return "number"
    if word in ("VARBINARY", "BINARY", "BLOB"):
        return "bytes"
    return "text" if word in TEXTS - {"USERDEFINED"} else "time" if word in _TIMES else None


def _of_type(kind: pa.DataType) -> Kind | None:
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    return "number" if is_number(kind) else "text" if is_text(kind) else "time" if is_time(kind) else None
