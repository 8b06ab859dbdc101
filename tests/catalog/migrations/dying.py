"""A process that opens a catalog and is killed amid it: ``python -m catalog.migrations.dying BLOB CONSENSUS N WHEN``.

``N``: at which append, from 0. ``WHEN``: ``before`` it is made or ``after`` it is done. One that makes fewer lives on.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from persist import aio
from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.log.shard_log import open_shard_log
from persist.client.catalog.port import RowLog
from persist.core.catalog.rows import Row

ENVIRONMENT = "dying"


class Dying:
    """A log whose process is killed at an append."""

    def __init__(self, log: RowLog, at: int, when: str) -> None:
        self._log, self._left, self._when = log, at, when

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)

    async def append(self, changes: Sequence[tuple[Row, int]], ts: int, *, expected_upper: int) -> int | None:
        mine = self._left == 0
        self._left -= 1
        if mine and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = await self._log.append(changes, ts, expected_upper=expected_upper)
        if mine and self._when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return found


async def main(blob: str, consensus: str, at: int, when: str) -> None:
    async with await aio.embedded(blob=blob, consensus=consensus) as client:
        log = await open_shard_log(client, ENVIRONMENT)
        await DurableCatalog(Dying(log, at, when)).open(1)  # type: ignore[arg-type]  # the rest is the log's own
        await log.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
