"""A process that makes the tables it is given on standard input: ``environment_worker DIR``.

For each name it says ``ok NAME`` or the class of the error, and whether it leads.
"""

import asyncio
import sys

import pyarrow as pa

from persist import aio
from persist.core.catalog.ddl.statements import CreateTable, QualifiedName
from persist.core.data.schema import Schema
from persist.errors import PersistError
from persist.settings import Settings

ROWS = Schema({"id": pa.int64()}, {"name": pa.string()})
QUICK = Settings(poll_first_ms=5, poll_max_ms=50, timeout_ms=20_000)


async def main(place: str) -> None:
    async with await aio.embedded(place, settings=QUICK) as client:
        environment = await client.environment()
        print("ready", flush=True)
        while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
            try:
                await environment.execute(CreateTable(QualifiedName(name), ROWS))
                said = f"ok {name}"
            except PersistError as error:
                said = type(error).__name__
            print(said, "leads" if environment.leads else "follows", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
