"""Where a name is looked up, and what is said when nothing is there.

A bare name is looked up along the session's path, then among what the system made; ``schema.item`` in the databases of
the path, then among the schemas that are in none; ``database.schema.item`` there only. Source: collections: names.
"""

import difflib
from collections.abc import Iterable
from typing import Final, TypeAlias

from persist.core.catalog.ddl.described import DATABASE, Session
from persist.core.catalog.ddl.statements import NAME_MAX, QualifiedName
from persist.core.catalog.errors import UnknownObject
from persist.errors import InvalidArgument

MZ_CATALOG: Final = "mz_catalog"
PERSIST_CATALOG: Final = "persist_catalog"
SYSTEM_SCHEMAS: Final = (MZ_CATALOG, PERSIST_CATALOG)
"""The schemas of what the system makes, in no database."""
RESERVED: Final = ("mz_", "persist_")
"""How names begin that the system gives only."""
NEAR_MAX: Final = 3
_LENGTHS: Final = 3
"""By how many letters a near name may be longer or shorter: names of other lengths are not compared."""

Place: TypeAlias = tuple[str | None, str]
"""A schema by name: its database (None: it is in none), and its own."""


def places(name: QualifiedName, session: Session) -> tuple[Place, ...]:
    """Where a name is looked up, in this order."""
    if name.schema is None:
        return (*session.path, *((None, schema) for schema in SYSTEM_SCHEMAS))
    if name.database is None:
        return (*((database, name.schema) for database in databases(session)), (None, name.schema))
    return ((name.database, name.schema), *(((None, name.schema),) if name.schema in SYSTEM_SCHEMAS else ()))


def databases(session: Session) -> tuple[str, ...]:
    """The databases of a session's path, in its order."""
    return tuple(dict.fromkeys(database for database, _ in session.path)) or (DATABASE,)


def new_places(name: QualifiedName, session: Session) -> tuple[Place, ...]:
    """Where something new of this name may be made: the first of these that is there."""
    if name.schema is None:
        return session.path
    if name.database is None:
        return (*((database, name.schema) for database in databases(session)), (None, name.schema))
    return ((name.database, name.schema),)


def check_columns(names: Iterable[str]) -> None:
    """Raise InvalidArgument unless columns may be called so: what is no text to look at is not shown as one."""
    for name in names:
        if not name or len(name) > NAME_MAX or not name.isprintable():
            hint = f"printable, from 1 to {NAME_MAX} characters; in a query: expression AS name"
            raise InvalidArgument("malformed name of a column", hint=hint, got=ascii(name[:80]))


def check_new_name(part: str) -> str:
    """The name, when something new may be called so. Raises InvalidArgument."""
    if not part or len(part) > NAME_MAX or not part.isprintable():
        raise InvalidArgument("malformed name", hint=f"printable, from 1 to {NAME_MAX} characters", got=part[:80])
    if part.startswith(RESERVED):
        hint = f"none that begins with {' or '.join(RESERVED)}"
        raise InvalidArgument("this name is reserved for the system", hint=hint, name=part)
    return part


def near(name: str, known: Iterable[str]) -> list[str]:
    """Names that are like this one."""
    lowered = {each: each.lower() for each in known if abs(len(each) - len(name)) <= _LENGTHS}
    by_lower = {lower: each for each, lower in lowered.items()}
    return [by_lower[lower] for lower in difflib.get_close_matches(name.lower(), by_lower, NEAR_MAX)]


def unknown(what: str, name: str, near: Iterable[str] = (), looked_in: Iterable[Place] = ()) -> UnknownObject:
    """The error for a name that nothing has. ``what``: such as ``schema``."""
    meant, details = " or ".join(near), {}
    if meant:
        details["near"] = meant
    if path := ", ".join(".".join(part for part in place if part is not None) for place in looked_in):
        details["path"] = path
    hint = f"did you mean {meant}?" if meant else "check the name, or create it first"
    if what == "object" and not meant:
        hint += "; what was made without SQL, persist catalog adopt NAME makes known"
    return UnknownObject(f"there is no such {what}", hint=hint, name=name, **details)
