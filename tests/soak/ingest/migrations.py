"""A database that lives: rows and migrations of all kinds at random, by several sessions, and what its tables hold.

A statement that PostgreSQL refuses (a lock that is not to be had, a name that is gone) did not happen; so sessions need
not know of each other.
"""

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg

MARKS = "public.marks"
PLAIN = ("items", "keyed", "loose", "orders", "parted")
TABLES = tuple(f"public.{name}" for name in PLAIN)
COLUMNS_MAX = 6
"""Columns that migrations added and a table has at a time."""

SETUP = (
    "CREATE SEQUENCE ids START 1000",
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE marks (id int PRIMARY KEY)",
    "CREATE TABLE items (id int PRIMARY KEY, name text, n numeric(12,2), mood mood, tags int[], at timestamptz)",
    "CREATE TABLE keyed (id bigint PRIMARY KEY, name text, n numeric(12,2))",
    "CREATE TABLE loose (id int, name text, n numeric(12,2), net inet)",
    "CREATE TABLE orders (id int, name text NOT NULL, n numeric(12,2), PRIMARY KEY (name, id))",
    "CREATE TABLE parted (id int, name text, n numeric(12,2), PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE parted_0 PARTITION OF parted FOR VALUES FROM (MINVALUE) TO (1500)",
    "CREATE TABLE parted_d PARTITION OF parted DEFAULT",
    *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("items", "loose", "orders", "parted_0", "parted_d")),
    "ALTER TABLE parted REPLICA IDENTITY FULL",
    *(f"INSERT INTO {name} (id, name, n) SELECT i, 'n' || i, i FROM generate_series(1, 40) i" for name in PLAIN),
    "INSERT INTO marks VALUES (0)",
)

