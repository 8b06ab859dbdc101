"""A process that runs statements: ``growing_worker DIR WHEN SEED``, or writes rows of its own until a line stops it.

``WHEN`` it is killed while it, as the leader, adds a column: ``before`` the shard has it, ``between`` that and the
commit, ``after`` the commit; or ``never``. ``write N`` on standard input writes until a line comes, and then says what
rows of its own there are.
"""

import asyncio
import functools
import json
import os
import random
import signal
import sys
from typing import Any

from persist import aio
from persist.client.collections.control.storage import ShardStorage
from persist.client.shard.client import ShardClient
from persist.client.sql.session import SqlSession
from persist.errors import NotYetAvailable, PersistError
from persist.settings import Settings

QUICK = Settings(poll_first_ms=5, poll_max_ms=50, timeout_ms=30_000)
KEYS = 12
"""Of each writer."""
WRITES = 80
"""Of each writer, at most."""


def dying(method: Any, *, first: bool) -> Any:
    @functools.wraps(method)
    async def killed(*given: Any, **more: Any) -> Any:
        if method.__name__ != "settle" or given[1].grown:
            if not first:
                await method(*given, **more)
            os.kill(os.getpid(), signal.SIGKILL)
        return await method(*given, **more)

    return killed


def die(when: str) -> None:
    match when:
        case "before" | "between":
            ShardClient.evolve_schema = dying(ShardClient.evolve_schema, first=when == "before")  # type: ignore[method-assign]  # a process that dies there
        case "after":
            ShardStorage.settle = dying(ShardStorage.settle, first=True)  # type: ignore[method-assign]  # the same


async def line() -> str:
    return (await asyncio.to_thread(sys.stdin.readline)).strip()


async def write(session: SqlSession, number: int, dice: random.Random) -> dict[int, int]:
    """Rows of its own, in whatever way, until a line comes: by id, what there is of them."""
    rows: dict[int, int] = {}
    stop = asyncio.create_task(line())
    for _ in range(WRITES):
        if stop.done():
            break
        key = number * 1000 + dice.randrange(KEYS)
        value = dice.randrange(10**6)
        if key not in rows:
            text, after = f"insert into t (id, n) values ({key}, {value})", value
        elif dice.random() < 0.5:
            text, after = f"update t set n = {value} where id = {key}", value
        else:
            text, after = f"delete from t where id = {key}", None
        try:
            await session.execute(text)
        except NotYetAvailable:
            continue  # nothing happened
        if after is None:
            del rows[key]
        else:
            rows[key] = after
    await stop
    return rows


async def main(place: str, when: str, seed: str) -> None:
    die(when)
    async with await aio.embedded(place, settings=QUICK) as client:
        session = await client.session()
        print("ready", flush=True)
        while text := await line():
            try:
                if text.startswith("write "):
                    said: object = await write(session, int(text.removeprefix("write ")), random.Random(seed))
                else:
                    said = (await session.execute(text))[-1].rows if text else []
            except PersistError as error:
                said = f"{type(error).__name__}: {error}"
            print(json.dumps(said), flush=True)
        await session.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
