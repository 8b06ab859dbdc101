"""Statements that change, drop, allow and comment on what there is, and those of sessions."""

from typing import Final

from persist.client.sql.errors import SqlNotSupported
from persist.client.sql.parse import values
from persist.client.sql.parse.columns import column
from persist.client.sql.parse.statements import AlterSource, Begin, SetVariable, Show, Statement
from persist.client.sql.parse.tokens import Tokens
from persist.core.catalog.ddl import statements as ddl
from persist.core.catalog.ddl.privileges import APPLY
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.values import ObjectType
from persist.core.time.isolation import Isolation

KINDS: Final = {
    "DATABASE": ObjectType.DATABASE,
    "SCHEMA": ObjectType.SCHEMA,
    "ROLE": ObjectType.ROLE,
    "TABLE": ObjectType.TABLE,
    "SOURCE": ObjectType.SOURCE,
    "VIEW": ObjectType.VIEW,
    "MATERIALIZED VIEW": ObjectType.MATERIALIZED_VIEW,
    "INDEX": ObjectType.INDEX,
    "HOLD": ObjectType.HOLD,
    "CURSOR": ObjectType.CURSOR,
    "SINK": ObjectType.SINK,
    "CLUSTER": ObjectType.CLUSTER,
}
WORDS: Final = {kind: word for word, kind in KINDS.items()}

PRIVILEGES: Final = {"SELECT": "r", "INSERT": "a", "UPDATE": "w", "DELETE": "d", "USAGE": "U", "CREATE": "C"}

_OF_COLUMNS: Final = {
    "DROP": (
        "columns are not dropped: rows that differ in one alone would have to become equal at every time",
        "a view without it: CREATE VIEW v AS SELECT the others FROM the table",
    ),
    "RENAME": (
        "columns are not renamed: what was written knows them by their names",
        "a view: CREATE VIEW v AS SELECT a AS b, … FROM the table",
    ),
    "ALTER": (
        "columns do not change: the order of what was written is that of values of their types",
        "CREATE TABLE another one with the type, INSERT INTO it … SELECT, and ALTER TABLE … SWAP WITH it",
    ),
}
"""What is refused of the columns of a table, why, and what to do instead. Source: docs/adr/0021-columns-by-ids.md."""
_NOT_ADDED: Final = {
    "DEFAULT": (
        "a column that is added has no default: rows before it would have to come to hold the value at every time",
        "ADD COLUMN without it, and UPDATE … SET: rows have the value from then on",
    ),
    "NOT NULL": (
        "a column that is added may be null: rows before it have no value",
        "ADD COLUMN without NOT NULL; or CREATE TABLE another one with the column, INSERT INTO it … SELECT, and "
        "ALTER TABLE … SWAP WITH it",
    ),
    "PRIMARY KEY": (
        "a column that is added is no key: rows before it have no value",
        "CREATE TABLE another one with the key, INSERT INTO it … SELECT, and ALTER TABLE … SWAP WITH it",
    ),
}
"""What is refused of a column that is added, why, and what to do instead."""
_CONSTRAINTS: Final = ("CONSTRAINT", "PRIMARY", "UNIQUE", "FOREIGN", "CHECK")
"""What ALTER TABLE … ADD and the like may be about, besides columns."""

LISTS: Final = (
    "DATABASES", "SCHEMAS", "ROLES", "OBJECTS", "TABLES", "SOURCES", "VIEWS", "MATERIALIZED VIEWS", "INDEXES",
    "HOLDS", "CURSORS", "SINKS",
)  # fmt: skip
"""What SHOW lists."""


def kind_of(tokens: Tokens) -> ObjectType:
    """A kind of object. Raises SqlSyntax."""
    found = tokens.one_of(*KINDS)
    return KINDS[found] if found else tokens.fail(f"a kind of object: {', '.join(KINDS)}")


def named(tokens: Tokens, kind: ObjectType) -> QualifiedName:
    """The name of an object of a kind; a schema's may have its database before it."""
    if kind is ObjectType.SCHEMA:
        *database, schema = tokens.dotted(2)
        return QualifiedName(schema, None, database[0] if database else None)
    if kind in (ObjectType.DATABASE, ObjectType.ROLE, ObjectType.CLUSTER):
        return QualifiedName(tokens.name())
    return tokens.qualified()


def drop(tokens: Tokens) -> Statement:
    """DROP kind [IF EXISTS] names [CASCADE | RESTRICT]."""
    tokens.expect("DROP")
    kind = kind_of(tokens)
    exists = tokens.word("IF", "EXISTS")
    names = tokens.listed(lambda: named(tokens, kind))
    cascade = tokens.one_of("CASCADE", "RESTRICT") == "CASCADE"
    tokens.end()
    return ddl.Drop(kind, names, cascade, exists)


