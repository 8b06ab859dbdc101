"""Statements around a query: SELECT, INSERT, UPDATE, DELETE, COPY, SUBSCRIBE, FETCH, EXPLAIN."""

from typing import Final

from persist.client.sql.errors import SqlError, SqlNotSupported, SqlSyntax
from persist.client.sql.parse.known import only
from persist.client.sql.parse.statements import (
    Copy,
    Delete,
    Explain,
    Explained,
    Fetch,
    Insert,
    Select,
    Subscribe,
    Update,
)
from persist.client.sql.parse.tokens import Tokens, place
from persist.client.sql.parse.values import as_of, boolean, milliseconds, time, value
from persist.core.catalog.ddl.statements import QualifiedName
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

_ALL: Final = "all rows are changed for which WHERE holds; choose some by WHERE id IN (SELECT … LIMIT n)"

FORMATS: Final = ("csv", "json", "parquet", "arrow")
"""Of files that COPY reads and writes."""


def select(tokens: Tokens, now_ms: int) -> Select:
    """A query up to the end of the statement, with AS OF at its end or without."""
    end = _as_of_at(tokens)
    found = query(tokens, end)
    at = as_of(tokens, now_ms)
    if tokens.peek is not None:
        tokens.fail("the end of the statement", hint="AS OF stands at the end, behind ORDER BY and LIMIT")
    return Select(found, at)


def query(tokens: Tokens, end: int | None = None) -> exp.Query:
    """The query from here to ``end``. Raises SqlSyntax, SqlNotSupported (statements that write, INTO, FOR UPDATE)."""
    first = tokens.peek
    found = tokens.expression(end)
    while isinstance(found, exp.Paren | exp.Subquery) and not found.args.get("alias") and _plain(found):
        found = found.this
    if isinstance(found, exp.Values):
        alias = found.args.get("alias")
        if alias is not None and alias.this is None:
            line, column = place(tokens.text, first.start if first else 0)
            raise SqlSyntax("expected a comma between rows", hint="VALUES (1, 'a'), (2, 'b')", line=line, column=column)
        if not found.alias:
            found.set("alias", exp.TableAlias(this=exp.to_identifier("v")))
        found = exp.select("*").from_(found)
    if not isinstance(found, exp.Query):
        line, column = place(tokens.text, first.start if first else 0)
        inside = "WITH stands inside: INSERT INTO name WITH … SELECT …; UPDATE and DELETE take … IN (WITH … SELECT …)"
        hint = inside if first is not None and first.text.upper() == "WITH" else "a SELECT, VALUES or WITH"
        raise SqlNotSupported("not a query", hint=hint, line=line, column=column)
    for node in found.walk():
        if isinstance(node, exp.DML | exp.DDL | exp.Command) and not isinstance(node, exp.Query):
            raise SqlNotSupported("a query that writes is not supported", hint="write in a statement of its own")
        if isinstance(node, exp.Select) and (node.args.get("into") or node.args.get("locks")):
            raise SqlNotSupported("INTO and FOR UPDATE are not supported", hint="use CREATE TABLE and INSERT")
    return found


def call_counts(statement: object) -> None:
    """Call the columns of a statement's query that are ``count(*)`` ``count``, as PostgreSQL does, and DuckDB not."""
    found = getattr(statement, "query", None)
    while isinstance(found, Select):
        found = found.query
    for each in found.find_all(exp.Select) if isinstance(found, exp.Expr) else ():
        each.set("expressions", [exp.alias_(it, "count") if _counts(it) else it for it in each.expressions])


def _counts(node: exp.Expr) -> bool:
    while isinstance(node, exp.Filter | exp.Window):
        node = node.this
    return isinstance(node, exp.Count) and isinstance(node.this, exp.Star)


def _plain(node: exp.Expr) -> bool:
    return not any(value for name, value in node.args.items() if name != "this")


def _as_of_at(tokens: Tokens) -> int | None:
    """Where AS OF begins that ends a query; a column may be called ``of`` as well."""
    at = tokens.find_last("AS", "OF")
    if at is None:
        return None
    ahead = at - tokens.at + 2
    named = tokens.at_end(ahead) or any(tokens.is_word(word, ahead=ahead) for word in _AFTER_ALIAS)
    return None if named else at


_AFTER_ALIAS: Final = (",", "FROM", "WHERE", "GROUP", "ORDER", "ORDER BY", "GROUP BY", "LIMIT", "UNION", "HAVING", "ON")


