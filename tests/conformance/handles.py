"""Handles to stores for tests, closed afterwards; keys of the forms persist makes."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from persist.core.ids import ShardId, WriterId, part_key
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus
from persist.storage.ports import Blob, Consensus

T = 60.0
"""Seconds a call may take."""


@asynccontextmanager
async def blobs(uri: str, count: int = 1) -> AsyncIterator[list[Blob]]:
    """That many handles to one store."""
    handles = [open_blob(uri, settings=Settings(), runtime=system()) for _ in range(count)]
    try:
        yield handles
    finally:
        for handle in handles:
            await handle.close()


@asynccontextmanager
async def consensuses(uri: str, count: int = 1) -> AsyncIterator[list[Consensus]]:
    """That many handles to one store."""
    handles = [open_consensus(uri, settings=Settings(), runtime=system()) for _ in range(count)]
    try:
        yield handles
    finally:
        for handle in handles:
            await handle.close()


def shard() -> ShardId:
    """A new shard id."""
    return ShardId.of(secrets.token_bytes(16))


def blob_key(of: ShardId | None = None) -> str:
    """A new part key, of that shard if given."""
    return part_key(of or shard(), WriterId.of(secrets.token_bytes(16)), 1, secrets.token_bytes(16))
