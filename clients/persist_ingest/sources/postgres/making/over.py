"""Altered tables that are snapshotted again by themselves: later each time, and not for ever.

Source: sources.md section 1, semantics seen (DDL).
"""

from dataclasses import replace

from persist_ingest.sources.port import TakenOver
from persist_ingest.sources.postgres.definition import PostgresDefinition
from persist_ingest.sources.tables.taking_over import next_time


def taken_over(definition: PostgresDefinition, export: str, now_ms: int) -> TakenOver | None:
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
