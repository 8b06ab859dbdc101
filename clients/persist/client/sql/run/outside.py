"""What statements define beyond the location: carried out by who runs them, where that is offered, and by no leader.

Source: collections: queries (fences).
"""

from collections.abc import Mapping
from typing import Protocol

from persist.core.catalog.ddl.described import Described
from persist.core.catalog.ddl.statements import CreateSource


class Sources(Protocol):
    """Makes and drops what pipelines ingest: with the upstreams, credentials and files of this process."""

    async def create(self, statement: CreateSource, role: str) -> str:
        """Set up a source, and its item, in the name of ``role``; what is to be said of it.

        Whole, or not at all. Raises InvalidArgument (its options), PrivilegeMissing, what its upstream raises.
        """
        ...

    async def alter(self, source: Described, options: Mapping[str, str]) -> None:
        """Give one that the role owns other options. Raises InvalidArgument, LocationError."""
        ...

    async def drop(self, source: Described, role: str, *, cascade: bool) -> None:
        """End one, with what it keeps upstream. Raises as ``create``, DependentObjects."""
        ...
