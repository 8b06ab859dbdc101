"""What a query of SUBSCRIBE or CREATE CURSOR follows: a stored collection, with all or some of its columns."""

from typing import Final

from persist.client.sql.bind.binding import BoundQuery
from persist.client.sql.bind.exact import folded, meaning
from persist.client.sql.errors import SqlNotSupported
from persist.client.sql.parse.known import is_only
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.values import ObjectType
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

_HINT: Final = "make a materialized view of the query, and follow that"


def followed(bound: BoundQuery) -> tuple[QualifiedName, list[str] | None]:
    """The collection that a query is, and which columns of it; None: all. Raises SqlNotSupported."""
    query = bound.query
    relation = next(iter(bound.relations.values()), None)
    rest = {name for name, value in query.args.items() if value and name not in ("expressions", "from_", "kind")}
    if relation is None or len(bound.relations) != 1 or rest or not isinstance(query, exp.Select):
        raise SqlNotSupported("only collections are followed", hint=_HINT)
    source = query.args["from_"].this
    if (
        not isinstance(source, exp.Table)
        or not is_only(source, "this", "alias")
        or source.alias_column_names
        or relation.described.kind is ObjectType.VIEW
    ):
        raise SqlNotSupported("only collections are followed", hint=_HINT)
    if [type(each) for each in query.expressions] == [exp.Star]:
        return relation.described.name, None
    known = [*relation.schema.key.names, *relation.schema.val.names]
    columns = [meaning(folded(each.this), known) or "" for each in query.expressions if isinstance(each, exp.Column)]
    if len(columns) < len(query.expressions) or "" in columns or len(set(columns)) < len(columns):
        raise SqlNotSupported("only columns of a collection are followed", hint=_HINT)
    return relation.described.name, columns


def check_whole(bound: BoundQuery) -> None:
    """Raise SqlNotSupported for what a cursor could not be read for, and would only keep history."""
    _, columns = followed(bound)
    if columns is not None:
        raise SqlNotSupported("a cursor follows a collection as a whole", hint=_HINT)
