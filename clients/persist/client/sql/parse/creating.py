"""CREATE statements."""

from persist.client.sql.errors import SqlNotSupported
from persist.client.sql.parse import values
from persist.client.sql.parse.columns import columns
from persist.client.sql.parse.queries import query, subscribed
from persist.client.sql.parse.statements import DefineCursor, DefineView, Statement
from persist.client.sql.parse.tokens import Tokens
from persist.core.catalog.ddl import statements as ddl
from persist.core.catalog.ddl.described import DATABASE
from persist.core.catalog.ddl.statements import QualifiedName, Refresh, Retain
from persist.core.time.hold import MaxLag, OnLag

KINDS = "DATABASE, SCHEMA, ROLE, TABLE, SOURCE, VIEW, MATERIALIZED VIEW, INDEX, HOLD, CURSOR or SINK"


def create(tokens: Tokens, now_ms: int) -> Statement:
    """CREATE …, whatever it creates. Raises SqlSyntax, SqlNotSupported, and what schemas raise."""
    tokens.expect("CREATE")
    replace = tokens.word("OR", "REPLACE")
    if tokens.one_of("TEMPORARY", "TEMP", "UNLOGGED"):
        raise SqlNotSupported("temporary objects are not supported", hint="use WITH in the query")
    if replace and not tokens.is_word("VIEW"):
        tokens.fail("VIEW", hint="only views are replaced")
    if tokens.word("DATABASE"):
        exists = _if_not_exists(tokens)
        return _ended(tokens, ddl.CreateDatabase(tokens.name(), exists))
    if tokens.word("SCHEMA"):
        exists = _if_not_exists(tokens)
        *database, name = tokens.dotted(2)
        return _ended(tokens, ddl.CreateSchema(name, database[0] if database else None, exists))
    if tokens.one_of("ROLE", "USER"):
        exists = _if_not_exists(tokens)
        name = tokens.name()
        tokens.word("WITH")
        superuser = tokens.one_of("SUPERUSER", "NOSUPERUSER") == "SUPERUSER"
        return _ended(tokens, ddl.CreateRole(name, superuser, exists))
    if tokens.word("TABLE"):
        return _table(tokens)
    if tokens.word("SOURCE"):
        return _source(tokens)
    if tokens.word("VIEW"):
        return _view(tokens, replace)
    if tokens.word("MATERIALIZED", "VIEW"):
        return _materialized_view(tokens)
    if tokens.word("INDEX"):
        return _index(tokens)
    if tokens.word("HOLD"):
        return _hold(tokens, now_ms)
    if tokens.word("CURSOR"):
        return _cursor(tokens, now_ms)
    if tokens.word("SINK"):
        return _sink(tokens)
    tokens.fail(KINDS)


def _ended(tokens: Tokens, statement: Statement) -> Statement:
    tokens.end()
    return statement


def _if_not_exists(tokens: Tokens) -> bool:
    return tokens.word("IF", "NOT", "EXISTS")


def _table(tokens: Tokens) -> Statement:
    exists = _if_not_exists(tokens)
    name = tokens.qualified()
    if tokens.is_word("AS"):
        raise SqlNotSupported(
            "CREATE TABLE AS is not supported", hint="CREATE TABLE with columns, and INSERT INTO … SELECT"
        )
    schema, multiset = columns(tokens)
    timeline, mode, retain = "M", "wal", None
    for option in _options(tokens):
        match option:
            case "RETAIN HISTORY":
                retain = values.retain(tokens)
            case "TIMELINE":
                tokens.word("=")
                timeline = tokens.string("a timeline, such as 'U.mine'")
            case "MODE":
                tokens.word("=")
                mode = tokens.one_of("WAL", "DIRECT") or tokens.fail("WAL or DIRECT")
    return ddl.CreateTable(name, schema, timeline, mode.lower(), multiset, retain, exists)


def _options(tokens: Tokens, *known: str) -> "list[str] | _Options":
    return _Options(tokens, known or ("RETAIN HISTORY", "TIMELINE", "MODE"))


class _Options:
    """WITH (name value, …): gives each name; the caller reads the value before the next. Nothing comes behind."""

    def __init__(self, tokens: Tokens, known: tuple[str, ...]) -> None:
        self._tokens = tokens
        self._known = known
        self._begun = False
        self._seen: set[str] = set()

    def __iter__(self) -> "_Options":
        return self

    def __next__(self) -> str:
        tokens = self._tokens
        if not self._begun:
            if not tokens.word("WITH"):
                tokens.end()
                raise StopIteration
            tokens.expect("(")
        more = not self._begun or tokens.word(",")
        # Document 5 writes a comma behind the last one.
        if (self._begun and not more) or tokens.is_word(")"):
            tokens.expect(")")
            tokens.end()
            raise StopIteration
        self._begun = True
        found = tokens.one_of(*self._known)
        if found is None or found in self._seen:
            tokens.fail(f"an option, each once: {', '.join(self._known)}")
        self._seen.add(found)
        return found


