"""Deadlines around store calls, and what a missed one means.

A call that was not sent yet, or a read, certainly changed nothing: Determinate. A mutation that was sent may still
happen: Indeterminate. Source: reliability.md sections 0 and 4.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from persist.errors import Determinate, Indeterminate, LocationError
from persist.runtime import Runtime
from persist.storage.checks import check_timeout
from persist.threads import storing

T = TypeVar("T")


class StoreCall:
    """One call in flight. ``sent`` is set just before anything could reach the store."""

    def __init__(self, what: str, timeout: float, *, mutation: bool) -> None:
        self.what = what
        self.timeout = timeout
        self.mutation = mutation
        self.sent = False

    def late(self) -> LocationError:
        """The error when the deadline has passed."""
        if not self.sent:
            return Determinate(
                f"{self.what}: no connection in time", hint="retry, or allow more time", timeout_s=self.timeout
            )
        return self.failed("no answer in time", f"timeout_s={self.timeout}")

    def failed(self, why: str, detail: object) -> LocationError:
        """The error when the answer was lost."""
        if self.mutation and self.sent:
            return Indeterminate(f"{self.what}: {why}", hint="repeat it to find out the outcome", detail=detail)
        return Determinate(f"{self.what}: {why}", hint="nothing happened; retry", detail=detail)


@asynccontextmanager
async def deadline(what: str, timeout: float, *, mutation: bool = False) -> AsyncIterator[StoreCall]:
    """The body must end within ``timeout`` seconds, or it is cancelled and the call's ``late`` error raised."""
    call = StoreCall(what, timeout, mutation=mutation)
    scope = asyncio.timeout(check_timeout(timeout))
    try:
        async with scope:
            yield call
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise call.late() from error


async def offloaded(
    runtime: Runtime, what: str, timeout: float, function: Callable[..., T], *args: object, mutation: bool = False
) -> T:
    """Run blocking ``function`` off the loop. When late, it goes on in its thread and its result is dropped."""
    async with deadline(what, timeout, mutation=mutation) as call:
        call.sent = True
        return await storing(runtime, function, *args)
    raise AssertionError("unreachable")
