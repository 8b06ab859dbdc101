"""Which tables a new source reads at once, under its slot's snapshot, and which in pieces once it is recorded.

Source: sources.md section 1, snapshot; docs/adr/0019-snapshots-in-pieces.md.
"""

from typing import Final

from persist_ingest.sources.postgres.definition import PostgresDefinition
from persist_ingest.sources.postgres.order import Order
from persist_ingest.sources.postgres.pieces import about
from persist_ingest.sources.postgres.session import UpstreamConnection
from persist_ingest.sources.tables.pieces import PIECE_BYTES, in_pieces

AT_ONCE_BYTES: Final = PIECE_BYTES
"""Bytes of all tables together that are read at once: as many as are read again when a piece is broken off."""


def begun_in_pieces(session: UpstreamConnection, definition: PostgresDefinition) -> tuple[str, ...]:
    """See ``in_pieces``.

    Not without a primary key; not where updates are not sent, as a row that moves from one piece to another is seen
    twice then; not from a standby, where a piece waits for a moment without transactions.
    """
    (is_standby,) = session.row("SELECT pg_is_in_recovery()")
    if "update" not in definition.publishes or is_standby:
        return ()
    return in_pieces(
        definition.tables,
        lambda table: about(session, table)[1],
        lambda table: Order.of(session, table) is not None,
        AT_ONCE_BYTES,
    )
