"""Each update into a target once: the target keeps the position with them, and what begins again begins there.

Source: catalog-semantics.md section 3.2, resume contract; collections: cursors.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from persist.client.collections.sinks.port import Fetches, Target
from persist.errors import InvalidArgument, LocationError
from persist.retry.deadline import Deadline
from persist.retry.tasks import forsake
from persist.runtime import Runtime
from persist.threads import users

T = TypeVar("T")

WAIT_SECONDS: Final = 1.0
"""How long one fetch waits for updates."""
IDLE_SECONDS: Final = 60.0
"""Without updates the position is written this often: else what is held for the cursor would never go."""

_log = logging.getLogger("persist.sinks")


async def deliver(
    cursor: Fetches,
    target: Target,
    runtime: Runtime,
    *,
    up_to: int | None,
    idle: float | None,
    count: int,
    acknowledge_seconds: float,
) -> int | None:
    """See ``Cursor.deliver``."""
    kept = await _asked(runtime, target.begin, cursor.key, cursor.history, cursor.schema)
    if kept is None and cursor.acknowledged is not None:
        raise InvalidArgument(
            "this target has nothing of what the cursor was acknowledged up to",
            hint="deliver into the target that has, or make a new cursor, which begins with the contents",
            cursor=cursor.name,
            acknowledged=cursor.acknowledged,
        )
    await cursor.seek(kept)
    acknowledged = Deadline(runtime, 0.0)
    written = Deadline(runtime, IDLE_SECONDS)
    news = None if idle is None else Deadline(runtime, idle)
    while up_to is None or cursor.position is None or cursor.position < up_to:
        patience = WAIT_SECONDS if news is None else min(WAIT_SECONDS, news.remaining())
        fetched = await cursor.fetch(count, timeout=patience)
        here = fetched.updates.num_rows > 0 or fetched.before is None
        over = up_to is not None and fetched.position >= up_to
        if here or over or written.passed:
            await _asked(runtime, target.write, cursor.key, cursor.history, fetched.updates, kept, fetched.position)
            kept, written = fetched.position, Deadline(runtime, IDLE_SECONDS)
            if acknowledged.passed:
                await _acknowledge(cursor, kept)
                acknowledged = Deadline(runtime, acknowledge_seconds)
        if here and idle is not None:
            news = Deadline(runtime, idle)
        if cursor.over or (news is not None and news.passed):
            break
    if kept is not None:
        await _acknowledge(cursor, kept)
    return kept


async def _asked(runtime: Runtime, function: Callable[..., T], *args: object) -> T:
    """What a target answers. SUBTLE: its thread cannot be cut short, so who is cancelled waits for its end. What
    goes on with the target would meet a write that nothing knows of, and remove what that has not named yet.
    """
    call = asyncio.ensure_future(users(runtime, function, *args))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        while not call.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([call])
        forsake(call)
        raise


async def _acknowledge(cursor: Fetches, position: int) -> None:
    try:
        await cursor.acknowledge(position)
    except LocationError as error:
        # It is in the target, which is what counts. History is kept for longer until the next one succeeds.
        _log.warning("cursor %s was not acknowledged up to %d: %s", cursor.name, position, error)
