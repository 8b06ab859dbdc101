"""Queries of views that are kept, on the engine of queries that are asked: the same rows for the same words.

Source: collections: queries (materialized view, plain).
"""

from collections.abc import Mapping

import pyarrow as pa

from persist.client.collections.views.query import Asked, QueryFailed
from persist.client.sql.bind.binding import Bound, bind, pushed
from persist.client.sql.errors import SqlError, SqlLimit
from persist.client.sql.parse.statements import Select
from persist.client.sql.parse.text import one
from persist.client.sql.querying import streamed
from persist.client.sql.run.engine import Engine, Limits, Relation
from persist.core.catalog.ddl.described import Described, Session
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.errors import UnknownObject

LIMITS = Limits(threads=1)
"""Of all views of a process together; each query has a thread of its own besides."""


class KeptQueries:
    """A QueryRunner. Needs the extra ``sql``. Close it."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._engine = Engine(limits)

    async def run(self, asked: Asked) -> pa.Table:
        """See QueryRunner. Raises SqlLimit besides."""
        try:
            bound = bound_of(asked.query, asked.items)
            relations: Mapping[str, Relation] = {
                name: streamed(each, asked.inputs[each.described.id]) for name, each in bound.relations.items()
            }
            return await self._engine.table(bound.sql(asked.as_of), relations)
        except SqlLimit:
            raise
        except (SqlError, UnknownObject) as error:
            raise QueryFailed(
                error.message, hint=error.hint or "correct the rows or the query", **error.details
            ) from error

    def close(self) -> None:
        """Release its memory."""
        self._engine.close()


def bound_of(query: str, items: tuple[Described, ...]) -> Bound:
    """The query of a view, over the items that it is made of. Raises as ``one`` and ``bind``, and QueryFailed."""
    statement = one(query).statement
    if not isinstance(statement, Select):
        raise QueryFailed("the query of a view is a SELECT", hint="create it again", got=query[:200])
    return pushed(bind(statement.query, _Names(items), Session(), definite=True))


class _Names:
    def __init__(self, items: tuple[Described, ...]) -> None:
        self._items = {each.name: each for each in items}

    def resolve(self, name: QualifiedName, session: Session) -> Described:
        found = self._items.get(name)
        if found is None:
            raise UnknownObject("there is no such object", hint="it was dropped or renamed", name=str(name))
        return found
