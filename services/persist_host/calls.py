"""What handlers of several services share: how long a call may take, and how draining ends those that wait."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from persist.errors import Determinate

if TYPE_CHECKING:
    import grpc.aio

T = TypeVar("T")

if TYPE_CHECKING:
    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
    """What a handler is given of its call, whatever the messages."""
else:
    Context = object


def seconds_left(context: Context) -> float:
    """Seconds a call may take: the caller's deadline, less what the answer needs to arrive in time."""
    left: float = context.time_remaining()
    return left - min(0.1, left * 0.2)


def seconds_to_wait(context: Context, wait_ms: int) -> float:
    """Seconds a call may wait for what has not happened yet: as it says, at most what its deadline leaves."""
    left = seconds_left(context)
    return min(left, wait_ms / 1000) if wait_ms else left


class Waiters:
    """Calls that wait for news, perhaps for hours."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Task[Any]] = set()
        self.draining = False

    def drain(self) -> None:
        """End every wait at once."""
        self.draining = True
        for waiter in self._waiters:
            waiter.cancel()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A block that waits for news and sends none: draining ends it with Determinate.

        SUBTLE: gRPC swallows a cancellation that hits it while it sends a message, and the caller would get no answer.
        """
        self._check()
        task = asyncio.current_task()
        assert task is not None
        self._waiters.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self.draining:
                raise
            task.uncancel()
            raise _draining() from None
        finally:
            self._waiters.discard(task)

    async def each(self, items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """The items, which are a generator's, waiting for each; closes them at its end.

        Raises Determinate as soon as draining begins.
        """
        async with aclosing(cast(AsyncGenerator[T, None], items)):
            while True:
                with self.waiting():
                    try:
                        item = await anext(items)
                    except StopAsyncIteration:
                        return
                yield item

    def _check(self) -> None:
        if self.draining:
            raise _draining()


def _draining() -> Determinate:
    return Determinate("the server is draining", hint="ask again from the frontier reached")
