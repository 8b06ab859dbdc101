"""Statements as text: what is printed of a statement parses to it."""

from collections.abc import Iterable, Sequence
from typing import Final

from persist.client.sql.parse import statements as s
from persist.client.sql.parse.changing import PRIVILEGES, WORDS
from persist.client.sql.parse.columns import written_type
from persist.client.sql.parse.literals import Literals
from persist.client.sql.parse.tokens import RESERVED, Dialect
from persist.core.catalog.ddl import statements as ddl
from persist.core.catalog.ddl.statements import QualifiedName, Refresh, Retain, quoted
from persist.core.catalog.values import ObjectType
from persist.core.data.schema import Schema
from persist.core.time.hold import Interval, MaxLag, OnLag
from persist.core.time.read_time import AsOf
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

_LETTERS: Final = {letter: word for word, letter in PRIVILEGES.items()}


def printed(statement: s.Statement) -> str:
    """The text of a statement, in one line but for what is in quotes."""
    match statement:
        case s.Select():
            return _select(statement)
        case s.Insert() | s.Update() | s.Delete() | s.Copy():
            return _changing(statement)
        case s.Begin(isolation):
            return "BEGIN" + (f" ISOLATION LEVEL {isolation.upper()}" if isolation else "")
        case s.CommitTransaction():
            return "COMMIT"
        case s.Rollback():
            return "ROLLBACK"
        case s.Subscribe() | s.Fetch() | s.Show() | s.SetVariable() | s.AlterSource() | s.Explain():
            return _session(statement)
        case s.DefineView() | s.DefineCursor():
            return _definition(statement)
        case _:
            return _ddl(statement)


def _name(name: QualifiedName) -> str:
    return ".".join(_quoted(part) for part in (name.database, name.schema, name.item) if part is not None)


def _quoted(part: str) -> str:
    return '"' + part + '"' if part.upper() in Dialect.Tokenizer.KEYWORDS or part in RESERVED else quoted(part)


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _sql(node: exp.Expr) -> str:
    return node.sql(dialect="postgres")


def _list(nodes: Iterable[exp.Expr]) -> str:
    return ", ".join(_sql(node) for node in nodes)


def _as_of(as_of: AsOf | None) -> str:
    return "" if as_of is None else f" AS OF {'AT LEAST ' if as_of.at_least else ''}{as_of.time}"


def _select(statement: s.Select) -> str:
    return _sql(statement.query) + _as_of(statement.as_of)


def _changing(statement: s.Insert | s.Update | s.Delete | s.Copy) -> str:
    match statement:
        case s.Insert(table, columns, query, returning):
            named = f" ({', '.join(map(_quoted, columns))})" if columns else ""
            rows = query.source if isinstance(query, Literals) else _sql(query)
            return f"INSERT INTO {_name(table)}{named} {rows}{_returning(returning)}"
        case s.Update(table, alias, assignments, others, where, returning):
            pairs = ", ".join(f"{_quoted(name)} = {_sql(value)}" for name, value in assignments)
            sources = f" FROM {_sources(others)}" if others else ""
            return (
                f"UPDATE {_name(table)} AS {_quoted(alias)} SET {pairs}{sources}{_where(where)}{_returning(returning)}"
            )
        case s.Delete(table, alias, others, where, returning):
            sources = f" USING {_sources(others)}" if others else ""
            return f"DELETE FROM {_name(table)} AS {_quoted(alias)}{sources}{_where(where)}{_returning(returning)}"
        case s.Copy():
            options = [f"HEADER {str(statement.header).upper()}", f"DELIMITER {_text(statement.delimiter)}"]
            options += [f"FORMAT {statement.format}"] if statement.format else []
            into = f" ({', '.join(map(_quoted, statement.columns))})" if statement.columns else ""
            what = f"{_name(statement.table)}{into} FROM" if statement.table else ""
            if statement.query is not None:
                what = f"({_select(statement.query)}) TO"
            return f"COPY {what} {_text(statement.path)} WITH ({', '.join(options)})"


def _sources(nodes: Sequence[exp.Expr]) -> str:
    first, *rest = nodes
    return _sql(first) + "".join(
        f" {_sql(each)}" if isinstance(each, exp.Join) and not _sql(each).lstrip().startswith(",") else _sql(each)
        if isinstance(each, exp.Join) else f", {_sql(each)}"
        for each in rest
    )  # fmt: skip


def _where(where: exp.Expr | None) -> str:
    return "" if where is None else f" WHERE {_sql(where)}"


def _returning(nodes: Sequence[exp.Expr]) -> str:
    return f" RETURNING {_list(nodes)}" if nodes else ""


