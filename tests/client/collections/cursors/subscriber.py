"""A process that writes what a cursor of the environment in a directory gives into a database, until it is killed.

python -m client.collections.cursors.subscriber DIRECTORY CURSOR DATABASE
"""

import asyncio
import dataclasses
import sys

from client.support import SMALL

from persist import aio
from persist.sinks import SqliteSink

BRIEF = dataclasses.replace(SMALL, reader_lease_ms=3_000)
"""Who is killed holds nothing for long."""


async def main(directory: str, cursor: str, database: str) -> None:
    async with await aio.embedded(directory, settings=BRIEF) as client:
        environment = await client.environment()
        async with await environment.cursor(cursor) as opened:
            await opened.deliver(SqliteSink(database, "updates"), count=20, acknowledge_seconds=0.05)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
