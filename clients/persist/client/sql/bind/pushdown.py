"""Which columns and rows of its inputs a query needs: only what is sure, as DuckDB checks every condition again.

A scope of the query is asked at a time; where its columns cannot be distinguished, its inputs are read as they are.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from persist.client.sql.bind.binding import BoundQuery, BoundRelation
from persist.client.sql.parse.known import is_only
from persist.core.data.predicates.condition import Condition
from persist.core.data.types import T
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.scope import Scope, traverse_scope

_OPS: Final[dict[type[exp.Expr], str]] = {exp.EQ: "=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
_SWAPPED: Final = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
_OUTER: Final = ("RIGHT", "FULL")
_INNER: Final = ("", "INNER", "OUTER", "CROSS")
"""Kinds of joins that are not of one side; OUTER is that of a side."""


def pushed(bound: BoundQuery) -> BoundQuery:
    """The same query, whose relations say which columns and rows of them it needs."""
    return replace(bound, relations=_relations(bound))


def _relations(bound: BoundQuery) -> Mapping[str, BoundRelation]:
    relations = dict(bound.relations)
    try:
        for scope in traverse_scope(bound.query):
            for alias, table in _tables(scope):
                relation = relations.get(table.name)
                if relation is None:
                    continue
                columns = _columns(scope, alias, relation)
                conditions = tuple(_conditions(scope, alias, table, relation))
                relations[relation.name] = replace(relation, columns=columns, conditions=conditions)
    except (SqlglotError, AttributeError, ValueError, KeyError):
        # A shape of query that sqlglot does not analyse: all of its inputs are read.
        return bound.relations
    return relations


def _tables(scope: Scope) -> Iterator[tuple[str, exp.Table]]:
    """The tables of a scope under their own columns: an alias may rename these, a pivot or a sample makes others."""
    for alias, (_, source) in scope.selected_sources.items():
        if not isinstance(source, exp.Table) or source.alias_column_names:
            continue
        if not (source.args.get("pivots") or source.args.get("sample")):
            yield alias, source


def _columns(scope: Scope, alias: str, relation: BoundRelation) -> tuple[str, ...] | None:
    """The columns that are used of a relation. None: all."""
    known = {name.lower(): name for name in (*relation.schema.key.names, *relation.schema.val.names)}
    query = scope.expression
    if not isinstance(query, exp.Select) or _is_open(query, scope):
        return None
    aliases = {each.alias.lower() for each in query.expressions}
    used: set[str] = set()
    for column in scope.columns:
        name = column.name.lower()
        if isinstance(column.this, exp.Star):
            return None
        if column.table.lower() == alias.lower() or (not column.table and name in known):
            if name not in known:
                # The table itself as a value, or one of its parts.
                return None
            used.add(known[name])
        elif name == alias.lower() or (not column.table and name not in aliases and _is_alone(scope)):
            # DuckDB refuses an unknown column, and names those that there are.
            return None
    # Something is needed to count rows by.
    return tuple(name for name in known.values() if name in used) or (next(iter(known.values())),)


def _is_alone(scope: Scope) -> bool:
    """Whether all columns of a scope are of one table."""
    sources = [source for _, source in scope.selected_sources.values()]
    return len(sources) == 1 and isinstance(sources[0], exp.Table) and not scope.is_subquery


def _is_open(query: exp.Select, scope: Scope) -> bool:
    """Columns are used that are not named: ``*``, USING and NATURAL, or functions over columns."""
    if any(True for _ in scope.find_all(exp.Star) if not isinstance(_.parent, exp.Count)):
        return True
    if any(join.args.get("using") or join.args.get("method") == "NATURAL" for join in scope.find_all(exp.Join)):
        return True
    return any(True for _ in scope.find_all(exp.Columns, exp.Pivot, exp.Lateral))


def _conditions(scope: Scope, alias: str, table: exp.Table, relation: BoundRelation) -> Iterator[Condition]:
    query = scope.expression
    clause = query.args.get("where")
    if not isinstance(query, exp.Select) or clause is None or not _is_inner(scope, table):
        return
    types: dict[str, tuple[str, pa.DataType]] = {
        field.name.lower(): (field.name, field.type) for field in [*relation.schema.key, *relation.schema.val]
    }
    alone = len(scope.selected_sources) == 1
    for part in _parts(clause.this):
        for column, op, values in _comparison(part):
            named = column.table.lower() == alias.lower() or (not column.table and alone)
            found = types.get(column.name.lower()) if named else None
            if found is None:
                continue
            name, given = found
            if op.startswith("is "):
                yield Condition(name, op)
                continue
            read = [_value(value, given) for value in values]
            if read and None not in read:
                yield Condition(name, op, tuple(read) if op == "in" else read[0])


def _is_inner(scope: Scope, table: exp.Table) -> bool:
    """Whether a row that its WHERE refuses cannot show up in another way: as nulls of an outer join, however nested."""
    for join in scope.find_all(exp.Join):
        side, kind = (join.args.get("side") or "").upper(), (join.args.get("kind") or "").upper()
        if side in _OUTER or kind not in _INNER or join.args.get("method"):
            return False
    return not any(side == "LEFT" for side in _sides(scope, table))


def _sides(scope: Scope, table: exp.Table) -> Iterator[str]:
    """The sides of all joins that the table is on the right of."""
    node: exp.Expr | None = table
    while node is not None and node is not scope.expression:
        if isinstance(node, exp.Join):
            yield (node.args.get("side") or "").upper()
        node = node.parent


def _parts(condition: exp.Expr) -> Iterator[exp.Expr]:
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if isinstance(condition, exp.And):
        yield from _parts(condition.left)
        yield from _parts(condition.right)
    else:
        yield condition


def _comparison(part: exp.Expr) -> Iterable[tuple[exp.Column, str, list[exp.Expr]]]:
    """A column, an operator and the values it is compared with, of conditions that are so simple, and say no more."""
    op = _OPS.get(type(part))
    if op is not None and isinstance(part, exp.Binary) and is_only(part, "this", "expression"):
        if isinstance(part.left, exp.Column):
            yield part.left, op, [part.right]
        elif isinstance(part.right, exp.Column):
            yield part.right, _SWAPPED[op], [part.left]
    elif not isinstance(part.this, exp.Column):
        return
    elif isinstance(part, exp.Between) and is_only(part, "this", "low", "high"):
        yield part.this, ">=", [part.args["low"]]
        yield part.this, "<=", [part.args["high"]]
    elif isinstance(part, exp.In) and is_only(part, "this", "expressions"):
        yield part.this, "in", list(part.expressions)
    elif isinstance(part, exp.Is) and is_only(part, "this", "expression", "negate") and isinstance(
        part.expression, exp.Null
    ):  # fmt: skip
        yield part.this, "is not null" if part.args.get("negate") else "is null", []


def _value(node: exp.Expr, given: pa.DataType) -> object:
    """A value in the type of its column, if both compare here as they do in DuckDB; else None."""
    negative = isinstance(node, exp.Neg)
    literal = node.this if negative else node
    if isinstance(literal, exp.Boolean):
        return bool(literal.this) if T.is_boolean(given) and not negative else None
    if isinstance(literal, exp.Cast) and isinstance(literal.this, exp.Literal):
        wanted = literal.to.this
        if wanted != exp.DataType.Type.DATE or not T.is_date(given):
            return None
        literal = literal.this
    if not isinstance(literal, exp.Literal):
        return None
    if T.is_integer(given):
        return _integer(literal, given, negative)
    if T.is_string(given) and literal.is_string and not negative:
        return str(literal.this)
    if T.is_date(given) and literal.is_string and not negative:
        try:
            return datetime.date.fromisoformat(str(literal.this))
        except ValueError:
            return None
    return None


def _integer(literal: exp.Literal, given: pa.DataType, negative: bool) -> int | None:
    text = str(literal.this)
    if literal.is_string or not text.isdecimal():
        return None
    number = -int(text) if negative else int(text)
    width = given.bit_width
    signed = T.is_signed_integer(given)
    least = -(1 << (width - 1)) if signed else 0
    return number if least <= number < (1 << (width - 1 if signed else width)) else None
