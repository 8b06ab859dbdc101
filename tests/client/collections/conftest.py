"""Stores that processes of several machines may share."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from persist import aio
from persist.client.client import Client
from persist.settings import Settings
from persist.testing.servers import redis_server


@pytest.fixture
def shared_place(tmp_path: Path) -> "object":
    """Clients over files and a Redis server."""
    with redis_server() as uri:

        @asynccontextmanager
        async def opened() -> AsyncIterator[Client]:
            settings = Settings(poll_first_ms=5, poll_max_ms=50, timeout_ms=10_000)
            stores: dict[str, Any] = {"blob": f"file:{tmp_path}/blob", "consensus": uri}
            async with await aio.embedded(**stores, settings=settings) as client:
                yield client

        made: Callable[[], AbstractAsyncContextManager[Client]] = opened
        yield made