def insert(tokens: Tokens) -> Insert:
    """INSERT INTO name [(columns)] VALUES … | SELECT … [RETURNING …]."""
    tokens.expect("INSERT", "INTO")
    table = tokens.qualified("the name of a table")
    tokens.word("TABLE")
    columns: tuple[str, ...] = ()
    if tokens.is_word("(") and not any(tokens.is_word("(", word) for word in ("SELECT", "WITH", "VALUES")):
        columns = tokens.names("the name of a column")
    if tokens.is_word("DEFAULT"):
        tokens.fail("VALUES or SELECT", hint="columns have no defaults")
    rows = tokens.literals()
    end = tokens.find_last("RETURNING")
    conflict = tokens.find_last("ON", "CONFLICT")
    if conflict is not None:
        tokens.at = conflict
        line, column = place(tokens.text, tokens.peek.start if tokens.peek else 0)
        raise SqlNotSupported(
            "ON CONFLICT is not supported", hint="UPDATE first, or use table.upsert", line=line, column=column
        )
    found = rows or query(tokens, end)
    return Insert(table, columns, found, _returning(tokens))


def update(tokens: Tokens) -> Update:
    """UPDATE name [AS alias] SET … [FROM …] [WHERE …] [RETURNING …]."""
    tokens.expect("UPDATE")
    table, alias = _target(tokens, "SET")
    if not tokens.is_word("SET"):
        tokens.fail("SET")
    end = tokens.find_last("RETURNING")
    found = only(
        tokens.expression(end, after="UPDATE x"), exp.Update, "this", "expressions", "from_", "where", hint=_ALL
    )
    assignments: dict[str, exp.Expr] = {}
    for each in found.expressions:
        if not isinstance(each, exp.EQ) or not isinstance(each.this, exp.Column) or each.this.table:
            raise SqlNotSupported(
                "this assignment is not supported", hint="SET column = expression, …", got=each.sql(dialect="postgres")
            )
        if (name := _column(each.this)) in assignments:
            raise SqlError("a column is given two values", hint="keep one of them", column=name)
        assignments[name] = each.expression
    if not assignments:
        raise SqlError("an UPDATE sets a column", hint="SET column = expression, …")
    others = _sources(found.args.get("from_"))
    where = found.args.get("where")
    return Update(table, alias, tuple(assignments.items()), others, where and where.this, _returning(tokens))


def delete(tokens: Tokens) -> Delete:
    """DELETE FROM name [AS alias] [USING …] [WHERE …] [RETURNING …]."""
    tokens.expect("DELETE", "FROM")
    table, alias = _target(tokens, "USING", "WHERE", "RETURNING")
    end = tokens.find_last("RETURNING")
    others: tuple[exp.Expr, ...] = ()
    where: exp.Expr | None = None
    if tokens.peek is not None and (end is None or tokens.at < end):
        found = only(tokens.expression(end, after="DELETE FROM x"), exp.Delete, "this", "using", "where", hint=_ALL)
        others = tuple(found.args.get("using") or ())
        condition = found.args.get("where")
        where = condition.this if condition is not None else None
    return Delete(table, alias, others, where, _returning(tokens))


def _target(tokens: Tokens, *ends: str) -> tuple[QualifiedName, str]:
    table = tokens.qualified("the name of a table")
    named = tokens.word("AS")
    if named or (tokens.peek is not None and not any(tokens.is_word(word) for word in ends)):
        return table, tokens.name("an alias")
    return table, table.item


def _sources(node: exp.Expr | None) -> tuple[exp.Expr, ...]:
    if node is None:
        return ()
    first = node.this
    return (first, *(first.args.pop("joins", None) or ())) if isinstance(first, exp.Expr) else ()


def _returning(tokens: Tokens) -> tuple[exp.Expr, ...]:
    if not tokens.word("RETURNING"):
        tokens.end()
        return ()
    found = only(
        tokens.expression(after="SELECT"), exp.Select, "expressions", hint="RETURNING expressions, and no more"
    )
    return tuple(found.expressions)


def _column(column: exp.Column) -> str:
    name = column.this
    return str(name.this) if name.args.get("quoted") else str(name.this).lower()