ROWS = (
    "INSERT INTO {t} (id, name, n) SELECT nextval('ids'), 'new' || {k}, {k} FROM generate_series(1, {few})",
    "INSERT INTO {t} (id, name, n) SELECT nextval('ids'), repeat(md5({k}::text), 200), i FROM generate_series(1, 3) i",
    "UPDATE {t} SET n = coalesce(n, 0) + 1 WHERE id % {few} = 0",
    "UPDATE {t} SET name = left(name, 10) || '.' WHERE id % {few} = 1",
    "UPDATE {t} SET id = nextval('ids') WHERE id = (SELECT min(id) FROM {t})",
    "DELETE FROM {t} WHERE id IN (SELECT id FROM {t} ORDER BY random() LIMIT {few})",
    "BEGIN; INSERT INTO {t} (id, name) VALUES (nextval('ids'), 'a'); UPDATE {t} SET n = -{k} WHERE n > 20; COMMIT",
    "BEGIN; INSERT INTO {t} (id, name) VALUES (nextval('ids'), 'gone'); DELETE FROM {t}; ROLLBACK",
    "BEGIN; INSERT INTO {t} (id, name) VALUES (nextval('ids'), 's'); SAVEPOINT s; DELETE FROM {t}; "
    "ROLLBACK TO s; COMMIT",
)
LARGE = ("INSERT INTO {t} (id, name, n) SELECT nextval('ids'), 'l', i FROM generate_series(1, 3000) i",)
EMPTIED = (
    "TRUNCATE {t}",
    "BEGIN; TRUNCATE {t}; INSERT INTO {t} (id, name, n) SELECT nextval('ids'), 't', i FROM generate_series(1, 9) i; "
    "COMMIT",
    "BEGIN; DELETE FROM {t} WHERE id % 2 = 0; TRUNCATE {t}; COMMIT",
    "TRUNCATE {t}, {u}",
    "DELETE FROM {t} WHERE id > 2000",
)
MAINTENANCE = (
    "VACUUM FULL {t}",
    "VACUUM {t}",
    "ANALYZE {t}",
    "CLUSTER {t} USING {t}_pkey",
    "REINDEX TABLE {t}",
    "ALTER TABLE {t} ALTER name SET STATISTICS {k}",
    "ALTER TABLE {t} ALTER name SET DEFAULT 'd{k}'",
    "ALTER TABLE {t} ALTER name DROP DEFAULT",
    "ALTER TABLE {t} ALTER n SET NOT NULL",
    "ALTER TABLE {t} ALTER n DROP NOT NULL",
    "CHECKPOINT",
)
COLUMNS = (
    "ALTER TABLE {t} ADD COLUMN c{k} int",
    "ALTER TABLE {t} ADD COLUMN c{k} text",
    "ALTER TABLE {t} ADD COLUMN c{k} int DEFAULT {k}",
    "ALTER TABLE {t} ADD COLUMN c{k} float8 DEFAULT random() * 100",
    "ALTER TABLE {t} ADD COLUMN c{k} int GENERATED ALWAYS AS IDENTITY",
    "ALTER TABLE {t} ADD COLUMN c{k} int GENERATED ALWAYS AS (id + {k}) STORED",
    "ALTER TABLE {t} ADD COLUMN c{k} timestamptz DEFAULT now()",
    "ALTER TABLE {t} ADD COLUMN c{k} jsonb DEFAULT '{{}}'",
    "ALTER TABLE {t} ADD COLUMN c{k} mood DEFAULT (enum_range(NULL::mood))[1]",
    "BEGIN; ALTER TABLE {t} ADD COLUMN c{k} int DEFAULT 3; ALTER TABLE {t} ALTER c{k} DROP DEFAULT; COMMIT",
    "BEGIN; ALTER TABLE {t} ADD COLUMN c{k} int; UPDATE {t} SET c{k} = id; COMMIT",
    "BEGIN; ALTER TABLE {t} ADD COLUMN c{k} int DEFAULT 5; TRUNCATE {t}; COMMIT",
    "BEGIN; ALTER TABLE {t} ADD COLUMN c{k} int DEFAULT 5; ROLLBACK",
)
RETYPED = (
    "ALTER TABLE {t} DROP COLUMN {c}",
    "ALTER TABLE {t} DROP COLUMN {c}",
    "ALTER TABLE {t} DROP COLUMN {c}, ADD COLUMN {c} text",
    "ALTER TABLE {t} RENAME COLUMN {c} TO c{k}",
    "ALTER TABLE {t} ALTER {c} TYPE text USING {c}::text || '!'",
    "ALTER TABLE {t} ALTER {c} TYPE bigint USING 7",
    "ALTER TABLE {t} ALTER {c} DROP IDENTITY IF EXISTS",
    "ALTER TABLE {t} ALTER {c} DROP EXPRESSION IF EXISTS",
    "ALTER TABLE {t} ALTER name TYPE text USING upper(name)",
    "ALTER TABLE {t} ALTER n TYPE numeric(14,2)",
    "ALTER TABLE {t} ALTER n TYPE numeric(12,2)",
)
WHOLE = (
    "ALTER TYPE mood ADD VALUE 'v{k}'",
    "DO $$ BEGIN EXECUTE format('ALTER TYPE mood RENAME VALUE %L TO %L', (enum_range(NULL::mood))[1], 'r{k}'); END $$",
    "UPDATE items SET mood = (enum_range(NULL::mood))[1 + id % 2], tags = ARRAY[id, {k}], at = now()",
    "BEGIN; ALTER TABLE {t} SET UNLOGGED; ALTER TABLE {t} SET LOGGED; COMMIT",
    "ALTER TABLE {t} SET UNLOGGED",
    "ALTER TABLE {t} SET LOGGED",
    "ALTER TABLE {t} REPLICA IDENTITY NOTHING",
    "ALTER TABLE {t} RENAME TO {t}_away",
    "ALTER PUBLICATION persist_shop DROP TABLE {t}",
    "BEGIN; ALTER PUBLICATION persist_shop DROP TABLE {t}; ALTER PUBLICATION persist_shop ADD TABLE {t}; COMMIT",
    "BEGIN; DROP TABLE items; CREATE TABLE items (id int PRIMARY KEY, name text, n numeric(12,2)); "
    "INSERT INTO items VALUES (1, 'made', 1); COMMIT",
    "ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id, name)",
    "ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (name, id)",
    "ALTER TABLE keyed REPLICA IDENTITY FULL",
    "ALTER TABLE keyed REPLICA IDENTITY DEFAULT",
)
PARTITIONS = (
    "CREATE TABLE parted_{k} PARTITION OF parted FOR VALUES FROM ({low}) TO ({high})",
    "BEGIN; CREATE TABLE parted_{k} PARTITION OF parted FOR VALUES FROM ({low}) TO ({high}); "
    "ALTER TABLE parted_{k} REPLICA IDENTITY FULL; COMMIT",
    "BEGIN; CREATE TABLE parted_{k} (LIKE parted INCLUDING ALL); ALTER TABLE parted_{k} REPLICA IDENTITY FULL; "
    "ALTER TABLE parted ATTACH PARTITION parted_{k} FOR VALUES FROM ({low}) TO ({high}); COMMIT",
    "BEGIN; CREATE TABLE parted_{k} (LIKE parted INCLUDING ALL); ALTER TABLE parted_{k} REPLICA IDENTITY FULL; "
    "INSERT INTO parted_{k} (id, name) VALUES ({low}, 'attached'); "
    "ALTER TABLE parted ATTACH PARTITION parted_{k} FOR VALUES FROM ({low}) TO ({high}); COMMIT",
    "ALTER TABLE parted DETACH PARTITION {p}",
    "DROP TABLE {p}",
    "TRUNCATE {p}",
    "BEGIN; ALTER TABLE parted DETACH PARTITION {p}; "
    "ALTER TABLE parted ATTACH PARTITION {p} FOR VALUES FROM ({low}) TO ({high}); COMMIT",
    "UPDATE parted SET id = id + 500 WHERE id IN (SELECT id FROM parted ORDER BY id LIMIT {few})",
    "INSERT INTO parted (id, name) SELECT {low} + i, 'p' FROM generate_series(1, 20) i",
)
KINDS: tuple[tuple[Sequence[str], float], ...] = (
    (ROWS, 500.0), (LARGE, 2.0), (EMPTIED, 6.0), (MAINTENANCE, 8.0), (COLUMNS, 4.0), (RETYPED, 3.0), (WHOLE, 2.5),
    (PARTITIONS, 5.0),
)  # fmt: skip
_EXTRA = """
SELECT a.attname FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
AND a.attname ~ '^c[0-9]+$'
"""
_COLUMNS = """
SELECT a.attname, a.attgenerated <> '', format_type(a.atttypid, NULL) FROM pg_attribute a
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_PARTITION = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = to_regclass('public.parted')"
_AS_THEY_ARE = ("integer", "bigint", "text", "numeric", "double precision", "timestamp with time zone", "integer[]")


class Session(threading.Thread):
    """One session of the upstream's users: a statement after the other, until it is stopped."""

    def __init__(self, dsn: str, seed: int, pause: Callable[[float], object], stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.turn = threading.Lock()
        """Held while a statement runs: who holds it keeps this session still."""
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.recent: list[str] = []
        self.failure: BaseException | None = None
        self._dsn, self._chance, self._pause, self._stopping = dsn, random.Random(seed), pause, stopping
        self._connection: Any = None
        self._names = f"{seed}"

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                with self.turn:
                    self._one()
                self._pause(self._chance.expovariate(1 / 0.05))
        except BaseException as error:
            self.failure = error
            raise
        finally:
            if self._connection is not None:
                self._connection.close()

    def _one(self) -> None:
        kinds, weights = zip(*KINDS, strict=True)
        [kind] = self._chance.choices(kinds, weights)
        template = self._chance.choice(kind)
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(self._dsn, autocommit=True)
                self._connection.execute("SET lock_timeout = '500ms'; SET statement_timeout = '20s'")
            statement = self._filled(template)
            if statement is None:
                return
            self.recent = [*self.recent[-30:], statement]
            self._connection.execute(statement.encode())
            self.done[template] += 1
        except psycopg.Error as error:
            self.refused[f"{template}: {str(error).splitlines()[0]}"] += 1
            if self._connection is not None and not self._connection.closed:
                try:
                    self._connection.execute("ROLLBACK")
                except psycopg.Error:
                    self._connection.close()

    def _filled(self, template: str) -> str | None:
        table, other = self._chance.sample(PLAIN, 2)
        extra = [name for (name,) in self._connection.execute(_EXTRA, [f"public.{table}"])]
        if "ADD COLUMN" in template and len(extra) >= COLUMNS_MAX:
            template = RETYPED[0]
        if "{c}" in template and not extra:
            return None
        low = self._chance.randrange(1_500, 100_000, 500)
        return template.format(
            t=table, u=other, k=self._chance.randrange(10**6), few=self._chance.randint(2, 6), low=low, high=low + 500,
            c=self._chance.choice(extra or [""]), p=self._partition() if "{p}" in template else "",
        )  # fmt: skip

    def _partition(self) -> str:
        found = self._connection.execute(_PARTITION).fetchall()
        return str(self._chance.choice(found or [("parted_0",)])[0])


@contextmanager
def still(sessions: Sequence[Session]) -> Iterator[None]:
    """Nothing changes upstream: each session is between two statements."""
    with ExitStack() as turns:
        for session in sessions:
            turns.enter_context(session.turn)
        yield


_IDENTITIES = """
SELECT format('ALTER TABLE %s REPLICA IDENTITY %s', c.oid::regclass,
              CASE c.relname WHEN 'keyed' THEN 'DEFAULT' ELSE 'FULL' END)
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE (i.inhparent IS NOT NULL OR c.relname = ANY (%s)) AND c.relkind IN ('r', 'p')
  AND c.relreplident <> 'f' AND NOT (c.relname = 'keyed' AND c.relreplident = 'd')
"""


def put_right(connection: Any) -> None:
    """What an operator would do upstream about what keeps a table from being read, before it is read anew."""
    statements = [
        each.format(t=name)
        for name in PLAIN
        for each in (
            "ALTER TABLE IF EXISTS {t}_away RENAME TO {t}",
            "ALTER TABLE {t} SET LOGGED",
            "ALTER PUBLICATION persist_shop ADD TABLE {t}",
        )
    ]
    statements += [statement for (statement,) in connection.execute(_IDENTITIES.replace("%s", "%%s", 2), [[*PLAIN]])]
    for statement in statements:
        with contextlib.suppress(psycopg.Error):  # it is so already, or another session has the table
            connection.execute(statement.encode())


def columns(connection: Any, table: str) -> list[tuple[str, str]]:
    """The columns that are sent, each with what shows it as an export does."""
    return [
        (name, f'"{name}"' if kind in _AS_THEY_ARE else f'"{name}"::text')
        for name, generated, kind in connection.execute(_COLUMNS, [table]).fetchall()
        if not generated
    ]


def held(connection: Any, table: str) -> tuple[list[str], Counter[Any]]:
    """The columns of a table, and its rows."""
    names = columns(connection, table)
    shown = ", ".join(each for _, each in names)
    rows = connection.execute(f"SELECT {shown} FROM {table}".encode()).fetchall()
    return [name for name, _ in names], Counter(tuple(map(plain, row)) for row in rows)


def plain(value: Any) -> Any:
    """A value that can be compared and counted."""
    return tuple(value) if isinstance(value, list) else value