def _session(statement: s.Subscribe | s.Fetch | s.Show | s.SetVariable | s.AlterSource | s.Explain) -> str:
    match statement:
        case s.Subscribe(query, as_of, snapshot, progress, up_to):
            end = "" if up_to is None else f" UP TO {up_to}"
            options = f"SNAPSHOT = {str(snapshot).upper()}, PROGRESS = {str(progress).upper()}"
            return f"SUBSCRIBE ({_sql(query)}){_as_of(as_of)}{end} WITH ({options})"
        case s.Fetch(cursor, count, timeout_ms):
            wait = "" if timeout_ms is None else f" WITH (TIMEOUT = '{timeout_ms}ms')"
            return f"FETCH {'ALL' if count is None else count} FROM {_name(cursor)}{wait}"
        case s.Show():
            return _show(statement)
        case s.SetVariable(name, values):
            return f"SET {_quoted(name)} = {', '.join(map(_text, values))}" if values else f"RESET {_quoted(name)}"
        case s.AlterSource(name, options, exists):
            return f"ALTER SOURCE {'IF EXISTS ' if exists else ''}{_name(name)} SET{_options(options)}"
        case s.Explain(query, what):
            return f"EXPLAIN {what.upper()} FOR {_select(query)}"


def _show(statement: s.Show) -> str:
    if statement.what == "VARIABLE":
        return f"SHOW {_quoted(statement.variable)}"
    if statement.what == "CREATE":
        assert statement.of is not None
        assert statement.kind is not None
        return f"SHOW CREATE {WORDS[statement.kind]} {_name(statement.of)}"
    of = "" if statement.of is None else f" FROM {_name(statement.of)}"
    return f"SHOW {statement.what}{of}" + ("" if statement.like is None else f" LIKE {_text(statement.like)}")


def _definition(statement: s.Definition) -> str:
    match statement:
        case s.DefineView(name, query, refresh, retain, replace, exists, runner):
            kind = "VIEW" if refresh is None else "MATERIALIZED VIEW"
            options = [*(_refresh(refresh)), *_retain(retain), *([f"RUNNER = {_text(runner)}"] if runner else [])]
            words = f"CREATE {'OR REPLACE ' if replace else ''}{kind}{_exists(exists)} {_name(name)}"
            return f"{words}{_with(options)} AS {_sql(query)}"
        case s.DefineCursor(name, query, at, max_lag, on_lag, exists):
            time = "" if at is None else f" AT {at}"
            return f"CREATE CURSOR{_exists(exists)} {_name(name)} FOR SUBSCRIBE ({_sql(query)}){time}" + _with(
                _lag(max_lag, on_lag)
            )


def _exists(exists: bool) -> str:
    return " IF NOT EXISTS" if exists else ""


def _with(options: Sequence[str]) -> str:
    return f" WITH ({', '.join(options)})" if options else ""


def _retain(retain: Retain | None) -> list[str]:
    if retain is None:
        return []
    return ["RETAIN HISTORY FOREVER" if retain.by is None else f"RETAIN HISTORY FOR {retain.by}"]


def _refresh(refresh: Refresh | None) -> list[str]:
    if refresh is None:
        return []
    return ["REFRESH ON COMMIT" if refresh.every is None else f"REFRESH EVERY {refresh.every}"]


def _lag(max_lag: MaxLag | None, on_lag: OnLag) -> list[str]:
    lag = f"'{max_lag.ms}ms'::INTERVAL" if isinstance(max_lag, Interval) else str(max_lag)
    return [*([] if max_lag is None else [f"MAX LAG = {lag}"]), f"ON LAG = {on_lag.upper()}"]


def _columns(schema: Schema, keyed: bool) -> str:
    columns = [
        f"{_quoted(field.name)} {written_type(field.type)}{'' if field.nullable else ' NOT NULL'}"
        for field in [*schema.key, *schema.val]
    ]
    if keyed:
        columns.append(f"PRIMARY KEY ({', '.join(map(_quoted, schema.key.names))})")
    return f"({', '.join(columns)})"


def _options(options: Sequence[tuple[str, str]]) -> str:
    return f" ({', '.join(f'{_text(name)} = {_text(value)}' for name, value in options)})" if options else ""


def _object(kind: ObjectType, name: QualifiedName) -> str:
    return f"{WORDS[kind]} {_name(name)}"


