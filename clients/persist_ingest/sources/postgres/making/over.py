"""Altered tables that are snapshotted again by themselves: later each time, and not for ever.

Source: sources.md section 1, semantics seen (DDL).
"""

from dataclasses import replace
from typing import Final

from persist_ingest.sources.port import TakenOver
from persist_ingest.sources.postgres.definition import PostgresDefinition

WITHIN_MS: Final = 86_400_000
TIMES_MAX: Final = 6
"""How often within that time. Then the table waits for a person: something alters it again and again."""
FIRST_MS: Final = 10_000
"""After the first time within that time it waits before each, and four times as long as before."""
_FACTOR: Final = 4


def taken_over(definition: PostgresDefinition, export: str, now_ms: int) -> TakenOver | None:
    """See TakesOver."""
    tables = definition.of({export}).tables
    if not definition.takes_over or not tables:
        return None
    (table,) = tables
    lately = tuple(each for each in table.altered_ms if each > now_ms - WITHIN_MS)
    if len(lately) >= TIMES_MAX:
        return None
    wait_ms = FIRST_MS * _FACTOR ** (len(lately) - 1) if lately else 0
    noted = replace(table, altered_ms=(*lately, now_ms))
    number = len(lately) + 1
    hint = f"nothing: it is snapshotted again by itself, the {number}. time of {TIMES_MAX} in a day"
    if wait_ms:
        hint += f", {wait_ms // 1000} s after it stopped; persist source resnapshot begins at once"
    return TakenOver(
        definition=definition.within(replace(definition, tables=(noted,))).to_json(), at_ms=now_ms + wait_ms, hint=hint
    )
