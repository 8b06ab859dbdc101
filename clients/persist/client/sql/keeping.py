"""Queries of views that are kept, on the engine of queries that are asked: the same rows for the same words.

Source: collections: queries (materialized view, plain).
"""

from collections.abc import Mapping

import pyarrow as pa
from sqlglot import exp

from persist.client.collections.views.query import QueryAt, QueryFailed
from persist.client.sql.bind import large
from persist.client.sql.bind.binding import BoundQuery, bind
from persist.client.sql.bind.pushdown import pushed
from persist.client.sql.errors import SqlError, SqlLimit
from persist.client.sql.parse.statements import Parsed, Select
from persist.client.sql.parse.text import only, parse
from persist.client.sql.querying import streamed
from persist.client.sql.run.engine import Engine, Limits, Relation
from persist.core.catalog.ddl.described import Described, Session
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.errors import UnknownObject
from persist.core.catalog.values import KnownColumns
from persist.runtime import system

LIMITS = Limits(threads=1)
"""Of all views of a process together; each query has a thread of its own besides."""


class KeptQueries:
    """A QueryRunner. Needs the extra ``sql``. Close it."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._engine = Engine(limits)

    async def run(self, asked: QueryAt) -> pa.Table:
        """See QueryRunner. Raises SqlLimit besides."""
        try:
            offload = system().offload
            query = _query_of(await large.parsed(asked.query, None, system().now_ms(), offload))
            bound = await large.bound(query, _Names(asked.items), Session(), offload, definite=True, known=asked.known)
            relations: Mapping[str, Relation] = {
                name: streamed(each, asked.inputs[each.described.id]) for name, each in bound.relations.items()
            }
            return await self._engine.table(await large.said(bound, asked.as_of, offload), relations)
        except SqlLimit:
            raise
        except (SqlError, UnknownObject) as error:
            raise QueryFailed(
                error.message, hint=error.hint or "correct the rows or the query", **error.details
            ) from error

    def close(self) -> None:
        """Release its memory."""
        self._engine.close()


def bound_of(query: str, items: tuple[Described, ...], known: tuple[KnownColumns, ...] = ()) -> BoundQuery:
    """The query of a view, over the items that it is made of. ``known``: see ``bind``. Raises as ``parse`` and
    ``bind``, and QueryFailed.
    """
    parsed = _query_of(parse(query, now_ms=system().now_ms(), kept=True))
    return pushed(bind(parsed, _Names(items), Session(), definite=True, known=known))


def _query_of(parsed: list[Parsed]) -> exp.Expr:
    statement = only(parsed).statement
    if not isinstance(statement, Select):
        raise QueryFailed("the query of a view is a SELECT", hint="create it again")
    return statement.query


class _Names:
    def __init__(self, items: tuple[Described, ...]) -> None:
        self._items = {each.name: each for each in items}

    def resolve(self, name: QualifiedName, session: Session) -> Described:
        found = self._items.get(name)
        if found is None:
            raise UnknownObject("there is no such object", hint="it was dropped or renamed", name=str(name))
        return found