def _ddl(statement: ddl.Statement) -> str:
    match statement:
        case ddl.CreateDatabase(name, exists):
            return f"CREATE DATABASE{_exists(exists)} {_quoted(name)}"
        case ddl.CreateSchema(name, database, exists):
            return f"CREATE SCHEMA{_exists(exists)} {_name(QualifiedName(name, None, database))}"
        case ddl.CreateRole(name, superuser, exists):
            return f"CREATE ROLE{_exists(exists)} {_quoted(name)}{' SUPERUSER' if superuser else ''}"
        case ddl.CreateTable():
            options = [
                *_retain(statement.retain),
                f"TIMELINE = {_text(statement.timeline)}",
                f"MODE = {statement.mode}",
            ]
            columns = _columns(statement.schema, not statement.multiset)
            return f"CREATE TABLE{_exists(statement.if_not_exists)} {_name(statement.name)} {columns}{_with(options)}"
        case ddl.CreateSource():
            return _source(statement)
        case ddl.CreateIndex(name, on, columns, retain, exists):
            keys = ", ".join(map(_quoted, columns))
            return f"CREATE INDEX{_exists(exists)} {_quoted(name)} ON {_name(on)} ({keys}){_with(_retain(retain))}"
        case ddl.CreateHold():
            return _hold(statement)
        case ddl.CreateSink(name, on, kind, options, exists):
            return (
                f"CREATE SINK{_exists(exists)} {_name(name)} FROM {_name(on)} INTO {_quoted(kind)}{_options(options)}"
            )
        case _:
            return _altering(statement)


def _source(statement: ddl.CreateSource) -> str:
    kind = "-".join(_quoted(part) for part in statement.type.split("-"))
    tables = ", ".join(f"{_quoted(each.name)} {_columns(each.schema, True)}" for each in statement.exports)
    options = [*_retain(statement.retain), f"TIMELINE = {_text(statement.timeline)}"]
    options += ["EPOCH_MS_TIMELINE = TRUE"] if statement.claims_epoch else []
    fed = f" FOR TABLES ({tables})" if tables else ""
    given = _options(statement.options)
    return (
        f"CREATE SOURCE{_exists(statement.if_not_exists)} {_name(statement.name)} "
        f"FROM {kind}{given}{fed}{_with(options)}"
    )


def _hold(statement: ddl.CreateHold) -> str:
    on = ", ".join(_name(name) for name in statement.objects)
    if statement.all_of:
        kind = "DATABASE" if len(statement.all_of) == 1 else "SCHEMA"
        on = f"{kind} {'.'.join(map(_quoted, statement.all_of))}"
    time = "" if statement.at is None else f" AT {statement.at}"
    options = _with(_lag(statement.max_lag, statement.on_lag))
    return f"CREATE HOLD{_exists(statement.if_not_exists)} {_name(statement.name)} ON {on}{time}{options}"


def _altering(statement: ddl.Statement) -> str:
    match statement:
        case ddl.Rename(kind, name, to, swap, exists):
            verb = "SWAP WITH" if swap else "RENAME TO"
            return f"ALTER {WORDS[kind]}{' IF EXISTS' if exists else ''} {_name(name)} {verb} {_quoted(to)}"
        case ddl.SetOwner(kind, name, role):
            return f"ALTER {_object(kind, name)} OWNER TO {_quoted(role)}"
        case ddl.SetRetain(kind, name, retain):
            return f"ALTER {_object(kind, name)} SET ({_retain(retain)[0]})"
        case ddl.AddColumns(name, columns, exists):
            added = ", ".join(
                f"ADD COLUMN{_exists(each.if_not_exists)} {_quoted(each.name)} {written_type(each.type)}"
                for each in columns
            )
            return f"ALTER TABLE{' IF EXISTS' if exists else ''} {_name(name)} {added}"
        case ddl.AdvanceHold(name, to):
            return f"ALTER HOLD {_name(name)} ADVANCE" + ("" if to is None else f" TO {to}")
        case ddl.Acknowledge(name, to):
            return f"ACKNOWLEDGE {_name(name)} UP TO {to}"
        case ddl.Drop(kind, names, cascade, exists):
            listed = ", ".join(map(_name, names))
            return f"DROP {WORDS[kind]}{' IF EXISTS' if exists else ''} {listed}{' CASCADE' if cascade else ''}"
        case ddl.Grant(privileges, kind, name, roles, revoke):
            words = ", ".join(_LETTERS[letter] for letter in privileges)
            ends = ("REVOKE", "FROM") if revoke else ("GRANT", "TO")
            return f"{ends[0]} {words} ON {_object(kind, name)} {ends[1]} {', '.join(map(_quoted, roles))}"
        case ddl.CommentOn(kind, name, text, column):
            on = _object(kind, name) if column is None else f"COLUMN {_name(name)}.{_quoted(column)}"
            return f"COMMENT ON {on} IS {'NULL' if text is None else _text(text)}"
        case ddl.SetSystem(name, value):
            end = f"RESET {_quoted(name)}" if value is None else f"SET {_quoted(name)} = {_text(value)}"
            return f"ALTER SYSTEM {end}"
        case _:
            raise TypeError(f"no text of its own: {type(statement).__name__}")
