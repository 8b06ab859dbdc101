"""What the catalogs of a MariaDB say of tables. Source: MariaDB documentation, information_schema."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from persist_ingest.sources.mysql.column_types import Declared
from persist_ingest.sources.mysql.session import MySqlConnection

_TABLES: Final = """
SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, COALESCE(ENGINE, '')
FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s ORDER BY TABLE_NAME
"""
_COLUMNS: Final = """
SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, COALESCE(NUMERIC_PRECISION, 0), COALESCE(NUMERIC_SCALE, 0),
       COALESCE(DATETIME_PRECISION, 0), COALESCE(CHARACTER_SET_NAME, ''), COALESCE(IS_GENERATED, ''), EXTRA
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""
_KEY: Final = """
SELECT COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX
"""
_KEY_COLUMNS: Final = """
SELECT s.COLUMN_NAME, s.SUB_PART IS NOT NULL, COALESCE(c.CHARACTER_SET_NAME, ''), COALESCE(c.COLLATION_NAME, '')
FROM information_schema.STATISTICS s JOIN information_schema.COLUMNS c USING (TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME)
WHERE s.TABLE_SCHEMA = %s AND s.TABLE_NAME = %s AND s.INDEX_NAME = 'PRIMARY' ORDER BY s.SEQ_IN_INDEX
"""
_CASCADES: Final = """
SELECT CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS
WHERE CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s
  AND (UPDATE_RULE NOT IN ('RESTRICT', 'NO ACTION') OR DELETE_RULE NOT IN ('RESTRICT', 'NO ACTION'))
"""
_SIZE: Final = """
SELECT COALESCE(TABLE_ROWS, 0), COALESCE(DATA_LENGTH, 0)
FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""
BASE: Final = "BASE TABLE"
VERSIONED: Final = "SYSTEM VERSIONED"
_OWN: Final = frozenset({"mysql", "information_schema", "performance_schema", "sys"})


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table there is. ``kind``: BASE TABLE, VIEW, SEQUENCE or SYSTEM VERSIONED."""

    database: str
    name: str
    kind: str
    engine: str


def tables(session: MySqlConnection, database: str) -> list[ListedTable]:
    """Those of a database that this user sees; none of the server's own."""
    if database.lower() in _OWN:
        return []
    return [ListedTable(*map(str, row)) for row in session.rows(_TABLES, [database])]


def columns(session: MySqlConnection, database: str, name: str) -> list[Declared]:
    """Those of a table, in order."""
    return [
        Declared(
            name=str(row[0]),
            data_type=str(row[1]),
            shown=str(row[2]),
            nullable=row[3] == "YES",
            precision=int(str(row[4])),
            scale=int(str(row[5])),
            seconds=int(str(row[6])),
            charset=str(row[7]),
            virtual="VIRTUAL" in str(row[9]),
        )
        for row in session.rows(_COLUMNS, [database, name])
    ]


def primary_key(session: MySqlConnection, database: str, name: str) -> tuple[str, ...]:
    """The columns of a table's primary key; none where it has none."""
    return tuple(str(row[0]) for row in session.rows(_KEY, [database, name]))


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A column of a primary key. ``is_part``: only what its values begin with; ``charset``: of text, as collation."""

    name: str
    is_part: bool
    charset: str
    collation: str


def key_columns(session: MySqlConnection, database: str, name: str) -> list[ListedKey]:
    """The columns of a table's primary key, and how it orders them."""
    return [
        ListedKey(str(row[0]), bool(row[1]), str(row[2]), str(row[3]))
        for row in session.rows(_KEY_COLUMNS, [database, name])
    ]


def cascades(session: MySqlConnection, database: str, name: str) -> Sequence[str]:
    """Foreign keys by which changes of other tables change this one: the log does not say so."""
    return [str(row[0]) for row in session.rows(_CASCADES, [database, name])]


def about(session: MySqlConnection, database: str, name: str) -> tuple[int, int]:
    """About how many rows and bytes a table has."""
    found = session.rows(_SIZE, [database, name])
    return (int(str(found[0][0])), int(str(found[0][1]))) if found else (0, 0)
