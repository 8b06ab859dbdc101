"""Where rows are, for tests of stashes: logs that are opened again, and closed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from catalog.memory_log import MemoryLog, MemoryRows

from persist.client.catalog.log.stash_log import StashLog, open_stash_log
from persist.client.catalog.port import RowLog
from persist.retry.attempts import Attempts
from persist.runtime import system
from persist.settings import Settings
from persist.storage.stash.port import Stash
from persist.storage.stash.postgres import PostgresStash
from persist.storage.stash.sqlite import SqliteStash

HISTORY = 8


def make_hasty(log: RowLog) -> None:
    """From now on it gives up after a second."""
    assert isinstance(log, StashLog)
    log._attempts = Attempts(settings=Settings(timeout_ms=1_000), runtime=system())


class Place:
    """Where rows are: opens logs of it, and closes them."""

    def __init__(self, kind: str, uri: str) -> None:
        self.kind = kind
        self.uri = uri
        self.memory = MemoryRows(forgetful=True)
        self.logs: list[RowLog] = []

    async def log(self, environment: str = "test", *, history: int | None = None) -> RowLog:
        if self.kind == "memory":
            log: RowLog = MemoryLog(self.memory)
        elif history is None:
            log = await open_stash_log(self.uri, environment)
        else:
            log = StashLog(self.stash(history), environment, settings=Settings(), runtime=system())
        self.logs.append(log)
        return log

    def stash(self, history: int) -> Stash:
        if self.kind == "postgres":
            return PostgresStash(self.uri, history=history)
        return SqliteStash(self.uri.removeprefix("sqlite:"), system(), history=history)


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Place]:
    try:
        yield place
    finally:
        for log in place.logs:
            await log.close()
