"""What executing statements needs of what controls the shards of an environment."""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from persist.core.catalog.ddl.described import Described, Frontiers
from persist.core.catalog.ddl.effects import Effects
from persist.core.catalog.values import Id
from persist.errors import PersistError

UNFIT: Final = "unfit"
"""A detail of OutOfSync: the shard that was to be a new collection's has other columns, and no rows."""


class Storage(Protocol):
    """The shards of collections, and the handles that hold them. Every method may be repeated without harm."""

    async def frontiers(self, collections: Iterable[Described]) -> Mapping[Id, Frontiers]:
        """The frontiers of stored collections, as their shards have them now. Raises LocationError."""
        ...

    async def each_frontiers(
        self, collections: Iterable[Described]
    ) -> tuple[Mapping[Id, Frontiers], Mapping[Id, PersistError]]:
        """The same of those of which they are known and that this leader controls, and what is wrong with the others.

        Raises Fenced.
        """
        ...

    async def prepare(self, effects: Effects) -> None:
        """Before the commit: shards made, handles taken over under this leader's token, new times held.

        Raises OutOfSync with UNFIT: another shard is to be taken for what is made.

        Raises AmbiguousName (a new name is that of a shard already).

        Raises NotReadable (a time is no longer there, whatever was computed), Fenced (a newer leader holds a handle),
        LocationError; nothing that readers see has changed then.
        """
        ...

    async def settle(self, effects: Effects) -> None:
        """After the commit: what is not needed is given up. Raises nothing: what fails is done by the loops."""
        ...

    async def undo(self, effects: Effects) -> None:
        """The commit was refused: what was held for it is given up. Raises nothing."""
        ...
