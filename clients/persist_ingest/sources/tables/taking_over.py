"""When an altered export is snapshotted again by itself: later each time, and not for ever.

Source: sources.md section 1, semantics seen (DDL).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from persist_ingest.sources.port import TakenOver
from persist_ingest.sources.tables.definition import SourceTable, TableColumn, TablesDefinition

WITHIN_MS: Final = 86_400_000
TIMES_MAX: Final = 6
"""How often within that time. Then the table waits for a person: something alters it again and again."""
FIRST_MS: Final = 10_000
"""After the first time within that time it waits before each, and four times as long as before."""
_FACTOR: Final = 4


def taken_over(definition: TablesDefinition[SourceTable[TableColumn]], export: str, now_ms: int) -> TakenOver | None:
    """See TakesOver."""
    tables = definition.of({export}).tables
    if not definition.takes_over or not tables:
        return None
    (table,) = tables
    found = next_time(table.altered_ms, now_ms)
    if found is None:
        return None
    lately, at_ms, hint = found
    noted = definition.within(replace(definition, tables=(replace(table, altered_ms=lately),)))
    return TakenOver(definition=noted.to_json(), at_ms=at_ms, hint=hint)


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
