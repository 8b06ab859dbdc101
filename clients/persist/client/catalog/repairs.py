"""Making a catalog whole whose rows do not sum up, setting its fence back: in one append, which fences the leader.

Source: catalog-semantics.md sections 1.2.3 and 1.2.12.
"""

from persist.client.catalog.log.append import append
from persist.client.catalog.port import CatalogUpdates, Repair, RowLog
from persist.core.catalog.kinds import FENCE_TOKEN
from persist.core.catalog.leadership.fencing import KEY, check_epoch_left, check_set_back, incarnation_row
from persist.core.catalog.leadership.repair import Tally
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.rows import Row, RowCodec, RowUpdate


async def repair(log: RowLog, codec: RowCodec, *, commit: bool, token: FenceToken | None = None) -> Repair:
    """What makes the rows whole, done if ``commit``, and sets the fence back to ``token``.

    Nothing is appended where nothing is wrong, unless there is a token. Raises InvalidArgument for one that is no step
    back.
    """
    while True:
        read = await log.updates(0)
        tally = Tally(codec, read.updates)
        damages = tuple(tally.damages())
        if token is not None:
            check_set_back(tally.last_token(), token)
        elif not damages:
            return Repair((), (), None, CatalogUpdates(tally.whole(max(read.upper - 1, 0)), read.upper))
        wanted, fence = _fence(codec, tally, token)
        changes = [*tally.mend(), *(change for row in fence for change in tally.replaced(row.kind, row.key, row))]
        mended = CatalogUpdates(
            [*read.updates, *(RowUpdate(row, read.upper, diff) for row, diff in changes)], read.upper + 1
        )
        if not commit:
            return Repair(damages, tuple(changes), None, _whole(codec, mended))
        if await append(log, tally, changes, read.upper, expected_upper=read.upper) is None:
            return Repair(damages, tuple(changes), wanted, _whole(codec, mended))


def _fence(codec: RowCodec, tally: Tally, token: FenceToken | None) -> tuple[FenceToken, list[Row]]:
    """The token that fences the former leader, and all rows of the fence as they are then."""
    last = tally.last_token()
    rows = [] if tally.incarnation == 0 else [incarnation_row(codec, tally.incarnation)]
    if token is None:
        check_epoch_left(last)
        token = FenceToken(last.deploy_generation, last.epoch + 1)
    else:
        rows = [incarnation_row(codec, tally.incarnation + 1)]
    return token, [codec.encode(FENCE_TOKEN.tag, KEY, token), *rows]


def _whole(codec: RowCodec, read: CatalogUpdates) -> CatalogUpdates:
    return CatalogUpdates(Tally(codec, read.updates).whole(read.upper - 1), read.upper)
