"""Sessions over a fresh environment, for tests of SQL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from client.support import SMALL, Place, client_of, memory_place

from persist.client.sql.session import SqlSession
from persist.settings import Settings


@asynccontextmanager
async def sessions(
    count: int = 1, place: Place | None = None, settings: Settings = SMALL, **more
) -> AsyncIterator[list[SqlSession]]:
    """Sessions of one environment, each with a client of its own; the first leads."""
    async with client_of(place or memory_place(), settings=settings) as client:
        environment = await client.environment()
        opened = [SqlSession(environment, **more) for _ in range(count)]
        try:
            yield opened
        finally:
            for each in opened:
                await each.close()
            await environment.close()


async def rows(session: SqlSession, text: str, params=None):
    """The rows of the last statement of a text."""
    return (await session.execute(text, params))[-1].rows


async def last(session: SqlSession, text: str, params=None):
    """What became of the last statement of a text."""
    return (await session.execute(text, params))[-1]
