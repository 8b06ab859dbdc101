"""Names within a transaction: what one meant to a statement it means to those after it, until the transaction ends.

Source: collections: queries.
"""

from dataclasses import replace
from typing import NoReturn

from persist.client.sql.bind.binding import Resolving
from persist.client.sql.errors import SqlConflict
from persist.core.catalog.ddl.described import Described, Session
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import UnknownObject

Key = tuple[QualifiedName, tuple[tuple[str, str], ...]]
"""A name as it was written, and the path along which it was looked up."""


class Meant:
    """What the names of a transaction meant to its statements so far."""

    def __init__(self) -> None:
        self.known: dict[Key, Described] = {}

    def looking(self, names: Resolving) -> "Looking":
        """The same names, to one more statement."""
        return Looking(self, names)

    def known_as(self, found: Described) -> Described:
        """The item as the transaction knows it, by whatever name it came: with the columns that it had then."""
        before = next((each for each in self.known.values() if each.id == found.id and each.data is not None), found)
        return found if before.schema == found.schema else replace(found, schema=before.schema)

    def check(self, names: CatalogView) -> None:
        """Raise SqlConflict when a name means another item by now, or none as its own is gone. One whose item has
        another name now, and that means nothing, does no harm.
        """
        for (name, path), item in self.known.items():
            found = names.find(name, Session(path=path))
            if found not in (None, item.id):
                _raise(name)
            try:
                names.get(item.id)
            except UnknownObject as error:
                _raise(name, error)


class Looking:
    """Names as one statement looks them up. What it found counts once the statement was understood: see ``keep``."""

    def __init__(self, meant: Meant, names: Resolving) -> None:
        self._meant = meant
        self._names = names
        self._found: dict[Key, Described] = {}

    def resolve(self, name: QualifiedName, session: Session) -> Described:
        """See Resolving. Raises SqlConflict when the name meant something else to a statement before."""
        known = self._meant.known.get((name, session.path))
        try:
            found = self._names.resolve(name, session)
        except UnknownObject as error:
            if known is not None:
                _raise(name, error)
            raise
        if known is not None and not _is_same(known, found):
            _raise(name)
        # SUBTLE: a table that has got more columns is the same: what is read here was read without them.
        found = self._meant.known_as(found)
        self._found[name, session.path] = found
        return found

    def keep(self) -> None:
        """Have its names mean the same to the statements that follow."""
        self._meant.known.update(self._found)


def _is_same(known: Described, found: Described) -> bool:
    """SUBTLE: a view that is replaced keeps its id, and its rows are others."""
    return known.id == found.id and known.query == found.query


def _raise(name: QualifiedName, error: Exception | None = None) -> NoReturn:
    raise SqlConflict(
        "a name has come to mean something else since a statement of the transaction named it",
        hint="nothing of it happened: repeat it from BEGIN",
        name=name,
    ) from error
