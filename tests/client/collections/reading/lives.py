"""What processes do that live as long as one statement each."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from persist import aio
from persist.client.sql.session import SqlSession
from persist.typed import SqlRow

Opening = Callable[[], AbstractAsyncContextManager[aio.Client]]


@asynccontextmanager
async def life(opening: Opening) -> AsyncIterator[SqlSession]:
    """What a command does: a client and an environment of its own, both gone at its end."""
    async with opening() as client:
        environment = await client.environment()
        session = SqlSession(environment)
        try:
            yield session
        finally:
            await session.close()
            await environment.close()


async def lives(opening: Opening, *texts: str) -> list[SqlRow]:
    """Each text by a process of its own; the rows of the last one."""
    rows: list[SqlRow] = []
    for text in texts:
        async with life(opening) as session:
            rows = (await session.execute(text))[-1].rows
    return rows
