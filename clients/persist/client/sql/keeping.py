"""Queries of views that are kept, on the engine of queries that are asked: the same rows for the same words.

Source: collections: queries (materialized view, plain).
"""

import contextlib
from collections.abc import Iterator, Mapping

import pyarrow as pa
from sqlglot import exp

from persist.client.collections.views.kept import KeptRows
from persist.client.collections.views.query import QueryAt, QueryFailed
from persist.client.sql.bind import large
from persist.client.sql.bind.binding import BoundQuery, bind
from persist.client.sql.bind.pushdown import pushed
from persist.client.sql.bind.spark import spark_text
from persist.client.sql.errors import SqlError, SqlLimit
from persist.client.sql.parse.statements import Parsed, Select
from persist.client.sql.parse.text import only, parse
from persist.client.sql.querying import planned_rows, streamed
from persist.client.sql.run.engine import Engine, Relation, named
from persist.client.sql.run.instances import Limits
from persist.client.sql.run.port import Runner
from persist.client.sql.run.runner import PlannedQuery, PlannedRefresh, PlannedRows
from persist.core.catalog.ddl.described import Described, Session
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.errors import UnknownObject
from persist.core.catalog.values import KnownColumns
from persist.runtime import system

LIMITS = Limits(threads=1)
"""Of all views of a process together; each query has a thread of its own besides."""


class KeptQueries:
    """A QueryRunner. Needs the extra ``sql``."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._engine = Engine(limits)

    async def run(self, asked: QueryAt) -> pa.Table:
        """See QueryRunner. Raises SqlLimit besides."""
        offload = system().offload
        with _failing():
            bound = await _bound(asked)
            relations: Mapping[str, Relation] = {
                name: streamed(each, asked.inputs[each.described.id]) for name, each in bound.relations.items()
            }
            return await self._engine.table(await large.said(bound, asked.as_of, named, offload), relations)

    def close(self) -> None:
        """It has nothing while no query runs."""


class RefreshedElsewhere:
    """A Refresher whose engine reads the inputs and what the view has, and writes the difference, in processes of its
    own: nothing of it is here. What it wrote counts once it is appended, which is done here, as for every refresh.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def refresh(self, asked: QueryAt, kept: KeptRows, lower: int, upper: int | None) -> bool:
        """See Refresher."""
        with _failing():
            bound = await _bound(asked)
            text = await system().offload(spark_text, bound, asked.as_of)
            relations = {
                name: planned_rows(each, asked.inputs[each.described.id]) for name, each in bound.relations.items()
            }
            columns = pa.schema([*kept.schema.key, *kept.schema.val])
            query = PlannedQuery(text, columns, asked.as_of, relations)
            async with contextlib.AsyncExitStack() as held:
                current: PlannedRows | None = None
                if lower:
                    snapshot = await held.enter_async_context(kept.current(lower))
                    current = PlannedRows(snapshot.output(None), snapshot, has_diffs=True)
                planned = PlannedRefresh(query=query, current=current, schema=kept.schema, spec=kept.spec)
                parts = await self._runner.refresh(planned)
            return await kept.append_parts(parts, asked.as_of, lower, upper)

    def close(self) -> None:
        """The engine is its owner's."""


async def _bound(asked: QueryAt) -> BoundQuery:
    offload = system().offload
    query = _query_of(await large.parsed(asked.query, None, system().now_ms(), offload))
    return await large.bound(
        query, _Names(asked.items), Session(), offload, definite=True, known=asked.known, is_kept=True
    )


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    """What is wrong with a query, or with its rows, as QueryFailed; a limit may be another one next time."""
    try:
        yield
    except SqlLimit:
        raise
    except (SqlError, UnknownObject) as error:
        raise QueryFailed(error.message, hint=error.hint or "correct the rows or the query", **error.details) from error


def bound_of(query: str, items: tuple[Described, ...], known: tuple[KnownColumns, ...] = ()) -> BoundQuery:
    """The query of a view, over the items that it is made of. ``known``: see ``bind``. Raises as ``parse`` and
    ``bind``, and QueryFailed.
    """
    parsed = _query_of(parse(query, now_ms=system().now_ms(), kept=True))
    return pushed(bind(parsed, _Names(items), Session(), definite=True, known=known, is_kept=True))


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