def _source(tokens: Tokens) -> Statement:
    exists = _if_not_exists(tokens)
    name = tokens.qualified()
    tokens.expect("FROM", hint="FROM type (option = value, …)")
    kind = "-".join(tokens.dotted(1, "a type of source"))
    while tokens.word("-"):
        kind += f"-{tokens.name('a type of source')}"
    options = tuple(values.options(tokens).items())
    exports: tuple[ddl.Export, ...] = ()
    if tokens.word("TABLES") or tokens.word("FOR", "TABLES"):
        tokens.expect("(")
        exports = tokens.listed(lambda: ddl.Export(tokens.name(), columns(tokens)[0]))
        tokens.expect(")")
    timeline, claims, retain = "M", False, None
    for option in _options(tokens, "RETAIN HISTORY", "TIMELINE", "EPOCH_MS_TIMELINE"):
        match option:
            case "RETAIN HISTORY":
                retain = values.retain(tokens)
            case "TIMELINE":
                tokens.word("=")
                timeline = tokens.string("a timeline, such as 'U.mine'")
            case "EPOCH_MS_TIMELINE":
                claims = values.boolean(tokens)
    return ddl.CreateSource(name, kind, options, exports, timeline, claims, None, retain, exists)


def _view(tokens: Tokens, replace: bool) -> Statement:
    exists = _if_not_exists(tokens)
    name = tokens.qualified()
    tokens.expect("AS", hint="CREATE VIEW name AS SELECT …")
    return DefineView(name, query(tokens), None, None, replace, exists)


def _materialized_view(tokens: Tokens) -> Statement:
    exists = _if_not_exists(tokens)
    name = tokens.qualified()
    refresh: Refresh = Refresh()
    retain: Retain | None = None
    runner = ""
    if tokens.word("WITH"):
        tokens.expect("(")
        while True:
            if tokens.word("REFRESH"):
                refresh = values.refresh(tokens)
            elif tokens.word("RETAIN", "HISTORY"):
                retain = values.retain(tokens)
            elif tokens.word("RUNNER"):
                runner = values.runner(tokens)
            else:
                tokens.fail("an option: REFRESH, RETAIN HISTORY or RUNNER")
            if not tokens.word(",") or tokens.is_word(")"):
                break
        tokens.expect(")")
    tokens.expect("AS", hint="CREATE MATERIALIZED VIEW name [WITH (REFRESH EVERY '1s')] AS SELECT …")
    return DefineView(name, query(tokens), refresh, retain, False, exists, runner)


def _index(tokens: Tokens) -> Statement:
    exists = _if_not_exists(tokens)
    if tokens.is_word("ON"):
        tokens.fail("the name of the index", hint="indexes have names: CREATE INDEX name ON t (columns)")
    name = tokens.name("the name of the index")
    tokens.expect("ON")
    on = tokens.qualified("what the index is on")
    keys = tokens.names("the name of a column")
    retain = None
    for _ in _options(tokens, "RETAIN HISTORY"):
        retain = values.retain(tokens)
    return ddl.CreateIndex(name, on, keys, retain, exists)


def _hold(tokens: Tokens, now_ms: int) -> Statement:
    exists = _if_not_exists(tokens)
    # Document 5 writes one without a name, too: CREATE HOLD ON i.
    name = None if tokens.is_word("ON") else tokens.qualified("the name of the hold")
    tokens.expect("ON", hint="CREATE HOLD name ON objects [AT time] [WITH (MAX LAG = '3h'::INTERVAL)]")
    objects: tuple[QualifiedName, ...] = ()
    all_of: tuple[str, ...] = ()
    if tokens.word("DATABASE"):
        all_of = (tokens.name("the name of a database"),)
    elif tokens.word("SCHEMA"):
        parts = tokens.dotted(2, "the name of a schema")
        all_of = parts if len(parts) == 2 else (DATABASE, *parts)
    else:
        objects = tokens.listed(lambda: tokens.qualified("the name of a collection"))
    at = values.time(tokens, now_ms) if tokens.word("AT") else None
    max_lag, on_lag = _lag_options(tokens)
    if name is None:
        first = objects[0] if objects else QualifiedName(all_of[-1])
        name = first._replace(item=f"{first.item}_hold")
    return ddl.CreateHold(name, objects, all_of, at, max_lag, on_lag, exists)


def _lag_options(tokens: Tokens) -> tuple[MaxLag | None, OnLag]:
    max_lag: MaxLag | None = None
    on_lag = OnLag.ADVANCE
    for option in _options(tokens, "MAX LAG", "ON LAG"):
        if option == "MAX LAG":
            tokens.word("=")
            max_lag = values.lag(tokens)
        else:
            on_lag = values.on_lag(tokens)
    return max_lag, on_lag


def _cursor(tokens: Tokens, now_ms: int) -> Statement:
    exists = _if_not_exists(tokens)
    name = tokens.qualified("the name of the cursor")
    tokens.expect("FOR", "SUBSCRIBE", hint="CREATE CURSOR name FOR SUBSCRIBE name | (query)")
    tokens.word("TO")
    found = subscribed(tokens)
    at = values.time(tokens, now_ms) if tokens.word("AT") or tokens.word("AS", "OF") else None
    max_lag, on_lag = _lag_options(tokens)
    return DefineCursor(name, found, at, max_lag, on_lag, exists)


def _sink(tokens: Tokens) -> Statement:
    exists = _if_not_exists(tokens)
    name = tokens.qualified("the name of the sink")
    tokens.expect("FROM")
    on = tokens.qualified("what goes on")
    tokens.expect("INTO")
    kind = tokens.name("a type of sink")
    options = tuple(values.options(tokens).items())
    return _ended(tokens, ddl.CreateSink(name, on, kind, options, exists))
