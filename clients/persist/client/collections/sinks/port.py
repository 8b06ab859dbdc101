"""Target: a place outside that keeps updates and a position, both in one transaction.

Source: catalog-semantics.md section 3.2: exactly-once needs data and position stored in one sink transaction.
"""

from typing import Protocol

import pyarrow as pa

from persist.errors import InvalidArgument


class PositionMoved(InvalidArgument):
    """Another process wrote to the target meanwhile: nothing was written now. Let only one of them write."""


class Target(Protocol):
    """What updates are written into. Blocking: it is called in a thread of its own, one call at a time.

    ``key``: which cursor over which collection; a target may serve several. Every method may raise LocationError; after
    Indeterminate the position shows whether it was written.
    """

    def begin(self, key: str, schema: pa.Schema) -> int | None:
        """Make what is missing for updates of this schema; the position that is kept, None: nothing was written yet.

        Raises InvalidArgument: what is there is for another schema.
        """
        ...

    def write(self, key: str, updates: pa.Table, before: int | None, position: int) -> None:
        """Add the updates and keep ``position``, together or not at all, if the position kept is ``before``.

        Raises PositionMoved when it is another one.
        """
        ...

    def close(self) -> None:
        """Release connections. Closing again does nothing."""
        ...


def moved(key: str, found: int | None, before: int | None) -> PositionMoved:
    """The error for a position that is not the one that was left there."""
    return PositionMoved(
        "another process wrote to this target meanwhile",
        hint="let one process write to it; begin again to go on from what it has",
        cursor=key,
        found="none" if found is None else found,
        left_at="none" if before is None else before,
    )
