"""Which tables a new source reads at once, under its slot's snapshot, and which in pieces once it is recorded.

Source: sources.md section 1, snapshot; docs/adr/0019-snapshots-in-pieces.md.
"""

from typing import Final

from persist_ingest.sources.postgres.definition import PostgresDefinition
from persist_ingest.sources.postgres.order import Order
from persist_ingest.sources.postgres.pieces import PIECE_BYTES, about
from persist_ingest.sources.postgres.session import UpstreamConnection

AT_ONCE_BYTES: Final = PIECE_BYTES
"""Bytes of all tables together that are read at once: as many as are read again when a piece is broken off."""


def in_pieces(session: UpstreamConnection, definition: PostgresDefinition) -> tuple[str, ...]:
    """The exports that are too large to be begun with again, and can be divided. The smallest are read at once.

    Not without a primary key; not where updates are not sent, as a row that moves from one piece to another is seen
    twice then; not from a standby, where a piece waits for a moment without transactions.
    """
    (is_standby,) = session.row("SELECT pg_is_in_recovery()")
    if "update" not in definition.publishes or is_standby:
        return ()
    sizes = {table.export: about(session, table)[1] for table in definition.tables}
    whole, found = 0, []
    for table in sorted(definition.tables, key=lambda table: sizes[table.export]):
        whole += sizes[table.export]
        if whole > AT_ONCE_BYTES and Order.of(session, table) is not None:
            found.append(table.export)
    return tuple(found)
