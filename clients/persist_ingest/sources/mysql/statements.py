"""What a statement in the log does to tables: the server logs rows, but DDL as the text that was given.

A statement is read only as far as it must be. What is not known to leave a table's rows and form alone has altered
every table that it names. Source: MariaDB documentation, SQL statements; sources.md section 1, semantics seen (DDL).
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

Name = tuple[str, str]


class Effect(Enum):
    """What a statement did to a table."""

    EMPTIED = "emptied"
    ALTERED = "altered"


@dataclass(frozen=True, slots=True)
class _Token:
    """``text``: a name or word as it is meant; ``plain``: in capitals where it is no quoted name, else empty."""

    text: str
    plain: str


# SUBTLE: what is in a comment that only some servers read counts, whichever those are.
_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+|\#[^\n]*|--(?=\s|$)[^\n]*|/\*(?!M?!).*?(?:\*/|$)|/\*M?!\d*|\*/)
    | `(?P<back>(?:[^`]|``)*)`
    | '(?P<single>(?:[^'\\]|\\.|'')*)'
    | "(?P<double>(?:[^"\\]|\\.|"")*)"
    | (?P<word>[\w$\u0080-\uffff]+)
    | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_UNESCAPED: Final = re.compile(_TOKEN.pattern.replace(r"'\\]|\\.|", "']|").replace(r'"\\]|\\.|', '"]|'), _TOKEN.flags)
_STRAY: Final = "\0"
"""A quote that is not closed."""
_ENDS: Final = frozenset({"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE"})
_HARMLESS: Final = frozenset(
    {"GRANT", "REVOKE", "FLUSH", "ANALYZE", "OPTIMIZE", "CHECK", "USE", "INSTALL", "UNINSTALL", "XA"}
)
_OTHERS: Final = frozenset(
    {
        "USER", "ROLE", "VIEW", "TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "INDEX", "SEQUENCE", "SERVER", "PACKAGE",
        "DEFINER", "ALGORITHM", "SQL", "AGGREGATE", "TEMPORARY", "UNIQUE", "FULLTEXT", "SPATIAL",
    }
)  # fmt: skip
"""What CREATE, DROP and ALTER are of beside tables and databases."""
_SETTINGS: Final = frozenset(
    {
        "ENGINE", "COMMENT", "AUTO_INCREMENT", "ROW_FORMAT", "ALGORITHM", "LOCK", "KEY_BLOCK_SIZE",
        "STATS_PERSISTENT", "STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES",
    }
)  # fmt: skip
"""What ALTER TABLE sets, each to one value, that changes neither rows nor columns."""
_OF_INDEXES: Final = frozenset({"BTREE", "HASH", "RTREE", "USING", "IGNORED", "NOT", "COMMENT", "KEY_BLOCK_SIZE"})
"""What may follow the columns of an index."""
_DEFINING: Final = frozenset({"RENAME", "TRUNCATE", "REPAIR"})
"""Statements beside CREATE, DROP and ALTER that change no table but those that they name."""
_INDEXES: Final = frozenset({"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL"})
_TYPES: Final = frozenset(
    {
        "TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "DECIMAL", "NUMERIC", "FLOAT", "DOUBLE", "BIT",
        "BOOL", "BOOLEAN", "CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "JSON", "BINARY",
        "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB", "DATE", "DATETIME", "TIME", "YEAR", "ENUM", "SET",
    }
)  # fmt: skip
_NAMED_AFTER: Final = frozenset({"CHARACTER", "CHARSET", "COLLATE", "COMMENT", "AFTER"})


def effects(statement: bytes, database: str, tables: Collection[Name]) -> dict[Name, Effect]:
    """What it did to these tables; none that are not there. ``database``: that of names without one."""
    try:
        text = statement.decode("utf8")
    except UnicodeDecodeError:
        return dict.fromkeys(tables, Effect.ALTERED)
    known = {(table[0].lower(), table[1].lower()): table for table in tables}
    found: dict[Name, Effect] = {}
    # SUBTLE: whether a backslash escapes is up to the session's sql_mode: what either reading says counts.
    readings = [list(_tokens(text, form)) for form in ((_TOKEN, _UNESCAPED) if "\\" in text else (_TOKEN,))]
    # The server understood it, so a reading in which a quote is never closed is not its own.
    possible = [tokens for tokens in readings if all(token.plain != _STRAY for token in tokens)]
    if not possible:
        return dict.fromkeys(tables, Effect.ALTERED)
    for tokens in possible:
        if tokens:
            for name, effect in _effects(tokens, database.lower(), known).items():
                found[name] = effect if found.get(name, effect) is effect else Effect.ALTERED
    return {known[name]: effect for name, effect in found.items() if name in known}


def words(statement: bytes) -> list[str]:
    """Its words in capitals, names quoted or not."""
    return [(token.plain or token.text.upper()) for token in _tokens(statement.decode("utf8", "replace"))]


def _tokens(text: str, form: re.Pattern[str] = _TOKEN) -> Iterator[_Token]:
    for match in form.finditer(text):
        kind = match.lastgroup
        if kind == "space":
            continue
        value = match[str(kind)]
        if kind == "back":
            yield _Token(value.replace("``", "`"), "")
        elif kind in ("single", "double"):
            # With ANSI_QUOTES a name may be in such quotes.
            yield _Token(value.replace('""', '"'), '"' if kind == "double" else "'")
        elif value in ("'", '"', "`"):
            yield _Token(value, _STRAY)
        else:
            yield _Token(value, value.upper())


def _effects(tokens: Sequence[_Token], database: str, known: Mapping[Name, Name]) -> dict[Name, Effect]:
    plain = [token.plain for token in tokens]
    first = plain[0]
    rest = plain[1:]
    if first in _HARMLESS or (first in _ENDS and "TO" not in rest and "NOT" not in rest):
        return {}
    if first == "SET":
        if rest[:1] != ["STATEMENT"]:
            return {}
        begin = plain.index("FOR") + 1 if "FOR" in plain else len(plain)
        return _effects(tokens[begin:], database, known) if begin < len(plain) else dict.fromkeys(known, Effect.ALTERED)
    if first == "TRUNCATE":
        at = 2 if rest[:1] == ["TABLE"] else 1
        target, after = _name(tokens, at, database)
        if target is not None and plain[after:] in ([], [";"]):
            return {target: Effect.EMPTIED}
    if first == "RENAME" and rest[:1] == ["USER"]:
        return {}
    if first in ("CREATE", "DROP", "ALTER"):
        return _of_definition(tokens, plain, database, known)
    if first in _DEFINING:
        return _all_named(tokens, database, known)
    # Rows were changed that are not in the log: of what it names, and by triggers, views and functions of anything.
    return dict.fromkeys(known, Effect.ALTERED)


def _of_definition(
    tokens: Sequence[_Token], plain: Sequence[str], database: str, known: Mapping[Name, Name]
) -> dict[Name, Effect]:
    first, at = plain[0], 1
    while at < len(plain) and plain[at] in ("OR", "REPLACE", "ONLINE", "OFFLINE"):
        at += 1
    what = plain[at] if at < len(plain) else ""
    if what in _OTHERS:
        return {}
    if what in ("DATABASE", "SCHEMA"):
        return _of_database(tokens, plain, at, known) if first == "DROP" else {}
    if what != "TABLE" or first == "DROP":
        return _all_named(tokens, database, known)
    at += 1
    is_guarded = plain[at : at + 3] == ["IF", "NOT", "EXISTS"]
    at += 3 if is_guarded else 2 if plain[at : at + 2] == ["IF", "EXISTS"] else 0
    target, after = _name(tokens, at, database)
    if target is None:
        return _all_named(tokens, database, known)
    if first == "CREATE":
        # One that is there already stays what it is.
        return {} if is_guarded and "REPLACE" not in plain[:3] else {target: Effect.ALTERED}
    if "EXCHANGE" in plain or "RENAME" in plain:
        return _all_named(tokens, database, known)
    return {} if _is_harmless(tokens[after:]) else {target: Effect.ALTERED}


def _of_database(
    tokens: Sequence[_Token], plain: Sequence[str], at: int, known: Mapping[Name, Name]
) -> dict[Name, Effect]:
    at += 3 if plain[at + 1 : at + 3] == ["IF", "EXISTS"] else 1
    dropped = tokens[at].text.lower() if at < len(tokens) else ""
    return {name: Effect.ALTERED for name in known if name[0] == dropped}


def _all_named(tokens: Sequence[_Token], database: str, known: Mapping[Name, Name]) -> dict[Name, Effect]:
    """Every table that the statement may name."""
    found: dict[Name, Effect] = {}
    for at in range(len(tokens)):
        if at and tokens[at - 1].plain == ".":
            continue
        name, _ = _name(tokens, at, database)
        if name is None:
            continue
        if name in known:
            found[name] = Effect.ALTERED
        elif (database, name[0]) in known:
            # A column of it, as table.column.
            found[database, name[0]] = Effect.ALTERED
    return found


def _name(tokens: Sequence[_Token], at: int, database: str) -> tuple[Name | None, int]:
    """The table that is named there, and what follows it."""
    if at >= len(tokens) or not _is_name(tokens[at]):
        return None, at
    if at + 2 < len(tokens) and tokens[at + 1].plain == "." and _is_name(tokens[at + 2]):
        return (tokens[at].text.lower(), tokens[at + 2].text.lower()), at + 3
    return (database, tokens[at].text.lower()), at + 1


def _is_name(token: _Token) -> bool:
    return token.plain in ("", '"') or token.plain.replace("_", "").replace("$", "").isalnum()


def _is_harmless(tokens: Sequence[_Token]) -> bool:
    """Clauses of ALTER TABLE after which each row is what it was, and each column; or there are more that are null."""
    plain = [token.plain for token in tokens[:1]]
    begin = {"NOWAIT": 1, "WAIT": 2}.get(plain[0], 0) if plain else 0
    return all(_is_harmless_clause(clause) for clause in _clauses(tokens[begin:]))


def _clauses(tokens: Sequence[_Token]) -> Iterator[list[_Token]]:
    """What is between commas that are in no parentheses."""
    depth, clause = 0, list[_Token]()
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.plain, 0)
        if token.plain == "," and not depth:
            yield clause
            clause = []
        elif token.plain != ";":
            clause.append(token)
    if clause:
        yield clause


def _is_harmless_clause(clause: Sequence[_Token]) -> bool:
    """Each clause is known to its end: what stands behind what is known may be anything."""
    plain = [token.plain for token in clause]
    if not plain or plain[0] == "FORCE" or plain[0] in _SETTINGS:
        return _are_settings(plain)
    if plain[0] in ("ADD", "DROP") and len(plain) > 1 and plain[1] in _INDEXES:
        return _is_index(clause) if plain[0] == "ADD" else _is_index_gone(clause)
    if plain[:2] == ["ALTER", "INDEX"] or plain[:2] == ["ALTER", "KEY"]:
        return plain[-1] == "IGNORED" and len(plain) <= 5
    if plain[0] != "ADD":
        return False
    inside = 2 if plain[1:2] == ["COLUMN"] else 1
    if plain[inside : inside + 1] == ["("] and plain[-1] == ")":
        return all(_is_null_column(each) for each in _clauses(clause[inside + 1 : -1]))
    return _is_null_column(clause[1:])


def _are_settings(plain: Sequence[str]) -> bool:
    """Settings that follow one another, as they may without commas."""
    at = 0
    while at < len(plain):
        if plain[at] == "FORCE":
            at += 1
            continue
        value = at + 2 if plain[at + 1 : at + 2] == ["="] else at + 1
        # Another engine is none that is read.
        if plain[at] not in _SETTINGS or value >= len(plain) or (plain[at] == "ENGINE" and plain[value] != "INNODB"):
            return False
        at = value + 1
    return True


def _is_index(clause: Sequence[_Token]) -> bool:
    """An index, which is no primary key: its columns in parentheses, and what it is like."""
    plain = [token.plain for token in clause]
    if "PRIMARY" in plain or "(" not in plain:
        return False
    depth, at = 0, plain.index("(")
    while at < len(plain):
        depth += {"(": 1, ")": -1}.get(plain[at], 0)
        at += 1
        if not depth:
            break
    rest = plain[at:]
    return all(word in _OF_INDEXES or word in ("=", "'", '"') or word.isdecimal() for word in rest)


def _is_index_gone(clause: Sequence[_Token]) -> bool:
    plain = [token.plain for token in clause]
    at = 4 if plain[2:4] == ["IF", "EXISTS"] else 2
    return len(clause) == at + 1 and clause[at].text.upper() != "PRIMARY"


def _is_null_column(clause: Sequence[_Token]) -> bool:
    """A column is added that is null in every row there is."""
    plain = [token.plain for token in clause]
    at = 1 if plain[:1] == ["COLUMN"] else 0
    at += 3 if plain[at : at + 3] == ["IF", "NOT", "EXISTS"] else 0
    if at + 1 >= len(plain) or not _is_name(clause[at]) or plain[at + 1] not in _TYPES:
        return False
    at = _behind_parentheses(plain, at + 2)
    while at < len(plain):
        if plain[at] in ("UNSIGNED", "SIGNED", "ZEROFILL", "NULL", "FIRST", "PRECISION"):
            at += 1
        elif plain[at : at + 2] == ["DEFAULT", "NULL"]:
            at += 2
        elif plain[at] in _NAMED_AFTER:
            at += 3 if plain[at : at + 2] == ["CHARACTER", "SET"] else 2
        else:
            return False
    return True


def _behind_parentheses(plain: Sequence[str], at: int) -> int:
    if at >= len(plain) or plain[at] != "(":
        return at
    while at < len(plain) and plain[at] != ")":
        at += 1
    return at + 1
