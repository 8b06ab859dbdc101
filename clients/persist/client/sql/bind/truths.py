"""Conditions: each is a truth value, as in PostgreSQL. DuckDB takes any number but 0 for true.

``DELETE FROM t WHERE id``, which was cut off, would delete all rows but one.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from persist.client.sql.errors import SqlFailed
from persist.client.sql.parse.positions import where
from persist.core.data.schema import Schema
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

_NO_TRUTHS: Final = (
    exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Count, exp.Sum, exp.Avg, exp.Round, exp.Floor,
    exp.Ceil, exp.Abs, exp.Extract, exp.Length, exp.Concat, exp.DPipe, exp.Upper, exp.Lower, exp.Substring,
)  # fmt: skip


def check_truths(query: exp.Expr, schemas: Iterable[Schema]) -> None:
    """Raise SqlFailed where a condition of a query is known to be no truth value. ``schemas``: of what it reads."""
    conditions = list(_conditions(query))
    if not conditions:
        return
    fields = [field for each in schemas for field in [*each.key, *each.val]]
    given = {each.alias for each in query.find_all(exp.Alias)}
    given |= {name.name for each in query.find_all(exp.TableAlias) for name in each.args.get("columns") or ()}
    others = {each.name for each in fields} - {each.name for each in fields if pa.types.is_boolean(each.type)} - given
    for each in conditions:
        if _is_none(each, others):
            raise SqlFailed(
                "a condition is no truth value",
                hint="compare it with something, as in id = 1 or name IS NOT NULL",
                got=each.sql(dialect="postgres")[:80],
                **where(each),
            )


def _conditions(query: exp.Expr) -> Iterator[exp.Expr]:
    """All that has to be true or false, without what it is made of by AND, OR and NOT."""
    for node in query.walk():
        if isinstance(node, exp.Where | exp.Having | exp.Qualify):
            yield from _parts(node.this)
        elif isinstance(node, exp.Join) and node.args.get("on") is not None:
            yield from _parts(node.args["on"])
        elif isinstance(node, exp.Case) and node.this is None:
            for each in node.args.get("ifs") or ():
                yield from _parts(each.this)
        elif isinstance(node, exp.And | exp.Or | exp.Not):
            yield from _parts(node)


def _parts(node: exp.Expr) -> Iterator[exp.Expr]:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.And | exp.Or):
        yield from _parts(node.this)
        yield from _parts(node.expression)
    elif isinstance(node, exp.Not):
        yield from _parts(node.this)
    else:
        yield node


def _is_none(node: exp.Expr, others: set[str]) -> bool:
    if isinstance(node, exp.Literal):
        return not node.is_string
    if isinstance(node, exp.Column):
        return node.name in others
    if isinstance(node, exp.Cast):
        return getattr(getattr(node.args.get("to"), "this", None), "name", "") not in ("BOOLEAN", "NULL", "USERDEFINED")
    return isinstance(node, _NO_TRUTHS)