def alter(tokens: Tokens, now_ms: int) -> Statement:
    """ALTER SYSTEM …; ALTER kind name RENAME TO | SWAP WITH | OWNER TO | SET (RETAIN HISTORY …) | ADVANCE [TO] |
    ADD COLUMN.
    """
    tokens.expect("ALTER")
    if tokens.word("SYSTEM"):
        return _alter_system(tokens)
    kind = kind_of(tokens)
    exists = tokens.word("IF", "EXISTS")
    name = named(tokens, kind)
    if kind is ObjectType.HOLD and tokens.word("ADVANCE"):
        to = values.time(tokens, now_ms) if tokens.word("TO") else None
        return _ended(tokens, ddl.AdvanceHold(name, to))
    if tokens.word("RENAME", "TO"):
        return _ended(tokens, ddl.Rename(kind, name, tokens.name(), False, exists))
    if tokens.word("SWAP", "WITH"):
        return _ended(tokens, ddl.Rename(kind, name, tokens.name(), True, exists))
    if tokens.word("OWNER", "TO"):
        return _ended(tokens, ddl.SetOwner(kind, name, tokens.name("the name of a role")))
    if tokens.word("SET", "(", "RETAIN", "HISTORY"):
        retain = values.retain(tokens)
        tokens.expect(")")
        return _ended(tokens, ddl.SetRetain(kind, name, retain))
    if kind is ObjectType.SOURCE and tokens.word("SET"):
        return _ended(tokens, AlterSource(name, tuple(values.options(tokens, optional=False).items()), exists))
    if kind is ObjectType.TABLE and _is_of_column(tokens, "ADD"):
        return _ended(tokens, ddl.AddColumns(name, tokens.listed(lambda: _added(tokens)), exists))
    _check_no_column(tokens, kind)
    tokens.fail(
        "RENAME TO, SWAP WITH, OWNER TO, SET (RETAIN HISTORY …)"
        + {
            ObjectType.HOLD: " or ADVANCE",
            ObjectType.TABLE: " or ADD COLUMN",
            ObjectType.SOURCE: " or SET (option = value, …)",
        }.get(kind, "")
    )  # fmt: skip


def _added(tokens: Tokens) -> ddl.AddedColumn:
    """ADD [COLUMN] [IF NOT EXISTS] name type. Raises SqlNotSupported for what else may be said of a column."""
    tokens.expect("ADD")
    if not _is_of_column(tokens):
        tokens.fail("COLUMN")
    tokens.word("COLUMN")
    exists = tokens.word("IF", "NOT", "EXISTS")
    field, constraints = column(tokens)
    for words, (message, hint) in _NOT_ADDED.items():
        if words in constraints:
            raise SqlNotSupported(message, hint=hint, at=f"{field.name} … {words}")
    return ddl.AddedColumn(field.name, field.type, exists)


def _is_of_column(tokens: Tokens, *verbs: str) -> bool:
    """Whether one of these verbs comes next, if any are given, and then a column rather than a constraint."""
    at = tokens.at
    found = not verbs or tokens.one_of(*verbs) is not None
    is_constraint = tokens.peek is None or any(map(tokens.is_word, _CONSTRAINTS))
    tokens.at = at
    return found and not is_constraint


def _check_no_column(tokens: Tokens, kind: ObjectType) -> None:
    """Raises SqlNotSupported for what would change the columns of a table."""
    verb = next((each for each in _OF_COLUMNS if tokens.is_word(each)), None)
    if kind is ObjectType.TABLE and verb is not None and _is_of_column(tokens, verb):
        message, hint = _OF_COLUMNS[verb]
        raise SqlNotSupported(message, hint=hint, at=f"{verb} COLUMN")


def _alter_system(tokens: Tokens) -> Statement:
    if tokens.word("RESET"):
        return _ended(tokens, ddl.SetSystem(tokens.name("a system variable"), None))
    tokens.expect("SET")
    name = tokens.name("a system variable")
    if not tokens.word("="):
        tokens.expect("TO")
    return _ended(tokens, ddl.SetSystem(name, values.value(tokens)))


def _ended(tokens: Tokens, statement: Statement) -> Statement:
    tokens.end()
    return statement


def acknowledge(tokens: Tokens, now_ms: int) -> Statement:
    """ACKNOWLEDGE cursor UP TO time."""
    tokens.expect("ACKNOWLEDGE")
    name = tokens.qualified("the name of a cursor")
    tokens.expect("UP", "TO", hint="a position that FETCH gave")
    return _ended(tokens, ddl.Acknowledge(name, values.time(tokens, now_ms)))


def grant(tokens: Tokens) -> Statement:
    """GRANT privileges ON [kind] name TO roles; REVOKE … FROM roles."""
    revoke = tokens.one_of("GRANT", "REVOKE") == "REVOKE"
    if tokens.word("ALL"):
        tokens.word("PRIVILEGES")
        letters = ""
    else:
        asked = tokens.listed(
            lambda: tokens.one_of(*PRIVILEGES) or tokens.fail(f"a privilege: {', '.join(PRIVILEGES)}")
        )
        letters = "".join(letter for word, letter in PRIVILEGES.items() if word in asked)
    tokens.expect("ON")
    found = tokens.one_of(*KINDS)
    kind = KINDS[found] if found else ObjectType.TABLE
    # ALL: what may be granted on such a thing; where there is nothing, the leader says so.
    letters = letters or "".join(each for each in APPLY.get(kind, "") if each in PRIVILEGES.values()) or "r"
    name = named(tokens, kind)
    tokens.expect("FROM" if revoke else "TO")
    roles = tokens.listed(lambda: tokens.name("the name of a role"))
    return _ended(tokens, ddl.Grant(letters, kind, name, roles, revoke))


