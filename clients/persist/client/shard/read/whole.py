"""Reads whose end means that all of it was given: one that broke off before says so, however often it is asked.

A generator ends with whatever is raised in it, a cancellation or a Ctrl-C too, and asked again it would say that
nothing more comes. Source: reliability.md I6; style.md rule 26.
"""

from collections.abc import AsyncGenerator, Iterator
from types import TracebackType
from typing import Any, TypeVar

from persist.errors import UsageError

T = TypeVar("T")


class Whole(AsyncGenerator[T, None]):
    """An asynchronous generator that ends only at its end, or when it was closed. Raises UsageError once broken off."""

    def __init__(self, found: AsyncGenerator[T, None]) -> None:
        self._found = found
        self._broken = False

    async def asend(self, value: None, /) -> T:
        """The next one."""
        if self._broken:
            raise _broken_off()
        try:
            return await self._found.asend(value)
        except StopAsyncIteration:
            raise
        except BaseException:
            self._broken = True
            raise

    async def athrow(
        self,
        kind: type[BaseException] | BaseException,
        value: Any = None,
        trace: TracebackType | None = None,
        /,
    ) -> T:
        """Break it off."""
        self._broken = True
        error = kind if isinstance(kind, BaseException) else kind() if value is None else value
        return await self._found.athrow(error.with_traceback(trace) if trace is not None else error)

    async def aclose(self) -> None:
        """End it, and let go of what it holds."""
        await self._found.aclose()


class WholeIterator(Iterator[T]):
    """As ``Whole``, of a plain generator."""

    def __init__(self, found: Iterator[T]) -> None:
        self._found = found
        self._broken = False

    def __next__(self) -> T:
        if self._broken:
            raise _broken_off()
        try:
            return next(self._found)
        except StopIteration:
            raise
        except BaseException:
            self._broken = True
            raise

    def close(self) -> None:
        """End it, and let go of what it holds."""
        close = getattr(self._found, "close", None)
        if close is not None:
            close()


def _broken_off() -> UsageError:
    return UsageError("this read was interrupted before its end", hint="read again: what was given is not all")
