"""Reads whose end means that all rows were returned: one that broke off raises an error each time it is asked.

A generator ends with whatever is raised in it, a cancellation or a Ctrl-C too, and asked again it would say that
nothing more comes. Source: reliability.md I6; style.md rule 26.
"""

from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import Any, TypeVar

from persist.errors import UsageError

T = TypeVar("T")


class Whole(AsyncGenerator[T, None]):
    """An asynchronous generator that ends only when complete or closed. Raises UsageError once broken off."""

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
        return await self._found.athrow(_raised(kind, value, trace))

    async def aclose(self) -> None:
        """End it, and release what it holds."""
        await self._found.aclose()


class WholeIterator(Generator[T, None, None]):
    """As ``Whole``, of a plain generator."""

    def __init__(self, found: Generator[T, None, None]) -> None:
        self._found = found
        self._broken = False

    def send(self, value: None, /) -> T:
        """The next one."""
        if self._broken:
            raise _broken_off()
        try:
            return self._found.send(value)
        except StopIteration:
            raise
        except BaseException:
            self._broken = True
            raise

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: Any = None,
        trace: TracebackType | None = None,
        /,
    ) -> T:
        """Break it off."""
        self._broken = True
        return self._found.throw(_raised(kind, value, trace))

    def close(self) -> None:
        """End it, and release what it holds."""
        self._found.close()


def _raised(kind: type[BaseException] | BaseException, value: Any, trace: TracebackType | None) -> BaseException:
    error: BaseException = kind if isinstance(kind, BaseException) else kind() if value is None else value
    return error if trace is None else error.with_traceback(trace)


def _broken_off() -> UsageError:
    return UsageError("this read was interrupted before its end", hint="read again: what was given is not all")
