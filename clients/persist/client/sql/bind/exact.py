"""Quoted names of columns are exact, as in PostgreSQL; DuckDB takes them in any case.

A name without capital letters may have been written without quotes, and means a column in whatever case it is: tables
of other programs have columns such as userId. Source: docs/sql.md, names.
"""

from collections.abc import Iterable, Mapping

from persist.client.sql.errors import SqlError
from persist.client.sql.parse.positions import where
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp


def meaning(name: str, columns: Iterable[str]) -> str | None:
    """The one of these columns, which differ by more than case, that a name means; None: none of them."""
    return next((each for each in columns if each == name or (name == name.lower() == each.lower())), None)


def by_meaning(names: Iterable[str], columns: Iterable[str]) -> Mapping[str, str]:
    """Which column each name means, of those that mean one."""
    known = tuple(columns)
    found = {name: meaning(name, known) for name in names}
    return {name: column for name, column in found.items() if column is not None}


def check_quoted(query: exp.Expr, columns: Iterable[str]) -> None:
    """Raise SqlError for a name of a column in a query that nothing has but in another case.

    ``columns``: of what the query reads. Names that it gives itself are known as well, wherever it does.
    """
    known, tables = set(columns), set[str]()
    for each in query.find_all(exp.Alias):
        known.add(folded(each.args.get("alias")))
    for alias in query.find_all(exp.TableAlias):
        tables.add(folded(alias.this))
        known.update(map(folded, alias.args.get("columns") or ()))
    tables |= {folded(each.this) for each in query.find_all(exp.Table)}
    for column in query.find_all(exp.Column):
        _check(column, column.this, known, "column")
        _check(column, column.args.get("table"), tables, "table")
    for join in query.find_all(exp.Join):
        for each in join.args.get("using") or ():
            _check(each, each, known, "column")


def folded(identifier: object) -> str:
    """A name as PostgreSQL has it; empty: there is none."""
    if not isinstance(identifier, exp.Identifier):
        return ""
    return str(identifier.this) if identifier.args.get("quoted") else str(identifier.this).lower()


def _check(node: exp.Expr, identifier: object, known: set[str], what: str) -> None:
    name = folded(identifier)
    if not name or name in known or name == name.lower():
        return
    alike = sorted(each for each in known if each.lower() == name.lower())
    if alike:
        hint = "did you mean " + " or ".join(f'"{each}"' for each in alike)
        raise SqlError(f'there is no {what} "{name}"', hint=f"{hint}? Quoted names are exact", **where(node))
