"""A Stash in PostgreSQL 15+. Talks to the primary only.

Every call is one statement, which is one transaction: an append locks the row of its environment, so that of two that
expect the same upper the second finds another one.
Source: reliability.md section 4, PostgreSQL; docs/formats.md, stash.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from persist.errors import CorruptData, NotReadable, VersionMismatch
from persist.storage.engine.postgres import Connections, LeasedConnection
from persist.storage.ports import Finding
from persist.storage.stash.port import HISTORY, STEP, Evidence, StashRow, StashRows, check_append, outcome

_FORMAT: Final = 1

_TABLES: Final = ("stash_environment", "stash_append", "stash_row", "stash_format")

_SCHEMA: Final = (
    "SELECT pg_advisory_xact_lock(8241120905413043)",
    # Updated in place by every append: leave room on the page.
    """CREATE TABLE IF NOT EXISTS stash_environment (
       id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE,
       upper bigint NOT NULL, since bigint NOT NULL, appends bigint NOT NULL) WITH (fillfactor = 50)""",
    """CREATE TABLE IF NOT EXISTS stash_append (
       environment bigint NOT NULL, slot integer NOT NULL, ts bigint NOT NULL, token bytea NOT NULL,
       PRIMARY KEY (environment, slot)) WITH (fillfactor = 50)""",
    """CREATE TABLE IF NOT EXISTS stash_row (
       environment bigint NOT NULL, kind text COLLATE "C" NOT NULL, ts bigint NOT NULL, diff bigint NOT NULL,
       key bytea NOT NULL, value bytea NOT NULL, crc bigint NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS stash_row_ts ON stash_row (environment, ts)",
    "CREATE INDEX IF NOT EXISTS stash_row_kind ON stash_row (environment, kind, ts)",
    # Keys may be longer than a B-tree takes.
    "CREATE INDEX IF NOT EXISTS stash_row_key ON stash_row USING hash (key)",
    "CREATE INDEX IF NOT EXISTS stash_row_gone ON stash_row (environment, ts) WHERE diff < 0",
    "CREATE TABLE IF NOT EXISTS stash_format (version integer NOT NULL)",
    f"INSERT INTO stash_format (version) SELECT {_FORMAT} WHERE NOT EXISTS (SELECT FROM stash_format)",
)

_VERSION: Final = "SELECT max(version) FROM stash_format"

_UPPER: Final = "SELECT upper FROM stash_environment WHERE name = %s"

_SNAPSHOT: Final = """
SELECT e.upper, r.kind, r.key, r.value, r.crc, r.diff
FROM stash_environment e LEFT JOIN LATERAL (
  SELECT kind, key, value, crc, sum(diff)::bigint AS diff FROM stash_row
  WHERE environment = e.id AND (%s::text[] IS NULL OR kind = ANY (%s::text[]))
  GROUP BY kind, key, value, crc HAVING sum(diff) <> 0
) r ON true
WHERE e.name = %s
"""

_UPDATES: Final = """
SELECT e.upper, e.since, r.kind, r.key, r.value, r.crc, r.ts, r.diff
FROM stash_environment e LEFT JOIN stash_row r ON r.environment = e.id AND r.ts >= %s
WHERE e.name = %s ORDER BY r.ts
"""

_INIT: Final = """
INSERT INTO stash_environment (name, upper, since, appends) VALUES (%s, 0, 0, 0) ON CONFLICT DO NOTHING
"""

_APPEND: Final = """
WITH e AS (
  UPDATE stash_environment SET upper = %s, appends = appends + 1 WHERE name = %s AND upper = %s RETURNING id, appends
), a AS (
  INSERT INTO stash_append (environment, slot, ts, token) SELECT id, appends %% %s, %s, %s FROM e
  ON CONFLICT (environment, slot) DO UPDATE SET ts = excluded.ts, token = excluded.token
), r AS (
  INSERT INTO stash_row (environment, ts, kind, key, value, crc, diff)
  SELECT e.id, %s, c.* FROM e, unnest(%s::text[], %s::bytea[], %s::bytea[], %s::bigint[], %s::bigint[]) AS c
)
SELECT appends FROM e
"""

# A write, so that what it finds is on the synchronous standbys, too, when it is returned.
_EVIDENCE: Final = """
WITH e AS (UPDATE stash_environment SET upper = upper WHERE name = %s RETURNING id, upper)
SELECT e.upper, coalesce(bool_or(a.token = %s), false), count(a.token), min(a.ts)
FROM e LEFT JOIN stash_append a ON a.environment = e.id GROUP BY e.upper
"""

