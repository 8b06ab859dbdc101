"""What DuckDB would take in another way than PostgreSQL is put so that both mean the same, or fails.

Source: docs/sql.md, queries; tests/client/sql/reading/test_against_postgres.py asks both.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias

from persist.client.sql.bind.integers import Integers
from persist.client.sql.bind.matching.bytes import Bytes
from persist.client.sql.bind.matching.conditions import Conditions
from persist.client.sql.bind.matching.kinds import Kinds
from persist.client.sql.bind.matching.pairs import Pairs
from persist.client.sql.bind.times import Times
from persist.client.sql.bind.typed import Change, Columns, unnamed
from persist.client.sql.errors import SqlNotSupported
from persist.client.sql.parse.positions import where
from persist.core.data.schema import Schema
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

Named: TypeAlias = Callable[[str], str]
"""What DuckDB calls a column that is an expression, and has no name."""


class Finder(Protocol):
    """Finds what is to be put otherwise, of one kind."""

    def changes(self, query: exp.Expr) -> Iterator[Change]:
        """Parts of a query, each with what puts another one in its place, once those in it were. Raises SqlError."""
        ...


def checked(query: exp.Expr, schemas: Iterable[Schema], named: Named) -> exp.Expr:
    """The query, as DuckDB has to be asked; its columns keep their names.

    ``schemas``: of what it reads. Raises SqlFailed for texts in the query itself that are not what they have to be,
    SqlError for conditions that are none; SqlNotSupported.
    """
    read = list(schemas)
    columns, kinds = Columns(query, read), Kinds(query, read)
    finders: list[Finder] = [
        Integers(query, columns), Times(columns), Conditions(columns), Pairs(kinds), Bytes(kinds)
    ]  # fmt: skip
    if not [change for each in finders for change in each.changes(query)]:
        return query
    query = query.copy()
    order = {id(node): at for at, node in enumerate(query.walk(bfs=False))}
    changes = sorted((change for each in finders for change in each.changes(query)), key=lambda one: order[id(one[0])])
    for node, _ in changes:
        if node.find(exp.Columns) is not None:
            raise SqlNotSupported("what COLUMNS gives is not put otherwise", hint="name the columns", **where(node))
    found = {id(each): each for node, _ in changes for each in unnamed(node)}.values()
    names = [(column, named(column.sql(dialect="duckdb"))) for column in found]
    for column, name in names:
        alias = exp.alias_(exp.Null(), name, quoted=True)
        column.replace(alias)
        alias.set("this", column)
    # Those inside of others first: they are copied with these.
    for _, change in reversed(changes):
        change()
    return query
