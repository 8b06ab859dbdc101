"""A process that writes and reads a view at shared stores, until it is killed: Blob, Consensus, who it is."""

import asyncio
import itertools
import sys

from client.support import SMALL

from persist import aio


async def main(blob: str, consensus: str, who: int) -> None:
    for number in itertools.count():
        # As commands do: nothing of a process lives on to the next statement.
        async with await aio.embedded(blob=blob, consensus=consensus, settings=SMALL) as client:
            await client.sql("insert into t values (?, 1)", [who * 1_000_000 + number])
        async with await aio.embedded(blob=blob, consensus=consensus, settings=SMALL) as client:
            ((n, v),) = (await client.sql("select n, v from totals"))[-1].rows
        print(n, v, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
