"""Making objects of rows, a piece at a time, so that whatever else runs on the event loop goes on."""

from itertools import islice
from typing import Final

from persist.client.catalog.gc_pause import no_collection
from persist.client.catalog.raw import RawCatalog
from persist.core.catalog.kinds import KINDS
from persist.core.catalog.rows import Row, RowCodec
from persist.core.catalog.snapshot import Snapshot
from persist.runtime import system

PIECE: Final = 500
"""Rows decoded between two turns of others: some milliseconds."""


async def load(codec: RowCodec, raw: RawCatalog) -> Snapshot:
    """All objects of the rows. Raises CorruptData."""
    snapshot = Snapshot()
    with no_collection():
        for tag, rows in raw.rows.items():
            left = iter(rows.items())
            while piece := list(islice(left, PIECE)):
                snapshot.load(codec, tag, piece)
                await system().sleep(0)
    snapshot.recount(raw.counts)
    return snapshot


def difference(codec: RowCodec, snapshot: Snapshot, raw: RawCatalog) -> list[tuple[Row, int]]:
    """What changes the snapshot to the rows, append-only kinds left out, retractions first."""
    gone: list[tuple[Row, int]] = []
    come: list[tuple[Row, int]] = []
    for kind in KINDS:
        tag = kind.tag
        if kind.append_only:
            continue
        mine = dict(codec.encode(tag, *each)[1:] for each in snapshot.objects(kind).items())
        theirs = raw.rows.get(tag, {})
        gone += [(Row(tag, key, value), -1) for key, value in mine.items() if theirs.get(key) != value]
        come += [(Row(tag, key, value), 1) for key, value in theirs.items() if mine.get(key) != value]
    return [*gone, *come]
