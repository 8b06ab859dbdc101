"""Statements that run, as they were written, and definitions whose query is still to be bound.

Statements that are complete as they are written are those of ``core.catalog.ddl.statements``. Queries are expressions
of sqlglot in the dialect of PostgreSQL. Times are those of the timeline.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import pyarrow as pa

from persist.client.sql.parse.literals import Literals
from persist.core.catalog.ddl import statements as ddl
from persist.core.catalog.ddl.statements import QualifiedName, Refresh, Retain
from persist.core.catalog.values import ObjectType
from persist.core.time.hold import MaxLag, OnLag
from persist.core.time.isolation import Isolation
from persist.core.time.read_time import AsOf
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp


@dataclass(frozen=True, slots=True)
class Select:
    """A query, at a time or now."""

    query: exp.Query
    as_of: AsOf | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT INTO table [(columns)] query. ``returning``: what is answered of the rows that were put in."""

    table: QualifiedName
    columns: tuple[str, ...]
    query: exp.Query | Literals
    returning: tuple[exp.Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class InsertRows:
    """Rows that are there already, into a table, as INSERT puts them."""

    table: QualifiedName
    columns: tuple[str, ...]
    rows: pa.Table
    returning: tuple[exp.Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE table SET … [FROM …] [WHERE …]; ``alias``: what the table is called in it."""

    table: QualifiedName
    alias: str
    assignments: tuple[tuple[str, exp.Expr], ...]
    others: tuple[exp.Expr, ...] = ()
    where: exp.Expr | None = None
    returning: tuple[exp.Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE FROM table [USING …] [WHERE …]."""

    table: QualifiedName
    alias: str
    others: tuple[exp.Expr, ...] = ()
    where: exp.Expr | None = None
    returning: tuple[exp.Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """COPY table [(columns)] FROM path, or COPY query TO path. The file is the client's."""

    path: str
    table: QualifiedName | None = None
    columns: tuple[str, ...] = ()
    query: Select | None = None
    format: str = ""
    header: bool = True
    delimiter: str = ","

    @property
    def named(self) -> bool:
        """The file has names of its columns."""
        return self.header or not (self.format == "csv" or self.path.lower().endswith(".csv"))


@dataclass(frozen=True, slots=True)
class Begin:
    """BEGIN: what follows happens together, or not at all."""

    isolation: Isolation | None = None


@dataclass(frozen=True, slots=True)
class CommitTransaction:
    """COMMIT."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """ROLLBACK."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUBSCRIBE: the rows of a query, then every change of them, each with its time.

    ``up_to``: ends before this time. ``progress``: says also how far it is where nothing changed.
    """

    query: exp.Query
    as_of: AsOf | None = None
    snapshot: bool = True
    progress: bool = False
    up_to: int | None = None


@dataclass(frozen=True, slots=True)
class Fetch:
    """FETCH count FROM cursor; None: all there is. ``timeout_ms``: how long it waits for something; None: not."""

    cursor: QualifiedName
    count: int | None
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Show:
    """SHOW ``what`` [FROM ``of``] [LIKE ``like``]; SHOW CREATE kind name; ``variable``: of the session."""

    what: str
    of: QualifiedName | None = None
    like: str | None = None
    kind: ObjectType | None = None
    variable: str = ""


@dataclass(frozen=True, slots=True)
class SetVariable:
    """SET name = values; none: RESET."""

    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterSource:
    """ALTER SOURCE name SET (option = value, …): of what a pipeline ingests, and no definition of the catalog's."""

    name: QualifiedName
    options: tuple[tuple[str, str], ...]
    if_exists: bool = False


class Explained(StrEnum):
    """What is explained of a query."""

    PLAN = "plan"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN query, EXPLAIN TIMESTAMP FOR query."""

    query: Select
    what: Explained = Explained.PLAN


@dataclass(frozen=True, slots=True)
class DefineView:
    """CREATE [MATERIALIZED] VIEW name AS query, before its names are known. ``refresh`` None: a plain view."""

    name: QualifiedName
    query: exp.Query
    refresh: Refresh | None = None
    retain: Retain | None = None
    replace: bool = False
    if_not_exists: bool = False
    runner: str = ""


@dataclass(frozen=True, slots=True)
class DefineCursor:
    """CREATE CURSOR name FOR SUBSCRIBE query, before its names are known."""

    name: QualifiedName
    query: exp.Query
    at: int | None = None
    max_lag: MaxLag | None = None
    on_lag: OnLag = OnLag.ADVANCE
    if_not_exists: bool = False


Dml: TypeAlias = Insert | InsertRows | Update | Delete
Definition: TypeAlias = DefineView | DefineCursor
Statement: TypeAlias = (
    ddl.Statement
    | Definition
    | Insert
    | Update
    | Delete
    | Select
    | Copy
    | Begin
    | CommitTransaction
    | Rollback
    | Subscribe
    | Fetch
    | Show
    | SetVariable
    | AlterSource
    | Explain
)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A statement, and where in its text it stands: line and column from 1, and the characters it takes."""

    statement: Statement
    line: int = field(default=1, compare=False)
    column: int = field(default=1, compare=False)
    text: str = field(default="", compare=False)