def comment(tokens: Tokens) -> Statement:
    """COMMENT ON kind name IS text | NULL; COMMENT ON COLUMN name.column IS …: of whatever has columns."""
    tokens.expect("COMMENT", "ON")
    column = None
    if tokens.word("COLUMN"):
        *parts, column = tokens.dotted(4)
        if not parts:
            tokens.fail(". and the name of a column")
        kind, name = ObjectType.TABLE, QualifiedName(*reversed(parts))
    else:
        kind = kind_of(tokens)
        name = named(tokens, kind)
    tokens.expect("IS")
    text = None if tokens.word("NULL") else tokens.string()
    return _ended(tokens, ddl.CommentOn(kind, name, text, column))


def begin(tokens: Tokens) -> Statement:
    """BEGIN | START TRANSACTION [ISOLATION LEVEL …]."""
    if not tokens.word("START", "TRANSACTION"):
        tokens.expect("BEGIN")
        tokens.one_of("TRANSACTION", "WORK")
    level = None
    if tokens.word("ISOLATION", "LEVEL"):
        found = tokens.one_of("STRICT SERIALIZABLE", "SERIALIZABLE")
        hint = "a transaction is never less than serializable: leave out the weaker level"
        level = Isolation(found.lower()) if found else tokens.fail("STRICT SERIALIZABLE or SERIALIZABLE", hint=hint)
    if tokens.is_word("READ", "ONLY"):
        raise SqlNotSupported("READ ONLY is not supported", hint="BEGIN: what writes nothing changes nothing")
    tokens.word("READ", "WRITE")
    return _ended(tokens, Begin(level))


def setting(tokens: Tokens) -> Statement:
    """SET [SESSION] name = | TO values; RESET name."""
    if tokens.word("RESET"):
        return _ended(tokens, SetVariable(tokens.name("a variable")))
    tokens.expect("SET")
    if tokens.word("LOCAL"):
        raise SqlNotSupported("SET LOCAL is not supported", hint="SET it, and RESET it behind COMMIT")
    tokens.word("SESSION")
    if tokens.word("TRANSACTION", "ISOLATION", "LEVEL"):
        name = "isolation"
    elif tokens.is_word("ROLE") and not (tokens.is_word("ROLE", "=") or tokens.is_word("ROLE", "TO")):
        tokens.at += 1
        return _ended(tokens, SetVariable("role", () if tokens.word("NONE") else (_value(tokens),)))
    else:
        name = tokens.name("a variable")
        if not tokens.word("="):
            tokens.expect("TO")
    return _ended(tokens, SetVariable(name, tokens.listed(lambda: _value(tokens))))


def _value(tokens: Tokens) -> str:
    text = tokens.optional_string()
    if text is not None:
        return text
    words = [values.value(tokens)]
    while tokens.peek is not None and not tokens.is_word(","):
        dot = tokens.word(".")
        if dot or words[-1:] == ["."]:
            words[-1] += f".{values.value(tokens)}"
        else:
            words.append(values.value(tokens))
    return " ".join(words)


def show(tokens: Tokens) -> Statement:
    """SHOW list [FROM schema] [LIKE pattern]; SHOW COLUMNS FROM name; SHOW CREATE kind name; SHOW variable | ALL."""
    tokens.expect("SHOW")
    if tokens.word("CREATE"):
        kind = kind_of(tokens)
        return _ended(tokens, Show("CREATE", named(tokens, kind), kind=kind))
    if tokens.word("COLUMNS"):
        if not tokens.word("FROM"):
            tokens.expect("IN")
        return _ended(tokens, Show("COLUMNS", tokens.qualified()))
    listed = tokens.one_of(*LISTS)
    if listed is None:
        if tokens.word("ALL"):
            return _ended(tokens, Show("ALL"))
        is_of_list = any(tokens.is_word(*each.removesuffix("S").split()) for each in LISTS)
        if tokens.peek is None or (is_of_list and not tokens.is_word("ROLE")):
            tokens.fail("what to show", hint=f"{', '.join(LISTS)}, COLUMNS FROM name, or a variable")
        return _ended(tokens, Show("VARIABLE", variable=tokens.name("what to show, or a variable")))
    of = None
    if tokens.one_of("FROM", "IN"):
        *database, name = tokens.dotted(2, "the name of a schema")
        of = QualifiedName(name, None, database[0] if database else None)
    like = tokens.string() if tokens.word("LIKE") else None
    return _ended(tokens, Show(listed, of, like))
