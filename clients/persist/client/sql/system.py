"""Names before there is a catalog, collections that are stored nowhere, and who may read what.

The rows of system collections are computed from the catalog whenever they are asked for.
"""

from typing import Final

import pyarrow as pa

from persist.client.collections.environment import Environment
from persist.client.collections.reading.live import rows_of
from persist.client.sql.errors import SqlError
from persist.core.catalog.ddl.described import Described, Session
from persist.core.catalog.ddl.privileges import check_may
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.ddl.system_tables import SYSTEM_COLLECTIONS, SystemCollection
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import no_environment
from persist.core.catalog.values import ObjectType, Space

_BY_NAME: Final = {(each.schema_name, each.name): each for each in SYSTEM_COLLECTIONS}


def system_collection(described: Described) -> SystemCollection | None:
    """The system collection that an item is; None: it is another."""
    if described.id.space is Space.USER or described.data is not None:
        return None
    return _BY_NAME.get((described.name.schema or "", described.name.item))


async def system_rows(
    collection: SystemCollection, environment: Environment, view: CatalogView | None, role: str
) -> pa.Table:
    """The rows of a system collection as a role sees them; none without an environment. Raises as ``rows_of``."""
    if view is not None:
        return await rows_of(collection, environment.access.client, view, role, environment.audit_events)
    return pa.schema([*collection.schema.key, *collection.schema.val]).empty_table()


class CatalogNames:
    """The names of a catalog, or of none yet. What is resolved must be allowed to the session's role."""

    def __init__(self, view: CatalogView | None, letter: str = "r") -> None:
        """``letter``: the privilege that is needed."""
        self._view = view
        self._letter = letter

    def resolve(self, name: QualifiedName, session: Session) -> Described:
        """The item of a name. Raises UnknownObject, PrivilegeMissing; Uninitialized: there are no names yet."""
        view = self._view
        if view is None:
            raise no_environment(name=name)
        described = view.resolve(name, session)
        if described.kind is ObjectType.SOURCE and described.schema is None:
            fed = [str(each.name) for each in view.items(ObjectType.SUBSOURCE) if each.fed_by == described.id]
            raise SqlError(
                "the rows of a source are in what it feeds",
                hint=f"name {' or '.join(fed)}" if fed else "it feeds nothing yet: see persist source list",
                name=described.name,
            )
        check_may(view, view.role(session.role), self._letter, described.kind, str(described.name), described)
        return described
