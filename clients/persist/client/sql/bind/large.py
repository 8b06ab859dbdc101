"""What is large is parsed, bound and written off the event loop: the one place that decides what is.

A catalog is followed on the loop, so nothing else may look into it: the names of a large query are looked up there, and
known from then on.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Final

from persist.client.sql.bind.binding import BoundQuery, Resolving, TooLarge, bind, name_of, query_of
from persist.client.sql.bind.integers import Named
from persist.client.sql.bind.pushdown import pushed
from persist.client.sql.parse.statements import Parsed
from persist.client.sql.parse.text import parse
from persist.core.catalog.ddl.described import Described, Session
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.values import KnownColumns, ObjectType
from persist.errors import PersistError
from persist.extras import extra
from persist.typed import Offload

with extra("sql"):
    from sqlglot import exp

TEXT_MAX: Final = 4096
"""Characters and parameters of a text that is parsed on the loop: about 10 ms."""
NODES_MAX: Final = 250
"""Nodes of a query, and of the views in it, that is bound on the loop: about 10 ms."""


async def parsed(text: str, params: object, now_ms: int, offload: Offload) -> list[Parsed]:
    """As ``parse``, off the loop if the text is large, or its parameters are."""
    if len(text) + _size(params) <= TEXT_MAX:
        return parse(text, params, now_ms=now_ms)
    found: list[Parsed] = await offload(functools.partial(parse, text, params, now_ms=now_ms))
    return found


async def bound(
    query: exp.Expr,
    names: Resolving,
    session: Session,
    offload: Offload,
    *,
    definite: bool = False,
    is_view: bool = False,
    known: Sequence[KnownColumns] = (),
    is_kept: bool = False,
) -> BoundQuery:
    """As ``pushed(bind(…))``, off the loop if the query is large."""
    binding = functools.partial(bind, session=session, definite=definite, is_view=is_view, known=known, is_kept=is_kept)
    try:
        return pushed(binding(query, names, nodes_max=NODES_MAX))
    except TooLarge:
        meanings = await _known(query, names, session, offload)
    found: BoundQuery = await offload(lambda: pushed(binding(query, meanings)))
    return found


async def said(query: BoundQuery, ts: int, named: Named, offload: Offload) -> str:
    """As ``BoundQuery.sql``, off the loop if the query is large."""
    if query.nodes <= NODES_MAX:
        return query.sql(ts, named)
    found: str = await offload(query.sql, ts, named)
    return found


def _size(params: object) -> int:
    given = params.values() if isinstance(params, dict) else params if isinstance(params, list | tuple) else ()
    return sum(len(each) if isinstance(each, list | tuple) else 1 for each in given)


class _Known:
    """What names mean, or why they mean nothing, as of when they were looked up."""

    def __init__(self) -> None:
        self.found: dict[QualifiedName, Described | PersistError] = {}

    def resolve(self, name: QualifiedName, session: Session) -> Described:
        """See Resolving."""
        found = self.found[name]
        if isinstance(found, PersistError):
            raise found
        return found


async def _known(query: exp.Expr, names: Resolving, session: Session, offload: Offload) -> _Known:
    """All names of a query, and of the views that these are."""
    known = _Known()
    asked: set[QualifiedName] = await offload(_names, [query])
    while asked:
        views: list[Described] = []
        for name in asked:
            try:
                found = known.found[name] = names.resolve(name, session)
            except PersistError as error:
                known.found[name] = error
            else:
                views += [found] if found.kind is ObjectType.VIEW else []
        asked = await offload(_names_of_views, views) - known.found.keys()
    return known


def _names_of_views(views: Iterable[Described]) -> set[QualifiedName]:
    return _names(map(query_of, views))


def _names(queries: Iterable[exp.Expr]) -> set[QualifiedName]:
    tables = (table for query in queries for table in query.find_all(exp.Table))
    return {name_of(table) for table in tables if isinstance(table.this, exp.Identifier)}
