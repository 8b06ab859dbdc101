"""Making a catalog whole whose rows do not sum up: in one append, which fences whoever leads.

Source: catalog-semantics.md sections 1.2.3 and 1.2.12.
"""

from persist.client.catalog.log.append import append
from persist.client.catalog.port import Repair, RowLog, Updates
from persist.core.catalog.kinds import FENCE_TOKEN
from persist.core.catalog.leadership.fencing import KEY
from persist.core.catalog.leadership.repair import Tally
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.rows import RowCodec, RowUpdate


async def repair(log: RowLog, codec: RowCodec, *, commit: bool) -> Repair:
    """What makes the rows whole, done if ``commit``. Nothing is appended where nothing is wrong."""
    while True:
        read = await log.updates(0)
        tally = Tally(codec, read.updates)
        damages, last = tuple(tally.damages()), tally.last_token()
        if not damages:
            return Repair((), (), None, Updates(tally.whole(max(read.upper - 1, 0)), read.upper))
        token = FenceToken(last.deploy_generation, last.epoch + 1)
        fence = codec.encode(FENCE_TOKEN.tag, KEY, token)
        changes = [*tally.mend(), *tally.replaced(fence.kind, fence.key, fence)]
        mended = Updates([*read.updates, *(RowUpdate(row, read.upper, diff) for row, diff in changes)], read.upper + 1)
        if not commit:
            return Repair(damages, tuple(changes), None, _whole(codec, mended))
        if await append(log, tally, changes, read.upper, expected_upper=read.upper) is None:
            return Repair(damages, tuple(changes), token, _whole(codec, mended))


def _whole(codec: RowCodec, read: Updates) -> Updates:
    return Updates(Tally(codec, read.updates).whole(read.upper - 1), read.upper)
