"""Times as people read them: beside a number, the date that it may be. Source: docs/concepts.md, times."""

from datetime import UTC, datetime
from typing import Final

DATED_MIN: Final = 10**11
"""From here on (1973) a time is taken for milliseconds when it is shown; counts stay below."""


def dated(time: int) -> str:
    """A time, and the date it is if it is in milliseconds: ``1795326402596 (2026-11-22T05:46:42.596Z)``."""
    try:
        date = datetime.fromtimestamp(time / 1000, UTC) if time >= DATED_MIN else None
    except (OverflowError, ValueError, OSError):
        date = None
    if date is None:
        return str(time)
    return f"{time} ({date.isoformat(timespec='milliseconds').removesuffix('+00:00')}Z)"
