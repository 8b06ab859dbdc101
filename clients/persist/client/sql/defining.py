"""Definitions with queries: bound where they are typed, executed by the leader.

Source: collections: the flow of DDL.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa

from persist.client.sql.bind import spark
from persist.client.sql.bind.followed import check_whole
from persist.client.sql.errors import SqlError, SqlNotSupported
from persist.client.sql.parse.printing import printed
from persist.client.sql.parse.statements import DefineCursor, DefineView, Definition, Select, Statement
from persist.client.sql.parse.text import one
from persist.client.sql.querying import Queries
from persist.core.catalog.ddl import statements as ddl
from persist.core.data.schema import Schema
from persist.redaction import scrub

_SECRET: Final = re.compile(r"passw|secret|token|credential|@", re.IGNORECASE)
_DEFINING = ddl.CreateTable | ddl.CreateIndex | ddl.CreateHold | ddl.CreateSink


class Defined(NamedTuple):
    """A definition as the leader executes it. ``begins_now``: at what a query finds when it is executed."""

    statement: ddl.Statement
    begins_now: bool = False


async def defined(
    statement: ddl.Statement | Definition, queries: Queries, before: Sequence[ddl.Statement] = ()
) -> Defined:
    """A definition, ``before`` it others of its transaction. Raises as ``bind``, and SqlError (columns that cannot be
    kept).
    """
    # A name alone would be a promise that nothing keeps: nothing would ingest, or deliver.
    if isinstance(statement, ddl.CreateSource):
        raise SqlNotSupported(
            "sources are made where their upstream is reached: in persist sql, and by persist source create",
            hint=f"in a shell: {_created(statement)}; then persist source run {shlex.quote(statement.name.item)}",
            source=statement.name,
        )
    if not isinstance(statement, DefineView | DefineCursor):
        return Defined(replace(statement, sql=printed(statement)) if isinstance(statement, _DEFINING) else statement)
    is_view = isinstance(statement, DefineView) and statement.refresh is None
    bound, meant, is_new = await queries.defining(statement.query, before, is_view=is_view)
    schema = _schema(await queries.schema(bound))
    reads = tuple(each.name for each in bound.reads)
    text = printed(statement)
    if isinstance(statement, DefineCursor):
        check_whole(bound)
        cursor = ddl.CreateCursor(
            statement.name,
            bound.named,
            reads,
            schema,
            statement.at,
            statement.max_lag,
            statement.on_lag,
            statement.if_not_exists,
            text,
            meant,
        )
        return Defined(cursor, begins_now=statement.at is None and not is_new)
    if statement.refresh is None:
        view = ddl.CreateView(
            statement.name,
            bound.named,
            reads,
            schema,
            bound.asks_time,
            statement.replace,
            statement.if_not_exists,
            text,
            meant,
        )
        return Defined(view)
    if statement.runner == spark.RUNNER:
        spark.spark_text(bound, 0)
    kept = ddl.CreateMaterializedView(
        statement.name,
        bound.named,
        reads,
        schema,
        statement.refresh,
        bound.asks_time,
        statement.retain,
        statement.if_not_exists,
        text,
        meant,
        statement.runner,
    )
    return Defined(kept)


async def beginning_now(defines: Sequence[Defined], queries: Queries) -> list[ddl.Statement]:
    """The same with the times at which cursors begin that were given none: of what a query finds now, and not of what
    there was as far back as can be read. Raises as ``Queries.explanation``.

    SUBTLE: just before they are executed. What nothing holds is readable for a moment only.
    """
    found, times = list[ddl.Statement](), dict[str, int]()
    for each, begins_now in defines:
        if not begins_now or not isinstance(each, ddl.CreateCursor):
            found.append(each)
            continue
        if each.query not in times:
            select = one(each.query).statement
            assert isinstance(select, Select)
            times[each.query] = (await queries.explanation(select)).query_ts
        found.append(replace(each, at=times[each.query]))
    return found


def _created(source: ddl.CreateSource) -> str:
    """The command that makes a source. Where secrets may be, values are left to who typed them."""
    given = " ".join(
        f"-o {shlex.quote(name)}=…" if _may_be_secret(name, value) else f"-o {shlex.quote(f'{name}={value}')}"
        for name, value in source.options
    )
    return f"persist source create {shlex.quote(source.name.item)} --type {source.type} {given}".rstrip()


def is_definition(statement: Statement) -> bool:
    """Whether the leader executes it."""
    return isinstance(statement, DefineView | DefineCursor | ddl.Statement)


def _schema(columns: pa.Schema) -> Schema:
    """The columns of a query as those of a collection, all keys. Raises SqlError, TypeNotSupported, InvalidArgument."""
    if len(set(columns.names)) < len(columns.names):
        twice = next(name for name in columns.names if columns.names.count(name) > 1)
        raise SqlError("two columns of one name", hint="name them: SELECT a.id AS a_id, …", column=twice)
    return Schema(columns)


def _may_be_secret(name: str, value: str) -> bool:
    """Whether its name says so, or it has a part for one: before an @, or as a setting in a list."""
    return _SECRET.search(f"{name}={value}") is not None or scrub(value) != value
