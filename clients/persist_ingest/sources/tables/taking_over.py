"""When an altered export is snapshotted again by itself: later each time, and not for ever.

Source: sources.md section 1, semantics seen (DDL).
"""

from collections.abc import Sequence
from typing import Final

WITHIN_MS: Final = 86_400_000
TIMES_MAX: Final = 6
"""How often within that time. Then the table waits for a person: something alters it again and again."""
FIRST_MS: Final = 10_000
"""After the first time within that time it waits before each, and four times as long as before."""
_FACTOR: Final = 4


def next_time(altered_ms: Sequence[int], now_ms: int) -> tuple[tuple[int, ...], int, str] | None:
    """When it was altered lately, when it is snapshotted, and what a person may do; None: it waits for one."""
    lately = tuple(each for each in altered_ms if each > now_ms - WITHIN_MS)
    if len(lately) >= TIMES_MAX:
        return None
    wait_ms = FIRST_MS * _FACTOR ** (len(lately) - 1) if lately else 0
    number = len(lately) + 1
    hint = f"nothing: it is snapshotted again by itself, the {number}. time of {TIMES_MAX} in a day"
    if wait_ms:
        hint += f", {wait_ms // 1000} s after it stopped; persist source resnapshot begins at once"
    return (*lately, now_ms), now_ms + wait_ms, hint
