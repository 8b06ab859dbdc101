"""Time limits of calls, for the parts of them that have none of their own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from persist.client.timeline.register import seconds
from persist.errors import Determinate
from persist.retry.deadline import Deadline


@asynccontextmanager
async def within(deadline: Deadline) -> AsyncIterator[None]:
    """A block that only looks, and ends with the time of its call. Raises Determinate: that was up."""
    try:
        async with asyncio.timeout(seconds(deadline)):
            yield
    except TimeoutError:
        raise Determinate(
            "the location did not answer in time", hint="repeat it, with a longer timeout if it is slow"
        ) from None