def copy(tokens: Tokens, now_ms: int) -> Copy:
    """COPY name [(columns)] FROM path | COPY name | (query) TO path, [WITH] (FORMAT …, HEADER …, DELIMITER …)."""
    tokens.expect("COPY")
    table: QualifiedName | None = None
    columns: tuple[str, ...] = ()
    read: Select | None = None
    if tokens.is_word("("):
        end = tokens.closing()
        tokens.at += 1
        at = _as_of_at(tokens.until(end))
        inner = query(tokens, end if at is None else at)
        read = Select(inner, as_of(tokens, now_ms))
        tokens.expect(")")
    else:
        table = tokens.qualified("the name of a table")
        columns = tokens.names("the name of a column") if tokens.is_word("(") else ()
    writes = tokens.one_of("FROM", "TO")
    if writes is None or (writes == "FROM" and table is None):
        tokens.fail("FROM or TO" if table is not None else "TO")
    path = tokens.string("the path of a file in single quotes")
    if writes == "TO" and read is None:
        assert table is not None
        wanted: list[exp.Expr] = [exp.column(name, quoted=True) for name in columns]
        read = Select(exp.select(*(wanted or [exp.Star()])).from_(table_of(table)), None)
        table, columns = None, ()
    tokens.word("WITH")
    given = _copy_options(tokens)
    tokens.end()
    return Copy(path, table, columns, read, **given)  # type: ignore[arg-type]  # of these types by their names


def _copy_options(tokens: Tokens) -> dict[str, object]:
    found: dict[str, object] = {}

    def one() -> None:
        if tokens.word("FORMAT"):
            kind = value(tokens).lower()
            found["format"] = kind if kind in FORMATS else tokens.fail(f"a format: {', '.join(FORMATS)}")
        elif tokens.word("HEADER"):
            found["header"] = boolean(tokens)
        elif tokens.word("DELIMITER"):
            found["delimiter"] = tokens.string("a character")
        else:
            tokens.fail("an option: FORMAT, HEADER or DELIMITER")

    if tokens.word("("):
        tokens.listed(one)
        tokens.expect(")")
    return found


def table_of(name: QualifiedName) -> exp.Table:
    """A name as queries have it."""
    parts = [exp.to_identifier(part, quoted=True) if part else None for part in name]
    return exp.Table(this=parts[0], db=parts[1], catalog=parts[2])


def subscribe(tokens: Tokens, now_ms: int) -> Subscribe:
    """SUBSCRIBE [TO] name | (query) [AS OF …] [UP TO …] [WITH (SNAPSHOT, PROGRESS)], the clauses in any order."""
    tokens.expect("SUBSCRIBE")
    tokens.word("TO")
    found = subscribed(tokens)
    at, up_to, options = None, None, {"snapshot": True, "progress": False}
    while tokens.peek is not None:
        if tokens.is_word("AS", "OF"):
            at = as_of(tokens, now_ms)
        elif tokens.word("UP", "TO"):
            up_to = time(tokens, now_ms)
        elif tokens.word("WITH"):
            tokens.expect("(")
            for name, given in tokens.listed(lambda: _flag(tokens)):
                options[name] = given
            tokens.expect(")")
        else:
            tokens.fail("AS OF, UP TO or WITH", hint="put a query in parentheses: SUBSCRIBE (SELECT …)")
    return Subscribe(found, at, options["snapshot"], options["progress"], up_to)


def subscribed(tokens: Tokens) -> exp.Query:
    """What is subscribed to: a name, or a query in parentheses."""
    if not tokens.is_word("("):
        return exp.select("*").from_(table_of(tokens.qualified("a name, or a query in parentheses")))
    end = tokens.closing()
    tokens.at += 1
    found = query(tokens, end)
    tokens.expect(")")
    return found


def _flag(tokens: Tokens) -> tuple[str, bool]:
    name = tokens.one_of("SNAPSHOT", "PROGRESS")
    if name is None:
        tokens.fail("SNAPSHOT or PROGRESS")
    return name.lower(), boolean(tokens)


def fetch(tokens: Tokens) -> Fetch:
    """FETCH count | ALL [FROM] cursor [WITH (timeout = '1s')]."""
    tokens.expect("FETCH")
    count = None if tokens.word("ALL") else tokens.integer("a number of rows, or ALL")
    if not tokens.word("FROM"):
        tokens.word("IN")
    cursor = tokens.qualified("the name of a cursor")
    timeout = None
    if tokens.word("WITH"):
        tokens.expect("(")
        tokens.expect("TIMEOUT")
        tokens.word("=")
        timeout = milliseconds(tokens)
        tokens.expect(")")
    tokens.end()
    return Fetch(cursor, count, timeout)


def explain(tokens: Tokens, now_ms: int) -> Explain:
    """EXPLAIN [PLAN FOR] query, EXPLAIN TIMESTAMP FOR query."""
    tokens.expect("EXPLAIN")
    what = Explained.TIMESTAMP if tokens.word("TIMESTAMP") else Explained.PLAN
    tokens.word("PLAN")
    tokens.word("FOR")
    return Explain(select(tokens, now_ms), what)
