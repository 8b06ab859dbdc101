"""What all public handles have in common: they stay in their process, and once closed every call raises UsageError.

Both hold for a whole class, and for those made from it, whatever methods they have or get. Source: reliability.md
section 5; style.md rule 26.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, ClassVar, Final

from persist.errors import UsageError

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
        of: Closes | None = self
        while of is not None:
            if of._is_closed or of._is_closing:
                raise UsageError(f"the {of._noun} is closed", hint=of._again)
            of = of._belongs_to


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
            return await method(self, *args, **kwargs)

        return calling

    @functools.wraps(method)
    def plain(self: Closes, *args: Any, **kwargs: Any) -> Any:
        self._check_not_closed()
        return method(self, *args, **kwargs)

    return plain
