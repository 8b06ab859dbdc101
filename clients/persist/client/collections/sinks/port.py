"""Target: a place outside that keeps updates and a position, both in one transaction.

Source: catalog-semantics.md section 3.2: exactly-once needs data and position stored in one sink transaction.
"""

import re
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from persist.errors import InvalidArgument

EARLIER: Final = " in history "
"""What an earlier release wrote between the key of a cursor and its history."""
_EARLIER: Final = re.compile(rf"(.* over s[0-9a-f-]{{36}}){EARLIER}([0-9a-f]{{1,16}})", re.DOTALL)


class PositionMoved(InvalidArgument):
    """Another process wrote to the target meanwhile: nothing was written now. Let only one of them write."""


class Target(Protocol):
    """What updates are written into. Blocking: it is called in a thread of its own, one call at a time.

    ``key``: which cursor over which collection; a target may serve several. ``history``: that of the cursor's location,
    0 until that was restored; a position is of the one in which it was written. Every method may raise LocationError;
    after Indeterminate the position shows whether it was written.
    """

    def begin(self, key: str, history: int, schema: pa.Schema) -> int | None:
        """Make what is missing for updates of this schema; the position that is kept, None: nothing was written yet.

        Raises InvalidArgument: what is there is for another schema, or has updates of this key in another history, some
        of which the restore between the two may have taken back.
        """
        ...

    def write(self, key: str, history: int, updates: pa.Table, before: int | None, position: int) -> None:
        """Add the updates and keep ``position``, together or not at all, if the position kept is ``before``.

        Raises PositionMoved when it is another one, and InvalidArgument as ``begin``.
        """
        ...

    def close(self) -> None:
        """Release connections. Closing again does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """Updates that follow ``before`` (None: they are the contents that the cursor begins with), and how far they reach.

    ``updates``: the columns, ts and diff, by rising ts; all there are at times from ``before`` on and before
    ``position``. Once they are taken over, ``position`` may be acknowledged, or gone on from.
    """

    updates: pa.Table
    before: int | None
    position: int


class Fetches(Protocol):
    """What updates come from: a Cursor, as one who delivers sees it."""

    @property
    def name(self) -> str:
        """As it was created."""
        ...

    @property
    def key(self) -> str:
        """See Target."""
        ...

    @property
    def history(self) -> int:
        """See Target."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Of the updates."""
        ...

    @property
    def position(self) -> int | None:
        """How far it was fetched."""
        ...

    @property
    def acknowledged(self) -> int | None:
        """How far it was acknowledged."""
        ...

    @property
    def over(self) -> bool:
        """Nothing will ever follow."""
        ...

    async def seek(self, position: int | None) -> None:
        """Go on from there."""
        ...

    async def fetch(self, count: int | None = None, *, timeout: float = 0.0) -> Fetched:
        """What follows."""
        ...

    async def acknowledge(self, up_to: int | None = None) -> None:
        """It is taken over up to there. Raises LocationError."""
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


def of_another_history(key: str) -> InvalidArgument:
    """The error for a target with updates of the same cursor from before a restore, or from after it."""
    return InvalidArgument(
        "this target has updates from before the location was restored, or from after that",
        hint="make a new sink or cursor, which begins with the contents, and deliver it into another table or folder",
        cursor=key,
    )


def of_earlier_release(kept: str) -> tuple[str, int] | None:
    """The key and the history, where a release that kept both in one text wrote ``kept``; None: it is a key.

    A key ends with the id of what is followed, so that nothing that a name may hold is taken for a history.
    """
    found = _EARLIER.fullmatch(kept)
    return None if found is None else (found[1], int(found[2], 16))
