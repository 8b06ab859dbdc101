"""Blob stores opened by URI, once per process, for splits and builders that travelled here.

Used on the process loop only. A ``mem:`` store is found only in the process that made it.
"""

import asyncio

from persist.client.shard.loop_thread import process_loop
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob
from persist.storage.ports import Blob

_blobs: dict[tuple[asyncio.AbstractEventLoop, str, Settings], Blob] = {}


def process_blob(uri: str, settings: Settings) -> Blob:
    """The store at ``uri``, opened at first use and kept until the process ends. Raises InvalidUri."""
    loop = asyncio.get_running_loop()
    known = _blobs.get((loop, uri, settings))
    if known is None:
        for stale in [key for key in _blobs if key[0] is not loop]:
            del _blobs[stale]  # of the parent process, before a fork
        known = _blobs[(loop, uri, settings)] = open_blob(uri, settings=settings, runtime=system())
        process_loop().at_stop(known.close)
    return known