_FORGET: Final = """
WITH h AS (
  SELECT e.id, least(%s, e.upper, (SELECT min(a.ts) FROM stash_append a WHERE a.environment = e.id)) AS below
  FROM stash_environment e WHERE e.name = %s AND e.appends >= %s
), dead AS (
  SELECT r.kind, r.key, r.value, r.crc FROM h JOIN stash_row r ON r.environment = h.id AND r.ts < h.below
  WHERE r.diff < 0 ORDER BY r.ts LIMIT %s
), gone AS (
  DELETE FROM stash_row r USING h, (SELECT DISTINCT * FROM dead) d
  WHERE r.environment = h.id AND r.ts < h.below
    AND r.kind = d.kind AND r.key = d.key AND r.value = d.value AND r.crc = d.crc
  RETURNING r.*
), kept AS (
  INSERT INTO stash_row (environment, kind, ts, diff, key, value, crc)
  SELECT environment, kind, max(ts), sum(diff)::bigint, key, value, crc
  FROM gone GROUP BY environment, kind, key, value, crc HAVING sum(diff) <> 0
), moved AS (
  UPDATE stash_environment e SET since = greatest(e.since, h.below) FROM h
  WHERE e.id = h.id AND EXISTS (SELECT FROM dead)
)
SELECT count(*) FROM dead
"""


class PostgresStash:
    """Implements the Stash port over ``postgres://user[:password]@host:port/database``. Raises InvalidUri."""

    def __init__(self, uri: str, *, connections: int = 4, history: int = HISTORY) -> None:
        self._connections = Connections(uri, _SCHEMA, _TABLES, connections)
        self._history = history
        self._known = False

    @property
    def uri(self) -> str:
        """Without the password."""
        return self._connections.uri

    def __repr__(self) -> str:
        return f"PostgresStash({self.uri!r})"

    async def upper(self, environment: str, *, timeout: float) -> int:
        """As of now."""
        async with self._calling("stash upper", timeout) as session:
            return await _upper(session, environment)
        raise AssertionError("unreachable")

    async def snapshot(self, environment: str, kinds: Sequence[str] | None, *, timeout: float) -> StashRows:
        """As of one moment."""
        chosen = None if kinds is None else list(kinds)
        async with self._calling("stash snapshot", timeout) as session:
            found = await session.rows(_SNAPSHOT, (chosen, chosen, environment))
        upper = found[0][0] if found else 0
        as_of = max(upper - 1, 0)
        rows = [StashRow(row[1], row[2], row[3], row[4], as_of, row[5]) for row in found if row[5] is not None]
        return StashRows(rows, upper)

    async def updates(self, environment: str, lower: int, *, timeout: float) -> StashRows:
        """As of one moment."""
        async with self._calling("stash updates", timeout) as session:
            found = await session.rows(_UPDATES, (lower, environment))
        if not found:
            return StashRows([], 0)
        upper, since = found[0][:2]
        if 0 < lower < since:
            raise NotReadable("these times were forgotten", hint="read a snapshot", lower=lower, since=since)
        return StashRows([StashRow(*row) for _, _, *row in found if row[0] is not None], upper)

    async def append(
        self,
        environment: str,
        rows: Sequence[StashRow],
        *,
        expected: int,
        ts: int,
        token: bytes,
        again: bool = False,
        timeout: float,
    ) -> int | None:
        """Flushed to disk (and to synchronous standbys) when it returns None."""
        check_append(expected, ts)
        columns = [[getattr(row, name) for row in rows] for name in ("kind", "key", "value", "crc", "diff")]
        values = (ts + 1, environment, expected, self._history, ts, token, ts, *columns)
        async with self._calling("stash append", timeout, mutation=True) as session:
            if expected == 0:
                await session.count(_INIT, (environment,))
            done = await session.rows(_APPEND, values)
            session.check_replicated()
            if done:
                return None
            if not again:
                return await _upper(session, environment)
            found = await session.rows(_EVIDENCE, (environment, token))
            session.check_replicated()
        seen = Evidence(*found[0]) if found else Evidence(0, False, 0, None)
        return outcome(seen, expected=expected, ts=ts, history=self._history)

    async def forget(self, environment: str, to: int, *, timeout: float) -> bool:
        """One transaction. Two at once take different rows, or wait for each other."""
        async with self._calling("stash forget", timeout, mutation=True) as session:
            found = await session.rows(_FORGET, (to, environment, self._history, STEP))
        return bool(found[0][0] == STEP)

    async def findings(self) -> Sequence[Finding]:
        """What SHOW and pg_is_in_recovery say about durability."""
        return await self._connections.findings()

    async def close(self) -> None:
        """Close every connection."""
        self._connections.close()

    @asynccontextmanager
    async def _calling(self, what: str, timeout: float, *, mutation: bool = False) -> AsyncIterator[LeasedConnection]:
        if not self._known:
            async with self._connections.calling(what, timeout) as session:
                version = (await session.rows(_VERSION, ()))[0][0]
            if version is None:
                raise CorruptData("a stash without a version", hint="stop and restore the database")
            if version > _FORMAT:
                raise VersionMismatch(
                    "the stash was written by a newer release", hint="upgrade this one", found=version, known=_FORMAT
                )
            self._known = True
        async with self._connections.calling(what, timeout, mutation=mutation) as session:
            yield session


async def _upper(session: LeasedConnection, environment: str) -> int:
    found = await session.rows(_UPPER, (environment,))
    return int(found[0][0]) if found else 0
