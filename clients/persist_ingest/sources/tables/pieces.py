"""Which tables a source reads at once, and how much of the others in a piece.

Source: sources.md section 1, snapshot; docs/adr/0019-snapshots-in-pieces.md.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from persist_ingest.sources.tables.definition import SourceTable, TableColumn

PIECE_BYTES: Final = 32 << 20

TableT = TypeVar("TableT", bound=SourceTable[TableColumn])


def in_pieces(
    tables: Sequence[TableT], bytes_of: Callable[[TableT], int], is_ordered: Callable[[TableT], bool], at_once: int
) -> tuple[str, ...]:
    """The exports that are too large to be begun with again, and can be divided. The smallest are read at once.

    ``at_once``: bytes of all that are; ``is_ordered``: whether a table can be divided.
    """
    sizes = {table.export: bytes_of(table) for table in tables}
    whole, found = 0, []
    for table in sorted(tables, key=lambda table: sizes[table.export]):
        whole += sizes[table.export]
        if whole > at_once and is_ordered(table):
            found.append(table.export)
    return tuple(found)


def rows_of_piece(rows: int, known: int, size: int, most: int) -> int:
    """How many rows a piece has, when ``known`` of them have ``size`` bytes (0: unknown) and it may have ``most``."""
    return max(1, min(rows, rows if not known or not size else most * known // size))
