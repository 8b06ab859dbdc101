"""Work on large transactions in steps, so that whatever else runs on the event loop goes on."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from persist.core.catalog.prepared import LARGE, STEP
from persist.core.catalog.rows import Row, RowCodec, RowUpdate
from persist.core.catalog.transaction import CatalogTransaction
from persist.errors import CorruptData
from persist.runtime import system


async def prepare(transaction: CatalogTransaction, codec: RowCodec) -> None:
    """Make what a transaction comes down to, if it is large. Raises OutOfSync, InvalidArgument."""
    await in_turns(transaction.preparing(codec))


async def in_turns(steps: Iterator[None]) -> None:
    """Take all steps; others get their turn at the event loop between two of them. Raises what a step raises."""
    for _ in steps:
        await system().sleep(0)


async def decoded(codec: RowCodec, updates: Sequence[RowUpdate]) -> RowCodec:
    """A codec that has decoded the rows of many updates already, but those that it cannot read."""
    if len(updates) < LARGE:
        return codec
    known: dict[Row, tuple[object, object]] = {}
    for number, (row, _, _) in enumerate(updates):
        with suppress(CorruptData):
            known[row] = codec.decode(row)
        if number % STEP == 0:
            await system().sleep(0)
    return _Decoded(codec, known)


class _Decoded:
    """A RowCodec that knows some rows."""

    def __init__(self, codec: RowCodec, known: dict[Row, tuple[object, object]]) -> None:
        self._codec = codec
        self._known = known

    def encode(self, kind: str, key: object, value: object) -> Row:
        """See RowCodec."""
        return self._codec.encode(kind, key, value)

    def encode_key(self, kind: str, key: object) -> bytes:
        """See RowCodec."""
        return self._codec.encode_key(kind, key)

    def decode(self, row: Row) -> tuple[object, object]:
        """See RowCodec."""
        return self._known.get(row) or self._codec.decode(row)
