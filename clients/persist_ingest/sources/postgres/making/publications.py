"""Publications that sources make: each says in its comment which of them use it, and goes with the last one.

Nothing else upstream says whose a publication is. One that sources did not make has no such comment: it is neither
altered nor dropped. A *mark* names one attempt to create one source; no other ever has it.
Source: sources.md section 1.
"""

import re
from collections.abc import Sequence
from typing import Final

from persist import InvalidArgument
from persist.runtime import system
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.postgres.catalog import Listed, quoted
from persist_ingest.sources.postgres.session import UpstreamConnection

USED: Final = "made by persist, dropped with the last source that uses it:"
_MARK: Final = re.compile(r"[A-Za-z0-9_-]+/[0-9a-f]{16}")

_ALONE: Final = "PERFORM pg_advisory_xact_lock(hashtextextended('persist publication ' || {name}, 0));"
_WAS: Final = """
SELECT obj_description(oid, 'pg_publication') INTO was FROM pg_publication WHERE pubname = {name};
"""
_USE: Final = f"""
DO $persist$ DECLARE was text; BEGIN
{_ALONE}{_WAS}
IF was LIKE '{USED}%' THEN EXECUTE format('COMMENT ON PUBLICATION %I IS %L', {{name}}, was || ' {{mark}}'); END IF;
END $persist$
"""
_LEAVE: Final = f"""
DO $persist$ DECLARE was text; users text[]; BEGIN
{_ALONE}{_WAS}
users := string_to_array(trim(substr(was, {len(USED) + 1})), ' ');
IF was LIKE '{USED}%' AND '{{mark}}' = ANY (users) THEN
  users := array_remove(users, '{{mark}}');
  IF cardinality(users) = 0 THEN EXECUTE format('DROP PUBLICATION %I', {{name}});
  ELSE EXECUTE format('COMMENT ON PUBLICATION %I IS %L', {{name}}, '{USED} ' || array_to_string(users, ' '));
  END IF;
END IF;
END $persist$
"""
_MARKED: Final = """
SELECT obj_description(oid, 'pg_publication') LIKE %(used)s FROM pg_publication WHERE pubname = %(publication)s
"""


def new_mark(source: str) -> str:
    """A mark for an attempt to create this source."""
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', source) or '_'}/{system().random_bytes(8).hex()}"


def token(mark: str) -> str:
    """What no other attempt has of a mark, in short."""
    return mark.rpartition("/")[2][:8]


def make(session: UpstreamConnection, name: str, tables: Sequence[Listed], mark: str) -> None:
    """Make a publication for tables, marked, in one transaction."""
    _check(mark)
    names = ", ".join(quoted(table.schema, table.name) for table in tables)
    by_root = " WITH (publish_via_partition_root = true)" if any(table.kind == "p" for table in tables) else ""
    session.run(
        f"DO $persist$ BEGIN CREATE PUBLICATION {quoted(name)} FOR TABLE {names}{by_root}; "
        f"COMMENT ON PUBLICATION {quoted(name)} IS '{USED} {mark}'; END $persist$"
    )


def use(session: UpstreamConnection, name: str, mark: str) -> bool:
    """Mark a publication that sources made; False for any other. Raises SourceFailure (of another role), and as run."""
    _check(mark)
    if not is_shared(session, name):
        return False
    try:
        session.run(_USE.format(name=_literal(name), mark=mark))
    except SourceFailure as error:
        raise SourceFailure(
            "a source of another role made this publication, and would drop it with itself",
            hint="name another one (option publication), or use that role",
            publication=name,
        ) from error
    return _has(session, name, mark)


def is_shared(session: UpstreamConnection, name: str) -> bool:
    """Sources made the publication, and it goes with the last one that uses it."""
    return _has(session, name, "")


def leave(session: UpstreamConnection, name: str, mark: str) -> None:
    """Take the mark away, and the publication if it was the last one. Nothing for a publication without it."""
    _check(mark)
    if _has(session, name, mark):
        session.run(_LEAVE.format(name=_literal(name), mark=mark))


def is_alone(session: UpstreamConnection, name: str, mark: str) -> bool:
    """No other source uses the publication."""
    said = "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %(publication)s"
    return session.rows(said, {"publication": name}) == [(f"{USED} {mark}",)]


def _has(session: UpstreamConnection, name: str, mark: str) -> bool:
    asked = {"publication": name, "used": f"{USED}%{mark}%"}
    return any(marked for (marked,) in session.rows(_MARKED, asked))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _check(mark: str) -> None:
    if not _MARK.fullmatch(mark):
        raise InvalidArgument("no mark of a source", got=mark[:80])
