"""What all public handles have in common: they stay in their process, and once closed every call raises UsageError.

Both hold for a whole class, and for those made from it, whatever methods they have or get. Source: reliability.md
section 5; style.md rule 26.
"""

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, ClassVar, Final

from persist.errors import Indeterminate, UsageError

SHIP: Final = (
    "open a client there, with the same place and ids; to read or write with it elsewhere, ship splits of a snapshot, "
    "writer.batch_spec() and prepared batches"
)


class Stays:
    """An object that belongs to its process. Pickling and copying raise UsageError, which says what to ship instead."""

    def __reduce_ex__(self, protocol: object) -> Any:
        raise UsageError(f"a {type(self).__name__} cannot be pickled or copied", hint=SHIP)


class Closes(Stays):
    """An object that ends by ``close``. Then every public method raises UsageError, at once; closing again does
    nothing.

    Properties stay readable. ``_belongs_to``: what this was opened from, with which it ends. ``_noun`` and ``_again``:
    how the refusal names it, and what it advises.
    """

    _noun: ClassVar[str]
    _again: ClassVar[str]
    _belongs_to: "Closes | None" = None
    _is_closing = False
    _is_closed = False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name, member in list(vars(cls).items()):
            if name == "close":
                setattr(cls, name, _closing(member))
            elif not name.startswith("_") and inspect.isfunction(member):
                setattr(cls, name, _guarded(member))

    def _check_not_closed(self) -> None:
        of = self._closed()
        if of is not None:
            raise UsageError(f"the {of._noun} is closed", hint=of._again)

    def _closed(self) -> "Closes | None":
        """This, or what it belongs to, if that is closed."""
        of: Closes | None = self
        while of is not None and not (of._is_closed or of._is_closing):
            of = of._belongs_to
        return of


def _closing(close: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(close)
    async def closing(self: Closes) -> None:
        if self._is_closed:
            return
        self._is_closing = True
        await close(self)
        self._is_closed = True

    return closing


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def generating(self: Closes, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            self._check_not_closed()
            async with aclosing(method(self, *args, **kwargs)) as found:
                async for each in found:
                    yield each

        return generating
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def calling(self: Closes, *args: Any, **kwargs: Any) -> Any:
            self._check_not_closed()
            task = asyncio.current_task()
            before = 0 if task is None else task.cancelling()
            try:
                return await method(self, *args, **kwargs)
            except asyncio.CancelledError as error:
                of = self._closed()
                if of is None or (task is not None and task.cancelling() > before):
                    raise
                # SUBTLE: this caller was not cancelled, whose own task would look as if it was.
                hint = "look whether it happened, if it was to change something"
                raise Indeterminate(f"the {of._noun} was closed during the call", hint=hint) from error

        return calling

    @functools.wraps(method)
    def plain(self: Closes, *args: Any, **kwargs: Any) -> Any:
        self._check_not_closed()
        return method(self, *args, **kwargs)

    return plain
