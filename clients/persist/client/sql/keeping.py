"""Queries of views that are kept, on the engine of queries that are asked: the same rows for the same words.

Source: collections: queries (materialized view, plain).
"""

from collections.abc import Mapping

import pyarrow as pa

from persist.client.collections.views.query import Asked, QueryFailed
from persist.client.sql.bind import large
from persist.client.sql.errors import SqlError, SqlLimit
from persist.client.sql.parse.statements import Select
from persist.client.sql.parse.text import only
from persist.client.sql.querying import streamed
from persist.client.sql.run.engine import Engine, Limits, Relation
from persist.core.catalog.ddl.described import Described, Session
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.errors import UnknownObject
from persist.runtime import system

LIMITS = Limits(threads=1)
"""Of all views of a process together; each query has a thread of its own besides."""


class KeptQueries:
    """A QueryRunner. Needs the extra ``sql``. Close it."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._engine = Engine(limits)

    async def run(self, asked: Asked) -> pa.Table:
        """See QueryRunner. Raises SqlLimit besides."""
        try:
            offload = system().offload
            statement = only(await large.parsed(asked.query, None, system().now_ms(), offload)).statement
            if not isinstance(statement, Select):
                raise QueryFailed("the query of a view is a SELECT", hint="create it again", got=asked.query[:200])
            bound = await large.bound(statement.query, _Names(asked.items), Session(), offload, definite=True)
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
        """Let go of its memory."""
        self._engine.close()


class _Names:
    def __init__(self, items: tuple[Described, ...]) -> None:
        self._items = {each.name: each for each in items}

    def resolve(self, name: QualifiedName, session: Session) -> Described:
        found = self._items.get(name)
        if found is None:
            raise UnknownObject("there is no such object", hint="it was dropped or renamed", name=str(name))
        return found
